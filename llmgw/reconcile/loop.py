"""Passes: read everything, think, write. Nothing is remembered between passes but what cannot be reread."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

import structlog

from llmgw.catalog.live import LiveCatalog
from llmgw.catalog.spec import Catalog
from llmgw.clock import Clock
from llmgw.engine.manager import Engines
from llmgw.engine.sizes import Sizes
from llmgw.errors import LlmgwError, RetryableError
from llmgw.facts import Action, Event, Level, Observed, RecoveryRecord
from llmgw.ids import ModelName, NodeName, SpecDigest
from llmgw.plan import ModelState, ModelStatus, Rollout
from llmgw.reconcile import dispatch, measured, rollouts, status
from llmgw.reconcile.decoded import Decoded
from llmgw.reconcile.forgetting import forget_nodes
from llmgw.reconcile.liveness import Liveness
from llmgw.reconcile.meters import Meters
from llmgw.reconcile.news import News
from llmgw.reconcile.observe import Seen, observe
from llmgw.reconcile.workqueue import Trigger
from llmgw.schedule.decider import Decider
from llmgw.schedule.think import Known, Thought, think
from llmgw.store import keys
from llmgw.store.api import Store
from llmgw.store.follow import follow
from llmgw.units import Instant, Wall, format_seconds

log = structlog.get_logger("llmgw.reconcile")

RESYNC: Final = 15.0
"""Seconds between passes when nothing happens: whatever an event missed is found then."""

CLOCK_JUMP: Final = 60.0  #: seconds

RETRY: Final = 1.0
"""Seconds until a pass that failed is made again."""

REST: Final = 2.0
"""After a pass as many times as long as it took, before the next: of a core, passes take a third at most."""

PATIENCE: Final = 20.0
"""The same, before one for what can wait: figures alone take a twentieth of a core at most."""

LONGEST: Final = 1.0  #: seconds of either

WATCHED: Final = (
    keys.NODES,
    keys.MEMBERS,
    keys.SETTINGS,
    keys.ASKS,
    keys.USAGE,
    keys.RECOVERY,
    keys.ROLLOUTS,
    keys.CONCURRENCY,
)

_Records = dict[tuple[SpecDigest, NodeName], RecoveryRecord | None]


class Controller:
    """Owns the passes. One runs at a time; triggers during one lead to one more.

    `nodes`: those that take part; None: the ones that the catalog names are waited for at start.
    """

    def __init__(
        self,
        *,
        store: Store,
        live: LiveCatalog,
        engines: Engines,
        clock: Clock,
        record: Callable[[Event], None],
        nodes: Collection[NodeName] | None = None,
        liveness: Liveness | None = None,
    ) -> None:
        self._store = store
        self._live = live
        self._sizes = Sizes(engines)
        self._decoded = Decoded(store)
        self._clock = clock
        self._record = record
        self._nodes = nodes
        self._trigger = Trigger()
        self._news = News()
        self._liveness = liveness or Liveness(follows=True)
        self._decider = Decider()
        self._effective = rollouts.Effective()
        self._told: dict[ModelName, ModelStatus] = {}  #: by the last pass
        self._stand_ins: frozenset[ModelName] = frozenset()  #: models that others serve for
        self._braked = False
        self._offset: float | None = None  #: of the wall clock against the one that only runs on
        self._unkept: _Records = {}  #: records that the disk would not take yet
        self.passes = 0
        self.meters = Meters()

    @property
    def liveness(self) -> Liveness:
        """Who still reports, as the passes have it."""
        return self._liveness

    def trigger(self) -> None:
        """Ask for a pass: after a catalog swap, say."""
        self._trigger.set()

    async def run(self) -> None:
        """Passes until cancelled, one at start. A failed pass is logged and made again: what serves goes on."""
        async with asyncio.TaskGroup() as group:
            for prefix in WATCHED:
                group.create_task(self._watch(prefix))
            timeout, took = 0.0, 0.0
            while True:
                rest, patience = min(LONGEST, REST * took), min(LONGEST, PATIENCE * took)
                await self._trigger.wait(timeout, rest=rest, patience=patience)
                begun = self._clock.now().mono
                try:
                    with self.meters.timing(self._clock):
                        timeout = await self.reconcile()
                except LlmgwError as error:
                    log.error("pass_failed", error=str(error))
                    timeout = RETRY
                except Exception:
                    log.exception("pass_failed")
                    timeout = RESYNC
                took = self._clock.now().mono - begun

    async def reconcile(self) -> float:
        """One pass. Returns the seconds until the next is due though nothing changes."""
        now = self._clock.now()
        self._look_at_clock(now)
        self.passes += 1
        catalog, state = self._live.current, self._live.state()
        if catalog is None:  # nothing was ever in force: what runs is left as it is
            await status.write(self._store, state, (), now)
            return RESYNC
        rolling = {ModelName(n): one for n, one in (await self._decoded.all(keys.ROLLOUTS, Rollout)).items()}
        rolling, catalog = rollouts.relevant(catalog, rolling), self._effective.of(catalog, rolling)
        if self._liveness.follows:
            self._liveness.patience = catalog.cluster.supervision.node_grace
        seen = await self._observe(catalog, now)
        if await self._measure(seen, catalog, now):
            seen = await self._observe(catalog, now)
        seen = replace(seen, rollouts=rolling)
        known = seen.known(catalog, settled=self._settled(catalog, now), covered=self._stand_ins)
        thought = think(known, now, decider=self._decider)
        await self._remember(known, thought, now)
        await dispatch.apply(self._store, thought.plan, seen, catalog, now, self._record)
        await forget_nodes(self._store, seen, now, self._record)
        self.meters.did(thought)
        told = _until_returned(thought, self._told)
        await dispatch.write_statuses(self._store, told)
        # As it was when this pass began: of what has come since, the models' states say nothing yet.
        await status.write(self._store, state, told, now, stopped=seen.stopped is not None)
        self._report_changes(seen, told, now)
        return _until(thought.due, now)

    def _look_at_clock(self, now: Instant) -> None:
        """Stamps that are stored mean nothing across a jump; whoever reads them has to know of it."""
        offset = now.wall - now.mono
        jumped = offset - (offset if self._offset is None else self._offset)
        self._offset = offset
        if abs(jumped) > CLOCK_JUMP:
            way = "forward" if jumped > 0 else "back"
            text = f"the wall clock went {way} by {format_seconds(abs(jumped))}"
            self._record(Event(at=now.wall, subject="cluster", reason="clock jump", message=text))

    def _settled(self, catalog: Catalog, now: Instant) -> bool:
        return self._liveness.settled(catalog.cluster.nodes if self._nodes is None else self._nodes, now)

    async def _observe(self, catalog: Catalog, now: Instant) -> Seen:
        seen = await observe(self._store, self._sizes, catalog, now, liveness=self._liveness, decoded=self._decoded)
        if not self._unkept:
            return seen
        merged = {**seen.observed.recovery, **self._unkept}
        known = {key: record for key, record in merged.items() if record is not None}
        return replace(seen, observed=replace(seen.observed, recovery=known))

    async def _remember(self, known: Known, thought: Thought, now: Instant) -> None:
        """Before anything is done: a failure that is counted must not be counted again."""
        if thought.recovery or self._unkept:
            await self._keep(dict(thought.recovery))
            self._report_failures(known.observed, thought.recovery.items(), now)
        try:
            await dispatch.write_demand(self._store, known, thought)
            await rollouts.write(self._store, thought.rollouts)
        except RetryableError as error:  # thought anew at the next pass
            log.warning("demand_not_kept", error=str(error))
        for event in thought.events:
            self._record(event)

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
        async for changes in follow(self._store, prefix, snapshot):
            urgent = [self._news.is_urgent(change) for change in changes]
            self._trigger.set(urgent=any(urgent))

    def _report_failures(
        self,
        observed: Observed,
        records: Iterable[tuple[tuple[SpecDigest, NodeName], RecoveryRecord | None]],
        now: Instant,
    ) -> None:
        for key, record in records:
            known = observed.recovery.get(key)
            if record is None or (known is not None and known.last_replica == record.last_replica):
                continue
            self.meters.failed(record.last.kind)
            what = "quarantined" if record.quarantined else "failed"
            text = f"{record.last.kind}: {record.last.reason}{_consequence(record)}"
            self._record(_event(now, record.model, what, text))

    def _report_changes(self, seen: Seen, told: Iterable[ModelStatus], now: Instant) -> None:
        """An event for each model whose state changed since the last pass, or that another begins to serve for."""
        before, self._told = self._told, {item.model: item for item in told}
        for model, item in self._told.items():
            was = before.get(model)
            if was is item:
                continue
            if was is None or was.state != item.state:
                self._record(_event(now, model, str(item.state), item.reason))
            covered = None if was is None else was.fallback
            if item.fallback != covered:
                text = f"{item.fallback} serves in its place" if item.fallback else f"served by {covered} no more"
                self._record(_event(now, model, "fallback", text))
        self._stand_ins = frozenset(item.model for item in self._told.values() if item.fallback is not None)
        if seen.braked != self._braked:
            self._braked = seen.braked
            silent = ", ".join(sorted(seen.observed.unreachable))
            text = f"more than half of the nodes are silent ({silent}): what they run is given up only when fewer are"
            done = "enough nodes report again"
            self._record(Event(at=now.wall, subject="cluster", reason="brake", message=text if seen.braked else done))


def _until_returned(thought: Thought, before: Mapping[ModelName, ModelStatus]) -> tuple[ModelStatus, ...]:
    """The statuses, but for models whose rollout failed in this pass those told `before`: the next, which follows at
    once, wants what served. Told as failed meanwhile, clients would be turned away who need but wait."""
    back = {name for name, one in thought.rollouts.items() if one is not None and one.failed is not None}
    return tuple(
        before.get(one.model, one) if one.model in back and one.state is ModelState.FAILED and not one.fallback else one
        for one in thought.statuses
    )


def _consequence(record: RecoveryRecord) -> str:
    """What is done about it, where that is more than trying again."""
    if record.quarantined:
        return ""
    if record.action is Action.FALLBACK:
        return "; its fallback serves in its place"
    return "" if record.level is Level.FULL else f"; tried next at level {record.level}"


def _until(due: Wall | None, now: Instant) -> float:
    return RESYNC if due is None else min(RESYNC, max(0.05, due - now.wall))


def _event(now: Instant, model: ModelName, reason: str, message: str) -> Event:
    return Event(at=now.wall, subject=f"model/{model}", reason=reason, message=message)
