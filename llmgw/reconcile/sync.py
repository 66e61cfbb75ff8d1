"""Takes catalog revisions in: read, validate, swap whole, publish. A bad revision changes nothing."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from llmgw.catalog.live import LiveCatalog, load_last_good, save_last_good
from llmgw.catalog.load import Loaded, load_catalog, revision_of
from llmgw.catalog.source import Source
from llmgw.catalog.spec import Catalog, ModelSpec
from llmgw.catalog.watch import Observation, follow
from llmgw.clock import Clock
from llmgw.engine.manager import Engines
from llmgw.errors import CatalogInvalid, LlmgwError, RetryableError
from llmgw.facts import Event
from llmgw.plan import Endpoint
from llmgw.reconcile.in_force import in_force
from llmgw.reconcile.workqueue import Trigger
from llmgw.store import keys
from llmgw.store.api import Delete, Put, Store
from llmgw.store.batches import write_all
from llmgw.store.codec import decode, encode
from llmgw.store.values import Applied, HistoryEntry
from llmgw.units import Instant
from llmgw.weights.naming import canonical

log = structlog.get_logger("llmgw.sync")

HISTORY_KEPT: Final = 100

RETRY: Final = 5.0
"""Seconds until what could not be written (a full disk) is tried again."""


class CatalogSync:
    """Follows one source. `wake` is called after each change that a pass should act on."""

    def __init__(
        self,
        *,
        path: Path,
        store: Store,
        live: LiveCatalog,
        engines: Engines,
        clock: Clock,
        record: Callable[[Event], None],
        last_good: Path,
        wake: Callable[[], None],
        retry: float = RETRY,
    ) -> None:
        self._path = path
        self._store = store
        self._live = live
        self._engines = engines
        self._clock = clock
        self._record = record
        self._last_good = last_good
        self._wake = wake
        self._retry = retry
        self._newest: Observation | None = None
        self._arrived = Trigger()
        self._unwritten: str | None = None  #: why the newest could not be taken in yet

    async def run(self) -> None:
        """Until cancelled. What is on disk is tried first; only where it cannot serve is the last good restored."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow())
            while True:
                await self._arrived.wait(None if self._unwritten is None else self._retry)
                if self._newest is not None:
                    await self._try(self._newest)
                    self._wake()

    async def _follow(self) -> None:
        async for seen in follow(self._path):
            self._newest = seen
            self._arrived.set()

    async def _try(self, seen: Observation) -> None:
        self._live.watcher = seen.watcher
        try:
            await self._take(seen)
            self._unwritten = None
        except (OSError, RetryableError) as error:  # the state directory's disk is full, say: what is in force goes on
            if self._unwritten != str(error):
                log.error("catalog_not_applied", error=str(error))
            self._unwritten = str(error)
            why = f"cannot write the state directory: {error}" if isinstance(error, OSError) else str(error)
            self._live.reject(None, error=f"cannot be put in force yet: {why}", now=self._clock.now())
        except Exception as error:  # our own fault must not be the catalog's author's means to end what serves
            log.exception("catalog_not_taken")
            text = f"llmgw failed at this revision: {type(error).__name__}: {error}; the log has more"
            self._live.reject(None, error=text, now=self._clock.now())

    async def _take(self, seen: Observation) -> None:
        if seen.source is None:
            await self._refuse(None, seen.error or LlmgwError("the catalog cannot be read"))
            return
        try:
            loaded = await asyncio.to_thread(self._load, seen.source)
        except CatalogInvalid as invalid:
            await self._refuse(seen.source, invalid)
            return
        await self._put_in_force(loaded)
        await asyncio.to_thread(save_last_good, self._last_good, loaded.catalog)

    def _load(self, source: Source) -> Loaded:
        return load_catalog(
            source,
            self._engines.rules(),
            canonical=canonical,
        )

    async def _put_in_force(self, loaded: Loaded) -> None:
        catalog, before, now = loaded.catalog, self._live.current, self._clock.now()
        if before is not None and (before.digest, before.revision) == (catalog.digest, catalog.revision):
            self._live.accept(catalog, now)  # an earlier problem is over
            if self._unwritten is None:
                self._event("catalog unchanged", f"{catalog.revision} is in force already")
            return
        if before is None and (found := await in_force(self._store)) is not None:
            known, since = found
            if (known.digest, known.revision) == (catalog.digest, catalog.revision):
                now = Instant(now.mono, since)  # another controller put it in force
        await publish(self._store, catalog, now)  # first: where that fails, what was in force stays
        self._live.accept(catalog, now)
        for warning in loaded.warnings:
            self._event("catalog warning", str(warning))
        same = before is not None and before.digest == catalog.digest
        self._event("catalog applied", f"{catalog.revision}: " + ("same content" if same else _count(catalog)))

    async def _refuse(self, source: Source | None, error: LlmgwError) -> None:
        """Say why, and serve the last good where nothing is in force yet."""
        if self._live.current is None:
            await self._restore()
        now = self._clock.now()
        if source is not None and isinstance(error, CatalogInvalid):
            revision = revision_of(source)
            self._live.reject(revision, problems=error.problems, now=now)
            self._event("catalog invalid", f"{revision}: {error}")
        else:
            self._live.reject(None, error=str(error), now=now)
            self._event("catalog unreadable", str(error))

    async def _restore(self) -> None:
        """What another controller put in force, else the last good one on disk."""
        if (found := await in_force(self._store)) is not None:
            taken, since = found
            self._live.accept(taken, Instant(self._clock.now().mono, since))
            self._event("catalog taken over", str(taken.revision))
            return
        catalog, why = await asyncio.to_thread(load_last_good, self._last_good)
        if why:
            self._event("last good unusable", why)
        if catalog is not None:
            now = self._clock.now()
            await publish(self._store, catalog, now)
            self._live.accept(catalog, now)
            self._event("last good restored", str(catalog.revision))

    def _event(self, reason: str, message: str) -> None:
        self._record(Event(at=self._clock.now().wall, subject="catalog", reason=reason, message=message))


