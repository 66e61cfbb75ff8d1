"""What a store holds under some prefixes, kept at hand: reading it costs nothing, however much it is.

For who reads it all again and again, over a store that is elsewhere. What is at hand may be a moment old, as any answer
is once it has arrived; but it always has what was written through it, and never goes back. Every RELIST seconds it is
listed anew: what an event missed is found then.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from typing import Final

from llmgw.errors import Resync, StaleRevision
from llmgw.store.api import Change, Delete, Entry, Expect, Lease, Put, Snapshot, Store
from llmgw.store.backlog import Backlog
from llmgw.store.follow import follow, listed
from llmgw.tasks import Tasks
from llmgw.units import Seconds

RELIST: Final = 60.0

DELETIONS_KEPT: Final = 10_000
"""Deletions remembered, each prefix its own: a change that comes late must not bring back what is gone."""


class Mirror:
    """A store that has `prefixes` of another at hand, none of them within another, while `run` runs.

    What is under none of them is read from the other each time. A key that was deleted and written since is told as
    one change; those who watch hear of a change when it is at hand.
    """

    def __init__(self, store: Store, prefixes: Sequence[str], *, relist: float = RELIST) -> None:
        self._store = store
        self._parts = {prefix: _Part(prefix) for prefix in prefixes}
        self._relist = relist
        self.ready = asyncio.Event()  #: all is at hand

    async def run(self) -> None:
        """Until cancelled, or until a part of it fails, which is raised."""
        tasks = Tasks()
        try:
            for part in self._parts.values():
                seen = await listed(self._store, part.prefix)
                part.begin(seen)
                tasks.start(self._follow(part, seen), f"mirror: {part.prefix}", essential=True)
            tasks.start(self._list_anew(), "mirror: lists", essential=True)
            self.ready.set()
            await tasks.wait()
        finally:
            await tasks.close()
            for part in self._parts.values():
                part.end()

    async def _follow(self, part: "_Part", seen: Snapshot) -> None:
        async for changes in follow(self._store, part.prefix, seen):
            part.apply(changes)

    async def _list_anew(self) -> None:
        while True:
            await asyncio.sleep(self._relist)
            for part in self._parts.values():
                part.take(await listed(self._store, part.prefix))

    # -- as a store

    async def get(self, key: str) -> Entry | None:
        part = await self._part(key)
        return await self._store.get(key) if part is None else part.entries.get(key)

    async def list(self, prefix: str) -> Snapshot:
        part = await self._part(prefix)
        return await self._store.list(prefix) if part is None else part.list(prefix)

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        if_revision: int | None = None,
        lease: Lease | None = None,
        expect: Sequence[Expect] = (),
    ) -> int:
        try:
            revision = await self._store.put(key, value, if_revision=if_revision, lease=lease, expect=expect)
        except StaleRevision:
            await self._look_again([key, *(condition.key for condition in expect)])
            raise
        self._wrote([Put(key, value)], revision)
        return revision

    async def delete(self, key: str) -> None:
        await self.txn([Delete(key)])

    async def txn(self, writes: Sequence[Put | Delete], *, expect: Sequence[Expect] = ()) -> int:
        try:
            revision = await self._store.txn(writes, expect=expect)
        except StaleRevision:
            await self._look_again([condition.key for condition in expect])
            raise
        self._wrote(writes, revision)
        return revision

    async def watch(self, prefix: str, *, from_revision: int) -> AsyncIterator[Sequence[Change]]:
        part = await self._part(prefix)
        if part is None:
            async for changes in self._store.watch(prefix, from_revision=from_revision):
                yield changes
            return
        async for changes in part.watch(prefix, from_revision):
            yield changes

    async def lease(self, ttl: Seconds) -> Lease:
        return await self._store.lease(ttl)

    async def close(self) -> None:
        """The store goes on: it is whose it was."""

    async def _part(self, key: str) -> "_Part | None":
        """What is at hand for a key, or for a prefix that it is."""
        for prefix, part in self._parts.items():
            if key.startswith(prefix):
                await self.ready.wait()
                return part
        return None

    def _wrote(self, writes: Sequence[Put | Delete], revision: int) -> None:
        for write in writes:
            for prefix, part in self._parts.items():
                if write.key.startswith(prefix):
                    part.wrote(write, revision)

    async def _look_again(self, keys: Sequence[str]) -> None:
        """What was at hand was too old for a condition to hold. Raises RetryableError."""
        for key in keys:
            for prefix, part in self._parts.items():
                if key.startswith(prefix):
                    part.take(await self._store.list(key), within=key)


class _Part:
    """What is at hand under one prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.entries: dict[str, Entry] = {}
        self._gone: OrderedDict[str, int] = OrderedDict()  # key -> revision
        self._forgotten = 0  # the newest deletion no longer remembered
        self._position = 0  # in the store's own account: what is written through us may be ahead of it
        self._order: list[str] | None = []
        self._watchers: dict[Backlog, None] = {}

    def list(self, prefix: str) -> Snapshot:
        if self._order is None:
            self._order = sorted(self.entries)
        if prefix == self.prefix:
            return Snapshot(tuple(map(self.entries.__getitem__, self._order)), self._position)
        found = [key for key in self._order if key.startswith(prefix)]
        return Snapshot(tuple(self.entries[key] for key in found), self._position)

    def begin(self, seen: Snapshot) -> None:
        self.take(seen)
        self._position = seen.revision

    def take(self, seen: Snapshot, *, within: str = "") -> None:
        """A list of all, or of what is `within` a prefix, which may be older than what is known of some keys."""
        present = {entry.key for entry in seen.entries}
        gone = [key for key in self.entries if key not in present and key.startswith(within)]
        written = (Change(entry.key, entry.value, entry.revision) for entry in seen.entries)
        self._hold([*written, *(Change(key, None, seen.revision) for key in gone)], as_of=seen.revision)

    def apply(self, changes: Sequence[Change]) -> None:
        """As the store tells them, in order."""
        self._hold(changes)
        self._position = max(self._position, changes[-1].revision)

    def wrote(self, write: Put | Delete, revision: int) -> None:
        """Through us. What was there already, at an older revision than that of the transaction, stays as it was."""
        before = self.entries.get(write.key)
        if isinstance(write, Delete):
            self._hold([Change(write.key, None, revision)])
        elif before is None or before.value != write.value:
            self._hold([Change(write.key, write.value, revision)])

    def _hold(self, changes: Sequence[Change], *, as_of: int = 0) -> None:
        """What is newer than what is known of its key; and, of a list, what differs though known of no later time."""
        new = [change for change in changes if self._is_news(change, as_of)]
        for change in new:
            if (change.value is None) is not (change.key not in self.entries):
                self._order = None
            if change.value is None:
                self.entries.pop(change.key, None)
                self._gone[change.key] = change.revision
                self._gone.move_to_end(change.key)
            else:
                self.entries[change.key] = Entry(change.key, change.value, change.revision)
                self._gone.pop(change.key, None)
        while len(self._gone) > DELETIONS_KEPT:
            self._forgotten = max(self._forgotten, self._gone.popitem(last=False)[1])
        if new:
            for watcher in tuple(self._watchers):
                watcher.offer(new)

    def _is_news(self, change: Change, as_of: int) -> bool:
        entry = self.entries.get(change.key)
        known = self._gone.get(change.key, 0) if entry is None else entry.revision
        return change.revision > known or change.revision < known <= as_of

    async def watch(self, prefix: str, position: int) -> AsyncIterator[Sequence[Change]]:
        if position < self._forgotten:
            raise Resync(f"revision {position} is too old to watch from: list {prefix} again")
        watcher = Backlog(prefix)
        written = [Change(one.key, one.value, one.revision) for one in self.entries.values()]
        deleted = [Change(key, None, revision) for key, revision in self._gone.items()]
        missed = [change for change in (*written, *deleted) if change.revision > position]
        watcher.offer(sorted(missed, key=lambda change: change.revision))
        self._watchers[watcher] = None
        try:
            while batch := await watcher.take():
                yield batch
        finally:
            del self._watchers[watcher]

    def end(self) -> None:
        for watcher in tuple(self._watchers):
            watcher.end()
