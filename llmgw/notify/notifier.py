"""Follows what the store says of the catalog, and has everyone told whom the catalog in force names."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import structlog
from prometheus_client.core import CounterMetricFamily, Metric

from llmgw.catalog.spec import NotifyKind, NotifySpec
from llmgw.clock import Clock
from llmgw.errors import LlmgwError
from llmgw.facts import Event
from llmgw.ids import short_hash
from llmgw.notify.body import Notification, notification
from llmgw.notify.occasions import Finding, find, is_news
from llmgw.notify.requests import request, root
from llmgw.notify.sending import Sender
from llmgw.notify.targets import Notice, Outcome, Pace, Target
from llmgw.plan import ModelStatus
from llmgw.store import keys
from llmgw.store.api import Entry, Store
from llmgw.store.codec import decode, encode
from llmgw.store.follow import follow, listed
from llmgw.store.values import Applied, CatalogStatus, Notified
from llmgw.tasks import Tasks
from llmgw.units import Seconds, Wall

log = structlog.get_logger("llmgw.notify")

RETRY: Final = Seconds(2)
"""Until the store is asked again that did not answer."""

FAULT: Final = Seconds(60)
"""Until what failed by a fault of ours is tried again."""


class Notifier:
    """Of one controller, while it leads."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        record: Callable[[Event], None],
        pace: Pace | None = None,
        sender: Callable[[NotifySpec], Sender] = Sender,
    ) -> None:
        self._store = store
        self._clock = clock
        self._record = record
        self._pace = pace
        self._sender = sender
        self._changed = asyncio.Event()
        self._targets: dict[str, tuple[Target, asyncio.Task[None]]] = {}
        self._named: frozenset[str] | None = None  #: whom the catalog names; None: it was not looked at yet
        self._counts: Counter[tuple[str, Outcome]] = Counter()

    async def run(self) -> None:
        """Until cancelled."""
        tasks = Tasks()
        try:
            for key in (keys.CATALOG_STATUS, keys.APPLIED):
                tasks.start(self._watch(key), f"notifications: {key}", essential=True)
            tasks.start(self._heed(tasks), "notifications: heed", essential=True)
            await tasks.wait()
        finally:
            await tasks.close()
            self._targets.clear()

    def collect(self) -> Iterator[Metric]:
        text = "Notifications by who is told and what became of them."
        family = CounterMetricFamily("llmgw_notifications", text, labels=["target", "outcome"])
        for (target, outcome), count in sorted(self._counts.items()):
            family.add_metric([target, outcome], count)
        yield family

    async def _watch(self, key: str) -> None:
        seen = await listed(self._store, key)
        self._changed.set()
        async for _ in follow(self._store, key, seen):
            self._changed.set()

    async def _heed(self, tasks: Tasks) -> None:
        wait: Seconds | None = None
        while True:
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            try:
                wait = await self._look(tasks)
            except LlmgwError as error:  # the store is away, or holds what is not to be read: passes go on all the same
                log.warning("notifications_wait", error=str(error))
                wait = RETRY
            except Exception:  # nobody's models are to go without a controller for a fault in telling of them
                log.exception("notifications_failed")
                wait = FAULT

    async def _look(self, tasks: Tasks) -> Seconds | None:
        """Put out what is news. The seconds until something may be though nothing changes."""
        entry = await self._store.get(keys.APPLIED)
        if entry is None:
            return None  # whom to tell only a catalog says
        applied = decode(entry.value, Applied, where=entry.key)
        await self._have_targets(applied.notify, tasks)
        entry = await self._store.get(keys.CATALOG_STATUS) if self._targets else None
        if entry is None:
            return None
        status, now = decode(entry.value, CatalogStatus, where=entry.key), self._clock.now().wall
        finding, wait = find(status, now)
        if finding is not None:
            await self._put_out(finding, status, applied.cluster, now)
        return wait

    async def _put_out(self, finding: Finding, status: CatalogStatus, cluster: str, now: Wall) -> None:
        news = [
            target
            for target, _ in self._targets.values()
            if is_news(finding, target.spec, None if target.latest is None else target.latest.key)
        ]
        if not news:
            return
        models = await self._models() if any(one.spec.kind is NotifyKind.WEBHOOK for one in news) else []
        told: Notification = notification(finding, status, models, cluster=cluster, at=now)
        for target in news:
            target.put(Notice(finding, request(target.spec, finding, told)))

    async def _models(self) -> list[ModelStatus]:
        entries = (await self._store.list(keys.EXPLAIN)).entries
        # Ten thousand take a tenth of a second, in which requests and passes go on.
        return await asyncio.to_thread(_decoded, entries)

    async def _have_targets(self, specs: tuple[NotifySpec, ...], tasks: Tasks) -> None:
        """Those of the catalog in force, each with a task of its own: a slow one holds up nobody else."""
        wanted = {spec.name: spec for spec in specs}
        for name, (target, task) in tuple(self._targets.items()):
            if wanted.get(name) != target.spec:
                task.cancel()
                del self._targets[name]
        for name, spec in wanted.items():
            if name not in self._targets:
                target = Target(
                    spec,
                    clock=self._clock,
                    count=self._count,
                    tell=self._tell,
                    told=self._remember,
                    latest=await self._last(spec),
                    pace=self._pace,
                    sender=self._sender(spec),
                )
                self._targets[name] = target, tasks.start(target.run(), f"notifications to {name}", essential=True)
        if self._named == wanted.keys():
            return
        for entry in (await self._store.list(keys.NOTIFIED)).entries:
            if keys.last(entry.key) not in wanted:
                await self._store.delete(entry.key)
        self._named = frozenset(wanted)

    async def _last(self, spec: NotifySpec) -> Finding | None:
        """What it was told last, by this controller or another, before a restart or after."""
        entry = await self._store.get(keys.notified(spec.name))
        if entry is None:
            return None
        last = decode(entry.value, Notified, where=entry.key)
        if last.place != _place(spec):
            return None
        return Finding(revision=last.revision, occasion=last.occasion, reason=last.reason)

    async def _remember(self, spec: NotifySpec, finding: Finding) -> None:
        value = Notified(
            place=_place(spec),
            revision=finding.revision,
            occasion=finding.occasion,
            reason=finding.reason,
            at=self._clock.now().wall,
        )
        try:
            await self._store.put(keys.notified(spec.name), encode(value))
        except LlmgwError as error:  # then a restart tells it again
            log.warning("notified_not_kept", target=spec.name, error=str(error))

    def _count(self, target: str, outcome: Outcome) -> None:
        self._counts[target, outcome] += 1

    def _tell(self, target: str, reason: str, message: str) -> None:
        at = self._clock.now().wall
        self._record(Event(at=at, subject=f"notify/{target}", reason=reason, message=message))


def _decoded(entries: Sequence[Entry]) -> list[ModelStatus]:
    return [decode(entry.value, ModelStatus, where=entry.key) for entry in entries]


def _place(spec: NotifySpec) -> str:
    return short_hash(f"{spec.kind} {root(spec)} {spec.repository}")
