"""One look at a catalog directory: which files are in it, and what they hold.

What a file holds is read again only where it may be other than at the look before.
"""

import os
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

import pathspec

from llmgw.catalog import git
from llmgw.errors import Problem
from llmgw.units import KIB, MIB, format_bytes

IGNORE_FILE: Final = ".llmgwignore"
MAX_FILE: Final = MIB
MAX_TOTAL: Final = 64 * MIB
MAX_FILES: Final = 10_000
MAX_ENTRIES: Final = 200_000  #: directory entries looked at: more is surely not meant as a catalog

COARSE: Final = 2.0  #: seconds that a file system's times may be off by

WHOLE: Final = "."
"""What a problem of a catalog as a whole has for a file: its directory."""

Stamp = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A catalog file. `link`: the text of a symbolic link, whose `target` is relative to the directory."""

    name: str
    path: str
    stamp: Stamp
    size: int
    link: str | None = None
    target: str | None = None


@dataclass(slots=True, kw_only=True)
class Look:
    """One look at the directory. Two that are equal saw the same."""

    root: Path | None = None
    found: list[Found] = field(default_factory=list)
    directories: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    ignored: bytes | None = None  #: what the ignore file says
    head: tuple[object, ...] = ()
    lock: Stamp | None = None
    data: dict[str, bytes] = field(default_factory=dict)
    error: str | None = None  #: why it could not be read
    torn: bool = False  #: something vanished while looking: agrees with no other look
    at: float = field(default=0.0, compare=False)  #: seconds since the epoch when it began


def look_at(path: Path, *, contents: bool = False, known: Look | None = None) -> Look:
    """What is there now: names, sizes and times, and with `contents` the bytes. Raises nothing.

    `known`: an earlier look, whose bytes stand for a file that cannot have been written to since.
    """
    look = Look(at=time.time())
    try:
        root = path.resolve(strict=True)
        entries = os.scandir(root)
        entries.close()
    except NotADirectoryError:
        look.error = f"{path} is a file: name the directory that holds the catalog"
        return look
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of symbolic links
        look.error = f"cannot read {path}: {getattr(error, 'strerror', None) or error}"
        return look
    look.root = root
    repository = git.find(root)
    if repository is not None:
        look.head, look.lock = repository.stamp(), stamp_of(repository.lock)
    elif git.is_bare(root):
        look.error = f"{path} is a bare git repository, which has no files: name a checkout of it"
        return look
    before = {found.name: found for found in known.found} if known is not None and known.root == root else {}
    _walk(root, look, before)
    if contents:
        _read_all(look, before, known)
    return look


def _shows(found: Found, at: float) -> bool:
    """Whether it was written so long before a look that began `at` that a write after that shows in its times, however
    coarse those are. One that was not is read again, whatever its times say. The clock that matters is the status
    change's, which nobody sets; where that was set back, or a file is of the future, all is read again too."""
    return at - max(found.stamp[:2]) / 1e9 > COARSE


def is_wanted(name: str, ignore: pathspec.GitIgnoreSpec) -> bool:
    """Whether a relative path is a catalog file: YAML, no part a dot-name, not ignored."""
    if not is_yaml(name) or name.startswith(".") or "/." in name:
        return False
    if not ignore.patterns:
        return True
    parts = name.split("/")
    above = ("/".join(parts[:count]) + "/" for count in range(1, len(parts)))
    return not ignore.match_file(name) and not any(ignore.match_file(directory) for directory in above)


