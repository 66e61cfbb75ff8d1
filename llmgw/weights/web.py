"""`https://`: a file on a web server, fetched with resumption and checked as it comes."""

import hashlib
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec
import structlog

from llmgw.catalog.spec import WeightsSpec
from llmgw.errors import WeightsRefused, WeightsUnavailable
from llmgw.statedir import sync_directory, write_atomic
from llmgw.units import format_bytes
from llmgw.weights import naming, partial, promise, split
from llmgw.weights.api import Description, Fetched, RemoteFile, WeightSource, Work
from llmgw.weights.http import STALL_TIMEOUT, Asker, Cut, Reply, Who, refusal
from llmgw.weights.manifest import FILES, ManifestFile
from llmgw.weights.sources import Stopped, hash_prefix, in_thread
from llmgw.weights.writing import Writing

log = structlog.get_logger("llmgw.weights")

TRIES: Final = 5
"""In a row, without progress worth the name, before a download is given up for now."""
PROGRESS: Final = 1024 * 1024
LONGEST_WAIT: Final = 30.0
"""Seconds that a server may ask to be left alone without the download being given up for now."""

FIRST_WAIT: Final = 0.5
"""Seconds until a download that was cut is gone on with for the first time."""

_CHECKPOINT: Final = 64 * 1024 * 1024
"""Bytes between two moments at which what was written is made durable."""


class Web(WeightSource):
    schemes = frozenset({"https", "http"})
    resumes = True

    def __init__(self, *, stall: float = STALL_TIMEOUT, first_wait: float = FIRST_WAIT) -> None:
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
            raise WeightsUnavailable(f"cannot ask for {spec.source} ({cut}): {_advice(cut)}") from cut

    async def fetch(self, spec: WeightsSpec, work: Work) -> Fetched:
        who = Who.of(spec)
        wanted = urls(spec)
        sizes: list[int | None] = [None]
        if len(wanted) > 1:  # of several files, the sizes are known before the first byte of any
            sizes = [file.size for file in (await self.describe(spec)).files]
        remotes = [
            Remote(url=url, path=_name(url), size=size, sha256=spec.sha256)
            for url, size in zip(wanted, sizes, strict=True)
        ]
        return Fetched(files=await bring(who, remotes, work, stall=self._stall, first_wait=self._first_wait))


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """One file of a fetch: where it comes from, where below the entry's files it goes, and what is known of it."""

    url: str
    path: str
    size: int | None = None
    sha256: str | None = None


async def bring(
    who: Who,
    remotes: Sequence[Remote],
    work: Work,
    *,
    stall: float = STALL_TIMEOUT,
    first_wait: float = FIRST_WAIT,
) -> tuple[ManifestFile, ...]:
    """All of them, one after the other, each gone on with where an earlier attempt left it. Raises WeightsUnavailable,
    WeightsRefused, OSError."""
    sizes = [remote.size for remote in remotes]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    _tidy(work.files, {remote.path for remote in remotes})
    brought: list[ManifestFile] = []
    for remote in remotes:
        before = sum(file.size for file in brought)
        asker = Asker(who, stall=stall)
        download = _Download(asker, who, remote, work, before=before, total=total, wait=first_wait)
        brought.append(await in_thread(download.run, stopping=asker.stop))
    for folder in {(work.files / remote.path).parent for remote in remotes}:
        sync_directory(folder)
    return tuple(brought)


_NETWORK: Final = "check the network, and the proxy that http_proxy and https_proxy name"
_SERVER: Final = "the trouble is the server's own, or that of a proxy before it: ask whoever runs it, if it lasts"


def _advice(cut: Cut) -> str:
    return _SERVER if cut.answered else _NETWORK


