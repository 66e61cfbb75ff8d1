"""The weights cache of one node: entries, one directory each, under a root that a marker file claims for a cluster."""

import asyncio
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
import structlog

from llmgw.catalog.spec import FetchLimits, WeightsSpec
from llmgw.clock import Clock
from llmgw.errors import TerminalError, WeightsRefused, WeightsUnavailable
from llmgw.facts import Progress, WeightsFact
from llmgw.memo import Kept
from llmgw.statedir import write_atomic
from llmgw.units import Bytes, Wall
from llmgw.weights import inplace, manifest, naming, partial, split
from llmgw.weights.api import WeightSource
from llmgw.weights.doomed import CORRUPT
from llmgw.weights.fetch import Fetch, check_sha256
from llmgw.weights.folder import Folders
from llmgw.weights.gguf import Scalar
from llmgw.weights.lookup import WantedSources
from llmgw.weights.manifest import Manifest
from llmgw.weights.mirror import Mirror
from llmgw.weights.pacing import Pacing
from llmgw.weights.registry import own_sources
from llmgw.weights.sources import hash_file, in_thread
from llmgw.weights.survey import Survey, bounded

log = structlog.get_logger("llmgw.weights")

MARKER: Final = ".llmgw-cache"
LAYOUT: Final = 1
KEPT_MANIFESTS: Final = 2000
"""Manifests in memory, at most: beyond, they are read again whenever they are looked at."""

STAMP_EVERY: Final = 60.0
"""Seconds between two durable stamps of one entry while it is wanted; one more is made when it no longer is."""

_NOTHING: Final = frozenset({"lost+found"})
"""Found in a directory that is empty all the same: the root of a fresh file system."""


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str
    layout: int


