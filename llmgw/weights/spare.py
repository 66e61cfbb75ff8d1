"""Room on a disk, kept for when it is full: to delete takes some, for a line that tells of it and for a directory."""

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

SIZE: Final = 64 * 1024
"""Bytes of each: a directory's block, and a hundred lines of an audit log."""


class Spare:
    """A file on each disk that is written to. Another process may use the same ones. Blocking."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._files = tuple(files)

    def keep(self) -> None:
        """Have them, as far as there is room."""
        for file in self._files:
            with suppress(OSError):
                _fill(file)

    def give(self) -> bool:
        """Let go of them, to be kept again once there is room. Whether that freed anything."""
        freed = False
        for file in self._files:
            with suppress(OSError):
                file.unlink()
                freed = True
        return freed


def is_full(error: BaseException | None) -> bool:
    """Whether it comes of a disk, or a quota, that is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _fill(file: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(file, flags, 0o600)
    try:
        if os.fstat(fd).st_size == SIZE:
            return
        if os.write(fd, os.urandom(SIZE)) < SIZE:  # zeros would take no room where the file system compresses
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        file.unlink()
        raise
    finally:
        os.close(fd)
