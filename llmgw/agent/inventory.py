"""What the node has of memory and disk, and how much of it the engines take. Sampled, never on a request's path."""

import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from llmgw.agent import cgroups as groups
from llmgw.agent.ending import Target, find
from llmgw.agent.process import Table
from llmgw.facts import DiskFact, MemoryFact
from llmgw.ids import ReplicaId
from llmgw.units import Bytes

_MOUNTS: Final = Path("/proc/self/mountinfo")
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """Memory of one replica's processes. `anonymous` cannot be dropped; `mapped` pages (weights) can.

    Pages that several of its processes share count once for each: rather too much than too little.
    """

    anonymous: Bytes
    mapped: Bytes
    peak: Bytes = Bytes(0)
    """At least so much was resident at once, as the kernel remembers it of the process that ever had most: exact for a
    single process, also for what came and went between two samples."""
    pids: frozenset[int] = frozenset()

    @property
    def total(self) -> Bytes:
        return Bytes(self.anonymous + self.mapped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    memory: MemoryFact
    disk: DiskFact
    resident: Mapping[ReplicaId, Resident]


def sample(cache_root: Path, targets: Mapping[ReplicaId, Target]) -> Sample:
    """A look at memory and disk: some milliseconds. Raises OSError when the cache's disk cannot be asked."""
    table = Table.read() if targets else None
    resident = {
        replica: _sum(resident_of(identity.pid) for identity in find(target, table, read_marks=False))
        for replica, target in targets.items()
    }
    ours = sum(one.anonymous for one in resident.values())
    return Sample(memory=memory(ours), disk=disk(cache_root), resident=resident)


def memory(ours: int = 0, *, cgroups: Path = groups.CGROUPS, membership: str | None = None) -> MemoryFact:
    """Host memory, or the tightest control group's at or above us where that is less.

    `ours`: anonymous bytes of engines. Swap counts as nothing: an engine that is swapped out does not serve.
    """
    host = psutil.virtual_memory()
    total, available = host.total, host.available
    for limit, used in groups.limits(cgroups, groups.membership() if membership is None else membership):
        total, available = min(total, limit), min(available, max(0, limit - used))
    return MemoryFact(
        total=Bytes(total), available=Bytes(available), foreign=Bytes(max(0, total - available - max(0, ours)))
    )


def disk(path: Path) -> DiskFact:
    """The file system that holds `path`, or will once it is made."""
    while not path.exists() and path != path.parent:
        path = path.parent
    usage = shutil.disk_usage(path)
    return DiskFact(total=Bytes(usage.total), free=Bytes(usage.free), mount=mount_of(path))


def mount_of(path: Path, table: Path = _MOUNTS) -> str:
    """Where the file system that holds an existing path is mounted. Bind mounts count: st_dev does not see them."""
    real = path.resolve()
    try:
        lines = table.read_text(errors="surrogateescape").splitlines()
    except OSError:  # not Linux
        return str(next(parent for parent in (real, *real.parents) if parent.is_mount()))
    places = [Path(_OCTAL.sub(lambda code: chr(int(code[1], 8)), line.split(" ")[4])) for line in lines]
    return str(max((place for place in places if real.is_relative_to(place)), key=lambda place: len(place.parts)))


def resident_of(pid: int) -> Resident:
    """Of one process; zero when it is gone."""
    if not sys.platform.startswith("linux"):
        try:
            rss = Bytes(psutil.Process(pid).memory_info().rss)
        except psutil.Error:
            rss = Bytes(0)
        return Resident(anonymous=rss, mapped=Bytes(0), peak=rss, pids=frozenset({pid}))
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        lines = []
    fields = {
        name: line.split() for name, _, line in (line.partition(":") for line in lines) if name[:3] in ("Rss", "VmH")
    }
    size = {name: int(values[0]) * 1024 for name, values in fields.items()}
    return Resident(
        anonymous=Bytes(size.get("RssAnon", 0) + size.get("RssShmem", 0)),
        mapped=Bytes(size.get("RssFile", 0)),
        peak=Bytes(size.get("VmHWM", 0)),
        pids=frozenset({pid}),
    )


def _sum(parts: Iterable[Resident]) -> Resident:
    found = tuple(parts)
    now = sum(part.anonymous + part.mapped for part in found)
    return Resident(
        anonymous=Bytes(sum(part.anonymous for part in found)),
        mapped=Bytes(sum(part.mapped for part in found)),
        peak=Bytes(max(now, *(part.peak for part in found), 0)),
        pids=frozenset(pid for part in found for pid in part.pids),
    )
