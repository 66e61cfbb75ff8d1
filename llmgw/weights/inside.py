"""A directory by its descriptor: whatever happens to paths meanwhile, it is the same one, and no link is followed."""

import errno
import fcntl
import os
import re
import signal
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

SMALL: Final = 16 * 1024 * 1024
"""Bytes of a manifest, at most: some tens of thousands of files."""

_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Held:
    """What makes a file itself, under whatever name."""

    device: int
    inode: int
    kind: int

    @classmethod
    def of(cls, found: os.stat_result) -> "Held":
        return cls(found.st_dev, found.st_ino, stat.S_IFMT(found.st_mode))


class Inside:
    """An open directory. Its methods take names, never paths, but for `enter_below`; they raise OSError."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        found = os.fstat(fd)
        self.device = found.st_dev
        self.identity = Held.of(found)

    def __enter__(self) -> "Inside":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._fd)

    def path(self) -> str:
        """Where it is now, without links; empty where the system does not tell."""
        try:
            return os.readlink(f"/proc/self/fd/{self._fd}")
        except OSError:
            return ""

    def enter(self, name: str) -> "Inside":
        """On the same file system: another raises OSError (EXDEV)."""
        inner = Inside(os.open(_plain(name), _FLAGS, dir_fd=self._fd))
        if inner.device != self.device:
            inner.close()
            raise OSError(errno.EXDEV, "another file system is mounted there", name)
        return inner

    def enter_below(self, path: str) -> "Inside":
        """Some names deep, each looked at; empty: this one again."""
        found = Inside(os.dup(self._fd))
        for name in path.split("/") if path else ():
            with found as outer:
                found = outer.enter(name)
        return found

    def names(self) -> list[str]:
        return sorted(os.listdir(self._fd))

    def scan(self) -> Iterator[str]:
        """Names one by one, in no order: whoever stops early has not read a million."""
        with os.scandir(self._fd) as found:
            for each in found:
                yield each.name

    def stat(self, name: str) -> os.stat_result:
        return os.stat(_plain(name), dir_fd=self._fd, follow_symlinks=False)

    def identity_of(self, name: str) -> Held:
        return Held.of(self.stat(name))

    def open_file(self, name: str) -> int:
        """A descriptor for reading a plain file; a pipe is not waited for."""
        fd = os.open(_plain(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._fd)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "no plain file", name)
        return fd

    def check_writable(self, folder: str) -> None:
        with self.enter_below(folder) as found:
            if not os.access(
                ".", os.W_OK | os.X_OK, dir_fd=found._fd, effective_ids=os.access in os.supports_effective_ids
            ):
                where = found.path() or folder
                if os.fstatvfs(found._fd).f_flag & os.ST_RDONLY:
                    raise OSError(errno.EROFS, "its file system is mounted read-only", where)
                raise OSError(errno.EACCES, "no permission to delete there", where)

    def mkdir(self, name: str) -> None:
        """For nobody else."""
        os.mkdir(_plain(name), 0o700, dir_fd=self._fd)

    def rename(self, name: str, into: "Inside", to: str) -> None:
        os.rename(_plain(name), _plain(to), src_dir_fd=self._fd, dst_dir_fd=into._fd)

    def unlink(self, name: str) -> None:
        os.unlink(_plain(name), dir_fd=self._fd)

    def rmdir(self, name: str) -> None:
        os.rmdir(_plain(name), dir_fd=self._fd)

    def sync(self) -> None:
        os.fsync(self._fd)


def hold(root: Path) -> Inside:
    """The root itself may be a link: the operator's way to another disk. Raises OSError."""
    return Inside(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def named(inside: Inside, folders: Collection[str]) -> Iterator[tuple[str, os.stat_result, Inside]]:
    """All that lies in it, with the directory that it lies in; goes into `folders` alone, and so no deeper than they
    go. Raises OSError."""
    yield from _named(inside, "", folders)


def _named(inside: Inside, prefix: str, folders: Collection[str]) -> Iterator[tuple[str, os.stat_result, Inside]]:
    for name in inside.scan():
        path, found = prefix + name, inside.stat(name)
        yield path, found, inside
        if path in folders and stat.S_ISDIR(found.st_mode):
            with inside.enter(name) as inner:
                yield from _named(inner, f"{path}/", folders)


def read_small(inside: Inside, name: str) -> bytes:
    """A plain file's bytes. Raises OSError, also where it is a link, or larger than SMALL."""
    fd = inside.open_file(name)
    with os.fdopen(fd, "rb") as file:
        content = file.read(SMALL + 1)
    if len(content) > SMALL:
        raise OSError(errno.EFBIG, "larger than any that llmgw writes", name)
    return content


def mounted_at_or_below(path: str, table: Path = Path("/proc/self/mountinfo")) -> list[str]:
    """Bind mounts too, which no device number tells. Empty where there is no such table: then device numbers have to
    do. Raises OSError where there is one that cannot be read."""
    if not path:
        return []
    try:
        lines = table.read_text(errors="surrogateescape").splitlines()
    except FileNotFoundError:
        return []
    places = [_OCTAL.sub(lambda code: chr(int(code[1], 8)), line.split(" ")[4]) for line in lines]
    return sorted(place for place in places if place == path or place.startswith(f"{path}/"))


def is_open_elsewhere(inside: Inside, name: str) -> bool:
    """Whether a process of this machine has the file open or mapped: the kernel grants a lease on one that nobody has.
    False where it cannot be told (another owner's file, most network file systems)."""
    if not hasattr(fcntl, "F_SETLEASE"):
        return False
    fd = inside.open_file(name)
    try:
        # Who opens it this moment has us sent a signal; the usual one would end the process, this one is ignored.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno in (errno.EAGAIN, errno.EBUSY)
    finally:
        os.close(fd)
    return False


def _plain(name: str) -> str:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise OSError(errno.EINVAL, "no plain name", name)
    return name
