"""`s3://`, `gs://` and the like: files and folders of any file system that fsspec knows and whose package is installed.

Credentials, regions and endpoints are found as that package finds them, on the node that downloads. A download goes on
where an earlier one was left, as long as the file there is the same.
"""

import functools
import hashlib
import importlib
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote

import msgspec
import structlog

from llmgw.catalog.spec import WeightsSpec
from llmgw.errors import WeightsError, WeightsRefused, WeightsUnavailable
from llmgw.statedir import sync_directory, write_atomic
from llmgw.units import format_bytes
from llmgw.weights import partial, split
from llmgw.weights.api import Description, Fetched, RemoteFile, WeightSource, Work
from llmgw.weights.calls import Caller
from llmgw.weights.choosing import Choice, choose
from llmgw.weights.manifest import FILES, ManifestFile
from llmgw.weights.sources import Stopped, hash_prefix, in_thread
from llmgw.weights.writing import Writing

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

log = structlog.get_logger("llmgw.weights")

PACKAGES: Final = {
    "s3": "s3fs", "gs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "sftp": "paramiko", "smb": "smbprotocol",
    "hdfs": "pyarrow", "webhdfs": "requests", "oss": "ossfs",
}  # fmt: skip
"""What each kind needs beside fsspec."""

TRIES: Final = 5
"""In a row, without a byte, before a download is given up for now."""

_BLOCK: Final = 16 * 1024 * 1024
"""Bytes asked for at once: a request each, with most of them."""

_CHECKPOINT: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a source names: `path` after the `//`."""

    scheme: str
    path: str
    allow: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def __str__(self) -> str:
        chosen = [("allow", pattern) for pattern in self.allow] + [("ignore", pattern) for pattern in self.ignore]
        query = "&".join(f"{key}={quote(pattern, safe='*/,!')}" for key, pattern in chosen)
        return f"{self.scheme}://{self.path}{'?' + query if query else ''}"


class Filesystems(WeightSource):
    schemes = frozenset(PACKAGES)
    resumes = True

    def __init__(self, schemes: Iterable[str] = PACKAGES, *, first_wait: float = 0.5) -> None:
        """`schemes`: of the file systems that it serves."""
        self.schemes = frozenset(schemes)  # type: ignore[misc] # an object's own
        self._first_wait = first_wait

    def canonical(self, text: str) -> str:
        return str(parse(text))

    async def describe(self, spec: WeightsSpec) -> Description:
        def ask(stop: threading.Event) -> Description:
            with Caller(stop) as call:
                _, choice, _ = _look(spec, call)
            return Description(files=choice.files, folder=choice.folder)

        return await in_thread(ask)

    async def fetch(self, spec: WeightsSpec, work: Work) -> Fetched:
        def bring(stop: threading.Event) -> Fetched:
            with Caller(stop) as call:
                return self._bring(spec, work, call, stop)

        return await in_thread(bring)

    def _bring(self, spec: WeightsSpec, work: Work, call: Caller, stop: threading.Event) -> Fetched:
        system, choice, base = _look(spec, call)
        size = sum(file.size or 0 for file in choice.files)
        work.expect(size, here=_present(work))
        work.resumable()
        files: list[ManifestFile] = []
        for file in choice.files:
            before = sum(each.size for each in files)
            path = f"{base}/{file.path}"
            taking = _Taking(system, spec, path, file, work, call, before=before, total=size)
            files.append(taking.run(stop, self._first_wait))
        for folder in {(work.files / file.path).parent for file in choice.files}:
            sync_directory(folder)
        return Fetched(files=tuple(files), folder=choice.folder)


def parse(text: str) -> Place:
    """Raises ValueError with advice."""
    scheme, _, rest = text.partition("://")
    scheme = scheme.lower()
    path, _, query = rest.partition("?")
    form = f"write {scheme}://BUCKET/PATH, with ?allow=PATTERN or ?ignore=PATTERN for some files of a folder"
    path = path.rstrip("/")
    parts = path.split("/")
    if not text.isprintable() or "\\" in path or "" in parts or ".." in parts or len(parts) < 2:
        raise ValueError(f"{text!r} names no file or folder: {form}")
    if ":" in parts[0].rpartition("@")[0]:
        raise ValueError("a source with a password in it is shown to many: let the node that downloads know it instead")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True, errors="strict") if query else []
    except ValueError:
        pairs = [("", "")]
    if any(key not in ("allow", "ignore") or not pattern.strip() for key, pattern in pairs):
        raise ValueError(f"{text!r}: {form}")
    allow, ignore = (tuple(sorted({p for key, p in pairs if key == name})) for name in ("allow", "ignore"))
    return Place(scheme=scheme, path=path, allow=allow, ignore=ignore)


def _look(spec: WeightsSpec, call: Caller) -> "tuple[AbstractFileSystem, Choice, str]":
    """The file system, what of it is meant, and the folder there that the files' paths are relative to.

    Raises WeightsUnavailable, WeightsRefused, Stopped.
    """
    if spec.token is not None:
        raise WeightsRefused(
            f"{spec.source}: `token` is for web servers and hubs; {PACKAGES.get(_scheme(spec), 'fsspec')} finds its "
            "credentials where llmgw runs, in the environment or its own files"
        )
    try:
        place = parse(spec.source)
    except ValueError as error:
        raise WeightsRefused(str(error)) from error
    system = _system(place, spec, call)
    with _asking(spec):
        path = str(system._strip_protocol(f"{place.scheme}://{place.path}"))
    try:
        choice, base = _chosen(system, place, path, spec, call)
    except ValueError as error:
        raise WeightsRefused(f"{spec.source}: {error}: correct the source") from error
    if spec.sha256 is not None and (choice.folder is not None or len(choice.files) > 1):
        raise WeightsRefused(f"{spec.source} is several files, and a checksum is one file's: leave `sha256` out")
    return system, choice, base


def _scheme(spec: WeightsSpec) -> str:
    return spec.source.partition("://")[0]


def _system(place: Place, spec: WeightsSpec, call: Caller) -> "AbstractFileSystem":
    fsspec = importlib.import_module("fsspec")
    try:
        with _asking(spec):
            return call(lambda: _fresh(fsspec, place.scheme))
    except ImportError as error:
        package = PACKAGES.get(place.scheme, "its package")
        raise WeightsRefused(
            f"{spec.source}: {place.scheme}:// needs {package}, which is not installed here: `pip install {package}` "
            "where llmgw runs"
        ) from error


def _fresh(fsspec: Any, scheme: str) -> "AbstractFileSystem":
    """One of its own, that no earlier one's credentials and settings live on in."""
    return fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=True)


