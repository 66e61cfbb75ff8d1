"""The routing table as the store tells it: read again, whole, whenever anything under the gateway's keys changes."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import structlog

from llmgw.catalog.spec import ModelSpec
from llmgw.errors import LlmgwError, RetryableError
from llmgw.gateway.routes import RoutingTable
from llmgw.gateway.upstream import address_of
from llmgw.plan import Endpoint, ModelStatus, Stopped
from llmgw.store import codec, keys
from llmgw.store.api import Entry, Snapshot, Store
from llmgw.store.follow import follow, listed
from llmgw.store.values import ApiKey, Applied
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
)
"""Nothing of what nodes report: a thousand of them would keep every gateway busy. Not the models either: those of a
catalog are there before it is in force, and never change."""


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
        applied, models = await self._in_force()
        specs = self._values(models, ModelSpec)
        table = RoutingTable.build(
            applied=applied[0] if applied else None,
            models=[replace(spec, suspend=True) if spec.name in suspended else spec for spec in specs],
            endpoints=self._values(endpoints.entries, Endpoint),
            statuses=self._values(statuses.entries, ModelStatus),
            stopped=stopped[0] if stopped else None,
        )
        present = {entry.key for entry in (*endpoints.entries, *statuses.entries, *models, *api_keys)}
        self._decoded = {key: kept for key, kept in self._decoded.items() if key in present}
        # One that cannot be read is there all the same: it lets nobody in, and must not open the door to everybody.
        self._keys_changed(self._values(api_keys, ApiKey), bool(api_keys))
        self._changed(table, endpoints.revision, urgent)

    async def _in_force(self) -> tuple[list[Applied], Sequence[Entry]]:
        """The catalog's settings and its models, which go once another is in force: not between the two reads."""
        entry = await self._store.get(keys.APPLIED)
        while True:
            applied = self._values([entry], Applied)
            models = (await self._store.list(f"{keys.MODELS}{applied[0].digest}/")).entries if applied else ()
            before, entry = entry, await self._store.get(keys.APPLIED)
            if entry == before:
                return applied, models

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
            if kind is ModelSpec:
                return codec.decode_shared(entry.value, kind)
            value = codec.decode(entry.value, kind, where=entry.key)
            if isinstance(value, Endpoint):
                address_of(value.url)
            return value
        except (LlmgwError, ValueError) as error:
            log.error("stored_value_unreadable", key=entry.key, error=str(error))
            return None
