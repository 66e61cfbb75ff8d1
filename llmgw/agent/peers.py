"""The other nodes of a fleet, as the store tells of them: who holds an entry, who fetches one, and where to ask."""

import asyncio
import socket
from collections.abc import Sequence
from typing import Final, TypeVar

import structlog

from llmgw.catalog.hosts import is_loopback
from llmgw.catalog.spec import WeightsSettings, WeightsSpec
from llmgw.clock import Clock
from llmgw.errors import LlmgwError, RetryableError, TerminalError
from llmgw.facts import NodeReport
from llmgw.ids import NodeName
from llmgw.store import keys
from llmgw.store.api import Entry, Store
from llmgw.store.codec import decode, encode
from llmgw.store.held import Held
from llmgw.store.values import Applied, FetchClaim, Member, Role
from llmgw.tasks import Tasks
from llmgw.units import Bytes
from llmgw.weights.lookup import on_node
from llmgw.weights.mirror import Claim
from llmgw.weights.peer import Peer

log = structlog.get_logger("llmgw.agent")

T = TypeVar("T")

LINGER: Final = 20.0
"""Seconds that a claim outlives its download: by then, a report tells that the entry is here."""


class StorePeers:
    """As `node` sees them. `held`: writes what vanishes with this process. `run` it, or nothing is tidied up."""

    def __init__(self, store: Store, held: Held, *, node: NodeName, clock: Clock) -> None:
        self._store = store
        self._held = held
        self._node = node
        self._clock = clock
        self._tasks = Tasks()
        self._settings = WeightsSettings()

    async def run(self) -> None:
        """Until cancelled."""
        try:
            await asyncio.Event().wait()
        finally:
            await self._tasks.close()

    async def settings(self) -> WeightsSettings:
        """Of the catalog in force, or as they were when the store last answered."""
        try:
            entry = await self._store.get(keys.APPLIED)
            if entry is not None:
                self._settings = decode(entry.value, Applied, where=entry.key).weights
        except LlmgwError as error:
            log.info("settings_not_read", error=str(error))
        return self._settings

    async def wanted(self) -> bool:
        return (await self.settings()).mirror

    async def holders(self, spec: WeightsSpec) -> Sequence[Peer]:
        members = await self._members()
        found = []
        for entry in (await self._store.list(keys.NODES)).entries:
            node = NodeName(entry.key.removeprefix(keys.NODES).partition("/")[0])
            if entry.key != keys.report(node) or node not in members:
                continue
            report = _readable(entry, NodeReport)
            fact = None if report is None else on_node(report.weights, spec)
            if fact is not None and fact.entry is not None:
                found.append(Peer(node=node, url=members[node], entry=fact.entry))
        return found

    async def _members(self) -> dict[NodeName, str]:
        """The agents that live, by node, but for this one and those that nobody can ask."""
        snapshot = await self._store.list(f"{keys.MEMBERS}{Role.AGENT}/")
        members = [found for entry in snapshot.entries if (found := _readable(entry, Member)) is not None]
        # On this machine, another's loopback address is whoever listens here: not one to show a token to.
        asked = (each for each in members if not is_loopback(each.url) or each.host == socket.gethostname())
        return {NodeName(member.name): member.url for member in asked if member.name != self._node}

    async def claim(self, entry: str, *, instead_of: str | None = None) -> Claim | None:
        key = keys.fetch(entry)
        ours = self._value()
        if await self._held.take(key, ours):
            return None
        there = await self._store.get(key)
        if there is None:  # it went meanwhile
            return None if await self._held.take(key, ours) else await self.claim(entry, instead_of=instead_of)
        found = _readable(there, FetchClaim)
        if found is None or found.node in (self._node, instead_of):  # our own: from before this process began anew
            await self._held.put(key, ours)
            return None
        return await self._claim_of(entry, found)

    async def claimed(self, entry: str) -> Claim | None:
        there = await self._store.get(keys.fetch(entry))
        found = None if there is None else _readable(there, FetchClaim)
        return None if found is None or found.node == self._node else await self._claim_of(entry, found)

    async def _claim_of(self, entry: str, found: FetchClaim) -> Claim:
        url = (await self._members()).get(found.node)
        peer = None if url is None else Peer(node=found.node, url=url, entry=entry)
        return Claim(node=found.node, peer=peer, done=found.done, finished=found.finished)

    async def progress(self, entry: str, done: int) -> None:
        await self._held.put(keys.fetch(entry), self._value(done))

    async def finish(self, entry: str) -> None:
        await self._held.put(keys.fetch(entry), self._value(finished=True))
        self._tasks.start(self._forget(entry), f"forget the claim of {entry}")

    async def release(self, entry: str) -> None:
        await self._held.delete(keys.fetch(entry))

    async def _forget(self, entry: str) -> None:
        await self._clock.sleep(LINGER)
        try:
            await self.release(entry)
        except RetryableError as error:  # it goes with the lease
            log.info("claim_not_released", entry=entry, error=str(error))

    def _value(self, done: int = 0, *, finished: bool = False) -> bytes:
        return encode(FetchClaim(node=self._node, at=self._clock.now().wall, done=Bytes(done), finished=finished))


def _readable(entry: Entry, kind: type[T]) -> T | None:
    """None: a newer version's, which is nothing to rely on."""
    try:
        return decode(entry.value, kind, where=entry.key)
    except TerminalError as error:
        log.warning("value_refused", key=entry.key, error=str(error))
        return None