def _chosen(
    system: "AbstractFileSystem", place: Place, path: str, spec: WeightsSpec, call: Caller
) -> tuple[Choice, str]:
    """Raises ValueError with advice."""
    folder, _, name = path.rpartition("/")
    if not any(char in path for char in "*["):
        with _asking(spec):
            info = call(lambda: system.info(path))
            parts = _parts(name) if info["type"] == "file" else []
            files = [_file(call(functools.partial(system.info, f"{folder}/{part}")), folder) for part in parts]
        if files:
            return choose(files, name), folder
        return choose(_all(system, path, spec, call), "", allow=place.allow, ignore=place.ignore), path
    plain = "/".join(_before_pattern(path.split("/")))
    pattern = path[len(plain) + 1 :]
    return choose(_all(system, plain, spec, call), pattern, allow=place.allow, ignore=place.ignore), plain


def _parts(name: str) -> list[str]:
    return [str(part) for part in split.parts(PurePosixPath(name))]


def _before_pattern(parts: list[str]) -> list[str]:
    first = next(index for index, part in enumerate(parts) if any(char in part for char in "*["))
    return parts[:first]


def _all(system: "AbstractFileSystem", folder: str, spec: WeightsSpec, call: Caller) -> list[RemoteFile]:
    with _asking(spec):
        found = call(lambda: system.find(folder, detail=True))
    return [_file(info, folder) for info in found.values() if info["type"] == "file"]


def _file(info: dict[str, Any], folder: str) -> RemoteFile:
    size = info.get("size")
    return RemoteFile(path=str(info["name"])[len(folder) + 1 :], size=None if size is None else int(size))


@contextmanager
def _asking(spec: WeightsSpec) -> Iterator[None]:
    """Around what the file system answers. Raises WeightsUnavailable, WeightsRefused, ImportError."""
    try:
        yield
    except (ImportError, WeightsError, Stopped):
        raise
    except FileNotFoundError as error:
        raise WeightsRefused(f"{spec.source}: there is no such file or folder ({_said(error)}): correct it") from error
    except PermissionError as error:
        raise WeightsRefused(
            f"{spec.source}: it is denied ({_said(error)}): check the credentials that are found where llmgw runs"
        ) from error
    except Exception as error:  # each package has exceptions of its own
        raise WeightsUnavailable(
            f"cannot read {spec.source} ({_said(error)}): check the network, and the credentials and settings that "
            f"{PACKAGES.get(_scheme(spec), 'fsspec')} finds where llmgw runs"
        ) from error


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _present(work: Work) -> int:
    return sum(path.stat().st_size for path in work.files.rglob("*") if path.is_file())


