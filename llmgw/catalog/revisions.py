"""A catalog as a commit has it, read from git's objects: the working tree and the index are not looked at."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pathspec

from llmgw.catalog import git
from llmgw.catalog.looking import IGNORE_FILE, MAX_FILE, MAX_FILES, MAX_TOTAL, WHOLE, is_wanted, shown
from llmgw.catalog.schemas import did_you_mean
from llmgw.catalog.source import Source
from llmgw.catalog.yamldoc import quoted
from llmgw.errors import CatalogUnreadable, Problem
from llmgw.units import KIB, format_bytes

_MAX_LINKS: Final = 40
"""Links that lead to links, as Linux counts them."""

_MAX_SMALL: Final = 64 * KIB

Tree = Mapping[str, tuple[str, str]]


class Read:
    """What the revision held that was read last. Objects never change: the next is asked for those that it alone has.

    Threads may share one: what it holds is replaced whole, and all of it is true."""

    def __init__(self) -> None:
        self.facts: tuple[object, git.Facts] | None = None  #: of which directory
        self.blobs: Mapping[str, bytes] = {}


def read_revision(
    directory: Path, revision: str, *, below: str = "", env: git.Env = None, known: Read | None = None
) -> Source:
    """What `directory`, in a checkout or a bare repository, holds at `revision`: a commit, tag, branch or `HEAD~2`.
    Blocks.

    As `read_source` for the working tree; of a submodule nothing is read, since its objects are another repository's.
    `below`: a directory in it that is read instead, whether or not it is checked out. `env`: see `git.QUARANTINE`.
    `known`: of one that was read before; it is of this one then. Raises CatalogUnreadable with advice.
    """
    known = Read() if known is None else known
    facts = _facts(directory, revision, below, env, known)
    objects = _Objects(directory, env, known.blobs)
    ignore, problems = _ignored(objects, facts.tree)
    wanted: dict[str, str] = {}
    for name, (mode, oid) in facts.tree.items():
        if mode == git.SUBMODULE or not is_wanted(name, ignore):
            continue
        if mode != git.LINK:
            wanted[name] = oid
            continue
        target = _target(objects, name, facts.tree)
        if isinstance(target, Problem):
            problems.append(target)
        else:
            wanted[name] = facts.tree[target][1]
    files, refused = _contents(objects, wanted)
    known.blobs = {wanted[name]: data for name, data in files.items()}
    modules = sorted(name for name, (mode, _) in facts.tree.items() if mode == git.SUBMODULE)
    note = f"submodules are not read at a revision: {', '.join(map(shown, modules))}" if modules else None
    return Source(
        files={shown(name): data for name, data in files.items()},
        commit=facts.commit,
        problems=tuple(sorted((*problems, *refused))),
        note=note,
        repository=directory,
    )


class NoRevision(git.NothingThere):
    """The repository has no commit of that name."""


@dataclass(frozen=True, slots=True)
class _Objects:
    """A repository's objects, and how git is to be asked for them."""

    directory: Path
    env: git.Env
    known: Mapping[str, bytes]

    def sizes(self, oids: Iterable[str]) -> dict[str, int]:
        here, further = self._known(oids)
        sizes = {oid: len(data) for oid, data in here.items()}
        return sizes | git.sizes(self.directory, further, env=self.env) if further else sizes

    def blobs(self, oids: Iterable[str]) -> dict[str, bytes]:
        here, further = self._known(oids)
        return here | git.blobs(self.directory, further, env=self.env) if further else here

    def _known(self, oids: Iterable[str]) -> tuple[dict[str, bytes], list[str]]:
        """And those that git is to be asked for."""
        wanted = list(oids)
        here = {oid: self.known[oid] for oid in wanted if oid in self.known}
        return here, [oid for oid in wanted if oid not in here]


def _facts(directory: Path, revision: str, below: str, env: git.Env, known: Read) -> git.Facts:
    root = directory.resolve()
    if not root.is_dir():
        raise CatalogUnreadable(f"cannot read {directory}: name the directory that holds the catalog")
    if git.repository(root) is None:
        raise CatalogUnreadable(f"{directory} is in no git checkout, so there is no revision {quoted(revision)} of it")
    try:
        of = (root, within := git.inside(root, below) if below else None)
        before = known.facts[1] if known.facts is not None and known.facts[0] == of else None
        facts = git.facts(root, revision, within=within, env=env, known=before)
    except FileNotFoundError as error:
        raise CatalogUnreadable(f"reading revision {quoted(revision)} takes git, which is not installed") from error
    if facts is None and revision == "HEAD":
        raise CatalogUnreadable(f"the repository of {directory} has no commit yet at its HEAD: push or commit one")
    if facts is None:
        raise NoRevision(_missing(directory, revision, git.names(root, env=env)))
    known.facts = (of, facts)
    return facts


