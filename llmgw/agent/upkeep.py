"""Orders about cache entries: taken from the store, carried out where this node finds nothing against it, answered.

An order is there only while whoever gave it waits: one that its asker left is not carried out hours later, when the
catalog may say something else. What the catalog in force wants is read from the store anew for each entry.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, TypeVar

import structlog

from llmgw.clock import Clock
from llmgw.errors import LlmgwError, RetryableError, TerminalError
from llmgw.facts import Event
from llmgw.ids import NodeName
from llmgw.plan import Assignment, Rollout
from llmgw.store import keys
from llmgw.store.api import Change, Store
from llmgw.store.codec import decode, encode
from llmgw.store.contents import Catalogs
from llmgw.store.follow import follow, listed
from llmgw.store.staleness import why_stale
from llmgw.store.values import (
    Applied,
    CatalogStatus,
    UpkeepAction,
    UpkeepAnswer,
    UpkeepOrder,
    UpkeepOutcome,
)
from llmgw.tasks import Tasks
from llmgw.units import Bytes, format_bytes
from llmgw.weights.doomed import Refusal
from llmgw.weights.lookup import WantedSources
from llmgw.weights.naming import canonical
from llmgw.weights.upkeep import Asker, Upkeep

log = structlog.get_logger("llmgw.agent")

T = TypeVar("T")

FINISH: Final = 90.0
"""Seconds between two looks for what a killed process left half removed."""

BEAT: Final = 2.0
"""Seconds between two signs of life of an answer that grows slowly: to hash a large file takes minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """Of one node. `in_use`: canonical sources of what its engines were started with; `changed`: a report is due."""

    node: NodeName
    store: Store
    upkeep: Upkeep
    in_use: Callable[[], Collection[str]]
    clock: Clock
    record: Callable[[Event], None]
    changed: Callable[[], None]
    catalogs: Catalogs = field(default_factory=Catalogs)  #: as they were read before

    async def run(self) -> None:
        """Until cancelled."""
        prefix = keys.upkeep_order(self.node, "")
        snapshot = await listed(self.store, prefix)
        tasks, running = Tasks(), dict[str, asyncio.Task[None]]()
        tasks.start(self._finish(), "agent: finish removals")
        try:
            self._take([Change(e.key, e.value, e.revision) for e in snapshot.entries], tasks, running)
            async for changes in follow(self.store, prefix, snapshot):
                self._take(changes, tasks, running)
        finally:
            await tasks.close()

    async def _finish(self) -> None:
        """What a killed process left half removed; a while after it was, for one that lives may share the cache."""
        while True:
            try:
                for done in await self.upkeep.finish():
                    self._tell("weights removed", f"{done.source}, {format_bytes(done.size)}, begun before a crash")
            except (LlmgwError, OSError) as error:  # the cache's disk is away, say
                log.warning("removals_not_finished", error=str(error))
            await self.clock.sleep(FINISH)

    def _take(self, changes: Collection[Change], tasks: Tasks, running: dict[str, asyncio.Task[None]]) -> None:
        for change in changes:
            id = keys.last(change.key)
            if change.value is None:
                if (task := running.pop(id, None)) is not None:
                    tasks.start(self._leave(id, task), f"agent: leave upkeep {id}")
            elif id not in running:
                running[id] = tasks.start(self._carry_out(id, change), f"agent: upkeep {id}")

    async def _leave(self, id: str, task: asyncio.Task[None]) -> None:
        """Nobody waits for it any more; what was begun is ended."""
        task.cancel()
        await asyncio.wait([task])
        try:
            await self.store.delete(keys.upkeep_answer(self.node, id))
        except RetryableError as error:
            log.warning("answer_left_in_store", order=id, error=str(error))

    async def _carry_out(self, id: str, change: Change) -> None:
        assert change.value is not None
        answer = _Answer(self, keys.upkeep_answer(self.node, id))
        beat = asyncio.ensure_future(answer.beat())
        try:
            order = decode(change.value, UpkeepOrder, where=change.key)
            for entry in order.entries:
                answer.outcomes.append(await self._outcome(order, entry))
            beat.cancel()  # its last word must not come after ours
            await asyncio.wait([beat])
            await answer.write(finished=True)
            self.changed()
        except (LlmgwError, OSError) as error:  # the asker hears nothing, and says so
            log.warning("order_not_carried_out", order=id, error=str(error))
        finally:
            beat.cancel()

    async def _outcome(self, order: UpkeepOrder, entry: str) -> UpkeepOutcome:
        try:
            match order.action:
                case UpkeepAction.REMOVE:
                    return await self._remove(order, entry)
                case UpkeepAction.VERIFY:
                    return await self._verify(entry)
                case UpkeepAction.PIN:
                    await asyncio.to_thread(self.upkeep.pin, entry, order.by)
                case UpkeepAction.UNPIN:
                    await asyncio.to_thread(self.upkeep.unpin, entry)
            return UpkeepOutcome(entry=entry, done=True)
        except (Refusal, OSError) as error:
            return UpkeepOutcome(entry=entry, done=False, text=str(error))
        except RetryableError as error:
            return UpkeepOutcome(entry=entry, done=False, text=f"the store is away, so nothing is sure: {error}")

    async def _remove(self, order: UpkeepOrder, entry: str) -> UpkeepOutcome:
        if (why := await self._why_kept(order, entry)) is not None:
            raise Refusal(why)
        asker = Asker(by=order.by, revision=order.revision)
        done = await self.upkeep.remove(entry, min_age=order.min_age, asker=asker)
        self._tell("weights removed", f"{done.source}, {format_bytes(done.size)}, by {order.by}")
        return UpkeepOutcome(entry=entry, done=True, size=done.size)

    async def _why_kept(self, order: UpkeepOrder, entry: str) -> str | None:
        """What the store and this node say against it now, whatever the asker found."""
        source = self.upkeep.source_of(entry)
        applied = await self._read(keys.APPLIED, Applied)
        if (stale := why_stale(applied, await self._read(keys.CATALOG_STATUS, CatalogStatus))) is not None:
            return stale
        if applied is None or order.catalog != applied.digest:
            return "the catalog has changed since: ask again"
        if source is None:
            return "there is no such entry"
        if self.upkeep.is_corrupt(entry):
            return None
        if source in WantedSources(self.in_use()):
            return "in use"
        try:
            found = await self.catalogs.in_force(self.store)
            models = () if found is None else tuple(found.check().models.values())
        except TerminalError as error:
            return f"the catalog in force cannot be read: {error}"
        if found is None or found.applied.digest != order.catalog:
            return "the catalog has changed since: ask again"
        back = [decode(e.value, Rollout) for e in (await self.store.list(keys.ROLLOUTS)).entries]
        profiles = [profile for model in models for profile in model.profiles]
        profiles += [profile for rollout in back for profile in rollout.good]  # what a model may return to
        wanted = (each for profile in profiles for each in profile.every_file)
        if source in WantedSources(canonical(each.source) for each in wanted):
            return "the catalog in force wants it"
        nodes = (await self.store.list(keys.NODES)).entries  # every node's: caches may be shared
        held = (decode(e.value, Assignment).profile for e in nodes if "/assignments/" in e.key)
        if source in WantedSources(canonical(each.source) for profile in held for each in profile.every_file):
            return "a replica is assigned to it"
        return None

    async def _read(self, key: str, kind: type[T]) -> T | None:
        entry = await self.store.get(key)
        return None if entry is None else decode(entry.value, kind, where=key)

    async def _verify(self, entry: str) -> UpkeepOutcome:
        found = await self.upkeep.verify(entry)
        if not found.trouble:
            return UpkeepOutcome(entry=entry, done=True, size=found.size)
        text = f"corrupt: {'; '.join(found.trouble)}; set aside as {found.aside}, to be fetched anew"
        self._tell("weights corrupt", f"{entry}: {text}")
        return UpkeepOutcome(entry=entry, done=False, text=text, size=Bytes(found.size))

    def _tell(self, reason: str, message: str) -> None:
        at = self.clock.now().wall
        self.record(Event(at=at, subject=f"node/{self.node}", reason=reason, message=message))


class _Answer:
    """What is known so far, written as it grows, and now and then where it does not."""

    def __init__(self, orders: Orders, key: str) -> None:
        self._orders = orders
        self._key = key
        self.outcomes: list[UpkeepOutcome] = []

    async def beat(self) -> None:
        while True:
            try:
                await self.write(finished=False)
            except RetryableError as error:
                log.warning("answer_not_written", error=str(error))
            await self._orders.clock.sleep(BEAT)

    async def write(self, *, finished: bool) -> None:
        now = self._orders.clock.now().wall
        answer = UpkeepAnswer(at=now, outcomes=tuple(self.outcomes), finished=finished)
        await self._orders.store.put(self._key, encode(answer))