class _Resume(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a file that is here in part. `key`: changes with the file there."""

    path: str
    key: str
    durable: int
    boot: str


class _Taking:
    """One file. Blocks: runs in a thread."""

    def __init__(
        self,
        system: "AbstractFileSystem",
        spec: WeightsSpec,
        path: str,
        file: RemoteFile,
        work: Work,
        call: Caller,
        *,
        before: int,
        total: int,
    ) -> None:
        self._system, self._spec, self._path, self._file, self._work = system, spec, path, file, work
        self._call = call
        self._before, self._total = before, total
        self._local = work.files / file.path
        self._record = work.directory / f"resume-{hashlib.sha256(path.encode()).hexdigest()[:16]}.json"
        self._key = ""

    def run(self, stop: threading.Event, wait: float) -> ManifestFile:
        """Raises WeightsUnavailable, WeightsRefused, Stopped, OSError."""
        with _asking(self._spec):
            self._key = str(self._call(lambda: self._system.ukey(self._path)))
        self._local.parent.mkdir(parents=True, exist_ok=True)
        with open(self._local, "ab", buffering=0) as file, self._take_up(file.fileno(), stop) as out:
            try:
                self._persevere(out, stop, wait)
            except BaseException:
                with suppress(OSError):  # what ended it says more
                    self._checkpoint(out)
                raise
            self._checkpoint(out)
            if out.at != (self._file.size if self._file.size is not None else out.at):
                raise WeightsUnavailable(
                    f"{self._spec.source}: {self._file.path} ended after {format_bytes(out.at)} of "
                    f"{format_bytes(self._file.size or 0)}: it is tried again"
                )
            name = f"{FILES}/{self._file.path}"
            return ManifestFile(path=name, size=out.at, sha256=out.digest.hexdigest())

    def _take_up(self, fd: int, stop: threading.Event) -> Writing:
        """Going on with what an earlier attempt brought of the same file."""
        size = os.fstat(fd).st_size
        try:
            known = msgspec.json.decode(self._record.read_bytes(), type=_Resume)
        except (OSError, msgspec.MsgspecError):
            known = None
        kept = 0
        if known is not None and (known.path, known.key) == (self._path, self._key):
            kept = size if known.boot == partial.boot() else min(size, known.durable)
        os.ftruncate(fd, kept)
        out = Writing(fd, at=kept, digest=hash_prefix(self._local, stop=stop))
        self._note(out)
        return out

    def _persevere(self, out: Writing, stop: threading.Event, wait: float) -> None:
        fruitless = 0
        while True:
            began = out.at
            try:
                self._copy(out, stop)
                return
            except WeightsUnavailable as error:
                fruitless = 1 if out.at > began else fruitless + 1
                if fruitless >= TRIES:
                    raise
                log.info("download_interrupted", source=self._spec.source, done=out.at, why=str(error))
                if stop.wait(wait * 2 ** (fruitless - 1)):
                    raise Stopped from error

    def _copy(self, out: Writing, stop: threading.Event) -> None:
        with self._opened(out.at) as remote:
            synced, count = out.at, 1
            while count:
                room = out.room()
                asked = room[: self._work.portion(len(room))]
                try:
                    with _asking(self._spec):
                        count = int(self._call(functools.partial(remote.readinto, asked)))
                except WeightsError:
                    out.put(room, 0)
                    out.settle()
                    raise
                if stop.is_set():
                    raise Stopped
                out.put(room, count)
                self._work.tell(self._before + out.at, self._total)
                self._work.pace(count, stop)
                if out.at - synced >= _CHECKPOINT and out.sync():
                    synced = out.at
                    self._note(out)
            out.settle()

    @contextmanager
    def _opened(self, at: int) -> Iterator[Any]:
        with _asking(self._spec):
            remote = self._call(lambda: self._system.open(self._path, "rb", block_size=_BLOCK, cache_type="readahead"))
            if at:
                self._call(lambda: remote.seek(at))
        try:
            yield remote
        finally:
            with suppress(Exception):  # what was read says whether it went well
                self._call(remote.close)

    def _checkpoint(self, out: Writing) -> None:
        out.finish()
        self._note(out)

    def _note(self, out: Writing) -> None:
        record = _Resume(path=self._path, key=self._key, durable=out.durable, boot=partial.boot())
        write_atomic(self._record, msgspec.json.encode(record))
