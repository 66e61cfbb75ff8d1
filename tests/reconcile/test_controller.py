"""The controller's passes against a store and an agent that acts when told to. Time moves by hand."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from make import NODE, NOW, catalog, gib, model, report

from llmgw.catalog.live import CatalogState, LiveCatalog
from llmgw.catalog.spec import Catalog, ModelSpec
from llmgw.engine.manager import Engines
from llmgw.errors import Problem
from llmgw.facts import (
    EngineLoad,
    Event,
    Failure,
    FailureKind,
    NodeReport,
    Phase,
    RecoveryRecord,
    ReplicaFact,
    ReplicaUse,
    Usage,
)
from llmgw.ids import ModelName, ReplicaId, Revision
from llmgw.plan import Assignment, Endpoint, ModelState, ModelStatus, Stopped, Want
from llmgw.reconcile import status
from llmgw.reconcile.loop import Controller
from llmgw.reconcile.publishing import publish
from llmgw.store import keys
from llmgw.store.codec import decode, encode
from llmgw.store.memory import MemoryStore
from llmgw.store.values import CatalogStatus, ConditionType, HistoryEntry
from llmgw.units import Instant, Mono, Wall


class HandClock:
    def __init__(self) -> None:
        self.instant = NOW

    def now(self) -> Instant:
        return self.instant

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self.instant = Instant(Mono(self.instant.mono + seconds), Wall(self.instant.wall + seconds))

    def jump(self, seconds: float) -> None:
        """Somebody sets the wall clock."""
        self.instant = Instant(self.instant.mono, Wall(self.instant.wall + seconds))


@dataclass
class World:
    """One node whose agent does what it is told, when `act` is called."""

    store: MemoryStore = field(default_factory=MemoryStore)
    live: LiveCatalog = field(default_factory=lambda: LiveCatalog("test"))
    clock: HandClock = field(default_factory=HandClock)
    events: list[Event] = field(default_factory=list)
    replicas: dict[ReplicaId, ReplicaFact] = field(default_factory=dict)
    node: NodeReport = field(default_factory=report)

    def __post_init__(self) -> None:
        self.controller = Controller(
            store=self.store, live=self.live, engines=Engines(), clock=self.clock, record=self.events.append
        )

    async def push(self, *models: ModelSpec, budget: float | None = None, revision: str = "r1") -> None:
        sized = [replace(m, profiles=(replace(m.profiles[0], memory=gib(4)),)) for m in models]
        made = catalog(*sized, budget=budget)
        digest = str(hash((revision, *(m.name for m in models), *(m.aliases for m in models))))
        now_in_force: Catalog = replace(made, revision=revision, digest=digest)  # type: ignore[arg-type]
        self.live.accept(now_in_force, self.clock.now())
        await publish(self.store, now_in_force, self.clock.now())

    async def tell(self) -> None:
        told = replace(self.node, at=self.clock.now().wall, replicas=tuple(self.replicas.values()))
        await self.store.put(keys.report(NODE), encode(told))

    async def act(self, phase: Phase = Phase.READY) -> None:
        """Carry the assignments out: what should run is `phase`, what should stop is stopped, the rest forgotten."""
        assigned = await self.assignments()
        for id in [id for id, fact in self.replicas.items() if fact.phase in (Phase.STOPPED, Phase.FAILED)]:
            if id not in assigned:
                del self.replicas[id]
        for id, assignment in assigned.items():
            current = self.replicas.get(id)
            if assignment.want is Want.STOP:
                self.replicas[id] = self._fact(assignment, Phase.STOPPED)
            elif current is None or current.phase is not Phase.FAILED:
                self.replicas[id] = self._fact(assignment, phase)
        await self.tell()

    def _fact(self, a: Assignment, phase: Phase) -> ReplicaFact:
        return ReplicaFact(
            id=a.replica,
            model=a.model,
            profile=a.profile.name,
            engine=a.profile.engine,
            node=a.node,
            spec=a.spec,
            revision=a.revision,
            phase=phase,
            since=self.clock.now().wall,
            url="http://127.0.0.1:9",
            footprint=a.footprint,
            load=EngineLoad(running=0, waiting=0),
        )

    async def fail(self, id: ReplicaId, kind: FailureKind = FailureKind.CRASH) -> None:
        failure = Failure(kind=kind, reason="ended with signal 9", at=self.clock.now().wall)
        self.replicas[id] = replace(self.replicas[id], phase=Phase.FAILED, failure=failure)
        await self.tell()

    async def settle(self, passes: int = 6) -> None:
        for _ in range(passes):
            await self.controller.reconcile()
            await self.act()

    async def assignments(self) -> dict[ReplicaId, Assignment]:
        entries = (await self.store.list(keys.assignments(NODE))).entries
        return {ReplicaId(keys.last(e.key)): decode(e.value, Assignment) for e in entries}

    async def endpoints(self) -> dict[str, Endpoint]:
        found = [decode(e.value, Endpoint) for e in (await self.store.list(keys.ENDPOINTS)).entries]
        return {endpoint.model: endpoint for endpoint in found}

    async def statuses(self) -> Mapping[str, ModelStatus]:
        found = [decode(e.value, ModelStatus) for e in (await self.store.list(keys.EXPLAIN)).entries]
        return {status.model: status for status in found}

    async def conditions(self) -> dict[ConditionType, bool]:
        entry = await self.store.get(keys.CATALOG_STATUS)
        assert entry is not None
        return {c.type: c.status for c in decode(entry.value, CatalogStatus).conditions}


async def test_a_model_in_the_catalog_comes_to_be_an_endpoint() -> None:
    world = World()
    await world.push(model("a", aliases=("x",)))
    await world.tell()
    await world.settle()
    endpoint = (await world.endpoints())["a"]
    assert endpoint.names == ("a", "x")
    assert (await world.statuses())["a"].state is ModelState.READY
    assert await world.conditions() == {
        ConditionType.READY: True, ConditionType.RECONCILING: False, ConditionType.STALLED: False,
    }  # fmt: skip


@pytest.mark.parametrize(("declared", "told"), [(None, 2), (7, 7), (0, None)])
async def test_an_endpoint_tells_what_its_engine_offers_and_the_catalog_may_say_otherwise(
    declared: int | None, told: int | None
) -> None:
    world = World()
    spec = model("a")
    await world.push(replace(spec, profiles=(replace(spec.profiles[0], max_requests=declared),)))
    await world.tell()
    await world.settle(3)
    (id,) = world.replicas
    world.replicas[id] = replace(world.replicas[id], slots=2, surfaces=("embeddings",))
    await world.tell()
    await world.controller.reconcile()
    endpoint = (await world.endpoints())["a"]
    assert (endpoint.slots, endpoint.surfaces) == (told, ("embeddings",))


async def test_nothing_is_launched_before_the_node_reported() -> None:
    world = World()
    await world.push(model("a"))
    await world.controller.reconcile()
    assert await world.assignments() == {}
    await world.tell()
    await world.controller.reconcile()
    assert len(await world.assignments()) == 1


async def test_passes_without_a_change_write_nothing() -> None:
    world = World()
    await world.push(model("a"), model("b"))
    await world.tell()
    await world.settle()
    before = (await world.store.list("")).revision
    for _ in range(5):
        await world.controller.reconcile()
    assert (await world.store.list("")).revision == before


async def test_no_pass_launches_a_second_replica_while_the_first_is_not_reported() -> None:
    world = World()
    await world.push(model("a"))
    await world.tell()
    for _ in range(5):
        await world.controller.reconcile()
    assert len(await world.assignments()) == 1


async def test_without_any_catalog_what_runs_is_left_alone() -> None:
    world = World()
    await world.push(model("a"))
    await world.tell()
    await world.settle()
    world.controller = Controller(
        store=world.store, live=LiveCatalog("x"), engines=Engines(), clock=world.clock, record=world.events.append
    )
    await world.controller.reconcile()
    assert [a.want for a in (await world.assignments()).values()] == [Want.RUN]
    assert await world.endpoints()


async def test_an_endpoint_goes_in_the_same_transaction_as_its_replica_is_told_to_stop() -> None:
    world = World()
    await world.push(model("a"))
    await world.tell()
    await world.settle()
    await world.store.put(keys.STOPPED, encode(Stopped(at=NOW.wall, by="test")))
    start = (await world.store.list("")).revision
    await world.controller.reconcile()
    changes = await anext(aiter(world.store.watch("", from_revision=start)))
    (assigned,) = (await world.store.list(keys.assignments(NODE))).entries
    assert decode(assigned.value, Assignment).want is Want.STOP
    assert await world.endpoints() == {}
    assert assigned.revision == min(change.revision for change in changes), "the very first write of the pass"
    assert (await world.statuses())["a"].state is ModelState.STOPPED


async def test_publishing_a_catalog_withdraws_removed_models_before_any_pass() -> None:
    world = World()
    await world.push(model("a"), model("b"))
    await world.tell()
    await world.settle()
    await world.push(model("b"), revision="r2")
    assert set(await world.endpoints()) == {"b"}
    assert all(a.want is Want.RUN for a in (await world.assignments()).values())
    await world.settle()
    assert {a.model for a in (await world.assignments()).values()} == {"b"}


async def test_a_failure_is_counted_once_and_retried_after_its_back_off() -> None:
    world = World()
    await world.push(model("a"))
    await world.tell()
    await world.settle()
    (id,) = await world.assignments()
    await world.fail(id)
    due = await world.controller.reconcile()
    for _ in range(3):
        await world.controller.reconcile()
        await world.act()
    (entry,) = (await world.store.list(keys.RECOVERY)).entries
    assert decode(entry.value, RecoveryRecord).attempts == 1
    assert await world.assignments() == {}
    assert await world.endpoints() == {}
    assert 1.5 < due < 2.5
    status = (await world.statuses())["a"]
    assert status.state is ModelState.LOADING
    assert "signal 9" in status.reason
    world.clock.advance(due)
    await world.settle()
    (again,) = await world.assignments()
    assert again != id
    assert (await world.statuses())["a"].state is ModelState.READY


async def test_ready_long_enough_forgets_the_failures() -> None:
    world = World()
    await world.push(model("a"))
    await world.tell()
    await world.settle()
    await world.fail(next(iter(await world.assignments())))
    await world.controller.reconcile()
    world.clock.advance(3)
    await world.settle()
    assert (await world.store.list(keys.RECOVERY)).entries
    world.clock.advance(301)
    await world.controller.reconcile()
    assert (await world.store.list(keys.RECOVERY)).entries == ()


async def test_a_terminal_failure_is_quarantined_and_stalls_the_catalog() -> None:
    world = World()
    await world.push(model("a"), model("b"))
    await world.tell()
    await world.settle()
    victim = next(id for id, a in (await world.assignments()).items() if a.model == "a")
    await world.fail(victim, FailureKind.TERMINAL)
    await world.settle()
    statuses = await world.statuses()
    assert statuses["a"].state is ModelState.FAILED
    assert statuses["a"].retry_at is not None
    assert statuses["b"].state is ModelState.READY
    assert (await world.conditions())[ConditionType.STALLED]


async def test_a_model_whose_new_engine_fails_is_at_no_time_told_as_failed_while_the_old_one_can_come_back() -> None:
    world = World()
    await world.push(model("a"))
    await world.tell()
    await world.settle()
    before = world.live.current
    await world.push(model("a", context=8192), revision="r2")
    assert world.live.current is not None
    await publish(world.store, world.live.current, world.clock.now(), before=before)
    await world.settle()
    (id,) = await world.assignments()
    await world.fail(id, FailureKind.TERMINAL)
    seen = []
    for _ in range(6):
        await world.controller.reconcile()
        seen.append((await world.statuses())["a"])
        await world.act()
    assert ModelState.FAILED not in {one.state for one in seen}
    assert (seen[-1].state, seen[-1].spec_revision) == (ModelState.READY, "r1")
    assert "signal 9" in (seen[-1].rollout_failed or "")


async def test_a_fix_cancels_the_waits_of_the_revision_before() -> None:
    world = World()
    await world.push(model("a"))
    await world.tell()
    await world.settle()
    await world.fail(next(iter(await world.assignments())), FailureKind.TERMINAL)
    await world.settle()
    await world.push(model("a", context=8192), revision="r2")
    await world.settle()
    assert (await world.statuses())["a"].state is ModelState.READY
    assert (await world.store.list(keys.RECOVERY)).entries == ()


async def test_an_adopted_replica_is_given_its_assignment_and_not_started_twice() -> None:
    first = World()
    await first.push(model("a"))
    await first.tell()
    await first.settle()
    adopted = {id: replace(fact, adopted=True) for id, fact in first.replicas.items()}
    second = World(replicas=adopted)
    await second.push(model("a"))
    await second.tell()
    await second.controller.reconcile()
    assert set(await second.assignments()) == set(adopted)
    assert set(await second.endpoints()) == {"a"}


async def test_an_adopted_replica_of_a_removed_model_is_stopped() -> None:
    first = World()
    await first.push(model("a"))
    await first.tell()
    await first.settle()
    second = World(replicas=dict(first.replicas))
    await second.push(model("b"))
    await second.tell()
    await second.controller.reconcile()
    assert {a.model: a.want for a in (await second.assignments()).values()} == {"a": Want.STOP, "b": Want.RUN}


async def test_a_request_in_flight_at_a_gateway_keeps_its_replica_from_eviction() -> None:
    world = World()
    await world.push(model("low"), budget=6)
    await world.tell()
    await world.settle()
    (id,) = await world.assignments()
    use = {id: ReplicaUse(outstanding=1, last_used=NOW.wall)}
    await world.store.put(keys.usage("g"), encode(Usage(at=NOW.wall, seen=0, replicas=use)))
    await world.push(model("low"), model("high", priority=9), budget=6, revision="r2")
    await world.settle()
    assert set(await world.endpoints()) == {"low"}
    await world.store.put(keys.usage("g"), encode(Usage(at=NOW.wall, seen=0)))
    await world.settle()
    assert set(await world.endpoints()) == {"high"}
    assert (await world.statuses())["low"].state is ModelState.UNSCHEDULABLE


async def test_an_eviction_that_was_given_up_is_published_again() -> None:
    world = World()
    await world.push(model("low"), budget=6)
    await world.tell()
    await world.settle()
    (id,) = await world.assignments()
    await world.push(model("low"), model("high", priority=9), budget=6, revision="r2")
    await world.controller.reconcile()
    assert await world.endpoints() == {}
    busy = EngineLoad(running=1, waiting=0)
    world.replicas[id] = replace(world.replicas[id], kept_serving=True, load=busy)
    await world.tell()
    await world.controller.reconcile()
    assert set(await world.endpoints()) == {"low"}
    assert (await world.assignments())[id].want is Want.RUN


async def test_history_counts_catalogs_whose_content_differs() -> None:
    world = World()
    for revision in ("r1", "r1", "r2"):
        await world.push(model("a"), revision=revision)
    entries = [decode(e.value, HistoryEntry) for e in (await world.store.list(keys.HISTORY)).entries]
    assert [(e.number, e.revision) for e in entries] == [(1, "r1"), (2, "r2")]


async def test_every_launch_stop_and_failure_is_an_event_with_its_reason() -> None:
    world = World()
    await world.push(model("a"))
    await world.tell()
    await world.settle()
    await world.fail(next(iter(await world.assignments())))
    await world.controller.reconcile()
    world.clock.advance(3)
    await world.settle()
    await world.push(model("b"), revision="r2")
    await world.settle()
    reasons = [(e.subject, e.reason) for e in world.events]
    for expected in ("launched", "ready", "failed", "stopping"):
        assert ("model/a", expected) in reasons
    stopping = next(e for e in world.events if e.reason == "stopping")
    assert "model removed" in stopping.message


async def test_a_burst_of_triggers_causes_at_most_two_passes() -> None:
    world = World()
    await world.push(model("a"))
    task = asyncio.create_task(world.controller.run())
    try:
        await asyncio.sleep(0.05)
        before = world.controller.passes
        for _ in range(1000):
            world.controller.trigger()
        await asyncio.sleep(0.05)
        assert 1 <= world.controller.passes - before <= 2
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_full_disk_keeps_no_pass_from_its_work_and_no_failure_from_counting(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path / "store")
    store.load()
    world = World(store=store)
    await world.push(model("a"))
    await world.tell()
    await world.settle()
    (tmp_path / "store").rename(tmp_path / "away")
    (tmp_path / "store").write_text("in the way")
    first = next(iter(world.replicas))
    await world.fail(first)
    await world.controller.reconcile()
    await world.act()
    await world.controller.reconcile()
    assert not await world.assignments(), "it waits out its back-off"
    assert (await world.statuses())["a"].attempts == 1
    world.clock.advance(3)
    await world.settle()
    assert (await world.statuses())["a"].state is ModelState.READY

    (tmp_path / "store").unlink()
    (tmp_path / "away").rename(tmp_path / "store")
    await world.controller.reconcile()
    kept = MemoryStore(tmp_path / "store")
    kept.load()
    assert len((await kept.list(keys.RECOVERY)).entries) == 1


async def test_a_fault_of_our_own_in_a_pass_ends_nothing() -> None:
    world, told = World(), list[Event]()

    def record(event: Event) -> None:
        told.append(event)
        if len(told) == 1:
            raise ValueError("a bug")

    controller = Controller(store=world.store, live=world.live, engines=Engines(), clock=world.clock, record=record)
    await world.push(model("a"))
    await world.tell()
    running = asyncio.create_task(controller.run())
    try:
        async with asyncio.timeout(30):
            while not (await world.statuses()).get("a"):
                controller.trigger()
                await asyncio.sleep(0.01)
    finally:
        running.cancel()
        await asyncio.wait([running])
    assert running.cancelled()
    assert len(await world.assignments()) == 1


def test_ready_says_why_it_does_not_hold() -> None:
    """What `llmgw status` shows beside `Ready`, with one of two models serving."""
    good = CatalogState(source="/c", attempted=Revision("r1"), applied=Revision("r1"))
    bad = replace(
        good, attempted=Revision("r2"), problems=(Problem(file="a.yaml", line=1, column=1, path="$", message="no"),)
    )
    up = ModelStatus(model=ModelName("a"), state=ModelState.READY, wanted=1)
    down = ModelStatus(model=ModelName("b"), state=ModelState.LOADING, reason="starting", wanted=1)
    off = replace(up, state=ModelState.STOPPED, wanted=0)

    def ready(state: CatalogState, *models: ModelStatus, stopped: bool = False) -> tuple[bool, str, str]:
        condition = next(
            c for c in status.conditions(state, models, (), NOW, stopped=stopped) if c.type is ConditionType.READY
        )
        return condition.status, condition.reason, condition.message

    assert ready(good, up) == (True, "", "1 of 1 models ready")
    assert ready(good) == (True, "", "no model is wanted")
    assert ready(good, up, down) == (False, "ModelsNotReady", "1 of 2 models ready")
    assert ready(good, off, stopped=True) == (False, "SystemStopped", "stopped by the operator")
    assert ready(bad, up, up) == (
        False, "CatalogInvalid", "the newest catalog is invalid; of the one in force 2 of 2 models ready",
    )  # fmt: skip
    assert ready(replace(good, error="gone"), up) == (
        False, "SourceUnavailable", "the catalog cannot be read; of the one in force 1 of 1 models ready",
    )  # fmt: skip
    assert ready(CatalogState(source="/c"))[:2] == (False, "NoCatalog")


async def test_a_jump_of_the_clock_is_told_once() -> None:
    world = World()
    await world.push(model("a"))
    await world.tell()
    await world.settle()
    world.clock.jump(3600)
    await world.settle()
    told = [event.message for event in world.events if event.reason == "clock jump"]
    assert told == ["the wall clock went forward by 1h"]
