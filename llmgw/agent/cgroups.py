"""What control groups say of memory: limits around a process, and whom the kernel killed for want of it.

Source: Linux, Documentation/admin-guide/cgroup-v2.rst (memory.*) and cgroup-v1/memory.rst.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from llmgw.units import Mono

CGROUPS: Final = Path("/sys/fs/cgroup")
MACHINE: Final = "the whole machine"
"""Stands for a group where a process is in none that counts."""

_PROC: Final = Path("/proc")
_UNLIMITED: Final = 1 << 60  #: cgroup v1 writes a huge number for no limit
_SETTLED: Final = 3.0
"""Seconds that a count must be old to be compared with: the kernel counts first, and a large process takes a while to
die."""

_FRESH: Final = 0.5  #: seconds that a count read for one replica does for the others
_MANY: Final = 2_000  #: memberships remembered


def membership(pid: int | str = "self", *, proc: Path = _PROC) -> str:
    """/proc/PID/cgroup, or nothing."""
    try:
        return (proc / str(pid) / "cgroup").read_text()
    except OSError:
        return ""


def limits(root: Path, member: str) -> Iterator[tuple[int, int]]:
    """(limit, bytes in use that cannot be dropped) of a process's groups and every one above them.

    `member`: its /proc/PID/cgroup. Above `memory.high` (version 2) the kernel stalls whoever allocates: a limit too.
    """
    for mount, path, version in _hierarchies(root, member):
        for group in _upwards(mount, path):
            if version == 2:
                found = _limit(group, ("memory.max", "memory.high"), "memory.current", "inactive_file")
            else:
                found = _limit(group, ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")
            if found is not None:
                yield found


def oom_kills(member: str, *, root: Path = CGROUPS, proc: Path = _PROC) -> dict[str, int]:
    """How many processes the kernel has killed in a process's own group (version 2: and those below), by the group.

    Where no group tells, on the whole machine.
    """
    found: dict[str, int] = {}
    for mount, path, version in _hierarchies(root, member):
        for group in _upwards(mount, path):  # the first that can be seen from here
            count = _field(group / ("memory.events" if version == 2 else "memory.oom_control"), "oom_kill")
            if count is not None:
                found[f"/{group.relative_to(root)}"] = count
                break
    if not found and (count := _field(proc / "vmstat", "oom_kill")) is not None:
        found[MACHINE] = count
    return found


class Counts:
    """How often the kernel has killed, by membership: read once for all replicas that look at about the same time."""

    def __init__(self, *, root: Path = CGROUPS, proc: Path = _PROC) -> None:
        self.proc = proc
        self._root = root
        self._read: dict[str, tuple[Mono, dict[str, int]]] = {}

    def of(self, member: str, now: Mono) -> Mapping[str, int]:
        """As they were a moment ago at most."""
        known = self._read.get(member)
        if known is None or not 0 <= now - known[0] < _FRESH:
            if len(self._read) > _MANY:  # groups come and go
                self._read.clear()
            known = self._read[member] = now, self.just_now(member)
        return known[1]

    def just_now(self, member: str) -> dict[str, int]:
        return oom_kills(member, root=self._root, proc=self.proc)


class OomKills:
    """Whether the kernel killed one of a replica's processes, or one of their group, of late."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._members: set[str] = set()
        self._old: Mapping[str, int] = {}
        self._new: dict[str, int] = {}
        self._at: float = float("-inf")

    def look(self, pids: Collection[int | str], now: Mono) -> None:
        """While they live: note their groups and the counts. Some file reads."""
        self._members |= {member for pid in pids if (member := membership(pid, proc=self._counts.proc))}
        counts: dict[str, int] = {}
        for member in self._members:
            counts |= self._counts.of(member, now)
        if now - self._at >= _SETTLED:
            self._old, self._new, self._at = {**counts, **self._new}, counts, now
        else:
            self._new = {**counts, **self._new}

    def grown(self) -> str | None:
        """The group that counted a kill since the last look that is old enough, or None."""
        base = {**self._new, **self._old}
        found: dict[str, int] = {}
        for member in self._members:
            found |= self._counts.just_now(member)
        return next((group for group, count in found.items() if count > base.get(group, count)), None)


def _hierarchies(root: Path, member: str) -> Iterator[tuple[Path, str, int]]:
    """(mount, path of the process's group, version) of whatever may count memory."""
    for line in member.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            yield root, path, 2
            yield root / "unified", path, 2
        elif "memory" in controllers.split(","):
            yield root / "memory", path, 1


def _upwards(mount: Path, path: str) -> Iterable[Path]:
    # Inside a container the path may be the host's and not visible here: the mount's own root then is our group.
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _limit(group: Path, limit_files: Iterable[str], used_file: str, droppable: str) -> tuple[int, int] | None:
    found = [limit for name in limit_files if (limit := _number(group / name)) is not None and limit < _UNLIMITED]
    used = _number(group / used_file)
    if not found or used is None:
        return None
    return min(found), used - min(used, _field(group / "memory.stat", droppable) or 0)


def _number(file: Path) -> int | None:
    """None for `max`, or no such file."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _field(file: Path, name: str) -> int | None:
    """From lines of a name and a number."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return None
