"""Read a catalog directory as it stands: its files, and the commit where it is a checkout.

A look is believed once two of them, 100 ms apart, agree and no git command holds the index.
"""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from llmgw.catalog import git
from llmgw.catalog.looking import (
    IGNORE_FILE,
    WHOLE,
    Found,
    Look,
    Stamp,
    ignored_by,
    is_wanted,
    look_at,
    shown,
)
from llmgw.errors import CatalogUnreadable, LlmgwError, Problem
from llmgw.memo import Kept

SETTLE: Final = 0.1  #: seconds between two looks that must agree
STALE_LOCK: Final = 10.0  #: seconds: a lock unchanged for so long is a crash's, and holds nothing any more
PATIENCE: Final = 30.0  #: seconds after which a directory that never settles is reported


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


IsBlob = Callable[[str, bytes, str], bool]


def _is_blob(_: str, data: bytes, oid: str) -> bool:
    return git.is_blob(data, oid)


def differs(look: Look, facts: git.Facts, is_blob: IsBlob = _is_blob) -> bool:
    """Whether the catalog's files are not exactly HEAD's: changed, missing, or not in it. `is_blob`: of a file's name,
    its bytes and an object's id, as `git.is_blob`."""
    ignore = ignored_by(look.ignored or b"")
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