@dataclass(frozen=True, slots=True)
class _Stamp:
    """A file's identity: equal stamps mean unchanged content."""

    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path | str) -> "_Stamp":
        status = os.stat(path)
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What of all that is wanted the cache asks for again and again, worked out once."""

    sources: WantedSources
    must: frozenset[str]  #: entries that are named for it
    kept: tuple[tuple[WeightsSpec, str, str], ...]  #: what may lie in entries: the one named for it, and its stem
    local: tuple[tuple[str, str], ...]  #: files in place: source and path

    @classmethod
    def of(cls, specs: tuple[WeightsSpec, ...]) -> "_Wanted":
        local = {spec.source for spec in specs if naming.is_local(spec.source)}
        kept = [spec for spec in specs if spec.source not in local]
        return cls(
            sources=WantedSources(spec.source for spec in specs),
            must=frozenset(naming.entry_name(spec.source, sum) for spec in kept for sum in (None, spec.sha256)),
            kept=tuple((one, naming.entry_name(one.source, one.sha256), naming.stem(one.source)) for one in kept),
            local=tuple((source, naming.local_path(source)) for source in sorted(local)),
        )


class _Index:
    """The entries that there are now, by what they may hold as far as is known."""

    def __init__(self, names: Iterable[str], sources: Mapping[str, str]) -> None:
        self._names = frozenset(names)
        self._by_stem: dict[str, list[str]] = {}
        self._unread: list[str] = []
        for name in names:
            source = sources.get(name)
            where = self._unread if source is None else self._by_stem.setdefault(naming.stem(source), [])
            where.append(name)

    def of(self, spec: WeightsSpec) -> Iterator[str]:
        """The one that is named for it first."""
        exact = naming.entry_name(spec.source, spec.sha256)
        if exact in self._names:
            yield exact
        others = (*self._by_stem.get(naming.stem(spec.source), ()), *self._unread)
        yield from (name for name in others if name != exact)

    def may_hold(self, exact: str, stem: str) -> bool:
        """Whether `of` has any for what these are of."""
        return bool(self._unread) or exact in self._names or stem in self._by_stem


class Cache:
    """Finds, fetches and describes weights. Call `open` first."""

    def __init__(
        self,
        root: Path,
        *,
        cluster_id: str,
        clock: Clock,
        sources: Mapping[str, WeightSource] | None = None,
        mirror: Mirror | None = None,
    ) -> None:
        """`sources`: by scheme; by default llmgw's own. `mirror`: other nodes, which are asked first."""
        self.root = root
        self._sources = own_sources() if sources is None else sources
        self._cluster_id = cluster_id
        self._clock = clock
        self._mirror = mirror
        self._fetches: dict[str, Fetch] = {}
        self._pacing = Pacing()
        self._limited = False
        self._manifests: dict[str, tuple[_Stamp, Manifest]] = {}
        self._stamped: dict[str, Wall] = {}
        self._marked: frozenset[str] = frozenset()  #: entries that were wanted when that was last told
        self._survey = Survey(lambda name: self._entry_fact(name, self._clock.now().wall))
        self._sources_of: dict[str, str] = {}  #: of entries that were looked at: a name has one for ever
        self.unlisted = 0  #: entries that the last facts left out
        self._wanted: Kept[None, _Wanted] = Kept(_Wanted.of)
        self._local: dict[str, tuple[tuple[_Stamp, ...], dict[str, Scalar]]] = {}
        self._folders = Folders()
        self._verified: dict[tuple[str, str], _Stamp] = {}
        self._aside: set[str] = set()  #: entries that are about to be moved away: nobody finds them
        self._trouble: str | None = None  #: with reading the root; said once

    def open(self) -> None:
        """Create the root and its marker, or verify that it is this cluster's; remove dead processes' downloads.

        Raises TerminalError, naming what to do.
        """
        try:
            self.root = self.root.expanduser().absolute()
            resolved = self.root.resolve()
            if resolved == Path("/") or resolved == Path.home().resolve():
                raise TerminalError(f"the weights cache cannot be {self.root} itself: name a directory in it")
            self.root.mkdir(parents=True, exist_ok=True)
            if not (self.root / MARKER).exists():
                self._claim()
            self._verify_marker()
            self.tidy()
        except OSError as error:
            raise TerminalError(
                f"cannot use the weights cache {self.root}: {error.strerror or error}; name another with --cache"
            ) from error

    def _claim(self) -> None:
        found = [name for name in os.listdir(self.root) if name not in _NOTHING and not name.startswith(f".{MARKER}.")]
        if found:
            raise TerminalError(
                f"{self.root} is not empty and no weights cache of llmgw (it has no {MARKER}): name a new or empty "
                "directory with --cache"
            )
        marker = Marker(cluster=self._cluster_id, layout=LAYOUT)
        write_atomic(self.root / MARKER, msgspec.json.encode(marker) + b"\n")

    def _verify_marker(self) -> None:
        path = self.root / MARKER
        try:
            marker = msgspec.json.decode(path.read_bytes(), type=Marker)
        except msgspec.MsgspecError as error:
            raise TerminalError(f"{path} cannot be read ({error}): name another directory with --cache") from error
        if marker.layout > LAYOUT:
            raise TerminalError(
                f"the weights cache {self.root} has layout {marker.layout}, this llmgw reads up to {LAYOUT}: upgrade "
                "llmgw, or name another directory with --cache"
            )
        if marker.cluster != self._cluster_id:
            raise TerminalError(
                f"the weights cache {self.root} belongs to another cluster ({marker.cluster}, this is "
                f"{self._cluster_id}): name another directory with --cache"
            )

    def locate(self, spec: WeightsSpec) -> Path | None:
        """The file (in place, possibly a directory), ready to use. None: it has to be fetched, or verified."""
        if naming.is_local(spec.source):
            path = Path(naming.local_path(spec.source))
            return path if self._local_problem(path) is None and self._is_verified(spec, path) else None
        found = self._entry_of(spec)
        return None if found is None else self.root / found[0] / found[1].main

    def find(self, spec: WeightsSpec) -> str | None:
        """The name of the entry that holds it, whole. None: none does, or it is used where it lies."""
        found = None if naming.is_local(spec.source) else self._entry_of(spec)
        return None if found is None else found[0]

    def limit(self, limits: FetchLimits) -> None:
        """For all downloads, those under way too, whatever their askers say of it."""
        self._pacing.limit(limits)
        self._limited = True

    async def fetch(
        self,
        spec: WeightsSpec,
        *,
        reserve: Bytes,
        progress: Callable[[Progress], None],
        limits: FetchLimits | None = None,
    ) -> Path:
        """The file, fetched first where need be; of a source whose revision nobody resolved yet, what is here, else
        what it is now. `reserve`: bytes of disk to leave free. `limits`: for all downloads from now on, where nobody
        set others by `limit`; None: as they are.

        Cancellable: the last asker's cancellation ends the download and removes what it left. `progress` is called
        in the event loop. Raises WeightsUnavailable (may pass) or WeightsRefused (will not).
        """
        if limits is not None and not self._limited:
            self._pacing.limit(limits)
        if naming.is_local(spec.source):
            return await self._verify_local(spec, progress)
        if (found := self.locate(spec)) is not None:
            return found
        spec = await self.resolved(spec)
        if (found := self.locate(spec)) is not None:
            return found
        name = naming.entry_name(spec.source, spec.sha256)
        fetch = self._fetches.get(name) or self._start(name, spec, reserve)
        return await fetch.join(progress, lambda: self._forget(name, fetch))

    async def resolved(self, spec: WeightsSpec) -> WeightsSpec:
        """With the revision that its source has now, where that moves. Raises WeightsUnavailable, WeightsRefused."""
        source = self._source_of(spec)
        if not source.is_moving(spec.source):
            return spec
        found = (await source.describe(spec)).resolved
        return spec if found is None else replace(spec, source=found)

    def _source_of(self, spec: WeightsSpec) -> WeightSource:
        """Raises WeightsRefused."""
        source = self._sources.get(spec.source.partition("://")[0])
        if source is None:
            raise WeightsRefused(
                f"nothing here can fetch {spec.source}: sources are {', '.join(sorted(self._sources))}"
            )
        try:
            source.canonical(spec.source)
        except ValueError as error:
            raise WeightsRefused(str(error)) from error
        return source

    def _start(self, name: str, spec: WeightsSpec, reserve: Bytes) -> Fetch:
        source = self._source_of(spec)
        if not (self.root / MARKER).exists():  # never fill the disk under a mount point
            raise WeightsUnavailable(f"{self.root} is no weights cache any more: is its disk mounted?")

        def others() -> int:
            return sum(other.outstanding for other in self._fetches.values() if other is not fetch)

        fetch = Fetch(
            self.root,
            name,
            spec,
            source,
            reserve=reserve,
            clock=self._clock,
            others=others,
            pacing=self._pacing,
            marker=self.root / MARKER,
            published=lambda: self.locate(spec),
            mirror=self._mirror,
        )
        self._fetches[name] = fetch
        fetch.start(lambda: self._forget(name, fetch))
        return fetch

    def _forget(self, name: str, fetch: Fetch) -> None:
        if self._fetches.get(name) is fetch:
            del self._fetches[name]

    def facts(self, wanted: Iterable[WeightsSpec]) -> tuple[WeightsFact, ...]:
        """What lies in the cache, and the files in place that `wanted` names: as much as a report holds, all that is
        wanted first (`unlisted`: how many entries are left out). Cheap: rereads only what changed, and of a large cache
        a part."""
        now, asked = self._clock.now().wall, self._wanted.of(None, tuple(wanted))
        sources = asked.sources
        found = self._survey.look(self._entry_names(), asked.must, sources.__contains__)
        found += [*self._corrupt_facts(now), *self._unfinished_facts(now)]
        told, left_out = bounded(found, sources.__contains__)
        self.unlisted = left_out + self._survey.unread
        here = (fact for source, path in asked.local if (fact := self._local_fact(source, path, now)) is not None)
        return (*told, *here)

    def mark_wanted(self, specs: Iterable[WeightsSpec], now: Wall) -> None:
        """Stamp the entries of `specs` as wanted at `now`, at most once a minute each, and those that were wanted until
        now once more, so that their age counts from here. Survives restarts."""
        index = self._index()
        asked = self._wanted.of(None, tuple(specs))
        here = [spec for spec, exact, stem in asked.kept if index.may_hold(exact, stem)]
        entries = (self._entry_of(spec, index) for spec in here)
        marked = frozenset(found[0] for found in entries if found is not None)
        for name in sorted(marked):
            if not 0 <= now - self._stamped.get(name, Wall(0)) < STAMP_EVERY:
                self._stamp(name, now)
        for name in sorted(self._marked - marked):
            if self._manifest(name) is not None:  # it was not removed meanwhile
                self._stamp(name, now)
                self.look_again(name)
        self._marked = marked

    def _stamp(self, name: str, now: Wall) -> None:
        try:
            manifest.stamp_wanted(self.root / name, now)
        except OSError as error:  # a read-only or full cache still serves
            log.warning("last_wanted_not_stamped", entry=name, error=str(error))
        self._stamped[name] = now

    # -- entries

    def tidy(self) -> None:
        """Put aside, or remove, what processes that are gone left, and what was put aside too long ago. Raises
        OSError."""
        for path in partial.remove_stale(self.root, self._clock.now().wall):
            log.info("stale_download_removed", path=str(path))

    def unfinished(self, name: str) -> str | None:
        """The source of an unfinished download that was put aside. None: there is none of that name."""
        try:
            return next((one.source for one in partial.kept(self.root) if one.name == name), None)
        except OSError:
            return None

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    def being_fetched(self, name: str) -> bool:
        return name in self._fetches

    @contextmanager
    def aside(self, name: str) -> Iterator[None]:
        """Nobody is given the entry meanwhile."""
        self._aside.add(name)
        try:
            yield
        finally:
            self._aside.discard(name)
            self.look_again(name)
            self._manifests.pop(name, None)
            self._stamped.pop(name, None)

    def look_again(self, name: str) -> None:
        """Something about an entry is different now."""
        self._survey.look_again(name)

    def manifest_of(self, name: str) -> Manifest | None:
        """Of an entry, or of one that was set aside as corrupt. None: there is none."""
        return self._manifest(name) if naming.is_entry(name) or CORRUPT.fullmatch(name) else None

    def held(self, name: str) -> Manifest | None:
        """Of a whole entry that may be used now."""
        path = self.root / name
        found = None if name in self._aside or path.is_symlink() else self.manifest_of(name)
        return found if found is not None and manifest.is_complete(path, found) else None

    def _corrupt_facts(self, now: Wall) -> Iterator[WeightsFact]:
        try:
            with os.scandir(self.root) as found:
                names = sorted(e.name for e in found if CORRUPT.fullmatch(e.name) and e.is_dir(follow_symlinks=False))
        except OSError:  # told by _entry_names
            return
        for name in names:
            if name in self._aside:
                continue
            fact = self._entry_fact(name, now)
            if fact is None:  # its manifest is gone: whoever looks must see it all the same
                fact = WeightsFact(source="unknown", entry=name, size=Bytes(0), last_wanted=now)
            yield replace(fact, complete=False, corrupt=True, metadata={})

    def _unfinished_facts(self, now: Wall) -> Iterator[WeightsFact]:
        try:
            for one in partial.kept(self.root):
                wanted = min(one.touched, now)
                yield WeightsFact(
                    source=one.source,
                    entry=one.name,
                    size=one.size,
                    last_wanted=wanted,
                    complete=False,
                    unfinished=True,
                )
        except OSError:  # told by _entry_names
            return

    def _entry_names(self) -> list[str]:
        try:
            with os.scandir(self.root) as found:
                names = sorted(e.name for e in found if naming.is_entry(e.name) and e.is_dir(follow_symlinks=False))
        except OSError as error:
            if self._trouble != str(error):
                log.error("cache_unreadable", root=str(self.root), error=str(error))
            self._trouble = str(error)
            return []
        self._trouble = None
        return names

    def _manifest(self, name: str) -> Manifest | None:
        try:
            stamp = _Stamp.of(self.root / name / manifest.MANIFEST)
        except OSError:
            return None
        known = self._manifests.get(name)
        if known is not None and known[0] == stamp:
            return known[1]
        found = manifest.read(self.root / name)
        if found is not None:
            self._sources_of[name] = found.source
            if len(self._manifests) < KEPT_MANIFESTS or name in self._manifests:
                self._manifests[name] = (stamp, found)
        return found

    def _entry_of(self, spec: WeightsSpec, index: _Index | None = None) -> tuple[str, Manifest] | None:
        """The complete entry that holds what `spec` names. `index`: where many are asked for.

        Usually the one named for it; else one of the same source with the same content, so that adding a checksum to
        a source that is here downloads nothing; of a source without a revision the one that was wanted last.
        """
        suited = []
        for name in self._candidates(spec) if index is None else index.of(spec):
            path = self.root / name
            found = None if name in self._aside or path.is_symlink() else self._manifest(name)
            if found is None or not naming.is_held_as(spec.source, found.source):
                continue
            if spec.sha256 is not None and found.files[0].sha256 != spec.sha256.lower():
                continue
            if not manifest.is_complete(path, found):
                continue
            if not naming.is_moving(spec.source):
                return name, found
            suited.append((self._last_wanted(name, found), name, found))
        return max(suited, key=lambda each: each[:2])[1:] if suited else None

    def _candidates(self, spec: WeightsSpec) -> Iterator[str]:
        """As `_Index.of`, without a look at all entries where the first will do."""
        yield (exact := naming.entry_name(spec.source, spec.sha256))
        yield from (name for name in self._index().of(spec) if name != exact)

    def _index(self) -> _Index:
        return _Index(self._entry_names(), self._sources_of)

    def _last_wanted(self, name: str, found: Manifest) -> Wall:
        # Read each time: another daemon that shares the cache stamps it too.
        wanted = manifest.read_wanted(self.root / name) or Wall(found.fetched_at)
        return max(wanted, self._stamped.get(name, wanted))

    def _entry_fact(self, name: str, now: Wall) -> WeightsFact | None:
        found = None if name in self._aside else self._manifest(name)
        if found is None:
            return None
        return WeightsFact(
            source=found.source,
            entry=name,
            size=Bytes(found.size),
            last_wanted=min(self._last_wanted(name, found), now),
            complete=manifest.is_complete(self.root / name, found),
            licence=found.licence,
            sha256=found.files[0].sha256,
            metadata=found.metadata,
            pinned=manifest.pinned_by(self.root / name),
        )

    # -- files in place

    def _local_problem(self, path: Path) -> str | None:
        return inplace.problem(path, self._folders)

    def _is_verified(self, spec: WeightsSpec, path: Path) -> bool:
        if spec.sha256 is None:
            return True
        try:
            return not path.is_dir() and self._verified.get((spec.source, spec.sha256.lower())) == _Stamp.of(path)
        except OSError:
            return False

    async def _verify_local(self, spec: WeightsSpec, progress: Callable[[Progress], None]) -> Path:
        path = Path(naming.local_path(spec.source))
        if (problem := self._local_problem(path)) is not None:
            raise WeightsRefused(f"{problem}: correct the source, or put the file there")
        if spec.sha256 is not None and (path.is_dir() or len(split.parts(path)) > 1):
            what = "a directory" if path.is_dir() else "split into several files"
            raise WeightsRefused(f"{path} is {what}, and a checksum is one file's: leave `sha256` out")
        if spec.sha256 is None or self._is_verified(spec, path):
            return path
        loop = asyncio.get_running_loop()
        try:
            stamp = _Stamp.of(path)

            def tell(done: int) -> None:
                loop.call_soon_threadsafe(progress, Progress(done=Bytes(done), total=Bytes(stamp.size)))

            def work(stop: threading.Event) -> str:
                return hash_file(path, stop=stop, progress=tell)

            found = await in_thread(work)
        except OSError as error:
            raise WeightsRefused(f"{path} cannot be read: {error.strerror}") from error
        check_sha256(spec, found)
        self._verified[spec.source, spec.sha256.lower()] = stamp
        return path

    def _local_fact(self, source: str, where: str, now: Wall) -> WeightsFact | None:
        try:
            is_directory = stat.S_ISDIR(os.stat(where).st_mode)
        except (OSError, ValueError):
            return None
        path = Path(where)
        if is_directory:
            folder = self._folders.look(path)
            if folder.problem is not None:
                return None
            size, metadata = Bytes(folder.size), folder.metadata
            return WeightsFact(source=source, entry=None, size=size, last_wanted=now, metadata=metadata)
        try:
            stamps = tuple(_Stamp.of(part) for part in split.parts(path))
            known = self._local.get(source)
            if known is None or known[0] != stamps:
                known = (stamps, manifest.metadata_of(path))
                self._local[source] = known
        except OSError:
            return None
        size = Bytes(sum(stamp.size for stamp in stamps))
        return WeightsFact(source=source, entry=None, size=size, last_wanted=now, metadata=known[1])
