"""Who listens on a replica's port: an answer from there says something of the replica only if it is its own.

A port is checked before an engine is started. Until the engine binds it, which may take it a minute, another program
can: another llmgw's engine, say, which answers health checks as well as any. Linux tells; elsewhere it is not known.
"""

import ipaddress
import os
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llmgw.agent.ending import Target, find
from llmgw.agent.process import current, mark_of

_PROC: Final = Path("/proc")
_LISTENER: Final = rb"^ *\d+: ([0-9A-F]+):%04X [0-9A-F]+:0000 0A (?:\S+ +){5}(\d+)"
"""A line of /proc/net/tcp whose state is LISTEN: the address, and the socket's inode. psutil makes an object of every
connection of the machine first: with ten thousand that takes seconds of a process that also is the gateway."""
_MAPPED: Final = bytes(10) + b"\xff\xff"  #: before an IPv4 address, as an IPv6 socket has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranger:
    """Whoever listens, and is no process of the replica. `pid` None: of another user. `certain`: it is the engine of
    another replica; else something may have the port on the replica's behalf, as runtimes of containers do."""

    pid: int | None
    certain: bool

    def __str__(self) -> str:
        who = "a process of another user" if self.pid is None else f"pid {self.pid}"
        return f"{who} listens on its port, {'of another replica' if self.certain else 'which is none of its own'}"


def stranger(host: str, port: int, target: Target) -> Stranger | None:
    """None: the replica listens, or who does cannot be told, or came after it, as what it starts elsewhere does.

    Blocks for a millisecond, or some where the process that was started is not the one that listens.
    """
    leader, sockets = target.leader, listeners(host, port)
    if leader is None or not sockets or holds(leader.pid, sockets):
        return None
    if any(holds(identity.pid, sockets) for identity in find(target)):
        return None
    pid = next((pid for pid in _pids() if holds(pid, sockets)), None)
    if pid is None:  # ended meanwhile, or not ours to look into
        return Stranger(pid=None, certain=False) if listeners(host, port) & sockets else None
    if mark_of(pid) not in (None, target.mark):
        return Stranger(pid=pid, certain=True)
    who = current(pid)
    return Stranger(pid=pid, certain=False) if who is not None and who.ticks < leader.ticks else None


def listeners(host: str, port: int) -> frozenset[bytes]:
    """Inodes of the sockets that listen there, at that address or at any."""
    try:
        here = _spellings(host)
        lines = [found for name in ("tcp", "tcp6") for found in _lines(_PROC / "net" / name, port)]
    except ValueError:  # a name: nobody says which of its addresses
        return frozenset()
    return frozenset(inode for address, inode in lines if address in here)


def holds(pid: int, sockets: Collection[bytes]) -> bool:
    """Whether a process has one of those sockets open; not, where that cannot be read."""
    wanted = {f"socket:[{inode.decode()}]" for inode in sockets}
    directory = f"{_PROC}/{pid}/fd"
    try:
        return any(_link(f"{directory}/{name}") in wanted for name in os.listdir(directory))
    except OSError:
        return False


def _lines(file: Path, port: int) -> list[tuple[bytes, bytes]]:
    try:
        return re.findall(_LISTENER % port, file.read_bytes(), re.MULTILINE)
    except OSError:  # no such protocol here, or no Linux
        return []


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:  # closed meanwhile
        return ""


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(_PROC) if name.isdigit()]


def _spellings(host: str) -> frozenset[bytes]:
    """The address as /proc/net has it, in words of this machine's byte order, and those that stand for any."""
    packed = ipaddress.ip_address(host).packed
    both = (packed, _MAPPED + packed, bytes(4)) if len(packed) == 4 else (packed,)
    return frozenset(map(_spelt, (*both, bytes(16))))


def _spelt(packed: bytes) -> bytes:
    step = -1 if sys.byteorder == "little" else 1
    return b"".join(packed[at : at + 4][::step] for at in range(0, len(packed), 4)).hex().upper().encode()