def is_yaml(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def shown(name: str) -> str:
    """A path for people: bytes that are no UTF-8, and control characters, escaped."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def stamp_of(path: str | Path) -> Stamp | None:
    try:
        return _stamp(os.stat(path))
    except OSError:
        return None


def _stamp(status: os.stat_result) -> Stamp:
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev)


@lru_cache(maxsize=8)
def ignored_by(text: bytes) -> pathspec.GitIgnoreSpec:
    return pathspec.GitIgnoreSpec.from_lines(text.decode("utf-8", "replace").splitlines())


def _walk(root: Path, look: Look, before: Mapping[str, Found]) -> None:
    look.ignored, ignore = _read_ignore(root, look)
    ignores = ignore.match_file if ignore.patterns else lambda _: False
    pending, seen = [""], 0
    while pending:
        directory = pending.pop()
        look.directories.append(directory)
        for entry in _entries(root, directory, look):
            seen += 1
            if seen > MAX_ENTRIES or (len(look.found) >= MAX_FILES and is_yaml(entry.name)):
                most = f"{MAX_FILES:,} catalog files or {MAX_ENTRIES:,} directory entries"
                look.problems = [Problem(WHOLE, 0, 0, "$", f"more than {most}: name a smaller directory")]
                look.found.clear()
                return
            name = f"{directory}/{entry.name}" if directory else entry.name
            if entry.name.startswith(".") or ignores(name):
                continue
            if entry.is_symlink():
                _link(root, name, entry, look)
            elif entry.is_dir(follow_symlinks=False):
                if not ignores(f"{name}/"):
                    pending.append(name)
            elif is_yaml(name):
                _file(name, entry, look, before.get(name))
    look.found.sort(key=lambda found: found.name)
    look.directories.sort()


def _entries(root: Path, directory: str, look: Look) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(root / directory) as entries:
            yield from entries
    except (FileNotFoundError, NotADirectoryError):
        look.torn = True
    except OSError as error:
        look.error = f"cannot read {root / directory}: {error.strerror}"


def _file(name: str, entry: os.DirEntry[str], look: Look, before: Found | None) -> None:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        look.torn = True
        return
    if stat.S_ISREG(status.st_mode):
        same = before is not None and before.link is None and before.stamp == _stamp(status)
        look.found.append(
            before if before is not None and same
            else Found(name=name, path=entry.path, stamp=_stamp(status), size=status.st_size)
        )  # fmt: skip
    else:
        look.problems.append(Problem(shown(name), 0, 0, "$", "not a regular file: remove it, or ignore it"))


def _link(root: Path, name: str, entry: os.DirEntry[str], look: Look) -> None:
    """A link to a file inside is read like the file. One to a directory inside is not: it is read where it lies."""
    try:
        text, real = os.readlink(entry.path), os.path.realpath(entry.path)
    except OSError:
        look.torn = True
        return
    inside = real == str(root) or real.startswith(f"{str(root).rstrip('/')}/")
    if not inside and (is_yaml(name) or os.path.isdir(real)):
        message = f"a symbolic link that leaves the catalog (to {shown(text)}): copy the file in, or remove the link"
        look.problems.append(Problem(shown(name), 0, 0, "$", message))
        return
    if not is_yaml(name) or not inside:
        return
    status = stamp_of(real)
    if status is None or not os.path.isfile(real):
        message = f"a symbolic link to what is no file ({shown(text)}): correct or remove it"
        look.problems.append(Problem(shown(name), 0, 0, "$", message))
        return
    target = os.path.relpath(real, root)
    look.found.append(Found(name=name, path=real, stamp=status, size=status[2], link=text, target=target))


def _read_ignore(root: Path, look: Look) -> tuple[bytes | None, pathspec.GitIgnoreSpec]:
    path = root / IGNORE_FILE
    try:
        text = _read_regular(str(path), 64 * KIB, follow=False)
    except FileNotFoundError:
        return None, ignored_by(b"")
    except OSError as error:
        look.problems.append(Problem(IGNORE_FILE, 0, 0, "$", f"cannot be read: {error.strerror}"))
        return None, ignored_by(b"")
    try:
        return text, ignored_by(text)
    except ValueError:  # pathspec's own pattern error is one
        look.problems.append(Problem(IGNORE_FILE, 0, 0, "$", "holds a pattern that is not valid (as in .gitignore)"))
        return text, ignored_by(b"")


def _read_all(look: Look, before: Mapping[str, Found], known: Look | None) -> None:
    """`before`: what `known` found, by name."""
    total = 0
    for found in look.found:
        if found.size > MAX_FILE:
            message = f"{format_bytes(found.size)}; a catalog file has at most {format_bytes(MAX_FILE)}"
            look.problems.append(Problem(shown(found.name), 0, 0, "$", f"too large: {message}"))
            continue
        try:
            data = None if known is None else _held(found, before.get(found.name), known)
            look.data[found.name] = _read_regular(found.path, MAX_FILE) if data is None else data
        except FileNotFoundError:
            look.torn = True
            continue
        except OSError as error:
            look.error = f"cannot read {shown(found.path)}: {error.strerror}"
            return
        total += len(look.data[found.name])
        if total > MAX_TOTAL:
            look.data.clear()
            look.problems.append(Problem(WHOLE, 0, 0, "$", f"more than {format_bytes(MAX_TOTAL)} of catalog files"))
            return


def _held(found: Found, before: Found | None, known: Look) -> bytes | None:
    """What an earlier look read of a file that cannot have been written to since."""
    same = before is not None and (before is found or before == found)
    return known.data.get(found.name) if same and _shows(found, known.at) else None


def _read_regular(path: str, limit: int, *, follow: bool = True) -> bytes:
    """Up to `limit` bytes of a regular file; opening never blocks on a pipe. Raises OSError."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    fd = os.open(path, flags)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(0, "not a regular file")
        return file.read(limit)
