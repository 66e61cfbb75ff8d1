"""Our own bare copy of a repository elsewhere: its history's end, fetched, and read from git's objects.

Only ever one git is at work in it, by a lock that its children inherit: so that what lies about when nobody holds it
(lock files, half a pack) is a crash's, and is cleared away once. A copy that is broken is made anew.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from llmgw.catalog import git, gitrun
from llmgw.catalog.access import explained, network_environment
from llmgw.catalog.origin import Origin, Ref, RefKind
from llmgw.errors import CatalogUnreadable
from llmgw.ids import short_hash

log = structlog.get_logger("llmgw.catalog")

HEAD: Final = "refs/llmgw/head"  #: what of the other repository is followed

ASK_TIMEOUT: Final = 30.0  #: seconds for asking which commit it is
FETCH_TIMEOUT: Final = 900.0  #: seconds for a fetch; one that stands still is given up sooner
LOCK_TIMEOUT: Final = 30.0  #: seconds that a git of an earlier daemon may go on for

_BROKEN: Final = (
    *("bad object", "corrupt", "not a git repository", "unable to read", "bad config", "index-pack failed"),
    *("missing blob", "missing tree", "missing commit", "unresolved delta", "garbage", "bad ref", "invalid sha1"),
    *("not a valid object", "shallow file", "File exists", "object file"),
)
"""What git says of a copy that it cannot work with. Of the other side's faults some read alike: then all that is lost
is one more fetch."""


class NothingThere(CatalogUnreadable):
    """The repository answers, but has not what is followed: a branch that was deleted, say."""


@dataclass(frozen=True, slots=True)
class _Answer:
    code: int
    out: bytes
    err: bytes

    @property
    def broken(self) -> bool:
        said = self.err.decode("utf-8", "replace")
        if self.code == 0 or "No space left" in said:
            return False
        return any(sign in line for line in said.splitlines() if not line.startswith("remote:") for sign in _BROKEN)


class Mirror:
    """`home`: a directory of ours that holds nothing else. Constructing it touches nothing."""

    def __init__(self, origin: Origin, home: Path) -> None:
        self._origin = origin
        self._home = home
        self._turn = asyncio.Lock()
        self._held = -1
        self.path = home / f"{short_hash(origin.where)}.git"

    async def refresh(self) -> None:
        """Fetch what is there now into HEAD; little where that has not changed. Raises CatalogUnreadable."""
        async with self._alone():
            await asyncio.to_thread(self._prepare)
            try:
                broken = await self._fetch(self._origin.ref)
                if broken is not None:
                    log.warning("catalog_copy_made_anew", why=broken)
                    await asyncio.to_thread(shutil.rmtree, self.path, True)
                    await asyncio.to_thread(self._prepare)
                    broken = await self._fetch(self._origin.ref)
            except FileNotFoundError as error:
                raise CatalogUnreadable("following a git address takes git, which is not installed") from error
            if broken is not None:
                raise CatalogUnreadable(f"the copy in {self.path} cannot be used: {broken}")

    async def bring(self, commit: str) -> None:
        """Fetch one commit besides, by its whole id. Raises CatalogUnreadable."""
        async with self._alone():
            if not await self._has(commit):
                await self._pinned(commit)

    async def _fetch(self, ref: Ref) -> str | None:
        """Why the copy is of no use, or None where all is well. Raises CatalogUnreadable for the other side's part."""
        if ref.kind is RefKind.COMMIT:
            if not await self._has(ref.name) and (broken := await self._pinned(ref.name)):
                return broken
            done = await self._local("update-ref", HEAD, ref.name)
        else:
            name, there = await self._ask(ref)
            here = await self._local("rev-parse", "--verify", "--quiet", HEAD)
            if here.code == 0 and here.out.decode().strip() == there and await self._has(HEAD):
                return None
            done = await self._network("fetch", *self._how(), self._origin.where, f"+{name}:{HEAD}")
        if done.code == 0 and await self._has(HEAD):
            return None
        return gitrun.last_line(done.err) if done.broken or done.code == 0 else self._refuse(done.err)

    async def _ask(self, ref: Ref) -> tuple[str, str]:
        """The name over there of what is followed, and the object it leads to."""
        names = _candidates(ref)
        answer = await self._network("ls-remote", "--quiet", self._origin.where, *names, timeout=ASK_TIMEOUT)
        if answer.code != 0:
            self._refuse(answer.err)
        found = dict(_listed(answer.out.decode("utf-8", "replace").splitlines()))
        for name in names:
            if name in found:
                return name, found[name]
        if ref.kind is RefKind.DEFAULT:
            raise NothingThere(
                f"{self._origin.where}: its HEAD leads to no commit: push one, or name a branch with --branch"
            )
        raise NothingThere(f"{self._origin.where} has no {ref}")

    async def _pinned(self, commit: str) -> str | None:
        """Where a server gives no commit by its id, all branches and tags are fetched: it is in one of them."""
        done = await self._network("fetch", *self._how(), self._origin.where, f"+{commit}:refs/llmgw/pinned")
        if done.code == 0:
            return None
        if done.broken:
            return gitrun.last_line(done.err)
        every = ("+refs/heads/*:refs/llmgw/heads/*", "+refs/tags/*:refs/llmgw/tags/*")
        all_of_it = await self._network(
            "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", self._origin.where, *every
        )
        if all_of_it.code != 0:
            self._refuse(all_of_it.err)
        if not await self._has(commit):
            raise NothingThere(f"{self._origin.where} has no commit {commit[:12]} in any branch or tag")
        return None

    def _how(self) -> Iterable[str]:
        yield from ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules")
        if self._origin.depth:
            yield f"--depth={self._origin.depth}"

    async def _has(self, revision: str) -> bool:
        """Whether the commit is here, with its tree."""
        return (await self._local("cat-file", "-e", f"{revision}^{{tree}}")).code == 0

    def _refuse(self, stderr: bytes) -> str:
        raise CatalogUnreadable(f"{self._origin.where}: {explained(self._origin, stderr)}")

    # running git

    async def _local(self, *arguments: str) -> _Answer:
        return await self._git(gitrun.command(self.path, *arguments), {}, git.TIMEOUT)

    async def _network(self, *arguments: str, timeout: float = FETCH_TIMEOUT) -> _Answer:
        env = network_environment(self._origin, self._home)
        # `command`'s own settings would come after, and forbid every protocol.
        words = ["git", "-C", str(self.path), "--no-pager", *arguments]
        return await self._git(words, env, timeout)

    async def _git(self, words: list[str], env: dict[str, str], timeout: float) -> _Answer:
        """Ends git with all that it started when it takes too long, or when we are cancelled."""
        process = await asyncio.create_subprocess_exec(
            *words,
            env=gitrun.environment(env),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # no terminal for ssh to ask at, and a group that can be ended as one
            pass_fds=(self._held,),
        )
        try:
            async with asyncio.timeout(timeout):
                out, err = await process.communicate()
        except TimeoutError as error:
            raise CatalogUnreadable(f"{self._origin.where}: it did not answer within {timeout:.0f} s") from error
        finally:
            if process.returncode is None:
                gitrun.end_group(process.pid)
                await process.wait()
        return _Answer(process.returncode or 0, out, err)

    # the copy itself

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """While no other git is at work in the copy: one that an earlier daemon left behind is waited for."""
        async with self._turn:
            try:
                self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._held = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise CatalogUnreadable(f"cannot use {self._home}: {error.strerror}") from error
            try:
                await self._lock()
                yield
            finally:
                os.close(self._held)

    async def _lock(self) -> None:
        try:
            async with asyncio.timeout(LOCK_TIMEOUT):
                while not _locked(self._held):  # noqa: ASYNC110 - a file's lock has no event
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            raise CatalogUnreadable(f"another git is still at work in {self.path}") from error

    def _prepare(self) -> None:
        """There is a copy, and nothing in it that a crash left. Nobody else is at work in it."""
        try:
            for other in self._home.glob("*.git"):
                if other != self.path:  # of an address that was followed before
                    shutil.rmtree(other, ignore_errors=True)
            if not git.is_bare(self.path):
                shutil.rmtree(self.path, ignore_errors=True)
                self._init()
                return
            for left in _left_over(self.path):
                log.warning("catalog_copy_cleared", removed=str(left))
                left.unlink(missing_ok=True)
        except OSError as error:
            raise CatalogUnreadable(f"cannot use {self.path}: {error.strerror}") from error

    def _init(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        words = gitrun.command(self.path, "init", "--quiet", "--bare", "--template=", ".")
        try:
            done = gitrun.run(words, where=self.path, timeout=git.TIMEOUT)
        except FileNotFoundError as error:
            raise CatalogUnreadable("following a git address takes git, which is not installed") from error
        if done.returncode != 0:
            raise CatalogUnreadable(f"cannot make {self.path}: {gitrun.last_line(done.stderr)}")


def _candidates(ref: Ref) -> tuple[str, ...]:
    """Names of what is followed, as the other repository may have it, the first that it has counts."""
    if ref.kind is RefKind.DEFAULT:
        return ("HEAD",)
    if ref.name.startswith("refs/"):
        return (ref.name,)
    kinds = {RefKind.BRANCH: ("heads",), RefKind.TAG: ("tags",), RefKind.NAMED: ("heads", "tags")}
    return tuple(f"refs/{kind}/{ref.name}" for kind in kinds[ref.kind])


def _listed(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    for line in lines:
        oid, _, name = line.partition("\t")
        yield name, oid


def _left_over(path: Path) -> Iterable[Path]:
    """Lock files, and packs that never became whole."""
    yield from [file for file in path.rglob("*.lock") if file.is_file()]
    yield from (path / "objects" / "pack").glob("tmp_*")


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
