"""`https://`: a file on a web server, fetched with resumption and checked as it comes."""

import hashlib
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec
import structlog

from llmgw.catalog.spec import WeightsSpec
from llmgw.errors import WeightsRefused, WeightsUnavailable
from llmgw.statedir import sync_directory, write_atomic
from llmgw.units import format_bytes
from llmgw.weights import naming, partial, split
from llmgw.weights.api import Description, Fetched, RemoteFile, WeightSource, Work
from llmgw.weights.http import STALL_TIMEOUT, Asker, Cut, Reply, Who, refusal
from llmgw.weights.manifest import FILES, ManifestFile
from llmgw.weights.sources import Stopped, hash_prefix, in_thread

log = structlog.get_logger("llmgw.weights")

TRIES: Final = 5
"""In a row, without progress worth the name, before a download is given up for now."""
PROGRESS: Final = 1024 * 1024
LONGEST_WAIT: Final = 30.0
"""Seconds that a server may ask to be left alone without the download being given up for now."""

_CHUNK: Final = 256 * 1024
_CHECKPOINT: Final = 256 * 1024 * 1024
"""Bytes between two moments at which what was written is made durable."""


class Web(WeightSource):
    schemes = frozenset({"https", "http"})

    def __init__(self, *, stall: float = STALL_TIMEOUT, first_wait: float = 0.5) -> None:
        self._stall = stall
        self._first_wait = first_wait

    def canonical(self, text: str) -> str:
        return naming.canonical(text)

    async def describe(self, spec: WeightsSpec) -> Description:
        who = Who.of(spec)
        asker = Asker(who, stall=self._stall)

        def look(stop: threading.Event) -> tuple[RemoteFile, ...]:
            return tuple(_look(asker, who, url) for url in urls(spec))

        try:
            return Description(files=await in_thread(look, stopping=asker.stop))
        except Cut as cut:
            raise WeightsUnavailable(f"cannot ask for {spec.source} ({cut}): {_NETWORK}") from cut

    async def fetch(self, spec: WeightsSpec, work: Work) -> Fetched:
        who = Who.of(spec)
        wanted = urls(spec)
        sizes: list[int | None] = [None]
        if len(wanted) > 1:  # of several files, the sizes are known before the first byte of any
            sizes = [file.size for file in (await self.describe(spec)).files]
        _tidy(work.files, {_name(url) for url in wanted})
        brought: list[ManifestFile] = []
        for url in wanted:
            before = sum(file.size for file in brought)
            total = None if None in sizes else sum(size or 0 for size in sizes)
            asker = Asker(who, stall=self._stall)
            download = _Download(asker, who, spec, url, work, before=before, total=total, wait=self._first_wait)
            brought.append(await in_thread(download.run, stopping=asker.stop))
        sync_directory(work.files)
        return Fetched(files=tuple(brought))


_NETWORK: Final = "check the network, and the proxy that http_proxy and https_proxy name"


def urls(spec: WeightsSpec) -> list[str]:
    """Of every file of the source: a model that is split into parts has several. Raises WeightsRefused."""
    parts = urlsplit(spec.source)
    folder, _, _ = parts.path.rpartition("/")
    first = Path(_name(spec.source))
    found = split.parts(first)
    if len(found) == 1:
        return [spec.source]
    if first != found[0]:
        raise WeightsRefused(f"{spec.source} is not the first of its {len(found)} parts: name {found[0].name}")
    if spec.sha256 is not None:
        raise WeightsRefused(f"{spec.source} is split into several files, and a checksum is one file's: leave it out")
    return [urlunsplit(parts._replace(path=f"{folder}/{quote(part.name)}")) for part in found]


def _name(url: str) -> str:
    return naming.HttpSource(url=url).name


def _tidy(folder: Path, wanted: set[str]) -> None:
    """What an earlier attempt left and nothing needs now."""
    for path in folder.iterdir():
        if path.name not in wanted or path.is_symlink() or not path.is_file():
            raise WeightsUnavailable(f"{path} was not put there by llmgw: remove {folder.parents[1]}")


def _look(asker: Asker, who: Who, url: str) -> RemoteFile:
    reply = asker.ask(url, "HEAD")
    reply.close()
    if reply.status in (403, 405, 501):  # some servers, and all signed URLs, know GET alone
        reply = asker.ask(url, headers={"Range": "bytes=0-0"})
        reply.close()
    if reply.status == 206:
        return RemoteFile(path=_name(url), size=_range(reply)[1])
    if reply.status != 200:
        raise refusal(who, reply)
    return RemoteFile(path=_name(url), size=reply.length)


