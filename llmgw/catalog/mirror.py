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
from llmgw.catalog.access import advice, explained, network_environment
from llmgw.catalog.git import NothingThere
from llmgw.catalog.origin import Origin, Ref, RefKind
from llmgw.catalog.schemas import did_you_mean
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


_QUIETLY: Final = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules")


class _Broken(Exception):
    """Our copy cannot be worked with; another one can be made."""


@dataclass(frozen=True, slots=True)
class _Answer:
    code: int
    out: bytes
    err: bytes

    @property
    def broken(self) -> bool:
        said = self.err.decode("utf-8", "replace")
        if self.code == 0 or advice(self.err) is not None:
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

    async def refresh(self, *, anew: bool = False) -> None:
        """Fetch what is there now into HEAD; little where that has not changed. `anew`: into another copy. Raises
        CatalogUnreadable."""
        async with self._alone():
            try:
                if anew:
                    await asyncio.to_thread(shutil.rmtree, self.path, True)
                await asyncio.to_thread(self._prepare)
                try:
                    await self._fetch(self._origin.ref)
                except _Broken as broken:
                    log.warning("catalog_copy_made_anew", why=str(broken))
                    await asyncio.to_thread(shutil.rmtree, self.path, True)
                    await asyncio.to_thread(self._prepare)
                    await self._fetch(self._origin.ref)
            except FileNotFoundError as error:
                raise CatalogUnreadable("following a git address takes git, which is not installed") from error
            except _Broken as broken:
                raise CatalogUnreadable(f"the copy in {self.path} cannot be used: {broken}") from broken

    async def _fetch(self, ref: Ref) -> None:
        """Raises _Broken for our copy's part, CatalogUnreadable for the other side's."""
        if ref.kind is RefKind.COMMIT:
            if not await self._has(ref.name):
                await self._pinned(ref.name)
            await self._local("update-ref", HEAD, ref.name)
        else:
            name, there = await self._ask(ref)
            here = await self._local("rev-parse", "--verify", "--quiet", HEAD)
            if here.code == 0 and here.out.decode().strip() == there and await self._has(HEAD):
                return
            self._insist(await self._network("fetch", *self._how(), self._origin.where, f"+{name}:{HEAD}"))
        if not await self._has(HEAD):
            raise _Broken(f"it has no {HEAD} after a fetch")

    async def _ask(self, ref: Ref) -> tuple[str, str]:
        """The name over there of what is followed, and the object it leads to."""
        names = _candidates(ref)
        answer = await self._network("ls-remote", "--quiet", self._origin.where, *names, timeout=ASK_TIMEOUT)
        self._insist(answer)
        found = dict(_listed(answer.out.decode("utf-8", "replace").splitlines()))
        for name in names:
            if name in found:
                return name, found[name]
        if ref.kind is RefKind.DEFAULT:
            raise NothingThere(
                f"{self._origin.where}: its HEAD leads to no commit: push one, or name a branch with --branch"
            )
        raise NothingThere(f"{self._origin.where} has no {ref}{did_you_mean(ref.name, await self._names())}")

    async def _names(self) -> list[str]:
        """Of the branches and tags over there, to tell a misspelt one; none where that cannot be asked."""
        words = ("ls-remote", "--quiet", "--heads", "--tags", "--refs", self._origin.where)
        answer = await self._network(*words, timeout=ASK_TIMEOUT)
        listed = _listed(answer.out.decode("utf-8", "replace").splitlines())
        return [name.split("/", 2)[2] for name, _ in listed]

    async def _pinned(self, commit: str) -> None:
        """Where a server gives no commit by its id, all branches and tags are fetched: it is in one of them."""
        done = await self._network("fetch", *self._how(), self._origin.where, f"+{commit}:refs/llmgw/pinned")
        if done.code == 0:
            return
        every = ("+refs/heads/*:refs/llmgw/heads/*", "+refs/tags/*:refs/llmgw/tags/*")
        self._insist(await self._network("fetch", *_QUIETLY, self._origin.where, *every))
        if not await self._has(commit):
            raise NothingThere(f"{self._origin.where} has no commit {commit[:12]} in any branch or tag")

    def _how(self) -> Iterable[str]:
        yield from _QUIETLY
        if self._origin.depth:
            yield f"--depth={self._origin.depth}"

    async def _has(self, revision: str) -> bool:
        """Whether the commit is here, with its tree."""
        return (await self._local("cat-file", "-e", f"{revision}^{{tree}}")).code == 0

    def _insist(self, answer: _Answer) -> None:
        if answer.code != 0:
            raise CatalogUnreadable(f"{self._origin.where}: {explained(answer.err)}")

    # running git

    async def _local(self, *arguments: str) -> _Answer:
        return await self._git(gitrun.command(self.path, *arguments), {}, git.TIMEOUT)

    async def _network(self, *arguments: str, timeout: float = FETCH_TIMEOUT) -> _Answer:
        env = network_environment(self._origin, self._home)
        # `command`'s own settings would come after, and forbid every protocol.
        words = ["git", "-C", str(self.path), "--no-pager", *arguments]
        answer = await self._git(words, env, timeout)
        if answer.broken:
            raise _Broken(gitrun.last_line(answer.err))
        return answer

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
