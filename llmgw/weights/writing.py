"""A file as it comes: written, hashed and made durable beside the reading, each in a thread of its own.

hashlib, writes and fsync release the interpreter's lock, so that on two cores and more a download is as fast as the
slowest of them, not as their sum.
"""

import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final

CHUNK: Final = 1024 * 1024
"""Bytes handed over at once: large enough that waking a thread costs nothing beside them."""

_AHEAD: Final = 4
"""Chunks that may be read before the first of them is written and hashed."""


class Writing:
    """Appends to one file. `at`: bytes that are there already, whose hash `digest` is. For one thread; raises OSError
    from any method, once a write failed: nothing is written after a gap."""

    def __init__(self, fd: int, *, at: int, digest: "hashlib._Hash") -> None:
        self._fd = fd
        self.digest = digest
        self.at = at  #: bytes handed over so far
        self.written = at
        self.durable = 0  #: bytes that survive a crash of the machine
        self._failed = False
        self._writer = ThreadPoolExecutor(1, "llmgw-write")
        self._hasher = ThreadPoolExecutor(1, "llmgw-hash")
        self._syncer = ThreadPoolExecutor(1, "llmgw-sync")
        self._syncing: Future[None] | None = None
        self._free = [memoryview(bytearray(CHUNK)) for _ in range(_AHEAD)]
        self._busy: list[tuple[memoryview, Future[None], Future[None]]] = []

    def __enter__(self) -> "Writing":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for pool in (self._writer, self._hasher, self._syncer):
            pool.shutdown(wait=True)

    def room(self) -> memoryview:
        """To read into, and to hand over with `put`."""
        if not self._free:
            self._take_back()
        return self._free.pop()

    def put(self, room: memoryview, count: int) -> None:
        """The first `count` bytes of it are the next of the file; with none it is just given back."""
        if count == 0:
            self._free.append(room)
            return
        part = room[:count]
        self._busy.append((room, self._writer.submit(self._write, part), self._hasher.submit(self.digest.update, part)))
        self.at += count

    def settle(self) -> None:
        """Wait until all that was handed over is written and hashed."""
        while self._busy:
            self._take_back()

    def sync(self) -> bool:
        """Begin to make durable what is written; False: that is under way already."""
        if self._syncing is not None:
            if not self._syncing.done():
                return False
            self._syncing.result()
        self._syncing = self._syncer.submit(self._sync, self.written)
        return True

    def finish(self) -> None:
        """Wait until all of it is written, hashed and durable."""
        self.settle()
        if self._syncing is not None:
            self._syncing.result()
        if self.durable < self.written:
            self._sync(self.written)

    def restart(self) -> None:
        """Empty the file: it begins anew."""
        self.settle()
        if self._syncing is not None:
            self._syncing.result()
        os.ftruncate(self._fd, 0)
        self.at = self.written = self.durable = 0
        self.digest = hashlib.sha256()

    def _take_back(self) -> None:
        room, written, hashed = self._busy.pop(0)
        try:
            hashed.result()
            written.result()
        finally:
            self._free.append(room)

    def _write(self, part: memoryview) -> None:
        if self._failed:
            return  # whoever waits for the one before is told
        try:
            while part:
                count = os.write(self._fd, part)
                self.written += count
                part = part[count:]
        except OSError:
            self._failed = True
            raise

    def _sync(self, upto: int) -> None:
        os.fsync(self._fd)
        self.durable = upto
