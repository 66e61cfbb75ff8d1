"""The access log: a line of JSON for each answered request, and nothing of what was asked or answered.

Lines are gathered on the request path, and written twice a second by a thread: a disk that is slow or full holds up no
request. What it does not take is counted and let go.
"""

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import structlog

from llmgw.errors import TerminalError
from llmgw.gateway.request import Request

log = structlog.get_logger("llmgw.gateway")

EVERY: Final = 0.5  #: seconds between two writes
MOST: Final = 50_000
"""Lines that wait to be written. More than a gateway answers in several seconds: what goes beyond has nowhere to go."""
AT_ONCE: Final = 64
"""Lines that are encoded in one go, on the request path, in 30 us. A thread that encodes them has to have Python's lock
meanwhile, and to hand it back and forth: at 5,000 requests a second that made the slowest hundredth a millisecond
slower."""
STDOUT: Final = "-"
NAME: Final = 200
"""Characters that are written of a model's name as it was asked for: the longest that there can be. All of a body,
which has megabytes, may be the name of no model."""
PATH: Final = 1024
"""Characters that are written of a path."""


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request. Seconds are of its whole stay: `held` until it was sent to an engine, `first` until the first byte
    of the answer came, `took` until the last. `asked`: the name that it gave, where that is not the model's own."""

    at: float
    id: str
    method: str
    path: str
    status: int
    took: float
    client: str = ""
    key: str = ""
    model: str = ""
    asked: str = ""
    served_by: str = ""  #: another model, which stood in for it
    replica: str = ""
    code: str = ""  #: of an error of the gateway's own
    held: float | None = None
    first: float | None = None
    first_token: float | None = None  #: of a stream: until its first event came
    tokens_in: int = 0
    tokens_out: int = 0
    tries: int = 1
    cancelled: bool = False  #: the client left before the answer was complete


@dataclass(slots=True, kw_only=True)
class Trace:
    """What a request went through. Seconds run from its arrival."""

    status: int = 0
    code: str = ""
    replica: str = ""
    served_by: str = ""
    held: float | None = None
    first: float | None = None
    first_token: float | None = None
    cancelled: bool = False

    def sent(self, replica: str, served_by: str, after: float) -> None:
        """To an engine; the first time, and each time that another is tried."""
        self.replica, self.served_by = replica, served_by
        if self.held is None:
            self.held = after

    def line(
        self, request: Request, client: str, model: str, asked: str, tokens: tuple[int, int], *, at: float,
        took: float = 0.0, tries: int = 1,
    ) -> Line:  # fmt: skip
        head = request.head
        return Line(
            at=at, id=request.id, method=head.method, path=head.path[:PATH], status=self.status, took=_rounded(took),
            client=client, key=request.caller.name, model=model, asked="" if asked == model else asked[:NAME],
            served_by=self.served_by, replica=self.replica, code=self.code,
            held=None if self.held is None else _rounded(self.held),
            first=None if self.first is None else _rounded(self.first),
            first_token=None if self.first_token is None else _rounded(self.first_token),
            tokens_in=tokens[0], tokens_out=tokens[1], tries=tries, cancelled=self.cancelled,
        )  # fmt: skip


def _rounded(seconds: float) -> float:
    """To microseconds, in a third of the time that `round` takes to be exact."""
    return int(seconds * 1e6) / 1e6


class AccessLog:
    """Appends to a file, or to standard output. A file that was moved away is begun anew: nobody need tell us."""

    def __init__(self, where: Path | None) -> None:
        """None: standard output. Nothing is opened yet."""
        self._where = where
        self._lines: list[Line] = []
        self._encoded: list[bytes] = []  #: of AT_ONCE lines each, which came before those
        self._file: BinaryIO | None = None
        self._encode = msgspec.json.Encoder().encode_lines
        self._well = True
        self.written = 0
        self.lost = 0

    def begin(self) -> None:
        """Raises TerminalError: what cannot be written at the start is a mistake."""
        try:
            self._open()
        except OSError as error:
            raise TerminalError(f"--access-log {self._where} cannot be written: {error.strerror}") from error

    def _open(self) -> None:
        if self._where is not None:
            descriptor = os.open(self._where, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            self._file = os.fdopen(descriptor, "wb", buffering=0)

    def add(self, line: Line) -> None:
        """On the request path: cheap. Called by one thread."""
        lines = self._lines
        if len(self._encoded) * AT_ONCE + len(lines) >= MOST:
            self.lost += 1
            return
        lines.append(line)
        if len(lines) >= AT_ONCE:
            self._encoded.append(self._encode(lines))
            lines.clear()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            if data := self._taken():
                await asyncio.to_thread(self._put, data)

    def flush(self) -> None:
        """Write what waits, now. Never raises: requests go on whatever becomes of their lines."""
        if data := self._taken():
            self._put(data)

    def _taken(self) -> bytes:
        """Whatever waits, which then does not any more."""
        encoded, lines, self._encoded, self._lines = self._encoded, self._lines, [], []
        if lines:
            encoded.append(self._encode(lines))
        return b"".join(encoded)

    def _put(self, data: bytes) -> None:
        """From any thread. What is written in part counts as lost."""
        left = memoryview(data)
        try:
            self._look()
            while left:
                left = left[self._write(left) :]
        except OSError as error:
            if self._well:
                log.error("access_log_not_written", reason=str(error))
            self._well = False
        else:
            self._well = True
        written = data.count(b"\n", 0, len(data) - len(left))
        self.written += written
        self.lost += data.count(b"\n") - written

    def _look(self) -> None:
        """Begin anew a file that was moved away."""
        if self._where is not None and (self._file is None or not self._is_there()):
            self.close()
            self._open()

    def _write(self, data: memoryview) -> int:
        """How much of it was taken."""
        if self._where is None:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            return len(data)
        assert self._file is not None
        return self._file.write(data)

    def _is_there(self) -> bool:
        assert self._file is not None
        assert self._where is not None
        try:
            there = os.stat(self._where)
        except OSError:
            return False
        ours = os.fstat(self._file.fileno())
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def close(self) -> None:
        """Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None
