"""What git says about a directory, without letting the repository run anything on our behalf.

Three commands are used, `rev-parse`, `ls-tree` and `cat-file`: none touches the index, so no hook, filter or fsmonitor
has an occasion to run, and those that the repository's configuration could still name are switched off (`gitrun`).
Whether files differ from HEAD is found by hashing them here.
"""

import hashlib
import os
import stat
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llmgw.catalog import gitrun
from llmgw.catalog.gitrun import last_line
from llmgw.errors import CatalogUnreadable

_LONGEST: Final = 4096  #: characters of a name for a commit: what a path may have
TIMEOUT: Final = 10.0
"""Seconds for one git command: a hung network file system must not hang the watcher."""

_LONGEST_HEAD: Final = 256
"""Bytes, of what cat-file says before an object: an id, a kind, a size."""

LINK: Final = "120000"  #: a tree entry's mode: symbolic link
SUBMODULE: Final = "160000"

Env = Mapping[str, str] | None

QUARANTINE: Final = ("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_QUARANTINE_PATH")
"""Variables by which git tells a pre-receive hook where the objects lie that are being pushed."""


class NothingThere(CatalogUnreadable):
    """The repository is well, but has not what is followed: a branch that was deleted, a directory."""


@dataclass(frozen=True, slots=True)
class GitDir:
    """The repository that a directory belongs to. `own`: its HEAD and index; `common`: its refs."""

    own: Path
    common: Path

    @property
    def lock(self) -> Path:
        return self.own / "index.lock"

    @property
    def head(self) -> Path:
        return self.own / "HEAD"

    def refs(self, *further: str) -> list[Path]:
        """The files that decide which commit HEAD is, and those `further` refs (`refs/heads/main`)."""
        name = os.fsdecode(_small(self.head).removeprefix(b"ref: ").strip())
        files = [self.head, self.common / "packed-refs", self.common / "reftable" / "tables.list"]
        return files + [
            self.common / ref for ref in (name, *further) if ref.startswith("refs/") and ".." not in ref.split("/")
        ]

    def stamp(self, *further: str) -> tuple[object, ...]:
        """Changes whenever HEAD may have: read from the file system, since starting git every few seconds is dear."""
        files = self.refs(*further)
        return tuple((_small(file) if file.name != "packed-refs" else b"", _times(file)) for file in files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A commit, and its tree below the directory: relative path -> (mode, object id)."""

    commit: str
    tree: Mapping[str, tuple[str, str]]


def find(directory: Path) -> GitDir | None:
    """The repository around a resolved directory, by looking for `.git`. None: no checkout."""
    for parent in (directory, *directory.parents):
        marker = parent / ".git"
        if os.path.isdir(marker):  # unlike Path's, raises nothing where a parent may not be read
            return GitDir(marker, _common(marker))
        if os.path.isfile(marker):  # a worktree or a submodule
            target = _small(marker).partition(b"gitdir: ")[2].strip()
            own = parent / os.fsdecode(target)
            return GitDir(own, _common(own)) if target and os.path.isdir(own) else None
    return None


def is_bare(directory: Path) -> bool:
    return os.path.isfile(directory / "HEAD") and all(os.path.isdir(directory / part) for part in ("objects", "refs"))


def repository(directory: Path) -> GitDir | None:
    """A bare repository that is there, else the one around the directory."""
    return GitDir(directory, _common(directory)) if is_bare(directory) else find(directory)


def inside(directory: Path, below: str) -> str:
    """A directory as the repository around it calls it: `below` a resolved `directory`, which has its place there."""
    if is_bare(directory):
        return below
    top = next((parent for parent in (directory, *directory.parents) if os.path.lexists(parent / ".git")), directory)
    parts = [*directory.relative_to(top).parts, *filter(None, below.split("/"))]
    return "/".join(parts)


def facts(
    directory: Path,
    revision: str = "HEAD",
    *,
    within: str | None = None,
    timeout: float = TIMEOUT,
    env: Env = None,
    known: Facts | None = None,
) -> Facts | None:
    """None when git takes it for no checkout, or `revision` is no commit: HEAD may not be one yet.

    `within`: a directory of the whole repository whose tree it is, if not `directory`'s own. `env`: see `QUARANTINE`.
    `known`: an earlier answer for these; of the same commit it is the answer, since a commit never changes.
    Raises FileNotFoundError without a git to ask, CatalogUnreadable when git fails otherwise.
    """
    if revision.startswith("-") or "\0" in revision or len(revision) > _LONGEST:
        return None  # git would take it for an option, or cannot be given it
    answer = _git(directory, timeout, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", env=env)
    if answer.returncode != 0:
        _explain(directory, answer.stderr)
        return None
    commit = answer.stdout.decode().strip()
    if known is not None and known.commit == commit:
        return known
    what = [commit] if within is None else ["--full-tree", f"{commit}:{within}"]
    listing = _git(directory, timeout, "ls-tree", "-r", "-z", *what, env=env)
    if listing.returncode != 0 and within and b"Not a valid object name" in listing.stderr:
        raise NothingThere(f"commit {commit[:12]} has no directory {within!r}")
    if listing.returncode != 0:
        raise CatalogUnreadable(f"git cannot list {commit[:12]} in {directory}: {last_line(listing.stderr)}")
    tree = {}
    for record in listing.stdout.split(b"\0"):
        meta, _, name = record.partition(b"\t")
        if name:
            mode, _, oid = meta.decode().split()
            tree[os.fsdecode(name)] = (mode, oid)
    return Facts(commit=commit, tree=tree)


def names(directory: Path, *, timeout: float = TIMEOUT, env: Env = None) -> list[str]:
    """Of branches and tags, the first thousand: to tell a misspelt one. Raises as `facts`."""
    words = ("for-each-ref", "--count=1000", "--format=%(refname:lstrip=2)", "refs/heads", "refs/tags")
    return _git(directory, timeout, *words, env=env).stdout.decode("utf-8", "replace").split()


def sizes(directory: Path, oids: Iterable[str], *, timeout: float = TIMEOUT, env: Env = None) -> dict[str, int]:
    """Bytes of each object. Raises as `facts`; CatalogUnreadable also for one that is not in this clone."""
    asked = "".join(f"{oid}\n" for oid in oids).encode()
    answer = _git(directory, timeout, "cat-file", "--batch-check", said=asked, env=env)
    found = {}
    for line in answer.stdout.decode("ascii", "replace").splitlines():
        oid, _, rest = line.partition(" ")
        found[oid] = _size(directory, oid, rest)
    if answer.returncode != 0:
        raise CatalogUnreadable(f"git cannot read {directory}: {last_line(answer.stderr)}")
    return found


def blobs(directory: Path, oids: Iterable[str], *, timeout: float = TIMEOUT, env: Env = None) -> dict[str, bytes]:
    """What each object holds. Raises as `sizes`; ask those first, since all of it is held in memory."""
    asked = "".join(f"{oid}\n" for oid in oids).encode()
    answer = _git(directory, timeout, "cat-file", "--batch", said=asked, env=env)
    if answer.returncode != 0:
        raise CatalogUnreadable(f"git cannot read {directory}: {last_line(answer.stderr)}")
    found, said, at = {}, answer.stdout, 0
    while at < len(said):
        head, _, _ = said[at : at + _LONGEST_HEAD].partition(b"\n")
        oid, _, told = head.decode("ascii", "replace").partition(" ")
        begins = at + len(head) + 1
        at = begins + _size(directory, oid, told) + 1
        found[oid] = said[begins : at - 1]
    return found


def _size(directory: Path, oid: str, told: str) -> int:
    """From `blob 123`, as cat-file says it; anything else is an object that it cannot give."""
    kind, _, size = told.partition(" ")
    if kind != "blob" or not size.isdecimal():
        raise CatalogUnreadable(f"{oid[:12]} is not in this clone of {directory}: run `git fetch` there")
    return int(size)


def is_blob(data: bytes, oid: str) -> bool:
    """Whether `data` is what git stores under `oid` (SHA-1, or SHA-256 where ids are that long).

    Line ends that git would convert on checkout do not count: YAML reads both alike.
    """
    name = "sha256" if len(oid) == 64 else "sha1"

    def hashed(content: bytes) -> str:
        return hashlib.new(name, b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()

    return hashed(data) == oid or (b"\r\n" in data and hashed(data.replace(b"\r\n", b"\n")) == oid)


def _git(
    directory: Path, timeout: float, *arguments: str, said: bytes = b"", env: Env = None
) -> subprocess.CompletedProcess[bytes]:
    """`said`: on its standard input."""
    words = gitrun.command(directory, *arguments, config=("credential.helper=",))
    return gitrun.run(words, where=directory, timeout=timeout, said=said, env=env)


def _explain(directory: Path, stderr: bytes) -> None:
    """Raise for a failure that is not simply `no commit here`."""
    said = stderr.decode("utf-8", "replace")
    if not said.strip() or "not a git repository" in said:
        return
    if "dubious ownership" in said:
        raise CatalogUnreadable(
            f"git refuses {directory}, which belongs to another user: run "
            f"`git config --global --add safe.directory '{directory}'` as the user that runs llmgw "
            "(for a sub-directory of a checkout, name the checkout)"
        )
    raise CatalogUnreadable(f"git cannot read {directory}: {last_line(stderr)}")


def _common(own: Path) -> Path:
    return own / os.fsdecode(_small(own / "commondir").strip() or b".")


def _small(file: Path) -> bytes:
    """The first bytes of a small file; nothing where there is none."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 4096) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(fd)


def _times(file: Path) -> tuple[int, ...]:
    try:
        status = os.stat(file)
    except OSError:
        return ()
    return (status.st_mtime_ns, status.st_size, status.st_ino)
