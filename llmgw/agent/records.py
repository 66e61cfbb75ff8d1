"""`replicas/<id>/state.json`: what survives the agent. Written before a process is started, and again after."""

import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llmgw.agent.process import Identity
from llmgw.errors import LlmgwError, TerminalError
from llmgw.facts import Failure
from llmgw.ids import ReplicaId
from llmgw.plan import Assignment
from llmgw.statedir import StateDir, sync_directory, write_atomic
from llmgw.store import codec

_SAFE_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_REMOVED: Final = ".removed-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """An intent while `identity` is None: the process may exist, and is then found by its `mark`.

    Secrets are in it as references only. `failure`: how it ended, so that it is not run or judged again.
    """

    assignment: Assignment
    mark: str
    port: int
    url: str
    identity: Identity | None = None
    stop_argv: tuple[str, ...] | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A replica's directory that says nothing: left alone."""

    directory: Path
    why: str


def directory(state: StateDir, replica: ReplicaId) -> Path:
    """Raises TerminalError for an id that is no plain file name: it comes from outside."""
    if _SAFE_ID.fullmatch(replica) is None:
        raise TerminalError(f"not a replica id: {replica!r}")
    return state.replicas / replica


def log_file(state: StateDir, replica: ReplicaId) -> Path:
    return directory(state, replica) / "log"


def write(state: StateDir, record: Record) -> None:
    """Durable when it returns. Raises OSError."""
    home = directory(state, record.assignment.replica)
    if not home.exists():
        home.mkdir(mode=0o700, parents=True)
        sync_directory(home.parent)
    write_atomic(home / "state.json", codec.encode(record), mode=0o600)


def read(home: Path) -> Record:
    """Raises OSError, or LlmgwError for what is no record of this version."""
    record = codec.decode((home / "state.json").read_bytes(), Record, where=str(home / "state.json"))
    if record.assignment.replica != home.name:
        raise TerminalError(f"{home / 'state.json'} is about another replica, {record.assignment.replica}")
    return record


def read_all(state: StateDir) -> tuple[list[Record], list[Unreadable]]:
    """Every replica that left a record, and the directories that could not be read."""
    found: list[Record] = []
    unreadable: list[Unreadable] = []
    for home in sorted(state.replicas.iterdir()) if state.replicas.is_dir() else ():
        if home.is_symlink() or not home.is_dir():
            continue
        if home.name.startswith(_REMOVED) or _never_used(home):
            shutil.rmtree(home, ignore_errors=True)
            continue
        try:
            found.append(read(home))
        except (OSError, LlmgwError) as error:
            unreadable.append(Unreadable(home, str(error)))
    return found, unreadable


def _never_used(home: Path) -> bool:
    """No intent and no log, so no process: the agent ended while it prepared the launch."""
    return not (home / "state.json").exists() and not (home / "log").exists()


def remove(state: StateDir, replica: ReplicaId) -> None:
    """Renamed first: a half-removed directory is no replica. Idempotent; what cannot be removed is left for later."""
    home = directory(state, replica)
    doomed = home.with_name(f"{_REMOVED}{replica}")
    with suppress(OSError):
        home.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)
