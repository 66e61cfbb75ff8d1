"""The mirror: nodes of a cluster give one another what they hold, so that a file is downloaded once from outside.

Who wants weights asks the nodes that hold them first. Where none does, one node claims the download and the others wait
for it, as long as it gets on. Whatever goes wrong on the way, the source itself is asked in the end, and the log says
why. What a peer sends is believed by hash alone: by its manifest's, the catalog's, and the source's own where it has.
"""

import asyncio
import os
import random
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

import structlog

from llmgw.catalog.spec import WeightsSpec
from llmgw.clock import Clock
from llmgw.errors import LlmgwError, RetryableError, WeightsRefused
from llmgw.units import Mono, format_bytes
from llmgw.weights import peer, promise
from llmgw.weights.api import Fetched, WeightSource, Work
from llmgw.weights.manifest import Manifest
from llmgw.weights.naming import entry_name
from llmgw.weights.peer import Asking, Away, Busy, Lied, NotServed, Peer, Progress
from llmgw.weights.sources import in_thread

log = structlog.get_logger("llmgw.weights")

T = TypeVar("T")

DISTRUST: Final = 600.0
"""Seconds that a node which sent something else is not asked for the same entry again."""


SLOWEST: Final = 5.0
"""How many times the first pause the longest is, between two looks at what is waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A node's word that it fetches an entry. `peer` None: it cannot be asked for what it has. `done`: bytes so far;
    `finished`: it holds it, or does within a moment."""

    node: str
    peer: Peer | None
    done: int = 0
    finished: bool = False


class Peers(Protocol):
    """The other nodes, as the store knows them. Every method raises RetryableError where the store is away."""

    async def wanted(self) -> bool:
        """Whether the catalog in force has nodes mirror."""

    async def holders(self, spec: WeightsSpec) -> Sequence[Peer]:
        """Nodes that say that they hold it."""

    async def claim(self, entry: str, *, instead_of: str | None = None) -> Claim | None:
        """None: it is ours now; else the one that there is. That of the node `instead_of` counts for nothing."""

    async def claimed(self, entry: str) -> Claim | None:
        """Another node's claim that there is."""

    async def progress(self, entry: str, done: int) -> None:
        """Of our claim."""

    async def finish(self, entry: str) -> None:
        """Our claim's download is here; it stays for a while, until our report says so too."""

    async def release(self, entry: str) -> None:
        """Ours has come to nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds. `look`: between two looks; `stuck`: that a node which fetches may get no further; `finished`: until one
    that has finished must serve; `busy`: that all who hold it may be busy."""

    look: float = 2.0
    stuck: float = 60.0
    finished: float = 15.0
    busy: float = 900.0
    describe: float = 10.0


class Mirror:
    """Of one node. `token`: what lets it into other nodes' agents; `tell`: an event's reason and message."""

    def __init__(
        self,
        peers: Peers,
        token: str,
        clock: Clock,
        *,
        tell: Callable[[str, str], None] = lambda reason, message: None,
        patience: Patience = Patience(),
    ) -> None:
        self.peers = peers
        self.token = token
        self.clock = clock
        self.tell = tell
        self.patience = patience
        self._distrusted: dict[tuple[str, str], Mono] = {}

    def attempt(self, source: WeightSource, spec: WeightsSpec) -> "Attempt":
        return Attempt(self, source, spec)

    def distrust(self, one: Peer) -> None:
        self._distrusted[one.node, one.entry] = self.clock.now().mono

    def trusts(self, one: Peer) -> bool:
        since = self._distrusted.get((one.node, one.entry))
        return since is None or self.clock.now().mono - since > DISTRUST


class Later(Exception):
    """Others are at it, or busy: `Attempt.wait`, and then try again."""


