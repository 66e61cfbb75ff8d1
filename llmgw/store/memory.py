"""The embedded store: a dict, its watchers, and one file for each durable key."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from urllib.parse import quote, unquote

import structlog

from llmgw.errors import StaleRevision
from llmgw.statedir import write_atomic
from llmgw.store.api import Change, Delete, Entry, Expect, Put, Snapshot
from llmgw.store.keys import DURABLE

log = structlog.get_logger("llmgw.store")


class MemoryStore:
    """One process's store. With a `directory`, keys under DURABLE outlive it there, one file each.

    All writes happen between two awaits of the event loop, so a transaction needs no lock.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._entries: dict[str, Entry] = {}
        self._revision = 0
        self._watchers: dict[_Watcher, None] = {}
        self._closed = False

    def load(self) -> None:
        """Read the durable keys back. A file that cannot be read is reported and left where it is."""
        if self._directory is None:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        for path in sorted(self._directory.iterdir()):
            if path.name.startswith("."):  # an unfinished write
                path.unlink(missing_ok=True)
                continue
            try:
                value = path.read_bytes()
            except OSError as error:
                log.error("durable_key_unreadable", file=str(path), error=str(error))
                continue
            self._revision += 1
            key = unquote(path.name)
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
        for condition in expect:
            entry = self._entries.get(condition.key)
            if (entry.revision if entry else 0) != condition.revision:
                raise StaleRevision(f"{condition.key} changed meanwhile")
        effective = [write for write in writes if self._changes(write)]
        if not effective:
            return self._revision
        for write in effective:  # disk first: what is acknowledged is durable
            self._persist(write)
        self._revision += 1
        changes = [self._apply(write) for write in effective]
        for watcher in tuple(self._watchers):
            watcher.offer(changes)
        return self._revision

    def _changes(self, write: Put | Delete) -> bool:
        entry = self._entries.get(write.key)
        return entry is not None if isinstance(write, Delete) else entry is None or entry.value != write.value

    def _persist(self, write: Put | Delete) -> None:
        if self._directory is None or not write.key.startswith(DURABLE):
            return
        path = self._directory / quote(write.key, safe="")
        if isinstance(write, Put):
            write_atomic(path, write.value)
        else:
            path.unlink(missing_ok=True)

    def _apply(self, write: Put | Delete) -> Change:
        if isinstance(write, Put):
            self._entries[write.key] = Entry(write.key, write.value, self._revision)
            return Change(write.key, write.value, self._revision)
        del self._entries[write.key]
        return Change(write.key, None, self._revision)

    async def watch(self, prefix: str, *, from_revision: int) -> AsyncIterator[Sequence[Change]]:
        watcher = _Watcher(prefix)
        if self._closed:
            return
        # What changed between the caller's snapshot and now; deletions in that gap are found by
        # comparing with the snapshot, so watch right after listing, without an await in between.
        missed = [
            Change(entry.key, entry.value, entry.revision)
            for entry in self._entries.values()
            if entry.revision > from_revision and entry.key.startswith(prefix)
        ]
        watcher.offer(sorted(missed, key=lambda change: change.revision))
        self._watchers[watcher] = None
        try:
            while batch := await watcher.take():
                yield batch
        finally:
            del self._watchers[watcher]

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
