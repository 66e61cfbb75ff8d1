"""The embedded store: a dict, its watchers, and one file for each durable key."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from llmgw.errors import StaleRevision
from llmgw.store.api import Change, Delete, Entry, Expect, Put, Snapshot
from llmgw.store.durable import DurableKeys
from llmgw.store.keys import DURABLE

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
        self._deleted: dict[str, int] = {}  # key -> revision, oldest first
        self._forgotten = 0  # the newest deletion no longer remembered
        self._revision = 0
        self._watchers: dict[_Watcher, None] = {}
        self._closed = False

    def load(self) -> None:
        """Read the durable keys back. A file that cannot be read is reported and left where it is. Raises OSError."""
        if self._disk is None:
            return
        for key, value in self._disk.load().items():
            self._revision += 1
            self._entries[key] = Entry(key, value, self._revision)

    async def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    async def list(self, prefix: str) -> Snapshot:
        found = sorted(key for key in self._entries if key.startswith(prefix))
        return Snapshot(tuple(self._entries[key] for key in found), self._revision)

    async def put(self, key: str, value: bytes, *, if_revision: int | None = None) -> int:
        expect = () if if_revision is None else (Expect(key, if_revision),)
        await self.txn([Put(key, value)], expect=expect)
        return self._entries[key].revision

    async def delete(self, key: str) -> None:
        await self.txn([Delete(key)])

    async def txn(self, writes: Sequence[Put | Delete], *, expect: Sequence[Expect] = ()) -> int:
        if len({write.key for write in writes}) < len(writes):
            raise ValueError("a transaction writes each key once")
        for condition in expect:
            entry = self._entries.get(condition.key)
            if (entry.revision if entry else 0) != condition.revision:
                raise StaleRevision(f"{condition.key} changed meanwhile")
        effective = [write for write in writes if self._changes(write)]
        if not effective:
            return self._revision
        durable = [write for write in effective if write.key.startswith(DURABLE)]
        if durable and self._disk is not None:  # disk first: what is acknowledged is durable
            self._disk.write(durable)
        self._revision += 1
        changes = [self._apply(write) for write in effective]
        for watcher in tuple(self._watchers):
            watcher.offer(changes)
        return self._revision

    def _changes(self, write: Put | Delete) -> bool:
        entry = self._entries.get(write.key)
        return entry is not None if isinstance(write, Delete) else entry is None or entry.value != write.value

    def _apply(self, write: Put | Delete) -> Change:
        if isinstance(write, Put):
            self._entries[write.key] = Entry(write.key, write.value, self._revision)
            self._deleted.pop(write.key, None)
            return Change(write.key, write.value, self._revision)
        del self._entries[write.key]
        self._deleted[write.key] = self._revision
        if len(self._deleted) > DELETIONS_KEPT:
            oldest = next(iter(self._deleted))
            self._forgotten = self._deleted.pop(oldest)
        return Change(write.key, None, self._revision)

    async def watch(self, prefix: str, *, from_revision: int) -> AsyncIterator[Sequence[Change]]:
        if self._closed:
            return
        if from_revision < self._forgotten:
            raise StaleRevision(f"revision {from_revision} is too old to watch from: list {prefix} again")
        watcher = _Watcher(prefix)
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

    async def close(self) -> None:
        self._closed = True
        for watcher in tuple(self._watchers):
            watcher.end()


class _Watcher:
    """One watch's backlog: bounded by the number of distinct keys, since a later change replaces an earlier."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._pending: dict[str, Change] = {}
        self._ended = False
        self._wake = asyncio.Event()

    def offer(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.key.startswith(self._prefix):
                self._pending.pop(change.key, None)  # keep revision order
                self._pending[change.key] = change
                self._wake.set()

    def end(self) -> None:
        self._ended = True
        self._wake.set()

    async def take(self) -> Sequence[Change]:
        """The next batch; empty once the watch ended."""
        while not self._pending and not self._ended:
            self._wake.clear()
            await self._wake.wait()
        batch = tuple(self._pending.values())
        self._pending = {}
        return batch