class Attempt:
    """One entry's way here, over as many turns as it takes."""

    def __init__(self, mirror: Mirror, source: WeightSource, spec: WeightsSpec) -> None:
        self._mirror, self._source, self._spec = mirror, source, spec
        self._entry = entry_name(spec.source, spec.sha256)
        self._known: Mapping[str, str] | None = None
        self._claimant: Peer | None = None
        self._away: set[str] = set()  #: nodes that did not answer
        self._why = "no node holds it"
        self._waits = False
        self._awaited = ""  #: what for, to be told
        self._state: object = None  #: of what is waited for, when it last changed
        self._since = Mono(0.0)
        self._looks = 0

    async def wait(self, say: Callable[[str], None]) -> None:
        """Until a turn may come to something: at once, unless the last one ended with Later. Takes no turn meanwhile:
        others are to download what nobody does yet. `say`: told what is waited for."""
        while self._waits:
            say(self._awaited)
            pause = self._mirror.patience.look * min(1.5 ** min(self._looks, 10), SLOWEST)
            self._looks += 1
            await self._mirror.clock.sleep(pause * random.uniform(0.5, 1.0))
            try:
                claim = await _stored(self._mirror.peers.claimed(self._entry))
            except _StoreAway:
                claim = None
            self._waits = claim is not None and not claim.finished and self._vain(claim) is None
            self._awaited = _awaited(claim)

    async def fetch(self, work: Work) -> Fetched:
        """From a peer, else from the source. Raises as a source's `fetch` does, and Later."""
        try:
            fetched, ours = await self._from_peers(work)
        except _StoreAway as error:
            fetched, ours, self._why = None, False, f"the store is away: {error}"
        if fetched is not None:
            return fetched
        log.info("fetched_from_outside", source=self._spec.source, why=self._why)
        return await (self._claimed(work) if ours else from_outside(self._source, self._spec, work))

    # -- from a peer

    async def _from_peers(self, work: Work) -> tuple[Fetched | None, bool]:
        """What a peer gave; None: the source has to be asked, and whether under a claim of ours. Raises Later,
        _StoreAway."""
        if not await _stored(self._mirror.peers.wanted()):
            self._why = "the catalog has no node mirror"
            return None, False
        fetched, busy = await self._ask_holders(work)
        if fetched is not None:
            return fetched, False
        claim = None if busy else await self._claim()
        if claim is None and not busy:
            return None, True
        if (why := self._vain(claim)) is not None:
            self._why = why
            return None, False
        self._claimant = claim.peer if claim is not None and claim.finished else None
        self._waits, self._awaited = True, _awaited(claim)
        raise Later

    async def _claim(self) -> Claim | None:
        peers = self._mirror.peers
        claim = await _stored(peers.claim(self._entry))
        if claim is None or not claim.finished:
            return claim
        if claim.peer is not None and self._mirror.trusts(claim.peer) and claim.node not in self._away:
            return claim
        return await _stored(peers.claim(self._entry, instead_of=claim.node))  # what it has is of no use

    def _vain(self, claim: Claim | None) -> str | None:
        """Why not to wait, or no longer: nothing has changed for so long. `claim` None: all who hold it are busy."""
        patience, now = self._mirror.patience, self._mirror.clock.now().mono
        state = "busy" if claim is None else (claim.node, claim.done, claim.finished)
        if state != self._state:
            if self._state is None and claim is not None and not claim.finished:
                self._mirror.tell("waiting for weights", f"{self._spec.source}: {claim.node} fetches it")
            self._state, self._since = state, now
        if claim is None:
            return "all that hold it are busy" if now - self._since > patience.busy else None
        if claim.peer is None:
            return f"{claim.node} fetches it, and cannot be asked for it"
        longest = patience.finished if claim.finished else patience.stuck
        return f"{claim.node} gets no further with it" if now - self._since > longest else None

    async def _ask_holders(self, work: Work) -> tuple[Fetched | None, bool]:
        """`True`: some serve, and are busy."""
        found = {each.node: each for each in await _stored(self._mirror.peers.holders(self._spec))}
        if self._claimant is not None:
            found.setdefault(self._claimant.node, self._claimant)
        holders = [each for each in found.values() if self._mirror.trusts(each)]
        random.shuffle(holders)  # that not all ask the same one
        busy = False
        for each in holders:
            try:
                return await self._take(each, work), False
            except Busy:
                busy = True
            except NotServed as error:
                self._passed_over(each, str(error))
                if isinstance(error, Away):
                    self._away.add(each.node)
            except Lied as error:
                self._mirror.distrust(each)
                self._passed_over(each, str(error))
                said = f"{self._spec.source} from {each.node}: {error}"
                self._mirror.tell("weights refused", said)
        return None, busy

    def _passed_over(self, one: Peer, why: str) -> None:
        self._why = f"{one.node}: {why}"
        log.warning("peer_passed_over", source=self._spec.source, node=one.node, why=why)

    async def _take(self, one: Peer, work: Work) -> Fetched:
        """Raises NotServed, Lied; WeightsUnavailable where there is no room."""
        asking = Asking(one, self._mirror.token)
        manifest = await in_thread(lambda _: asking.manifest(), stopping=asking.stop)
        if self._known is None:
            self._known = await self._ask_source()
        peer.check(manifest, self._spec, self._known)
        try:
            work.expect(manifest.size, here=await asyncio.to_thread(_size, work.files))
        except WeightsRefused as error:
            raise Lied(str(error)) from error
        work.resumable()
        for record in work.directory.glob("resume-*.json"):  # what lies here is not the source's alone any more
            record.unlink(missing_ok=True)
        promise.write(work.directory, manifest.files)
        log.info("fetch_from_peer", source=self._spec.source, node=one.node, size=manifest.size)
        try:
            await self._take_files(asking, manifest, work)
        except Lied:  # nothing that it sent is of use to anybody
            await asyncio.to_thread(_clear, work)
            with suppress(NotServed):
                await in_thread(lambda _: asking.doubt(), stopping=asking.stop)
            raise
        self._mirror.tell("weights from peer", f"{self._spec.source}, {format_bytes(manifest.size)}, from {one.node}")
        return Fetched(files=manifest.files, licence=_licence(manifest.licence), folder=manifest.folder)

    async def _take_files(self, asking: Asking, manifest: Manifest, work: Work) -> None:
        before = 0
        for number, file in enumerate(manifest.files):
            progress = Progress(before, manifest.size)
            await in_thread(partial(asking.take, number, file, work, progress), stopping=asking.stop)
            before += file.size

    async def _ask_source(self) -> dict[str, str]:
        """The checksums that the source itself has, where it has any and answers."""
        if not self._source.knows_sha256:
            return {}
        try:
            async with asyncio.timeout(self._mirror.patience.describe):
                description = await self._source.describe(self._spec)
        except (LlmgwError, TimeoutError, OSError) as error:
            log.info("source_not_asked_for_checksums", source=self._spec.source, why=str(error) or "no answer in time")
            return {}
        return {file.path: file.sha256 for file in description.files if file.sha256 is not None}

    # -- from outside, for all

    async def _claimed(self, work: Work) -> Fetched:
        peers, telling = self._mirror.peers, asyncio.ensure_future(self._tell_progress(work))
        done = False
        try:
            fetched = await from_outside(self._source, self._spec, work)
            done = True
            return fetched
        finally:
            telling.cancel()
            await asyncio.wait({telling})
            with suppress(RetryableError):  # it ends with our lease
                await (peers.finish(self._entry) if done else peers.release(self._entry))

    async def _tell_progress(self, work: Work) -> None:
        while True:
            await self._mirror.clock.sleep(max(self._mirror.patience.look, self._mirror.patience.stuck / 12))
            with suppress(RetryableError, OSError):
                present = await asyncio.to_thread(_size, work.directory)
                await self._mirror.peers.progress(self._entry, present)


def _awaited(claim: Claim | None) -> str:
    """As Progress.waits_for has it."""
    if claim is None:
        return "the nodes that hold it, which are busy"
    return f"{claim.node} to {'serve' if claim.finished else 'fetch'} it"


async def from_outside(source: WeightSource, spec: WeightsSpec, work: Work) -> Fetched:
    if not source.resumes:
        await asyncio.to_thread(_clear, work)
    return await source.fetch(spec, work)


def _clear(work: Work) -> None:
    """What a peer left, for a source that begins in an empty place."""
    for path in work.directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    work.files.mkdir(parents=True)


def _size(directory: Path) -> int:
    """Of all files below it; they come and go meanwhile."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(folder, name), follow_symlinks=False).st_size
    return total


def _licence(text: str | None) -> str | None:
    return text if text is not None and len(text) <= 200 and text.isprintable() else None


class _StoreAway(Exception):
    pass


async def _stored(asked: Awaitable[T]) -> T:
    try:
        return await asked
    except RetryableError as error:
        raise _StoreAway(str(error)) from error
