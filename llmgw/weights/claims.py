"""One download of an entry at a time, over all processes that share a cache.

A claim is a lock on one byte of the cache's marker file, at an offset made from the entry's name: it leaves nothing
behind, and ends with its process however that ends. Open-file-description locks (fcntl(2), F_OFD_SETLK): a POSIX lock
would end with any other descriptor that the process closes on that file. Where the file system or the system has none,
two processes may fetch the same entry at once, as harmless as before: each into a directory of its own, and the first
to publish wins.
"""

import asyncio
import errno
import fcntl
import hashlib
import os
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

ASK_EVERY: Final = 0.25
"""Seconds between two tries at a claim that another process holds."""

_TAKEN: Final = (errno.EAGAIN, errno.EACCES)
_OFFSETS: Final = 2**62
"""Offsets are signed 64-bit numbers."""


@asynccontextmanager
async def claimed(marker: Path, entry: str, wait: Callable[[], None]) -> AsyncIterator[None]:
    """While this process alone fetches `entry`; `wait` is called before each pause while another one does."""
    try:
        fd = os.open(marker, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # somebody else's, or read-only: what is to be written next fails by itself where it must
        yield
        return
    try:
        while not _take(fd, entry):
            wait()
            await asyncio.sleep(ASK_EVERY)
        yield
    finally:
        os.close(fd)


def _take(fd: int, entry: str) -> bool:
    """False: another one has it."""
    command = getattr(fcntl, "F_OFD_SETLK", None)
    if command is None:
        return True
    offset = int.from_bytes(hashlib.sha256(entry.encode()).digest()[:8]) % _OFFSETS
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, offset, 1, 0)
    try:
        fcntl.fcntl(fd, command, lock)
    except OSError as error:
        return error.errno not in _TAKEN  # ENOLCK and the like: nothing to be had here
    return True
