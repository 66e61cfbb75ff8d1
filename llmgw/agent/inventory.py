"""What the node has: memory, disk, engines. Sampled now and then, never on a request's path."""

import asyncio
import shutil
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from llmgw.agent.ending import Target, find
from llmgw.agent.process import processes
from llmgw.engine.api import Engine
from llmgw.engine.manager import Engines
from llmgw.facts import DiskFact, EngineFact, MemoryFact
from llmgw.ids import EngineName, ReplicaId
from llmgw.units import Bytes

FINGERPRINT_TIMEOUT: Final = 10.0  #: seconds
_CGROUPS: Final = Path("/sys/fs/cgroup")
_UNLIMITED: Final = 1 << 60  #: cgroup v1 writes a huge number for no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """Memory of one replica's processes. `anonymous` cannot be dropped; `mapped` pages (weights) can."""

    anonymous: Bytes
    mapped: Bytes

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
    table = tuple(processes()) if targets else ()
    resident = {
        replica: _sum(resident_of(identity.pid) for identity in find(target, table, read_marks=False))
        for replica, target in targets.items()
    }
    ours = sum(one.anonymous for one in resident.values())
    return Sample(memory=memory(ours), disk=disk(cache_root), resident=resident)


def memory(ours: int = 0, *, cgroups: Path = _CGROUPS, membership: str | None = None) -> MemoryFact:
    """Host memory, or the tightest control group's above us where that is less. `ours`: anonymous bytes of engines."""
    host = psutil.virtual_memory()
    total, available = host.total, host.available
    for limit, used in _limits(cgroups, _membership() if membership is None else membership):
        total, available = min(total, limit), min(available, max(0, limit - used))
    return MemoryFact(
        total=Bytes(total), available=Bytes(available), foreign=Bytes(max(0, total - available - max(0, ours)))
    )


def disk(path: Path) -> DiskFact:
    """The file system that holds `path`, or will once it is made."""
    while not path.exists() and path != path.parent:
        path = path.parent
    usage = shutil.disk_usage(path)
    return DiskFact(total=Bytes(usage.total), free=Bytes(usage.free))


def resident_of(pid: int) -> Resident:
    """Of one process; zero when it is gone."""
    if not sys.platform.startswith("linux"):
        try:
            return Resident(anonymous=Bytes(psutil.Process(pid).memory_info().rss), mapped=Bytes(0))
        except psutil.Error:
            return Resident(anonymous=Bytes(0), mapped=Bytes(0))
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        lines = []
    fields = {name: line.split() for name, _, line in (line.partition(":") for line in lines) if name.startswith("Rss")}
    size = {name: int(values[0]) * 1024 for name, values in fields.items()}
    return Resident(
        anonymous=Bytes(size.get("RssAnon", 0) + size.get("RssShmem", 0)), mapped=Bytes(size.get("RssFile", 0))
    )


def _sum(parts: Iterable[Resident]) -> Resident:
    found = tuple(parts)
    return Resident(
        anonymous=Bytes(sum(part.anonymous for part in found)), mapped=Bytes(sum(part.mapped for part in found))
    )


def _membership() -> str:
    try:
        return Path("/proc/self/cgroup").read_text()
    except OSError:
        return ""


def _limits(root: Path, membership: str) -> Iterable[tuple[int, int]]:
    """(limit, bytes in use that cannot be dropped) of our control groups and every one above them.

    Source: Linux, Documentation/admin-guide/cgroup-v2.rst (memory.*) and cgroup-v1/memory.rst.
    """
    for line in membership.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            yield from _walk(root, path, "memory.max", "memory.current", "inactive_file")
            yield from _walk(root / "unified", path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _walk(root / "memory", path, *names)


def _walk(mount: Path, path: str, limit_file: str, used_file: str, droppable: str) -> Iterable[tuple[int, int]]:
    # Inside a container the path may be the host's and not visible here: the mount's own root then is our group.
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        group = mount.joinpath(*parts[:depth])
        try:
            limit = (group / limit_file).read_text().strip()
            used = int((group / used_file).read_text())
            stat = dict(line.split(maxsplit=1) for line in (group / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        if limit.isdigit() and int(limit) < _UNLIMITED:
            yield int(limit), used - min(used, int(stat.get(droppable, 0)))


async def fingerprints(engines: Engines, *, timeout: float = FINGERPRINT_TIMEOUT) -> tuple[EngineFact, ...]:
    """Every engine's word on this node, in name order. One that raises or hangs is unusable, and says why."""
    found = [_fingerprint(name, engine, timeout) for name, engine in engines.by_name.items()]
    facts = {fact.name: fact for fact in await asyncio.gather(*found)}
    for name, why in engines.lost.items():
        facts.setdefault(name, EngineFact(name=name, why=why))
    return tuple(facts[name] for name in sorted(facts))


async def _fingerprint(name: EngineName, engine: Engine, timeout: float) -> EngineFact:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[EngineFact] = loop.create_future()

    def settle(fact: EngineFact) -> None:
        if not answer.done():
            answer.set_result(fact)

    def work() -> None:
        try:
            fact = engine.fingerprint()
            if not isinstance(fact, EngineFact) or fact.name != name:
                raise TypeError(f"it returned {fact!r:.80}")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin's failure, whatever it is, stays its own
            fact = EngineFact(name=name, why=f"its fingerprint failed: {type(error).__name__}: {error}")
        try:
            loop.call_soon_threadsafe(settle, fact)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return

    # A daemon thread: one that hangs must not keep the process from ending, as an executor's would.
    threading.Thread(target=work, name=f"fingerprint {name}", daemon=True).start()
    try:
        async with asyncio.timeout(timeout):
            return await answer
    except TimeoutError:
        return EngineFact(name=name, why=f"its fingerprint did not return within {timeout:.0f} s")
