"""Reading engines' logs on this machine: a running replica's, and those kept of the last that ended.

Memory is bounded however long a log or a line of it is. Names and ids become paths only when they are plain names.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llmgw.ids import ModelName, ReplicaId, is_name
from llmgw.logparts import Joined, Onward, Readable
from llmgw.statedir import StateDir

MAX_LINES: Final = 10_000  #: of one answer
MAX_BYTES: Final = 4 * 1024 * 1024  #: of a log that are looked at for them
LONGEST: Final = 16 * 1024  #: bytes of a line: a longer one is told in pieces
_BLOCK: Final = 64 * 1024
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """One replica's log. `running`: it is still written. `at`: when it was written last, seconds since the epoch."""

    model: ModelName
    replica: ReplicaId
    path: Path
    running: bool
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a replica's log, or a `note` of ours between the lines."""

    replica: ReplicaId
    text: str = ""
    note: str | None = None


def live(state: StateDir, model: ModelName, replica: ReplicaId) -> LogFile | None:
    """The log of a replica whose directory is still there."""
    return _log_file(state.replicas / replica / "log", model, running=True) if _ID.fullmatch(replica) else None


def ended(state: StateDir, model: ModelName) -> list[LogFile]:
    """Logs of ended replicas, the newest first."""
    if not is_name(model):
        return []
    with suppress(OSError):
        found = [_log_file(path, model, running=False) for path in (state.logs / model).glob("*.log")]
        return sorted((each for each in found if each is not None), key=lambda each: each.at, reverse=True)
    return []


def current(state: StateDir, model: ModelName, replicas: Iterable[ReplicaId]) -> LogFile | None:
    """The first of these replicas that has a log now, else the last one that ended."""
    running = (live(state, model, replica) for replica in replicas)
    return next((each for each in running if each is not None), None) or next(iter(ended(state, model)), None)


def models_with_logs(state: StateDir) -> frozenset[ModelName]:
    """Models of which ended replicas left a log, those that the catalog no longer has among them."""
    with suppress(OSError):
        return frozenset(ModelName(name) for name in os.listdir(state.logs) if is_name(name))
    return frozenset()


def _log_file(path: Path, model: ModelName, *, running: bool) -> LogFile | None:
    replica = path.parent.name if running else path.stem
    try:
        at = path.stat().st_mtime
    except OSError:
        return None
    return LogFile(model=model, replica=ReplicaId(replica), path=path, running=running, at=at)


@dataclass(frozen=True, slots=True)
class Tail:
    """The last lines of a log. `whole`: there are none before them. `end`: where the next line begins, in bytes."""

    lines: tuple[str, ...]
    whole: bool
    end: int


def tail(file: Readable, lines: int) -> Tail:
    """The last `lines` lines, of MAX_BYTES at most; a last one without an end is left for later. Raises OSError."""
    size = position = file.seek(0, os.SEEK_END)
    data = bytearray()
    while position > 0 and data.count(b"\n") <= lines and len(data) < MAX_BYTES:
        step = min(_BLOCK, position)
        position -= step
        file.seek(position)
        data[:0] = file.read(step)
    end = data.rfind(b"\n") + 1
    found = bytes(data[:end]).split(b"\n")[:-1]
    if position > 0:
        found = found[1:] if len(found) > 1 else found  # the first is but the end of a line
    kept = found[-lines:] if lines else []
    pieces = tuple(piece for line in kept for piece in _pieces(line))
    return Tail(pieces, position == 0 and len(kept) == len(found), size - len(data) + end)


def read_tail(path: Path, lines: int) -> Tail:
    """As `tail`, of both its parts and with a last line that has no end. Raises OSError."""
    with Joined(path) as file:
        found = tail(file, lines)
        file.seek(found.end)
        rest = file.read(MAX_BYTES)
    last = tuple(piece for line in rest.splitlines() for piece in _pieces(line))
    return Tail((*found.lines, *last)[-lines:], found.whole, found.end + len(rest))


def _pieces(line: bytes) -> Iterator[str]:
    """The line as text, bytes that are none as \\xNN; in pieces where it is too long."""
    for start in range(0, max(1, len(line)), LONGEST):
        yield line[start : start + LONGEST].decode(errors="backslashreplace")


class Following:
    """A model's log as it grows, from one replica to the next. Close it."""

    def __init__(self, lines: int) -> None:
        self._lines = lines  #: of the first log; later ones are told whole
        self._log: LogFile | None = None
        self._file: Onward | None = None
        self._partial = b""
        self._end_told = False

    def step(self, log: LogFile | None) -> list[Line]:
        """What is new since the last step. `log`: what is current now. Nothing: wait before the next one."""
        if self._file is not None and (new := list(self._more())):
            return new
        if log is None or (self._log is not None and log.replica == self._log.replica):
            return self._ended() if log is not None and not log.running else []
        rows = [*self._rest(), *self._begin(log)]
        return rows or (list(self._more()) if self._file is not None else [])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self, log: LogFile) -> Iterator[Line]:
        first, self._log, self._partial, self._end_told = self._log is None, log, b"", False
        self.close()
        try:
            with Joined(log.path) as file:
                found = tail(file, self._lines) if first else Tail((), whole=True, end=0)
            self._file = Onward(log.path, found.end)
        except OSError:  # it ended just now: its log is elsewhere at the next look
            self._log = None
            return
        if not first:
            yield Line(replica=log.replica, note=f"another replica was started: {log.replica}")
        for text in found.lines:
            yield Line(replica=log.replica, text=text)

    def _more(self) -> Iterator[Line]:
        assert self._file is not None, "asked only while a file is open"
        assert self._log is not None, "a file is some log's"
        fresh = self._file.read(_BLOCK)
        if self._file.gap:
            self._partial = b""
            yield Line(replica=self._log.replica, note="the log was cut and begins anew")
        data = self._partial + fresh
        *lines, self._partial = data.split(b"\n")
        if len(self._partial) > LONGEST:
            lines, self._partial = [*lines, self._partial], b""
        for line in lines:
            for text in _pieces(line):
                yield Line(replica=self._log.replica, text=text)

    def _rest(self) -> Iterator[Line]:
        """A last line that never got its end."""
        if self._partial and self._log is not None:
            yield Line(replica=self._log.replica, text=self._partial.decode(errors="backslashreplace"))
        self._partial = b""

    def _ended(self) -> list[Line]:
        if self._end_told or self._log is None:
            return []
        self._end_told = True
        note = f"replica {self._log.replica} has ended; the log of the next one follows when it is started"
        return [*self._rest(), Line(replica=self._log.replica, note=note)]
