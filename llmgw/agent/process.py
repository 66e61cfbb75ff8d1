"""Which process is which. A pid alone proves nothing: it is reused; an identity is not.

Linux reads /proc; elsewhere psutil answers, as well as it can.
"""

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import psutil

MARK_VARIABLE: Final = "LLMGW_REPLICA_MARK"
"""Carries a replica's random mark in the environment of all its processes."""

_PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One process, for as long as the world stands. `ticks`: start time since boot, field 22 of /proc/PID/stat."""

    boot: str
    namespace: int  #: inode of the pid namespace
    pid: int
    ticks: int

    def __str__(self) -> str:
        return f"{self.boot}:{self.namespace}:{self.pid}:{self.ticks}"

    @classmethod
    def parse(cls, text: str) -> "Identity | None":
        """The reverse of str(); None for anything else."""
        boot, *numbers = text.split(":")
        if len(numbers) != 3 or not all(number.isdigit() for number in numbers):
            return None
        namespace, pid, ticks = map(int, numbers)
        return cls(boot=boot, namespace=namespace, pid=pid, ticks=ticks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """A line of the process table. `threads`: those not reaped yet, the first one included."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    ticks: int
    threads: int = 1

    @property
    def is_dead(self) -> bool:
        """A zombie holds a number, and no memory. One whose other threads are still ending holds its memory yet, and
        nobody can wait for it."""
        return self.state in "Xx" or (self.state == "Z" and self.threads <= 1)


def current(pid: int) -> Identity | None:
    """Who has this pid now (a zombie too), or None."""
    stat = read_stat(pid)
    return None if stat is None else identity_of(stat)


def identity_of(stat: Stat) -> Identity:
    return Identity(boot=_boot(), namespace=_namespace(), pid=stat.pid, ticks=stat.ticks)


def is_alive(identity: Identity) -> bool:
    """Whether that very process runs now. False for a zombie, another boot, another pid namespace."""
    stat = read_stat(identity.pid)
    return stat is not None and not stat.is_dead and identity_of(stat) == identity


def same_world(identity: Identity) -> bool:
    """Whether it can run at all here: it began in this boot, and in this pid namespace."""
    return (identity.boot, identity.namespace) == (_boot(), _namespace())


def self_identity() -> str:
    """This process, for the state directory's lock."""
    return str(current(os.getpid()))


def read_stat(pid: int) -> Stat | None:
    """None when there is no such process."""
    if not _has_proc():
        return _psutil_stat(pid)
    try:
        return parse_stat((_PROC / str(pid) / "stat").read_bytes())
    except (OSError, ValueError):
        return None


def parse_stat(raw: bytes) -> Stat:
    """Raises ValueError. The command's name (field 2) may hold spaces and parentheses: the last one ends it."""
    head, _, rest = raw.rpartition(b")")
    fields = rest.split()
    if len(fields) < 20:
        raise ValueError("a short stat line")
    return Stat(
        pid=int(head.split(b" ", 1)[0]),
        state=fields[0].decode(),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        ticks=int(fields[19]),
        threads=int(fields[17]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a process has taken so far. `faults`: pages that had to be read from a disk."""

    cpu: float = 0.0  #: seconds, of all its threads
    faults: int = 0


def spent(pid: int) -> Spent:
    """Zero when there is no such process. Fields 12, 14 and 15 of /proc/PID/stat."""
    if not _has_proc():
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            return Spent()
        return Spent(cpu=times.user + times.system)
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        return Spent(cpu=(int(fields[11]) + int(fields[12])) / _ticks(), faults=int(fields[9]))
    except (OSError, ValueError, IndexError):
        return Spent()


class Table:
    """The process table at one moment, by number and by kinship: looked at for many replicas, read once."""

    def __init__(self, stats: Iterable[Stat]) -> None:
        self.stats: dict[int, Stat] = {}
        self._led: dict[int, set[int]] = {}
        self._children: dict[int, list[int]] = {}
        ours = os.getpid()
        for stat in stats:
            if stat.pid == ours:  # never another's
                continue
            self.stats[stat.pid] = stat
            self._led.setdefault(stat.group, set()).add(stat.pid)
            if stat.session != stat.group:
                self._led.setdefault(stat.session, set()).add(stat.pid)
            self._children.setdefault(stat.parent, []).append(stat.pid)

    @classmethod
    def read(cls) -> "Table":
        return cls(processes())

    def has(self, identity: Identity) -> bool:
        """Whether that very process lived then."""
        stat = self.stats.get(identity.pid)
        return stat is not None and identity_of(stat) == identity

    def led_by(self, pid: int) -> set[int]:
        """Members of the group or session that has this number."""
        return self._led.get(pid, set())

    def with_children(self, pids: Iterable[int]) -> set[int]:
        """They, their children, and so on."""
        found: set[int] = set()
        left = list(pids)
        while left:
            pid = left.pop()
            if pid not in found:
                found.add(pid)
                left += self._children.get(pid, ())
        return found


def processes() -> Iterator[Stat]:
    """Every process that can be seen, dead ones left out. Some milliseconds for some hundreds."""
    pids = [int(name) for name in os.listdir(_PROC) if name.isdigit()] if _has_proc() else psutil.pids()
    for pid in pids:
        stat = read_stat(pid)
        if stat is not None and not stat.is_dead:
            yield stat


def has_mark(pid: int, mark: str) -> bool:
    """Whether a process of our own user carries the mark in its environment."""
    wanted = f"{MARK_VARIABLE}={mark}"
    if not _has_proc():
        try:
            return psutil.Process(pid).environ().get(MARK_VARIABLE) == mark
        except (psutil.Error, OSError):
            return False
    directory = _PROC / str(pid)
    try:
        if directory.stat().st_uid != os.getuid():
            return False
        return wanted.encode() in (directory / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def mark_of(pid: int) -> str | None:
    """The mark of whichever replica it belongs to; None: of none, or it cannot be read."""
    try:
        return psutil.Process(pid).environ().get(MARK_VARIABLE)
    except (psutil.Error, OSError):
        return None


def send(identity: Identity, number: signal.Signals) -> None:
    """Signal that very process; nobody else, should it be gone meanwhile."""
    with suppress(ProcessLookupError, PermissionError):
        if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
            if is_alive(identity):
                os.kill(identity.pid, number)
            return
        fd = os.pidfd_open(identity.pid)
        try:
            if is_alive(identity):  # asked after the descriptor pinned the process
                signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)


def reap(identity: Identity) -> int | None:
    """The exit status as Popen gives it (-N for signal N), once; None: not our child, or not ended."""
    if current(identity.pid) != identity:
        return None  # the number may be another child's by now, whose status is not ours to take
    try:
        ended, status = os.waitpid(identity.pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if ended else None


@cache
def _has_proc() -> bool:
    return sys.platform.startswith("linux")


@cache
def _ticks() -> int:
    return os.sysconf("SC_CLK_TCK")


@cache
def _boot() -> str:
    if not _has_proc():
        return str(int(psutil.boot_time()))
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


@cache
def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino if _has_proc() else 0


def _psutil_stat(pid: int) -> Stat | None:
    try:
        found = psutil.Process(pid)
        return Stat(
            pid=pid,
            state="Z" if found.status() == psutil.STATUS_ZOMBIE else "S",
            parent=found.ppid(),
            group=os.getpgid(pid),
            session=os.getsid(pid),
            ticks=int(found.create_time() * 100),
        )
    except (psutil.Error, OSError):
        return None
