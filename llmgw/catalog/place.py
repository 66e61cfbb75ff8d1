"""The place that a catalog is followed at: a directory, what a repository here has committed, or one elsewhere.

All of them are read, followed and asked to look again in the same way; whoever takes catalogs in knows no more.
"""

import asyncio
import contextlib
import random
import re
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

import structlog
from watchfiles import awatch

from llmgw.catalog import git
from llmgw.catalog.asks import Asks
from llmgw.catalog.git import NothingThere
from llmgw.catalog.mirror import HEAD, Mirror
from llmgw.catalog.origin import Origin, RefKind
from llmgw.catalog.revisions import NoRevision, Read, read_revision
from llmgw.catalog.source import Source, read_source
from llmgw.catalog.watch import Observation, follow
from llmgw.errors import CatalogUnreadable, LlmgwError

log = structlog.get_logger("llmgw.catalog")

LOOK: Final = 0.5
"""Seconds between two looks at the few files that say which commit a repository here is at."""

REREAD: Final = 60.0
"""Seconds after which its objects are read again, whatever those files say."""

JITTER: Final = 0.1
"""By which part of itself a wait between polls varies: a fleet of daemons must not ask a server in step."""

FIRST_RETRY: Final = 2.0
"""Seconds after a first failure; doubled with each further one, up to the time between polls."""

FIRST_ANSWER: Final = 5.0
"""Seconds for the first fetch, after which the last good catalog is served until there is an answer."""


class Place(Protocol):
    """`name`: as people are told. `asks`: who wants a look now."""

    name: str
    asks: Asks

    def read(self, revision: str | None = None) -> Source:
        """The catalog as it stands there, or at a revision. Blocks. Raises CatalogUnreadable."""

    def follow(self) -> AsyncGenerator[Observation, None]:
        """The state now, then each that differs, and one after each ask. Never ends by itself."""


def place_of(origin: Origin, home: Path) -> Place:
    """`home`: a directory of ours, for the copy of a repository elsewhere."""
    if origin.remote:
        return Elsewhere(origin, home)
    path = Path(origin.where)
    if origin.commits or origin.ref.name or git.is_bare(path):
        return Committed(path, ref=_local(origin), below=origin.inside, name=origin.name)
    return Directory(path / origin.inside, polling=origin.polling)


def _local(origin: Origin) -> str:
    kinds = {RefKind.BRANCH: "refs/heads/", RefKind.TAG: "refs/tags/"}
    ref = origin.ref
    return kinds.get(ref.kind, "") + ref.name if ref.name else "HEAD"


class Directory:
    """A directory's files as they stand. `polling`: the file system's events are not to be used."""

    def __init__(self, path: Path, *, polling: bool = False) -> None:
        self._path = path
        self._polling = polling
        self.name = str(path)
        self.asks = Asks()

    def read(self, revision: str | None = None) -> Source:
        return read_source(self._path) if revision is None else read_revision(self._path, revision)

    def follow(self) -> AsyncGenerator[Observation, None]:
        return follow(self._path, asks=self.asks, events=None if self._polling else awatch)


class Committed:
    """What a repository on this machine has committed, bare or not: its objects are read, no file of a checkout."""

    def __init__(self, path: Path, *, ref: str = "HEAD", below: str = "", name: str | None = None) -> None:
        self._path = path
        self._ref = ref
        self._below = below
        self._last = Read()
        self.name = name or str(path)
        self.asks = Asks()

    def read(self, revision: str | None = None) -> Source:
        return read_revision(self._path, revision or self._ref, below=self._below, known=self._last)

    async def follow(self) -> AsyncGenerator[Observation, None]:
        told = _Told()
        stamp, read_at = None, float("-inf")
        seen = Observation()
        while True:
            asked, now = self.asks.number, time.monotonic()
            if (found := self._stamp()) != stamp or asked != told.asked or now - read_at >= REREAD:
                seen, stamp, read_at = await _observe(self), found, now
            if told.is_news(seen, asked):
                yield replace(seen, asked=asked)
            await self.asks.wait(LOOK)

    def _stamp(self) -> tuple[object, ...]:
        """Changes whenever the commit may have."""
        with contextlib.suppress(OSError, RuntimeError):
            repository = git.repository(self._path.resolve())
            return () if repository is None else repository.stamp(self._ref)
        return ()


