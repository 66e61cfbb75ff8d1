"""One leader among several candidates, and a store that takes writes from no other.

The leader holds the key `leader` under a lease. Each of its writes is conditional on that key's revision, which no
later leader has: one that was paused and does not know yet that another leads cannot write.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from llmgw.clock import Clock
from llmgw.errors import RetryableError, StaleRevision
from llmgw.store import codec, keys
from llmgw.store.api import Change, Delete, Entry, Expect, Lease, Put, Snapshot, Store
from llmgw.store.follow import follow
from llmgw.units import Seconds, Wall

log = structlog.get_logger("llmgw.election")

TTL: Final = Seconds(4.0)
"""Until a leader that died is known to be gone: another leads within a second more."""

RETRY: Final = 0.5
"""Seconds until a candidate that the store did not answer tries again."""


class NotLeader(RetryableError):
    """A write of one who leads no more: nothing was written. Whoever leads now sees to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """The value of `leader`."""

    name: str
    at: Wall  #: since when


class Leadership:
    """From being elected until `lost` is set, or `resign`."""

    def __init__(self, leader: Leader, revision: int, lease: Lease, keeping: asyncio.Task[None]) -> None:
        self.leader = leader
        self.fence = Expect(keys.LEADER, revision)
        self._lease = lease
        self._keeping = keeping

    @property
    def lost(self) -> asyncio.Event:
        """Set when another may lead: the lease ended, or a write was refused."""
        return self._lease.lost

    async def resign(self) -> None:
        """Let another lead now. A store that is away lets one when the lease has ended. Idempotent."""
        await _release(self._lease, self._keeping)


async def elected(store: Store, name: str, clock: Clock, *, ttl: Seconds = TTL) -> Leadership:
    """Wait until nobody else leads, however long that takes and whether or not the store is away meanwhile."""
    told = False
    while True:
        try:
            return await _stand(store, name, clock, ttl)
        except RetryableError as error:
            if not told:
                log.warning("election_waits", error=str(error))
            told = True
            await asyncio.sleep(RETRY)


async def current_leader(store: Store) -> Leader | None:
    """Who leads. Raises as reading does."""
    entry = await store.get(keys.LEADER)
    return codec.decode(entry.value, Leader, where=entry.key) if entry else None


async def _stand(store: Store, name: str, clock: Clock, ttl: Seconds) -> Leadership:
    lease = await store.lease(ttl)
    keeping = asyncio.get_running_loop().create_task(lease.keep(), name="election: lease")
    try:
        leader, revision = await _win(store, name, clock, lease)
    except BaseException:
        # Where nobody knows whether it was elected: with the lease goes what it may have written.
        await _release(lease, keeping)
        raise
    return Leadership(leader, revision, lease, keeping)


async def _win(store: Store, name: str, clock: Clock, lease: Lease) -> tuple[Leader, int]:
    while True:
        seen = await store.list(keys.LEADER)
        if all(entry.key != keys.LEADER for entry in seen.entries):
            leader = Leader(name=name, at=clock.now().wall)
            try:
                return leader, await store.put(keys.LEADER, codec.encode(leader), if_revision=0, lease=lease)
            except StaleRevision:  # another was faster
                continue
        async for changes in follow(store, keys.LEADER, seen):
            if any(change.key == keys.LEADER and change.value is None for change in changes):
                break
        else:
            raise RetryableError("the store was closed")


async def _release(lease: Lease, keeping: asyncio.Task[None]) -> None:
    keeping.cancel()
    await asyncio.wait([keeping])
    try:
        await lease.revoke()
    except RetryableError as error:
        log.warning("leadership_expires", error=str(error))


class Fenced:
    """A store that writes only while this leadership lasts, and raises NotLeader after it."""

    def __init__(self, store: Store, leadership: Leadership) -> None:
        self._store = store
        self._leadership = leadership

    async def get(self, key: str) -> Entry | None:
        return await self._store.get(key)

    async def list(self, prefix: str) -> Snapshot:
        return await self._store.list(prefix)

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        if_revision: int | None = None,
        lease: Lease | None = None,
        expect: Sequence[Expect] = (),
    ) -> int:
        conditions = (self._leadership.fence, *expect)
        try:
            return await self._store.put(key, value, if_revision=if_revision, lease=lease, expect=conditions)
        except StaleRevision:
            await self._check()
            raise

    async def delete(self, key: str) -> None:
        await self.txn([Delete(key)])

    async def txn(self, writes: Sequence[Put | Delete], *, expect: Sequence[Expect] = ()) -> int:
        try:
            return await self._store.txn(writes, expect=(self._leadership.fence, *expect))
        except StaleRevision:
            await self._check()
            raise

    def watch(self, prefix: str, *, from_revision: int) -> AsyncIterator[Sequence[Change]]:
        return self._store.watch(prefix, from_revision=from_revision)

    async def lease(self, ttl: Seconds) -> Lease:
        return await self._store.lease(ttl)

    async def close(self) -> None:
        """The store goes on: it is the process's, not the leadership's."""

    async def _check(self) -> None:
        """Raises NotLeader where it is the leadership that does not hold, not another condition."""
        entry = await self._store.get(keys.LEADER)
        if entry is None or entry.revision != self._leadership.fence.revision:
            self._leadership.lost.set()
            raise NotLeader("another leads: nothing was written")