_KINDS: Final = {"refs/heads/": ("branch", "git branch"), "refs/tags/": ("tag", "git tag")}
"""Of what a name may say it is: what people call it, and what lists them."""


def _missing(directory: Path, revision: str, names: Sequence[str]) -> str:
    prefix = next((prefix for prefix in _KINDS if revision.startswith(prefix)), "")
    kind, lists = _KINDS.get(prefix, ("revision", "git log"))
    name = revision.removeprefix(prefix)
    hint = did_you_mean(name, names) or f": `{lists}` lists them"
    return f"no {kind} {quoted(name)} in the repository of {directory}{hint}"


def _ignored(objects: _Objects, tree: Tree) -> tuple[pathspec.GitIgnoreSpec, list[Problem]]:
    mode, oid = tree.get(IGNORE_FILE, ("", ""))
    text = _small(objects, oid) if oid and mode not in (git.LINK, git.SUBMODULE) else b""
    try:
        return pathspec.GitIgnoreSpec.from_lines(text.decode("utf-8", "replace").splitlines()), []
    except ValueError:  # pathspec's own pattern error is one
        problem = Problem(IGNORE_FILE, 0, 0, "$", "holds a pattern that is not valid (as in .gitignore)")
        return pathspec.GitIgnoreSpec.from_lines([]), [problem]


def _target(objects: _Objects, name: str, tree: Tree) -> str | Problem:
    """The file that a link leads to, within the directory; on the way links to directories may be passed."""
    left, at, text = name.split("/"), list[str](), ""
    links = 0
    while left:
        part = left.pop(0)
        if part == ".." and not at:
            return _leaves(name, text)
        if part in ("", ".", ".."):
            at = at[:-1] if part == ".." else at
            continue
        at.append(part)
        mode, oid = tree.get("/".join(at), ("", ""))
        if mode != git.LINK:
            continue
        if (links := links + 1) > _MAX_LINKS:
            return Problem(shown(name), 0, 0, "$", "a symbolic link that leads back to itself: correct or remove it")
        leads_to = os.fsdecode(_small(objects, oid))
        text = text or leads_to  # of several that of the file itself is told
        if leads_to.startswith("/"):
            return _leaves(name, text)
        left, at = [*leads_to.split("/"), *left], at[:-1]
    if tree.get("/".join(at), (git.SUBMODULE, ""))[0] == git.SUBMODULE:
        message = f"a symbolic link to what is no file ({shown(text)}): correct or remove it"
        return Problem(shown(name), 0, 0, "$", message)
    return "/".join(at)


def _leaves(name: str, text: str) -> Problem:
    message = f"a symbolic link that leaves the catalog (to {shown(text)}): copy the file in, or remove the link"
    return Problem(shown(name), 0, 0, "$", message)


def _small(objects: _Objects, oid: str) -> bytes:
    """What a link or the ignore file holds; nothing of one that can be neither, being so large."""
    return objects.blobs([oid])[oid] if objects.sizes([oid])[oid] <= _MAX_SMALL else b""


def _contents(objects: _Objects, wanted: Mapping[str, str]) -> tuple[dict[str, bytes], list[Problem]]:
    """The files' bytes, within the bounds that hold for a working tree."""
    if len(wanted) > MAX_FILES:
        return {}, [Problem(WHOLE, 0, 0, "$", f"more than {MAX_FILES:,} catalog files: name a smaller directory")]
    sizes = objects.sizes(sorted(set(wanted.values())))
    problems = [
        Problem(
            shown(name), 0, 0, "$",
            f"too large: {format_bytes(sizes[oid])}; a catalog file has at most {format_bytes(MAX_FILE)}",
        )
        for name, oid in wanted.items()
        if sizes[oid] > MAX_FILE
    ]  # fmt: skip
    kept = {name: oid for name, oid in wanted.items() if sizes[oid] <= MAX_FILE}
    if sum(sizes[oid] for oid in kept.values()) > MAX_TOTAL:
        return {}, [Problem(WHOLE, 0, 0, "$", f"more than {format_bytes(MAX_TOTAL)} of catalog files")]
    data = objects.blobs(sorted(set(kept.values())))
    return {name: data[oid] for name, oid in kept.items()}, problems