class Elsewhere:
    """A repository elsewhere, by way of our own copy."""

    def __init__(self, origin: Origin, home: Path) -> None:
        self._origin = origin
        self._mirror = Mirror(origin, home)
        self._last = Read()
        self._since: float | None = None  #: when it could not be reached first
        self._failures = 0
        self._hopeless: str | None = None  #: what another copy was no remedy for
        self.name = origin.name
        self.asks = Asks()

    def read(self, revision: str | None = None) -> Source:
        """As it was when it was last fetched."""
        if not git.is_bare(self._mirror.path):
            raise CatalogUnreadable(f"{self._origin.where} has not been fetched yet")
        try:
            here = self._here(revision or "HEAD")
            return read_revision(self._mirror.path, here, below=self._origin.inside, known=self._last)
        except NoRevision as error:
            fetched = f"the last {self._origin.depth} commits" if self._origin.depth else "all commits"
            raise NoRevision(
                f"no revision {revision} of {self.name} was fetched: of what is followed, {fetched} are (--git-depth)"
            ) from error

    def _here(self, revision: str) -> str:
        """As our copy has it, whose only name is that of what is followed: `HEAD~1`, `main^`."""
        base = re.split(r"[~^@:]", revision, maxsplit=1)[0]
        known = ("HEAD", self._origin.ref.name, f"refs/heads/{self._origin.ref.name}")
        return HEAD + revision[len(base) :] if base in known else revision

    async def follow(self) -> AsyncGenerator[Observation, None]:
        told = _Told()
        while True:
            asked = self.asks.number
            looking = asyncio.ensure_future(self._look())
            try:
                if told.key is None:  # nothing is served yet: the last good catalog need not wait for a network
                    await asyncio.wait({looking}, timeout=FIRST_ANSWER)
                    if not looking.done():
                        yield _failed(f"{self._origin.where} has not answered yet")
                seen = await looking
            finally:
                looking.cancel()
                await asyncio.wait({looking})  # with the git that it runs
            if told.is_news(seen, asked):
                yield replace(seen, asked=asked)
            await self.asks.wait(self._pause())

    async def _look(self) -> Observation:
        try:
            await self._mirror.refresh()
            seen = await self._read_whole()
        except CatalogUnreadable as error:
            self._failures += 1
            if self._since is None:
                self._since = time.time()
            what = "nothing to follow" if isinstance(error, NothingThere) else "source unreachable"
            return _failed(f"{what} since {_utc(self._since)}: {error}")
        self._since, self._failures = None, 0
        return seen

    async def _read_whole(self) -> Observation:
        """A copy that cannot be read is damaged, where a fetch would not notice: another one is made, once."""
        seen = await _observe(self)
        if seen.error is None or isinstance(seen.error, NothingThere) or str(seen.error) == self._hopeless:
            return seen
        log.warning("catalog_copy_made_anew", why=str(seen.error))
        await self._mirror.refresh(anew=True)
        seen = await _observe(self)
        self._hopeless = None if seen.error is None else str(seen.error)
        return seen

    def _pause(self) -> float | None:
        """None: until somebody asks."""
        pause = self._origin.poll
        if self._failures:
            pause = min(pause or float("inf"), FIRST_RETRY * 2 ** min(self._failures - 1, 20))
        return pause * random.uniform(1 - JITTER, 1 + JITTER) if pause else None


class _Told:
    """What was told last, and to whose ask."""

    def __init__(self) -> None:
        self.key: tuple[object, ...] | None = None
        self.asked = 0

    def is_news(self, seen: Observation, asked: int) -> bool:
        """Whether it is to be told; it counts as told then."""
        if seen.told == self.key and asked == self.asked:
            return False
        self.key, self.asked = seen.told, asked
        return True


async def _observe(place: Place) -> Observation:
    try:
        source = await asyncio.to_thread(place.read)
    except LlmgwError as error:
        return Observation(error=error)
    return Observation(source=source, watcher="ok" if source.note is None else f"ok ({source.note})")


def _failed(why: str) -> Observation:
    return Observation(error=CatalogUnreadable(why))


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
