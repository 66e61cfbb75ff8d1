"""The routing table as the store tells it: read again, whole, whenever anything under the gateway's keys changes."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import structlog

from llmgw.errors import LlmgwError, RetryableError, TerminalError
from llmgw.gateway.addresses import address_of
from llmgw.gateway.routes import RoutingTable
from llmgw.plan import Endpoint, ModelStatus, Stopped
from llmgw.store import codec, keys
from llmgw.store.api import Entry, Snapshot, Store
from llmgw.store.contents import Catalogs, InForce, NotWhole
from llmgw.store.follow import follow, listed
from llmgw.store.values import ApiKey
from llmgw.tasks import Tasks

log = structlog.get_logger("llmgw.gateway")

T = TypeVar("T")

WATCHED: Final = (
    keys.APPLIED,
    keys.ENDPOINTS,
    keys.EXPLAIN,
    keys.STOPPED,
    keys.API_KEYS,
    keys.SUSPENSIONS,
    keys.PARTS,
)
"""Nothing of what nodes report: a thousand of them would keep every gateway busy. Not the models either: those of a
catalog are there before it is in force, and never change. Their lists count only where some were missing: right
after a start of all, when the catalog is put in force that was before, and `catalog/applied` does not change."""


RETRY: Final = 0.5
"""Seconds until a store that was away is read again."""


class StoreView:
    """Calls `changed(table, revision, urgent)` with each new table, and before it `keys_changed(keys, required)`.

    `revision`: of the store, as of which the table acts; `urgent`: an endpoint went, for which
    an agent that drains may wait.
    """

    def __init__(
        self,
        store: Store,
        changed: Callable[[RoutingTable, int, bool], None],
        keys_changed: Callable[[Sequence[ApiKey], bool], None],
    ) -> None:
        self._store = store
        self._changed = changed
        self._keys_changed = keys_changed
        self._dirty = asyncio.Event()
        self._withdrawn = False
        self._decoded: dict[str, tuple[int, object]] = {}
        self._catalogs = Catalogs()
        self._known: InForce | None = None  #: the last that was whole
        self._lacking = False  #: what is in force now is not all there
        self._incoming = False  #: some of a catalog came since it was read last
        self._told: dict[str, str] = {}  #: what cannot be read, and why

    async def start(self, tasks: Tasks) -> None:
        """Read everything once, and follow from there."""
        for prefix in WATCHED:
            seen = await listed(self._store, prefix)
            tasks.start(self._follow(prefix, seen), f"gateway watch {prefix}", essential=True)
        await asyncio.sleep(0)  # the watches begin; what changes from here on wakes `_run`
        await self._read_when_there()
        tasks.start(self._run(), "gateway view", essential=True)

    async def _follow(self, prefix: str, seen: Snapshot) -> None:
        async for changes in follow(self._store, prefix, seen):
            if prefix == keys.PARTS:
                self._incoming = True
                if not self._lacking:
                    continue
            if prefix == keys.ENDPOINTS and any(change.value is None for change in changes):
                self._withdrawn = True
            self._dirty.set()

    async def _run(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            await self._read_when_there()

    async def _read_when_there(self) -> None:
        """While the store is away, what is known goes on being served."""
        told = False
        while True:
            try:
                await self._read()
                return
            except RetryableError as error:
                if not told:
                    log.error("table_not_read", error=str(error))
                told = self._withdrawn = True
                await asyncio.sleep(RETRY)

    async def _read(self) -> None:
        store = self._store
        urgent, self._withdrawn = self._withdrawn, False
        endpoints = await store.list(keys.ENDPOINTS)
        statuses = await store.list(keys.EXPLAIN)
        stopped = self._values([await store.get(keys.STOPPED)], Stopped)
        api_keys = (await store.list(keys.API_KEYS)).entries
        suspended = {keys.last(entry.key) for entry in (await store.list(keys.SUSPENSIONS)).entries}
        found = await self._in_force()
        specs = found.models.values() if found is not None else ()
        table = RoutingTable.build(
            applied=found.applied if found is not None else None,
            models=[replace(spec, suspend=True) if spec.name in suspended else spec for spec in specs],
            endpoints=self._values(endpoints.entries, Endpoint),
            statuses=self._values(statuses.entries, ModelStatus),
            stopped=stopped[0] if stopped else None,
        )
        present = {entry.key for entry in (*endpoints.entries, *statuses.entries, *api_keys)}
        self._decoded = {key: kept for key, kept in self._decoded.items() if key in present}
        # One that cannot be read is there all the same: it lets nobody in, and must not open the door to everybody.
        self._keys_changed(self._values(api_keys, ApiKey), bool(api_keys))
        self._changed(table, endpoints.revision, urgent)

    async def _in_force(self) -> InForce | None:
        """None: nothing is. While what is in force is not all there, or cannot be read, what was before goes on."""
        self._incoming = False
        try:
            found = self._known = await self._catalogs.in_force(self._store)
        except TerminalError as error:
            self._lacking = True
            if self._incoming:  # what was missing came meanwhile
                self._dirty.set()
            if self._known is not None or not isinstance(error, NotWhole):  # at a start it is yet to come
                self._say_once("catalog", str(error))
            return self._known
        self._lacking = False
        self._told.pop("catalog", None)
        for name, why in found.unreadable.items() if found is not None else ():
            self._say_once(f"model/{name}", str(why))
        return found

    def _say_once(self, what: str, why: str) -> None:
        if self._told.get(what) != why:
            log.error("stored_value_unreadable", what=what, error=why)
        self._told[what] = why

    def _values(self, entries: Iterable[Entry | None], kind: type[T]) -> list[T]:
        """The entries' values. One that cannot be read is reported once and left out: the others go on."""
        found: list[T] = []
        for entry in entries:
            if entry is None:
                continue
            revision, value = self._decoded.get(entry.key, (0, None))
            if revision != entry.revision:
                value = self._decode(entry, kind)
                self._decoded[entry.key] = (entry.revision, value)
            if isinstance(value, kind):
                found.append(value)
        return found

    def _decode(self, entry: Entry, kind: type[T]) -> T | None:
        try:
            value = codec.decode(entry.value, kind, where=entry.key)
            if isinstance(value, Endpoint):
                address_of(value.url)
            return value
        except (LlmgwError, ValueError) as error:
            log.error("stored_value_unreadable", key=entry.key, error=str(error))
            return None
