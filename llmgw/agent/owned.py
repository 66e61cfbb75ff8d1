"""Ending what a state directory owns, without a daemon: `llmgw down`."""

import fcntl
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llmgw.agent import launch, logs, records, rotation
from llmgw.agent.around import LOG_SIZE
from llmgw.agent.ending import GRACE, Ending, Target, find, run_stop_command
from llmgw.agent.process import Identity, Table, is_alive, self_identity, send
from llmgw.agent.records import Record
from llmgw.errors import StateDirError
from llmgw.statedir import StateDir, StateLock, fault
from llmgw.units import Mono

_DAEMON_GRACE: Final = 30.0  #: seconds a daemon has to end after SIGTERM

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Work:
    record: Record
    ending: Ending


def end_owned(state: StateDir, say: Say) -> int:
    """End the daemon that holds the lock, then every engine that the directory owns; how many of those were ended.

    Raises StateDirError when the daemon cannot be proven to be the process that the lock names.
    """
    if not state.root.is_dir():
        return 0
    _end_daemon(state, say)
    lock = StateLock(state)
    lock.acquire(self_identity())  # no daemon may start engines meanwhile
    try:
        return end_replicas(state, say)
    finally:
        lock.release()


def end_replicas(state: StateDir, say: Say) -> int:
    """End every engine that left a record. For whoever holds the state directory's lock. Blocks until all are gone."""
    found, unreadable = records.read_all(state)
    for other in unreadable:
        say(f"left alone: {other.directory}: {other.why}")
    work = [_Work(record, Ending(_target(record))) for record in found]
    table = Table.read()
    running = [one for one in work if find(_target(one.record), table)]
    for one in work:
        if one in running:
            say(f"stopping {one.record.assignment.model} (pid {_pid(one.record)})")
        if one in running or one.record.failure is None:  # its process may be gone, and a container of its not
            _run_stop_command(state, one.record, say)
    _finish([one.ending for one in running])
    for one in work:
        assignment = one.record.assignment
        with suppress(OSError):
            rotation.fold(records.log_file(state, assignment.replica), LOG_SIZE)
        with suppress(OSError):
            logs.keep(records.log_file(state, assignment.replica), state, assignment.model, assignment.replica)
        records.remove(state, assignment.replica)
    return len(running)


def _target(record: Record) -> Target:
    return Target(mark=record.mark, leader=record.identity)


def _pid(record: Record) -> str:
    return str(record.identity.pid) if record.identity else "not recorded"


def _run_stop_command(state: StateDir, record: Record, say: Say) -> None:
    if record.stop_argv is None:
        return
    log = records.log_file(state, record.assignment.replica)
    try:
        env = launch.stop_environment(record, state.secret())
    except StateDirError as error:  # the command could prove nothing without it; signals end the engine too
        say(f"its stop command is left out: {error}")
        return
    run_stop_command(record.stop_argv, env, home=log.parent, log=log, timeout=GRACE)


def _finish(endings: Sequence[Ending]) -> None:
    left = list(endings)
    while left:
        steps = [(ending, ending.step(Mono(time.monotonic()))) for ending in left]
        left = [ending for ending, wait in steps if wait is not None]
        if left:
            time.sleep(min(wait for _, wait in steps if wait is not None))


def _end_daemon(state: StateDir, say: Say) -> None:
    if not _is_locked(state.lock_file):
        return
    owner = state.lock_owner()
    identity = Identity.parse(owner.identity) if owner else None
    if owner is None or identity is None or not is_alive(identity) or identity.pid == os.getpid():
        who = f"pid {owner.pid} on {owner.host}" if owner else "a process that left no name"
        raise StateDirError(f"{state.root} is in use by {who}, which is not provably its daemon here: end it there")
    say(f"ending llmgw (pid {identity.pid})")
    send(identity, signal.SIGTERM)
    deadline = time.monotonic() + _DAEMON_GRACE
    while is_alive(identity):
        if time.monotonic() >= deadline:
            say(f"llmgw (pid {identity.pid}) did not end within {_DAEMON_GRACE:.0f} s: killed")
            send(identity, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(0.05)


def has_daemon(state: StateDir) -> bool:
    """Whether a process holds the directory's lock."""
    return _is_locked(state.lock_file)


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StateDirError(f"cannot use {path}: {fault(error)}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
