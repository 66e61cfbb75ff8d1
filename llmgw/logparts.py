"""An engine's log in two parts: `log.1` is what was written before it was last cut, `log` what came since.

The agent cuts it while the engine writes (`agent.rotation`). The parts joined, byte by byte, are what the engine said.
"""

import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, Protocol

_WORD: Final = 256  #: bytes by which a place in one part is found again in another


class Readable(Protocol):
    """As much of a file as reading a log takes."""

    def seek(self, offset: int, whence: int = 0, /) -> int: ...

    def read(self, size: int = -1, /) -> bytes: ...


def earlier(log: Path) -> Path:
    """Where the part before the last cut is."""
    return log.with_name(f"{log.name}.1")


def sign(log: Path) -> tuple[int, int] | None:
    """Changes with each cut; None before the first."""
    try:
        found = earlier(log).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


class Joined:
    """Both parts as one file, as they were when it was opened: close it. Raises OSError where there is no log."""

    def __init__(self, log: Path) -> None:
        for _ in range(3):  # a cut while it is opened would leave a gap
            self._now = log.open("rb")
            before = sign(log)
            self._before: BinaryIO | None = None
            with suppress(OSError):
                self._before = earlier(log).open("rb")
            self.earlier = 0 if self._before is None else os.fstat(self._before.fileno()).st_size
            self.size = self.earlier + os.fstat(self._now.fileno()).st_size
            if sign(log) == before:
                break
            self.close()
        else:
            self._now, self._before, self.earlier = log.open("rb"), None, 0
            self.size = os.fstat(self._now.fileno()).st_size
        self._at = 0
        if self._before is not None and _is_copy(self._before, self._now):  # the cut is about to be made
            self._before.close()
            self._before, self.size, self.earlier = None, self.size - self.earlier, 0

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._at = self.size + offset if whence == os.SEEK_END else offset
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        left = max(0, self.size - self._at)
        left = left if size < 0 else min(size, left)
        found = b""
        if self._before is not None and self._at < self.earlier:
            found = os.pread(self._before.fileno(), min(left, self.earlier - self._at), self._at)
        if len(found) < left:
            found += os.pread(self._now.fileno(), left - len(found), self._at + len(found) - self.earlier)
        self._at += len(found)
        return found

    def close(self) -> None:
        self._now.close()
        if self._before is not None:
            self._before.close()

    def __enter__(self) -> "Joined":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Onward:
    """Reads a log on from a position in both its parts, as it grows and through its cuts. Close it."""

    def __init__(self, log: Path, position: int) -> None:
        """`position`: counted as in `Joined`. Raises OSError."""
        self._log = log
        with Joined(log) as whole:
            self._now = log.open("rb")  # the same file for as long as the engine lives, and when it is put away
            self._sign = sign(log)  #: of the last cut that is known of
            start = position - whole.earlier
            if not whole.earlier:  # no cut is known of, be it that one is being made
                self._sign = None
        self._before: BinaryIO | None = None  #: what is read first, after a cut
        self._word = b""  #: what was read last, by which the place is found again
        self.gap = False  #: something was left out before what was read last
        if start < 0:
            self._before = earlier(log).open("rb")
            self._before.seek(position)
        else:
            self._now.seek(start)
            self._word = os.pread(self._now.fileno(), min(start, _WORD), max(0, start - _WORD))

    def read(self, size: int) -> bytes:
        """What comes next; nothing while there is no more."""
        self.gap = False
        while True:
            if self._before is not None:
                if data := self._before.read(size):
                    return data
                if _is_copy(self._before, self._now):
                    return b""
                self._go_on()
            elif self._was_cut():
                self._go_back()
            else:
                data = self._now.read(size)
                self._word = (self._word + data)[-_WORD:]
                return data

    def close(self) -> None:
        self._now.close()
        if self._before is not None:
            self._before.close()

    def _was_cut(self) -> bool:
        position = self._now.tell()
        if os.fstat(self._now.fileno()).st_size < position:
            return True
        if sign(self._log) in (self._sign, None):
            return False
        if position == 0:  # the copy is there before the cut: until then both begin alike
            with suppress(OSError), earlier(self._log).open("rb") as before:
                return before.read(_WORD) != os.pread(self._now.fileno(), _WORD, 0)
            return False
        return os.pread(self._now.fileno(), len(self._word), position - len(self._word)) != self._word

    def _go_back(self) -> None:
        """To where reading stopped, in the part that the cut put aside."""
        new, position = sign(self._log), self._now.tell()
        if new in (self._sign, None):  # cut by somebody who put nothing aside
            self._begin_anew(gap=True)
            return
        try:
            self._before = earlier(self._log).open("rb")
        except OSError:
            self._begin_anew(gap=True)
            return
        self._sign = new
        place = _find_again(self._before, position, self._word) if position else 0
        self.gap = place is None
        self._before.seek(place or 0)

    def _go_on(self) -> None:
        """What was put aside is read: the next is what was written since, or what another cut put aside meanwhile."""
        assert self._before is not None, "called at its end"
        self._before.close()
        self._before = None
        new = sign(self._log)
        if new not in (self._sign, None):
            with suppress(OSError):
                self._before = earlier(self._log).open("rb")
                self._sign = new
                return
        self._begin_anew()

    def _begin_anew(self, *, gap: bool = False) -> None:
        self._now.seek(0)
        self._word = b""
        self.gap = gap


def _is_copy(before: BinaryIO, now: BinaryIO) -> bool:
    """Whether a log has yet to be emptied after this copy of it was put aside: it still begins as the copy does, and is
    as long. (Of a flooded one the copy is but the end.)"""
    size = os.fstat(before.fileno()).st_size
    if not size or os.fstat(now.fileno()).st_size < size:
        return False
    return all(
        os.pread(before.fileno(), _WORD, at) == os.pread(now.fileno(), min(_WORD, size - at), at)
        for at in (0, max(0, size - _WORD))
    )


def _find_again(file: BinaryIO, position: int, word: bytes) -> int | None:
    """Where `word` ends in a copy of the file, or of its end: at `position`, if nothing was left out before it."""
    start = position - len(word)
    if os.pread(file.fileno(), len(word), start) == word:
        return position
    if os.fstat(file.fileno()).st_size == 0:
        return None
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = content.rfind(word)
    return None if found < 0 else found + len(word)
