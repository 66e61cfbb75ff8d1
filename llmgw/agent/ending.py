"""Ending a replica's processes, all of them and nothing else.

Ours are: the process with the recorded identity, the group and session that it leads, whatever carries the mark, the
group or session of the replica's own leader where a member carries it, and the children of any of these.
"""

import os
import signal
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llmgw.agent.process import Identity, Stat, Table, has_mark, identity_of, is_alive, send
from llmgw.units import Mono

GRACE: Final = 10.0  #: seconds between SIGTERM and SIGKILL
_GRACE_OF_STRAYS: Final = 2.0  #: for processes outside the group, from when they are told
_EMPTY_SCANS: Final = 2  #: one may miss a process forked while it ran
_ASK: Final = (signal.SIGTERM, signal.SIGCONT)  #: a process that is stopped takes note once it goes on
_SLOWEST: Final = 0.2  #: seconds between looks


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What proves a process the replica's. `leader` None: only its mark is known."""

    mark: str
    leader: Identity | None


def find(target: Target, table: Table | None = None, *, read_marks: bool = True) -> dict[Identity, Stat]:
    """Every live process that is proven the target's, ourselves excepted.

    Without `read_marks` cheaper, and blind to what left the leader's session and lost its parent.
    """
    table = table or Table.read()
    leader = target.leader
    proven = {pid for pid in table.stats if has_mark(pid, target.mark)} if read_marks else set()
    if leader is not None:
        kin = table.led_by(leader.pid)
        # With the leader gone its number may be another's: then only a marked member vouches for the rest.
        if table.has(leader) or proven & kin:
            proven |= kin
    return {identity_of(table.stats[pid]): table.stats[pid] for pid in table.with_children(proven)}


def leader_of(mark: str) -> Identity | None:
    """The process that was started with the mark: none of the others is its parent, and it leads its session."""
    found = find(Target(mark=mark, leader=None))
    pids = {identity.pid for identity in found}
    roots = {identity: stat for identity, stat in found.items() if stat.parent not in pids}
    return min(roots, key=lambda who: (roots[who].session != who.pid, who.ticks, who.pid), default=None)


class Ending:
    """SIGTERM once to each, SIGKILL after the grace, repeated until nothing is left.

    Call `step` until it returns None: it never waits itself.
    """

    def __init__(self, target: Target, *, grace: float = GRACE) -> None:
        self._target = target
        self._grace = grace
        self._deadline: float | None = None
        self._known: dict[Identity, Stat] = {}
        self._told: set[Identity] = set()
        self._empty = 0
        self._wait = 0.01
        self.found_any = False

    def hasten(self) -> None:
        """No more grace."""
        self._grace = 0.0
        self._deadline = float("-inf")

    @property
    def left(self) -> Collection[int]:
        """Pids still there at the last look."""
        return sorted(identity.pid for identity in self._known)

    def step(self, now: Mono) -> float | None:
        """Look, signal what has to be; seconds until the next look, or None when all are gone."""
        if self._deadline is None:
            self._deadline = now + self._grace
        alive = self._look(rescan=not self._told or now >= self._deadline)
        if not alive:
            self._empty += 1
            if self._empty >= _EMPTY_SCANS:
                return None
            return 0.0
        self._empty, self.found_any = 0, True
        if now >= self._deadline:
            self._kill(alive)
        else:
            self._ask(alive, now)
        self._wait = min(_SLOWEST, self._wait * 1.5)
        return self._wait

    def _look(self, *, rescan: bool) -> dict[Identity, Stat]:
        # Reading the whole table costs milliseconds; asking after those we know, microseconds.
        alive = {identity: stat for identity, stat in self._known.items() if is_alive(identity)}
        if rescan or not alive:
            alive |= find(self._target)
        self._known = alive
        return alive

    def _ask(self, alive: Mapping[Identity, Stat], now: Mono) -> None:
        leader = self._target.leader
        group = {identity for identity, stat in alive.items() if leader is not None and stat.group == leader.pid}
        fresh = (group or alive.keys()) - self._told
        if not fresh:
            return
        if leader in fresh and alive[leader].group == leader.pid:
            # At once to all, lest a shell carry on with its next command when the first is gone.
            with suppress(ProcessLookupError, PermissionError):
                for number in _ASK:
                    os.killpg(leader.pid, number)
        else:
            for identity in fresh:
                for number in _ASK:
                    send(identity, number)
            if self._told and self._deadline is not None:
                self._deadline = max(self._deadline, now + min(self._grace, _GRACE_OF_STRAYS))
        self._told |= fresh

    def _kill(self, alive: Iterable[Identity]) -> None:
        for identity in alive:
            send(identity, signal.SIGKILL)
        self._told |= set(alive)


def run_stop_command(argv: Sequence[str], env: Mapping[str, str], *, home: Path, log: Path, timeout: float) -> None:
    """The engine's own way of ending; its output goes to the log. Bounded: what follows ends the engine anyway."""
    with log.open("ab") as output, suppress(OSError):
        command = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=home,
            env=env,
            start_new_session=True,
        )
        try:
            with suppress(subprocess.TimeoutExpired):
                command.wait(timeout)
        finally:
            if command.poll() is None:
                os.killpg(command.pid, signal.SIGKILL)  # what it started too: a shell's child is what hangs
                command.wait()