def _amounts(done: int, total: int) -> str:
    """Rounded, unless that makes two amounts one."""
    told = (format_bytes(done), format_bytes(total))
    return f"{done} of {total} bytes" if done != total and told[0] == told[1] else " of ".join(told)


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
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        ours = any(each.startswith(f"{name}/") for each in wanted) if path.is_dir() else name in wanted
        if not ours or path.is_symlink() or not (path.is_file() or path.is_dir()):
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
    path: str  #: below the entry's files
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
        remote: Remote,
        work: Work,
        *,
        before: int,
        total: int | None,
        wait: float,
    ) -> None:
        self._asker, self._who, self._remote, self._work = asker, who, remote, work
        self._before, self._all, self._wait = before, total, wait
        self._path = work.files / remote.path
        self._record = work.directory / f"resume-{hashlib.sha256(remote.url.encode()).hexdigest()[:16]}.json"
        self._total: int | None = None
        self._validator: str | None = None
        self._resumed = False
        self._promised: str | None = None  #: the checksum of the whole, as who began it has it

    def run(self, stop: threading.Event) -> ManifestFile:
        """Raises WeightsUnavailable, WeightsRefused, Stopped, OSError."""
        self._work.resumable()
        if not self._path.exists():  # before there is a file, there is a word of whose it is
            self._note(0)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "ab", buffering=0) as file, self._take_up(file.fileno(), stop) as out:
            try:
                while True:
                    self._persevere(out, stop)
                    expected = self._remote.sha256 or self._promised
                    if expected in (None, out.digest.hexdigest()) or not self._resumed:
                        break
                    log.warning("resumed_download_does_not_match", source=self._who.source)
                    self._reset(out)
            except BaseException:
                with suppress(OSError):  # what ended it says more
                    self._checkpoint(out)
                raise
            self._checkpoint(out)
            return ManifestFile(path=f"{FILES}/{self._remote.path}", size=out.at, sha256=out.digest.hexdigest())

    def _take_up(self, fd: int, stop: threading.Event) -> Writing:
        """Going on with what an earlier attempt brought, as far as it can be relied on."""
        size = os.fstat(fd).st_size
        try:
            known = msgspec.json.decode(self._record.read_bytes(), type=_Resume)
        except (OSError, msgspec.MsgspecError):
            known = None
        promised = promise.read(self._work.directory).get(f"{FILES}/{self._remote.path}")
        if promised is not None and 0 < size <= promised.size:  # another node began it
            self._promised, self._resumed = promised.sha256, True
            if known is None:
                self._total = promised.size
                return Writing(fd, at=size, digest=hash_prefix(self._path, stop=stop))
        if known is None or known.url != self._remote.url:
            out = Writing(fd, at=0, digest=hashlib.sha256())
            self._reset(out)
            return out
        # After a crash of the machine, the end of the file may hold anything.
        kept = size if known.boot == partial.boot() else min(size, known.durable)
        os.ftruncate(fd, kept)
        self._total, self._validator = known.total, known.validator
        self._resumed = kept > 0
        out = Writing(fd, at=kept, digest=hash_prefix(self._path, stop=stop))
        out.durable = min(kept, known.durable)
        return out

    def _persevere(self, out: Writing, stop: threading.Event) -> None:
        """Ask until the file is whole, as long as that brings something."""
        fruitless, furthest = 0, out.at
        while self._total is None or out.at < self._total or self._total == 0:
            try:
                self._attempt(out, stop)
                return
            except Cut as cut:
                if stop.is_set():
                    raise Stopped from cut
                # What is only fetched again, because nothing can be resumed, is no progress.
                fruitless = 1 if out.at - furthest >= PROGRESS else fruitless + 1
                furthest = max(furthest, out.at)
                wait = cut.wait if cut.wait is not None else self._wait * 2 ** (fruitless - 1)
                if fruitless >= TRIES or wait > LONGEST_WAIT:
                    raise WeightsUnavailable(self._given_up(cut, out.at)) from cut
                log.info("download_interrupted", source=self._who.source, done=out.at, why=str(cut), wait=wait)
                if stop.wait(wait):
                    raise Stopped from cut

    def _given_up(self, cut: Cut, done: int) -> str:
        came = format_bytes(done) if self._total is None else _amounts(done, self._total)
        when = f"; the server asks to wait {cut.wait:.0f} s" if cut.wait is not None else ""
        return (
            f"{self._who.source} stopped after {came} ({cut}{when}): it goes on from there at "
            f"the next try; {_advice(cut)}"
        )

    def _attempt(self, out: Writing, stop: threading.Event) -> None:
        headers = {}
        if out.at and (self._validator, self._remote.sha256, self._promised) != (None, None, None):
            headers["Range"] = f"bytes={out.at}-"
            if self._validator is not None:
                headers["If-Range"] = self._validator
        elif out.at:
            self._reset(out)  # nothing would tell that the rest belongs to another file
        reply = self._asker.ask(self._remote.url, headers=headers)
        try:
            self._judge(reply, out)
            self._copy(reply, out, stop)
        finally:
            reply.close()
        if self._total is not None and out.at != self._total:
            raise Cut("the connection ended early, or the server told a wrong length")

    def _judge(self, reply: Reply, out: Writing) -> None:
        """Whether the body of an answer is the file, or the rest of it. Raises Cut to ask anew."""
        if reply.status == 206 and out.at:
            start, total = _range(reply)
            if self._validator is None and self._promised is not None:  # only the whole will tell
                self._validator = validator(reply)
            known = self._total in (None, total) and validator(reply) in (None, self._validator)
            if start != out.at or not known:
                self._changed(out)
            self._total = total if total is not None else self._total
        elif reply.status == 416 and out.at:
            self._changed(out)
        elif reply.status != 200:
            raise refusal(self._who, reply)
        else:
            if out.at:
                log.info("download_restarted", source=self._who.source, why="the file changed, or cannot be resumed")
                self._reset(out)
            self._begin(reply, out)
        total = self._all if self._all is not None else self._total
        if total is not None:
            self._work.expect(total, here=self._before + out.at)

    def _begin(self, reply: Reply, out: Writing) -> None:
        source = self._who.source
        if reply.header("Content-Encoding") not in (None, "", "identity"):
            raise WeightsRefused(f"{source}: the server sends it compressed only: that is no file to be checked")
        kind = (reply.header("Content-Type") or "").partition(";")[0].strip().lower()
        if kind == "text/html" and not self._path.name.lower().endswith((".html", ".htm")):
            raise WeightsRefused(
                f"{source}: the server sends a web page, not a file: correct the source, or name its token"
            )
        if reply.length is None and not reply.raw.chunked and self._remote.sha256 is None:
            raise WeightsRefused(
                f"{source}: the server tells neither its length nor where it ends, so that a part would pass for the "
                "whole: declare `sha256`"
            )
        self._total, self._validator = reply.length, validator(reply)
        self._note(out.durable)

    def _copy(self, reply: Reply, out: Writing, stop: threading.Event) -> None:
        """Reading one chunk while the ones before are written, hashed and made durable."""
        synced = out.at
        total = self._all if self._all is not None else self._total
        count = 1
        while count:
            room = out.room()
            try:
                count = reply.fill(room[: self._work.portion(len(room))])
            except Cut:
                out.put(room, 0)
                out.settle()
                raise
            if stop.is_set():
                raise Stopped
            out.put(room, count)
            self._work.tell(self._before + out.at, total)
            self._work.pace(count, stop)
            if out.at - synced >= _CHECKPOINT and out.sync():
                synced = out.at
                self._note(out.durable)
        out.settle()

    def _changed(self, out: Writing) -> None:
        self._reset(out)
        raise Cut("the file changed on the server, so that it starts anew", wait=0.0)

    def _reset(self, out: Writing) -> None:
        out.restart()
        self._total = self._validator = self._promised = None
        self._resumed = False
        self._note(0)

    def _checkpoint(self, out: Writing) -> None:
        out.finish()
        self._note(out.durable)

    def _note(self, durable: int) -> None:
        record = _Resume(
            url=self._remote.url,
            path=self._remote.path,
            validator=self._validator,
            total=self._total,
            durable=durable,
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