async def publish(store: Store, catalog: Catalog, now: Instant) -> None:
    """Put a catalog in force for the gateways and agents: its models first, under their digest, which nobody looks at
    yet; then, in one transaction, which revision it is, and the end of the endpoints of models it no longer has.
    Traffic stops before any engine does. The models of catalogs before it go last."""
    models = {keys.model(catalog.digest, name): encode(model) for name, model in catalog.models.items()}
    present = {entry.key: entry.value for entry in (await store.list(keys.MODELS)).entries}
    stale = [key for key in present if key not in models]
    endpoints = [
        entry.key
        for entry in (await store.list(keys.ENDPOINTS)).entries
        if decode(entry.value, Endpoint, where=entry.key).model not in catalog.models
    ]
    applied = Applied(
        revision=catalog.revision,
        digest=catalog.digest,
        at=now.wall,
        gateway=catalog.cluster.gateway,
        weights=catalog.cluster.weights,
        cluster=catalog.cluster.name,
        nodes=tuple(catalog.cluster.nodes),
        policies=catalog.cluster.nodes,
        time_zone=catalog.cluster.time_zone,
        scaling=catalog.cluster.scaling,
        defaults=catalog.cluster.defaults,
        recovery=catalog.cluster.recovery,
    )
    history = await _history(store, catalog, now)
    await write_all(store, [Put(key, value) for key, value in models.items() if present.get(key) != value])
    # Beyond what one transaction takes, endpoints follow: the gateways pass over those of a model that is not there.
    await write_all(store, [Put(keys.APPLIED, encode(applied)), *history, *(Delete(key) for key in endpoints)])
    await write_all(store, [Delete(key) for key in stale])


async def _history(store: Store, catalog: Catalog, now: Instant) -> list[Put | Delete]:
    """One more entry where the content differs from the newest; the oldest beyond HISTORY_KEPT go."""
    entries = (await store.list(keys.HISTORY)).entries
    last = decode(entries[-1].value, HistoryEntry, where=entries[-1].key) if entries else None
    if last is not None and last.digest == catalog.digest:
        return []
    number = 1 + (last.number if last else 0)
    models = {str(model.name): _sources(model) for model in catalog.models.values()}
    entry = HistoryEntry(
        number=number,
        revision=catalog.revision,
        digest=catalog.digest,
        at=now.wall,
        sources=tuple(sorted({source for sources in models.values() for source in sources})),
        models=models,
    )
    surplus = entries[: max(0, len(entries) + 1 - HISTORY_KEPT)]
    return [Put(keys.history(number), encode(entry)), *(Delete(old.key) for old in surplus)]


def _sources(model: ModelSpec) -> tuple[str, ...]:
    return tuple(sorted({canonical(spec.source) for profile in model.profiles for spec in profile.every_file}))


def _count(catalog: Catalog) -> str:
    count = len(catalog.models)
    return "1 model" if count == 1 else f"{count} models"
