"""Engines' logs: their last words, and the last few kept after their end."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from llmgw.ids import ModelName, ReplicaId
from llmgw.logparts import Joined, earlier
from llmgw.statedir import StateDir

KEPT: Final = 3  #: logs of ended replicas, per model
TAIL: Final = 64 * 1024  #: bytes that a failure is classified from
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LONGEST: Final = 200
_AGAIN: Final = "started again, on another port"


def kept_log(state: StateDir, model: ModelName, replica: ReplicaId) -> Path:
    """Where the log of an ended replica is found."""
    return state.logs / model / f"{replica}.log"


def tail(path: Path, size: int = TAIL) -> str:
    """The last `size` bytes as text, those before its last cut too; empty when there is no log."""
    try:
        with Joined(path) as file:
            file.seek(max(0, file.size - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def add(path: Path, line: str) -> str:
    """Put a line of our own, marked as such, at the end of an engine's log if it can be written. Returns the line."""
    text = f"\nllmgw: {line}\n"
    with suppress(OSError), path.open("a") as file:
        file.write(text)
    return text


def begin_again(path: Path) -> None:
    """Mark that what follows is of a process started anew, on another port."""
    add(path, _AGAIN)


def of_last_start(text: str) -> str:
    """What the process that was started last has said: it did not die of what ended the one before."""
    return text.rpartition(f"\nllmgw: {_AGAIN}\n")[2]


def last_line(text: str) -> str:
    """The last line that says something, without colours and at most 200 characters long; or nothing."""
    for line in reversed(text.splitlines()):
        said = "".join(char for char in _ESCAPES.sub("", line) if char.isprintable()).strip()
        if any(char.isalnum() for char in said):
            return said if len(said) <= _LONGEST else said[: _LONGEST - 1] + "…"
    return ""


def keep(log: Path, state: StateDir, model: ModelName, replica: ReplicaId) -> None:
    """Move an ended replica's log to where it is kept; the model's oldest ones go. Raises OSError."""
    target = kept_log(state, model, replica)
    if log.exists():
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        before = earlier(log)
        log.replace(target)
        if before.exists():
            before.replace(earlier(target))
    for _, old in sorted(_by_age(target.parent), reverse=True)[KEPT:]:
        old.unlink(missing_ok=True)
        earlier(old).unlink(missing_ok=True)


def _by_age(directory: Path) -> Iterator[tuple[float, Path]]:
    for path in directory.glob("*.log"):
        with suppress(OSError):
            yield path.stat().st_mtime, path
