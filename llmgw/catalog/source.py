"""Read a catalog directory as it stands: its files, and the commit where it is a checkout.

A look is believed once two of them, 100 ms apart, agree and no git command holds the index.
"""

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

import pathspec

from llmgw.catalog import git
from llmgw.errors import CatalogUnreadable, LlmgwError, Problem
from llmgw.memo import Kept
from llmgw.units import KIB, MIB, format_bytes

IGNORE_FILE: Final = ".llmgwignore"
MAX_FILE: Final = MIB
MAX_TOTAL: Final = 64 * MIB
MAX_FILES: Final = 10_000
MAX_ENTRIES: Final = 200_000  #: directory entries looked at: more is surely not meant as a catalog

COARSE: Final = 2.0  #: seconds that a file system's times may be off by
SETTLE: Final = 0.1  #: seconds between two looks that must agree
STALE_LOCK: Final = 10.0  #: seconds: a lock unchanged for so long is a crash's, and holds nothing any more
PATIENCE: Final = 30.0  #: seconds after which a directory that never settles is reported

WHOLE: Final = "."
"""What a problem of a catalog as a whole has for a file: its directory."""

Stamp = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is there to load. `files`: relative path -> bytes; a path's odd bytes are shown escaped.

    `commit` is HEAD (None outside git or without one), `dirty`: the files differ from it. `problems` make the source
    invalid before anything is parsed: a link that leaves the directory, a file too large. `note` is for the operator.
    `repository`: where git can be asked more about `commit`: its message, its signature. `place`: the directory, as
    problems of the whole name it.
    """

    files: Mapping[str, bytes]
    commit: str | None = None
    dirty: bool = False
    problems: tuple[Problem, ...] = ()
    note: str | None = None
    repository: Path | None = field(default=None, compare=False)
    place: str = field(default=WHOLE, compare=False)


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


def read_source(path: Path) -> Source:
    """The settled state of the catalog directory `path`. Blocks: 100 ms where nothing changes.

    A link that leaves the directory or an oversized file is among the source's `problems`, for the loader to report
    with all others. Raises CatalogUnreadable when there is no reading it now.
    """
    settling = Settling(path, held_for_us=_held_for_us(path))
    while (wait := settling.step()) is not None:
        time.sleep(wait)
    return settling.source


def held_by_git(path: Path) -> Path | None:
    """The lock of a git command under way, for which reading `path` waits; None: there is none, or it is a crash's."""
    with suppress(OSError):
        repository = git.find(path.resolve())
        lock = repository.lock if repository is not None and not _held_for_us(path) else None
        if lock is not None and time.time() - lock.stat().st_mtime < STALE_LOCK:
            return lock
    return None


def _held_for_us(path: Path) -> bool:
    """Whether we were started by a hook of the git command that holds the index: `git commit -a` waits for us."""
    index = os.environ.get("GIT_INDEX_FILE")  # told to hooks of a commit
    with suppress(OSError, RuntimeError):
        repository = git.find(path.resolve())
        if index and repository is not None:
            return os.path.samefile(os.path.dirname(os.path.abspath(index)), repository.own)
    return False


class Settling:
    """Looks until two agree. `step` never sleeps, so that a caller on an event loop stays in charge.

    `first`: a look at contents that was taken just now, and counts as the first. `checkout` keeps what git said, for
    one settling after the other. `look` is the one that was believed. `held_for_us`: a git command that holds the
    index is not waited for.
    """

    def __init__(
        self,
        path: Path,
        *,
        first: Look | None = None,
        checkout: "Checkout | None" = None,
        held_for_us: bool = False,
    ) -> None:
        self._path = path
        self._held_for_us = held_for_us
        self._first = first
        self._checkout = checkout or Checkout()
        self._last: Look | None = None
        self._facts: git.Facts | None = None
        self._note: str | None = None
        self._error: LlmgwError | None = None
        self._since = self._started = self._lock_since = 0.0
        self.source = Source(files={})
        self.look: Look | None = None

    def step(self) -> float | None:
        """Seconds to wait before the next step, or None: `source` is settled. Raises CatalogUnreadable."""
        now = time.monotonic()
        look, self._first = self._first or look_at(self._path, contents=True, known=self._last), None
        first = self._last is None
        if first or look.lock != (self._last.lock if self._last else None):
            self._lock_since = now
        if first or look != self._last or look.torn:
            self._started = now if first else self._started
            self._since, self._last = now, look
            self._ask_git(look)
            if now - self._started > PATIENCE:
                raise CatalogUnreadable(f"{self._path} kept changing for {PATIENCE:.0f} s: it is read once it rests")
            return SETTLE
        if look.lock is not None and not self._held_for_us and not self._stale(look.lock, now):
            return SETTLE
        if now - self._since < SETTLE:
            return SETTLE - (now - self._since)
        self.look = look
        self.source = self._judge(look)
        return None

    def _stale(self, lock: Stamp, now: float) -> bool:
        return now - self._lock_since >= STALE_LOCK or time.time() - lock[0] / 1e9 >= STALE_LOCK

    def _ask_git(self, look: Look) -> None:
        """Between the looks, whose stamps of HEAD must agree: the answer then holds for both."""
        self._facts = self._note = self._error = None
        if look.root is None or not look.head:
            return
        try:
            self._facts = self._checkout.facts(look.root)
            if self._facts is None:
                self._note = "git finds no commit in this checkout: the revision is a digest until there is one"
        except FileNotFoundError:
            self._note = "git is not installed: revisions are digests, not commits"
        except CatalogUnreadable as error:
            self._error = error

    def _judge(self, look: Look) -> Source:
        if look.error is not None:
            raise CatalogUnreadable(look.error)
        if self._error is not None:
            raise self._error
        note = self._note
        if look.lock is not None and not self._held_for_us:
            note = (
                f".git/index.lock has not changed for {STALE_LOCK:.0f} s and is no longer waited for: where no git "
                "command is at work any more, remove it"
            )
        return Source(
            files={shown(name): data for name, data in look.data.items()},
            commit=self._facts.commit if self._facts else None,
            dirty=self._facts is not None and differs(look, self._facts, self._checkout.is_blob),
            problems=tuple(sorted(look.problems)),
            note=note,
            repository=look.root if self._facts else None,
        )


