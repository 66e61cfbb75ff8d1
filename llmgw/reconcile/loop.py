"""Passes: read everything, decide, write. Nothing is remembered between passes but what cannot be reread."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

import structlog

from llmgw.catalog.live import LiveCatalog
from llmgw.catalog.spec import Catalog
from llmgw.clock import Clock
from llmgw.desired import desired
from llmgw.engine.manager import Engines
from llmgw.engine.sizes import Sizes
from llmgw.errors import LlmgwError, RetryableError
from llmgw.facts import Event, Observed, RecoveryRecord
from llmgw.ids import ModelName, NodeName, SpecDigest
from llmgw.plan import ModelState, ModelStatus, Plan
from llmgw.reconcile import dispatch, measured, status
from llmgw.reconcile.observe import Seen, observe
from llmgw.reconcile.workqueue import Trigger
from llmgw.schedule import recovery
from llmgw.schedule.decide import decide
from llmgw.schedule.explain import statuses
from llmgw.store import keys
from llmgw.store.api import Store
from llmgw.units import Instant

log = structlog.get_logger("llmgw.reconcile")

RESYNC: Final = 15.0
"""Seconds between passes when nothing happens: whatever an event missed is found then."""

RETRY: Final = 1.0
"""Seconds until a pass that failed is made again."""

_Records = dict[tuple[SpecDigest, NodeName], RecoveryRecord | None]


class Controller:
    """Owns the passes. One runs at a time; triggers during one lead to one more."""

    def __init__(
        self, *, store: Store, live: LiveCatalog, engines: Engines, clock: Clock, record: Callable[[Event], None]
    ) -> None:
        self._store = store
        self._live = live
        self._sizes = Sizes(engines)
        self._clock = clock
        self._record = record
        self._trigger = Trigger()
        self._states: dict[ModelName, ModelState] = {}
        self._unkept: _Records = {}  #: records that the disk would not take yet
        self.passes = 0

    def trigger(self) -> None:
        """Ask for a pass: after a catalog swap, say."""
        self._trigger.set()

    async def run(self) -> None:
        """Passes until cancelled, one at start. A failed pass is logged and made again: what serves goes on."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch(keys.NODES))
            group.create_task(self._watch("settings/"))
            timeout: float | None = 0.0
            while True:
                await self._trigger.wait(timeout)
                try:
                    timeout = await self.reconcile()
                except LlmgwError as error:
                    log.error("pass_failed", error=str(error))
                    timeout = RETRY
                except Exception:
                    log.exception("pass_failed")
                    timeout = RESYNC

    async def reconcile(self) -> float:
        """One pass. Returns the seconds until the next is due though nothing changes."""
        now = self._clock.now()
        self.passes += 1
        catalog = self._live.current
        if catalog is None:  # nothing was ever in force: what runs is left as it is
            await status.write(self._store, self._live.state(), (), now)
            return RESYNC
        seen = await self._observe(catalog, now)
        records = recovery.changes(seen.observed, catalog, seen.levels, now)
        if records or self._unkept:
            await self._keep(records)
            self._report_failures(seen.observed, records, now)
            seen = await self._observe(catalog, now)
        if await self._measure(seen, catalog, now):
            seen = await self._observe(catalog, now)
        wishes = desired(catalog, now=now, stopped=seen.stopped is not None)
        plan = decide(wishes, catalog, seen.observed, now)
        await dispatch.apply(self._store, plan, seen, catalog, now, self._record)
        told = statuses(plan, wishes, catalog, seen.observed, stopped=seen.stopped is not None)
        await dispatch.write_statuses(self._store, told)
        await status.write(self._store, self._live.state(), told, now, stopped=seen.stopped is not None)
        self._report_changes(told, now)
        return _until_due(plan, now)

    async def _observe(self, catalog: Catalog, now: Instant) -> Seen:
        seen = await observe(self._store, self._sizes, catalog, now)
        if not self._unkept:
            return seen
        merged = {**seen.observed.recovery, **self._unkept}
        known = {key: record for key, record in merged.items() if record is not None}
        return replace(seen, observed=replace(seen.observed, recovery=known))

    async def _keep(self, records: _Records) -> None:
        """Write records. What a full disk refuses counts all the same, and is written at a later pass."""
        unsaid = not self._unkept
        self._unkept |= records
        for key, record in tuple(self._unkept.items()):
            try:
                await dispatch.write_recovery(self._store, {key: record})
            except RetryableError as error:
                if unsaid:
                    log.error("recovery_not_kept", error=str(error))
                return
            del self._unkept[key]

    async def _measure(self, seen: Seen, catalog: Catalog, now: Instant) -> bool:
        """Remember what replicas were seen to take; whether that changed. What a full disk refuses comes again."""
        changes = measured.account(seen.measured, seen.observed.replicas.values(), catalog, now)
        known = {key: one for key, one in {**seen.measured, **changes}.items() if one is not None}
        told, events = measured.warnings(known, catalog, now)
        if not changes and not told:
            return False
        try:
            await dispatch.write_measured(self._store, {**changes, **told})
        except RetryableError as error:
            log.warning("measurement_not_kept", error=str(error))
            return False
        for event in events:
            self._record(event)
        return True

    async def _watch(self, prefix: str) -> None:
        snapshot = await self._store.list(prefix)
        async for _ in self._store.watch(prefix, from_revision=snapshot.revision):
            self._trigger.set()

    def _report_failures(self, observed: Observed, records: _Records, now: Instant) -> None:
        for key, record in records.items():
            if record is None or record == observed.recovery.get(key):
                continue
            what = "quarantined" if record.quarantined else "failed"
            self._record(_event(now, record.model, what, f"{record.last.kind}: {record.last.reason}"))

    def _report_changes(self, told: Iterable[ModelStatus], now: Instant) -> None:
        """An event for each model whose state changed since the last pass."""
        current = {item.model: item for item in told}
        for model, item in current.items():
            if self._states.get(model) != item.state:
                self._record(_event(now, model, str(item.state), item.reason))
        self._states = {model: item.state for model, item in current.items()}


def _until_due(plan: Plan, now: Instant) -> float:
    if plan.due is None:
        return RESYNC
    return min(RESYNC, max(0.05, plan.due - now.wall))


def _event(now: Instant, model: ModelName, reason: str, message: str) -> Event:
    return Event(at=now.wall, subject=f"model/{model}", reason=reason, message=message)
