"""What is done with single entries of a cache on request: removed, verified, pinned. An audit log tells of removals."""

import asyncio
import errno
import hashlib
import os
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import structlog

from llmgw.catalog.spec import WeightsSpec
from llmgw.clock import Clock
from llmgw.units import Bytes, Seconds
from llmgw.weights import manifest, naming, removal
from llmgw.weights.cache import Cache
from llmgw.weights.doomed import CORRUPT, KEPT, Doomed, Refusal
from llmgw.weights.inside import Inside, hold
from llmgw.weights.manifest import Manifest, ManifestFile
from llmgw.weights.spare import Spare, is_full

log = structlog.get_logger("llmgw.weights")

T = TypeVar("T")

CHUNK: Final = 4 * 1024 * 1024
SPARE: Final = ".llmgw-spare"  #: in the cache


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the audit log. `what`: `removing` before anything is touched, then `removed` or `left`."""

    v: int = 1
    at: float
    what: str
    node: str
    entry: str
    source: str
    size: int
    files: tuple[str, ...]
    revision: str | None  #: in force, which did not want it
    by: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """For the audit log: who wants it, under which revision."""

    by: str
    revision: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """`trouble`: what is wrong with an entry, empty when all is as it was fetched; `aside`: what it is called now."""

    size: Bytes
    trouble: tuple[str, ...] = ()
    aside: str = ""


class _Stopped(Exception):
    pass


class Upkeep:
    """Of one node's cache. `log`: the audit log, JSON lines."""

    def __init__(self, cache: Cache, *, node: str, log: Path, clock: Clock) -> None:
        self._cache = cache
        self._node = node
        self._log = log
        self._clock = clock
        self._one = asyncio.Lock()
        self._spare = Spare((log.with_suffix(".spare"), cache.root / SPARE))

    def source_of(self, entry: str) -> str | None:
        """As its manifest has it; None: there is no such entry."""
        if KEPT.fullmatch(entry):
            return self._cache.unfinished(entry)
        found = self._cache.manifest_of(entry)
        return None if found is None else found.source

    def find(self, spec: WeightsSpec) -> str | None:
        """The entry that holds it, by its name."""
        return self._cache.find(spec)

    def set_aside_before(self, entry: str) -> int:
        """How many copies of it lie there that were found corrupt. Raises OSError."""
        found = (CORRUPT.fullmatch(name) for name in os.listdir(self._cache.root))
        return sum(match is not None and match[1] == entry for match in found)

    def is_corrupt(self, entry: str) -> bool:
        return CORRUPT.fullmatch(entry) is not None

    async def remove(self, entry: str, *, min_age: Seconds, asker: Asker) -> Doomed:
        """Raises Refusal. That nothing of this node wants it is the caller's to know; everything else is looked at."""
        async with self._one:
            if self._cache.being_fetched(entry.removeprefix("kept-")):
                raise Refusal("it is being fetched")
            with self._cache.aside(entry):
                return await _to_the_end(lambda: self._remove(entry, min_age, asker))

    def _remove(self, entry: str, min_age: Seconds, asker: Asker) -> Doomed:
        """On a full disk, too: that is when somebody deletes."""
        try:
            try:
                return self._remove_once(entry, min_age, asker)
            except Refusal as refusal:
                if not is_full(refusal.__cause__):
                    raise
                self._spare.give()  # where the log did not need it already
            return self._remove_once(entry, min_age, asker)
        finally:
            self._keep_room()

    def _keep_room(self) -> None:
        if (self._cache.root / removal.MARKER).exists():  # never under the mount point of a disk that is away
            self._spare.keep()

    def _remove_once(self, entry: str, min_age: Seconds, asker: Asker) -> Doomed:
        begun: list[Doomed] = []

        def about_to(doomed: Doomed) -> None:
            self._write("removing", doomed, asker)
            begun.append(doomed)

        root, cluster, now = self._cache.root, self._cache.cluster_id, self._clock.now().wall
        try:
            done = removal.remove(root, entry, cluster=cluster, now=now, min_age=min_age, about_to=about_to)
        except Refusal as refusal:
            if begun:
                self._write("left", begun[0], asker, str(refusal))
            raise
        self._write("removed", done, asker)
        return done

    async def finish(self) -> tuple[Doomed, ...]:
        """End what a killed process left half deleted, and put its downloads aside. Raises OSError, Refusal."""
        await asyncio.to_thread(self._cache.tidy)
        root, cluster, now = self._cache.root, self._cache.cluster_id, self._clock.now().wall
        async with self._one:
            done = await _to_the_end(lambda: removal.finish(root, cluster=cluster, now=now))
        for each in done:
            self._write("removed", each, Asker(by="llmgw"), "begun by a process that was killed")
        await asyncio.to_thread(self._keep_room)
        return done

    def _write(self, what: str, doomed: Doomed, asker: Asker, why: str = "") -> None:
        """Durable before it returns. Raises OSError."""
        line = Removal(
            at=self._clock.now().wall,
            what=what,
            node=self._node,
            entry=doomed.entry,
            source=doomed.source,
            size=doomed.size,
            files=doomed.files,
            revision=asker.revision,
            by=asker.by,
            why=why,
        )
        told = msgspec.json.encode(line) + b"\n"
        try:
            try:
                _append(self._log, told)
            except OSError as error:
                if not is_full(error) or not self._spare.give():
                    raise
                _append(self._log, told)
        except OSError as error:
            if not is_full(error):
                raise
            text = f"{error.strerror}, so that no line could tell of it: free some KiB for"
            raise OSError(error.errno, text, str(self._log)) from error

    async def verify(self, entry: str) -> Verified:
        """Hash all that is in it; what is not as it was fetched is set aside, where nobody is served it and it is
        fetched anew. Cancellable. Raises Refusal where there is no such entry, OSError where it cannot be read."""
        found = self._cache.manifest_of(entry)
        if found is None or not naming.is_entry(entry):
            raise Refusal("there is no such entry")
        stop = threading.Event()
        task = asyncio.ensure_future(asyncio.to_thread(check_entry, self._cache.root, entry, found, stop.is_set))
        try:
            trouble = await asyncio.shield(task)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait({task})
            task.exception()
            raise
        if not trouble:
            return Verified(size=Bytes(found.size))
        with self._cache.aside(entry):
            aside = await _to_the_end(lambda: self._set_aside(entry))
        log.error("entry_corrupt", entry=entry, source=found.source, trouble=trouble, aside=aside)
        return Verified(size=Bytes(found.size), trouble=trouble, aside=aside)

    def _set_aside(self, entry: str) -> str:
        aside = f"corrupt-{entry}-{secrets.token_hex(4)}"
        with hold(self._cache.root) as top:
            top.enter(entry).close()  # no link
            top.rename(entry, top, aside)
            top.sync()
        return aside

    def pin(self, entry: str, by: str) -> None:
        """Raises Refusal, OSError."""
        manifest.pin(self._directory(entry), by, self._clock.now().wall)
        self._cache.look_again(entry)

    def unpin(self, entry: str) -> None:
        """Raises Refusal, OSError."""
        manifest.unpin(self._directory(entry))
        self._cache.look_again(entry)

    def _directory(self, entry: str) -> Path:
        path = self._cache.root / entry
        if self._cache.manifest_of(entry) is None or path.is_symlink():
            raise Refusal("there is no such entry")
        return path


