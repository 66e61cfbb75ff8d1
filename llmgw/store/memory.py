"""The embedded store: a dict, its watchers, and one file for each durable key."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Final

from llmgw.errors import LeaseLost, Resync, StaleRevision
from llmgw.store.api import Change, Delete, Entry, Expect, Lease, Put, Snapshot, check_writes
from llmgw.store.backlog import Backlog
from llmgw.store.durable import DurableKeys
from llmgw.store.keys import DURABLE
from llmgw.units import Seconds

DELETIONS_KEPT: Final = 10_000
"""Deletions remembered for watches that begin at an older revision. Listing and watching are moments apart."""


class MemoryStore:
    """One process's store. With a `directory`, keys under DURABLE outlive it there, one file each.

    All writes happen between two awaits of the event loop, so a transaction needs no lock. Durable ones wait for the
    disk meanwhile: they are few, a switch thrown or a catalog applied.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._disk = None if directory is None else DurableKeys(directory)
        self._entries: dict[str, Entry] = {}
        self._families: dict[str, dict[str, None]] = {}  # keys by their first part: ten thousand others are no work
        self._deleted: OrderedDict[str, int] = OrderedDict()  # key -> revision, oldest first
        self._forgotten = 0  # the newest deletion no longer remembered
        self._revision = 0
        self._watchers: dict[Backlog, None] = {}
        self._leases: dict[str, MemoryLease] = {}  # of the keys under one
        self._granted: dict[MemoryLease, None] = {}
        self._closed = False

    def load(self) -> None:
        """Read the durable keys back. A file that cannot be read is reported and left where it is. Raises OSError."""
        if self._disk is None:
            return
        for key, value in self._disk.load().items():
            self._revision += 1
            self._set(key, value)

    async def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    async def list(self, prefix: str) -> Snapshot:
        family, slash, _ = prefix.partition("/")
        among = self._families.get(family, {}) if slash else self._entries
        found = sorted(key for key in among if key.startswith(prefix))
        return Snapshot(tuple(self._entries[key] for key in found), self._revision)

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        if_revision: int | None = None,
        lease: Lease | None = None,
        expect: Sequence[Expect] = (),
    ) -> int:
        own = () if if_revision is None else (Expect(key, if_revision),)
        await self.txn([Put(key, value, lease)], expect=(*own, *expect))
        return self._entries[key].revision

    async def delete(self, key: str) -> None:
        await self.txn([Delete(key)])

    async def txn(self, writes: Sequence[Put | Delete], *, expect: Sequence[Expect] = ()) -> int:
        check_writes(writes, expect)
        for condition in expect:
            entry = self._entries.get(condition.key)
            if (entry.revision if entry else 0) != condition.revision:
                raise StaleRevision(f"{condition.key} changed meanwhile")
        self._check_leases(writes)
        effective = [write for write in writes if self._changes(write)]
        if not effective:
            return self._revision
        self._commit(effective)
        return self._revision

    def _commit(self, effective: Sequence[Put | Delete]) -> None:
        durable = [write for write in effective if write.key.startswith(DURABLE)]
        if durable and self._disk is not None:  # disk first: what is acknowledged is durable
            self._disk.write(durable)
        self._revision += 1
        changes = [self._apply(write) for write in effective]
        for watcher in tuple(self._watchers):
            watcher.offer(changes)

    def _changes(self, write: Put | Delete) -> bool:
        entry = self._entries.get(write.key)
        if isinstance(write, Delete):
            return entry is not None
        return entry is None or entry.value != write.value or self._leases.get(write.key) is not write.lease

    def _check_leases(self, writes: Sequence[Put | Delete]) -> None:
        for write in writes:
            if isinstance(write, Put) and write.lease is not None and write.lease not in self._granted:
                write.lease.lost.set()
                raise LeaseLost(f"the lease of {write.key} ended")

    def _apply(self, write: Put | Delete) -> Change:
        self._leases.pop(write.key, None)
        if isinstance(write, Put):
            if isinstance(write.lease, MemoryLease):
                self._leases[write.key] = write.lease
            self._set(write.key, write.value)
            self._deleted.pop(write.key, None)
            return Change(write.key, write.value, self._revision)
        del self._entries[write.key]
        del self._families[_family(write.key)][write.key]
        self._deleted[write.key] = self._revision
        if len(self._deleted) > DELETIONS_KEPT:
            # An OrderedDict: to find the first of a dict whose first ones went takes ever longer.
            _, self._forgotten = self._deleted.popitem(last=False)
        return Change(write.key, None, self._revision)

    def _set(self, key: str, value: bytes) -> None:
        if key not in self._entries:
            self._families.setdefault(_family(key), {})[key] = None
        self._entries[key] = Entry(key, value, self._revision)

    async def watch(self, prefix: str, *, from_revision: int) -> AsyncIterator[Sequence[Change]]:
        if self._closed:
            return
        if from_revision < self._forgotten:
            raise Resync(f"revision {from_revision} is too old to watch from: list {prefix} again")
        watcher = Backlog(prefix)
        watcher.offer(self._changed_since(from_revision))
        self._watchers[watcher] = None
        try:
            while batch := await watcher.take():
                yield batch
        finally:
            del self._watchers[watcher]

    def _changed_since(self, revision: int) -> Sequence[Change]:
        changed = [Change(e.key, e.value, e.revision) for e in self._entries.values() if e.revision > revision]
        deleted = [Change(key, None, at) for key, at in self._deleted.items() if at > revision]
        return sorted(changed + deleted, key=lambda change: change.revision)

    async def lease(self, ttl: Seconds) -> "MemoryLease":
        lease = MemoryLease(ttl, self._end)
        self._granted[lease] = None
        return lease

    def _end(self, lease: "MemoryLease") -> None:
        """Its keys go at one revision, as in a transaction, but however many they are."""
        if lease not in self._granted:
            return
        del self._granted[lease]
        keys = [key for key, holder in self._leases.items() if holder is lease]
        if keys:
            self._commit([Delete(key) for key in keys])

    async def close(self) -> None:
        self._closed = True
        for lease in self._granted:
            lease.forget()
        for watcher in tuple(self._watchers):
            watcher.end()


def _family(key: str) -> str:
    return key.partition("/")[0]


class MemoryLease:
    """Kept by a timer of the event loop. Its owner lives in this process: what ends it is that nobody keeps it."""

    def __init__(self, ttl: Seconds, end: Callable[["MemoryLease"], None]) -> None:
        self.ttl = ttl
        self.lost = asyncio.Event()
        self._end = end
        self._timer = asyncio.get_running_loop().call_later(ttl, self._expire)

    async def keep(self) -> None:
        while not self.lost.is_set():
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(self.ttl, self._expire)
            try:
                async with asyncio.timeout(self.ttl / 3):
                    await self.lost.wait()
            except TimeoutError:
                continue

    async def revoke(self) -> None:
        self._expire()

    def forget(self) -> None:
        """The store is closed: nothing expires any more."""
        self._timer.cancel()

    def _expire(self) -> None:
        self._timer.cancel()
        self.lost.set()
        self._end(self)