class Checkout:
    """What git said of a directory, and which files are what it holds, kept while both are the same."""

    def __init__(self) -> None:
        self._known: tuple[Path, git.Facts] | None = None
        self._blobs: Kept[str, bool] = Kept(git.is_blob)

    def facts(self, root: Path) -> git.Facts | None:
        """As `git.facts`."""
        known = self._known[1] if self._known is not None and self._known[0] == root else None
        facts = git.facts(root, known=known)
        self._known = None if facts is None else (root, facts)
        return facts

    def is_blob(self, name: str, data: bytes, oid: str) -> bool:
        return self._blobs.of(name, data, oid)


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


IsBlob = Callable[[str, bytes, str], bool]


def _is_blob(_: str, data: bytes, oid: str) -> bool:
    return git.is_blob(data, oid)


def differs(look: Look, facts: git.Facts, is_blob: IsBlob = _is_blob) -> bool:
    """Whether the catalog's files are not exactly HEAD's: changed, missing, or not in it. `is_blob`: of a file's name,
    its bytes and an object's id, as `git.is_blob`."""
    ignore = _ignore(look.ignored or b"")
    modules = [name for name, (mode, _) in facts.tree.items() if mode == git.SUBMODULE]
    inside = tuple(f"{name}/" for name in modules)
    have = {found.name for found in look.found if not found.name.startswith(inside)}
    want = {name for name in facts.tree if name not in modules and is_wanted(name, ignore)}
    if have != want - _refused_links(want - have, look, facts) or not _same_ignore_file(look, facts):
        return True
    if any(_file_differs(found, look, facts, is_blob) for found in look.found if found.name in have):
        return True
    return any(_module_differs(name, look, facts) for name in modules if any(d == name for d in look.directories))


def _refused_links(missing: set[str], look: Look, facts: git.Facts) -> set[str]:
    """Committed links that are there and were not read: a problem, not a change."""
    assert look.root is not None
    return {name for name in missing if facts.tree[name][0] == git.LINK and os.path.lexists(look.root / name)}


def _file_differs(found: Found, look: Look, facts: git.Facts, is_blob: IsBlob) -> bool:
    mode, oid = facts.tree[found.name]
    if found.name not in look.data:
        return False  # too large: a problem already
    if found.link is None:
        return mode == git.LINK or not is_blob(found.name, look.data[found.name], oid)
    if mode != git.LINK or not git.is_blob(os.fsencode(found.link), oid):
        return True
    target = facts.tree.get(found.target or "")
    return target is None or not git.is_blob(look.data[found.name], target[1])


def _module_differs(name: str, look: Look, facts: git.Facts) -> bool:
    """A submodule is as committed when its own HEAD is the recorded commit and its files are that commit's."""
    assert look.root is not None
    if not any(found.name.startswith(f"{name}/") for found in look.found):
        return False
    inner = look_at(look.root / name, contents=True)
    try:
        own = git.facts(look.root / name)
    except (FileNotFoundError, CatalogUnreadable):
        return True
    return own is None or own.commit != facts.tree[name][1] or differs(inner, own)


def _same_ignore_file(look: Look, facts: git.Facts) -> bool:
    committed = facts.tree.get(IGNORE_FILE)
    if committed is None or look.ignored is None:
        return committed is None and look.ignored is None
    return git.is_blob(look.ignored, committed[1])


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
def _ignore(text: bytes) -> pathspec.GitIgnoreSpec:
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
        return None, _ignore(b"")
    except OSError as error:
        look.problems.append(Problem(IGNORE_FILE, 0, 0, "$", f"cannot be read: {error.strerror}"))
        return None, _ignore(b"")
    try:
        return text, _ignore(text)
    except ValueError:  # pathspec's own pattern error is one
        look.problems.append(Problem(IGNORE_FILE, 0, 0, "$", "holds a pattern that is not valid (as in .gitignore)"))
        return text, _ignore(b"")


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