def _append(log: Path, line: bytes) -> None:
    """The whole line, durably, or nothing of it. Raises OSError."""
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        before = os.fstat(fd).st_size
        try:
            if os.write(fd, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(fd)
        except OSError:
            os.ftruncate(fd, before)  # half a line would spoil the next one as well
            raise
    finally:
        os.close(fd)


def check_entry(root: Path, entry: str, found: Manifest, stopped: Callable[[], bool]) -> tuple[str, ...]:
    """What of its files is not as it was fetched. Blocks. Raises OSError where one cannot be read for another reason
    than that it is not there."""
    trouble: list[str] = []
    with hold(root) as top, top.enter(entry) as inside:
        for file in found.files:
            if (what := _check_file(inside, file, stopped)) is not None:
                trouble.append(f"{file.path}: {what}")
    return tuple(trouble)


def _check_file(inside: Inside, file: ManifestFile, stopped: Callable[[], bool]) -> str | None:
    folder, _, name = file.path.rpartition("/")
    try:
        with inside.enter_below(folder) as parent:
            fd = parent.open_file(name)
    except (FileNotFoundError, NotADirectoryError):
        return "it is not there"
    digest, done = hashlib.sha256(), 0
    with os.fdopen(fd, "rb", buffering=0) as content:
        while chunk := content.read(CHUNK):
            if stopped():
                raise _Stopped
            digest.update(chunk)
            done += len(chunk)
    if done != file.size:
        return f"{done} bytes, not {file.size}"
    return None if digest.hexdigest() == file.sha256 else f"sha256 {digest.hexdigest()}, not {file.sha256}"


async def _to_the_end(work: Callable[[], T]) -> T:
    """In a thread; a cancellation waits until it is done, for half a deletion helps nobody."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        task.exception()
        raise