class _Resume(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a file that is here in part. `durable` bytes survive a crash of the machine."""

    url: str
    validator: str | None
    total: int | None
    durable: int
    boot: str


class _Download:
    """One file. Blocks: runs in a thread."""

    def __init__(
        self,
        asker: Asker,
        who: Who,
        spec: WeightsSpec,
        url: str,
        work: Work,
        *,
        before: int,
        total: int | None,
        wait: float,
    ) -> None:
        self._asker, self._who, self._spec, self._url, self._work = asker, who, spec, url, work
        self._before, self._all, self._wait = before, total, wait
        self._path = work.files / _name(url)
        self._record = work.directory / f"resume-{hashlib.sha256(url.encode()).hexdigest()[:16]}.json"
        self._done = 0
        self._total: int | None = None
        self._validator: str | None = None
        self._digest = hashlib.sha256()
        self._resumed = False
        self._durable = 0

    def run(self, stop: threading.Event) -> ManifestFile:
        """Raises WeightsUnavailable, WeightsRefused, Stopped, OSError."""
        self._work.resumable()
        with ThreadPoolExecutor(1, "llmgw-hash") as hasher, open(self._path, "ab", buffering=0) as file:
            self._take_up(file.fileno(), stop)
            try:
                while True:
                    self._persevere(file.fileno(), hasher, stop)
                    if self._is_right() or not self._resumed:
                        break
                    log.warning("resumed_download_does_not_match", source=self._spec.source)
                    self._reset(file.fileno())
            except BaseException:
                with suppress(OSError):  # what ended it says more
                    self._checkpoint(file.fileno())
                raise
            self._checkpoint(file.fileno())
        return ManifestFile(path=f"{FILES}/{self._path.name}", size=self._done, sha256=self._digest.hexdigest())

    def _is_right(self) -> bool:
        return self._spec.sha256 in (None, self._digest.hexdigest())

    def _take_up(self, fd: int, stop: threading.Event) -> None:
        """What an earlier attempt brought, as far as it can be relied on."""
        size = os.fstat(fd).st_size
        try:
            known = msgspec.json.decode(self._record.read_bytes(), type=_Resume)
        except (OSError, msgspec.MsgspecError):
            known = None
        if known is None or known.url != self._url:
            self._reset(fd)
            return
        # After a crash of the machine, the end of the file may hold anything.
        kept = size if known.boot == partial.boot() else min(size, known.durable)
        os.ftruncate(fd, kept)
        self._digest = hash_prefix(self._path, stop=stop)
        self._done, self._total, self._validator = kept, known.total, known.validator
        self._resumed = kept > 0
        self._durable = min(kept, known.durable)

    def _persevere(self, fd: int, hasher: ThreadPoolExecutor, stop: threading.Event) -> None:
        """Ask until the file is whole, as long as that brings something."""
        fruitless, furthest = 0, self._done
        while self._total is None or self._done < self._total or self._total == 0:
            try:
                self._attempt(fd, hasher, stop)
                return
            except Cut as cut:
                if stop.is_set():
                    raise Stopped from cut
                # What is only fetched again, because nothing can be resumed, is no progress.
                fruitless = 1 if self._done - furthest >= PROGRESS else fruitless + 1
                furthest = max(furthest, self._done)
                wait = cut.wait if cut.wait is not None else self._wait * 2 ** (fruitless - 1)
                if fruitless >= TRIES or wait > LONGEST_WAIT:
                    raise WeightsUnavailable(self._given_up(cut)) from cut
                log.info("download_interrupted", source=self._spec.source, done=self._done, why=str(cut), wait=wait)
                if stop.wait(wait):
                    raise Stopped from cut

    def _given_up(self, cut: Cut) -> str:
        of = "" if self._total is None else f" of {format_bytes(self._total)}"
        when = f"; the server asks to wait {cut.wait:.0f} s" if cut.wait is not None else ""
        return (
            f"{self._spec.source} stopped after {format_bytes(self._done)}{of} ({cut}{when}): it goes on from there at "
            f"the next try; {_NETWORK}"
        )

    def _attempt(self, fd: int, hasher: ThreadPoolExecutor, stop: threading.Event) -> None:
        headers = {}
        if self._done and (self._validator is not None or self._spec.sha256 is not None):
            headers["Range"] = f"bytes={self._done}-"
            if self._validator is not None:
                headers["If-Range"] = self._validator
        elif self._done:
            self._reset(fd)  # nothing would tell that the rest belongs to another file
        reply = self._asker.ask(self._url, headers=headers)
        try:
            self._judge(reply, fd)
            self._copy(reply, fd, hasher, stop)
        finally:
            reply.close()
        if self._total is not None and self._done != self._total:
            raise Cut(f"the connection ended after {format_bytes(self._done)} of {format_bytes(self._total)}")

    def _judge(self, reply: Reply, fd: int) -> None:
        """Whether the body of an answer is the file, or the rest of it. Raises Cut to ask anew."""
        if reply.status == 206 and self._done:
            start, total = _range(reply)
            known = self._total in (None, total) and validator(reply) in (None, self._validator)
            if start != self._done or not known:
                self._changed(fd)
            self._total = total if total is not None else self._total
        elif reply.status == 416 and self._done:
            self._changed(fd)
        elif reply.status != 200:
            raise refusal(self._who, reply)
        else:
            if self._done:
                log.info("download_restarted", source=self._spec.source, why="the file changed, or cannot be resumed")
                self._reset(fd)
            self._begin(reply)
        total = self._all if self._all is not None else self._total
        if total is not None:
            self._work.expect(total, here=self._before + self._done)

    def _begin(self, reply: Reply) -> None:
        source = self._spec.source
        if reply.header("Content-Encoding") not in (None, "", "identity"):
            raise WeightsRefused(f"{source}: the server sends it compressed only: that is no file to be checked")
        kind = (reply.header("Content-Type") or "").partition(";")[0].strip().lower()
        if kind == "text/html" and not self._path.name.lower().endswith((".html", ".htm")):
            raise WeightsRefused(
                f"{source}: the server sends a web page, not a file: correct the source, or name its token"
            )
        if reply.length is None and not reply.raw.chunked and self._spec.sha256 is None:
            raise WeightsRefused(
                f"{source}: the server tells neither its length nor where it ends, so that a part would pass for the "
                "whole: declare `sha256`"
            )
        self._total, self._validator = reply.length, validator(reply)
        self._note()

    def _copy(self, reply: Reply, fd: int, hasher: ThreadPoolExecutor, stop: threading.Event) -> None:
        """Hashing one chunk while the next is on its way."""
        hashed: Future[None] | None = None
        try:
            while chunk := reply.read(_CHUNK):
                if stop.is_set():
                    raise Stopped
                _write(fd, memoryview(chunk))
                if hashed is not None:
                    hashed.result()
                hashed = hasher.submit(self._digest.update, chunk)
                self._done += len(chunk)
                self._work.tell(self._before + self._done, self._all if self._all is not None else self._total)
                self._work.pace(len(chunk), stop)
                if self._done - self._durable >= _CHECKPOINT:
                    self._checkpoint(fd)
        finally:
            if hashed is not None:
                hashed.result()

    def _changed(self, fd: int) -> None:
        self._reset(fd)
        raise Cut("the file changed on the server, so that it starts anew", wait=0.0)

    def _reset(self, fd: int) -> None:
        os.ftruncate(fd, 0)
        self._record.unlink(missing_ok=True)
        self._done = self._durable = 0
        self._digest = hashlib.sha256()
        self._total = self._validator = None
        self._resumed = False

    def _checkpoint(self, fd: int) -> None:
        os.fsync(fd)
        self._durable = self._done
        self._note()

    def _note(self) -> None:
        record = _Resume(
            url=self._url,
            validator=self._validator,
            total=self._total,
            durable=self._durable,
            boot=partial.boot(),
        )
        write_atomic(self._record, msgspec.json.encode(record))


def validator(reply: Reply) -> str | None:
    """What tells one content from another, strong enough to resume by (RFC 9110 §13.1.5): an ETag that is not weak."""
    etag = reply.header("ETag")
    return etag if etag is not None and etag.startswith('"') else None


def _range(reply: Reply) -> tuple[int | None, int | None]:
    """First byte and whole size, of `Content-Range: bytes 5-9/10`."""
    text = reply.header("Content-Range") or ""
    span, _, total = text.removeprefix("bytes ").partition("/")
    first = span.partition("-")[0].strip()
    return (int(first) if first.isdecimal() else None), (int(total) if total.strip().isdecimal() else None)


def _write(fd: int, chunk: memoryview) -> None:
    while chunk:
        chunk = chunk[os.write(fd, chunk) :]
