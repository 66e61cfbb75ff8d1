"""What is foreseen is what the controller then does; and foreseeing changes nothing."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from fleets import cpu_model, device, gpu_model, node, replicas_of
from make import NOW, gib

from llmgw.catalog.live import LiveCatalog
from llmgw.catalog.place import Directory
from llmgw.catalog.spec import Catalog, ClusterSpec, ModelSpec, NodeSpec, ReserveSpec, WeightsSpec
from llmgw.engine.manager import Engines
from llmgw.errors import CatalogInvalid, CatalogUnreadable
from llmgw.facts import Cordon, EngineLoad, NodeReport, Phase, ReplicaFact, WeightsFact
from llmgw.ids import Digest, NodeName, ReplicaId, Revision
from llmgw.plan import Assignment, Reason, Want
from llmgw.reconcile.foresight import Foresight
from llmgw.reconcile.loop import Controller
from llmgw.reconcile.publishing import publish
from llmgw.schedule.forecast import Forecast
from llmgw.store import keys
from llmgw.store.codec import decode, encode
from llmgw.store.memory import MemoryStore
from llmgw.units import Bytes, Instant, Mono, Wall

BOX, GPU_1, GPU_2 = NodeName("box"), NodeName("gpu-1"), NodeName("gpu-2")


class HandClock:
    def __init__(self) -> None:
        self.instant = NOW

    def now(self) -> Instant:
        return self.instant

    async def sleep(self, seconds: float) -> None:
        self.instant = Instant(Mono(self.instant.mono + seconds), Wall(self.instant.wall + seconds))


def sized(spec: ModelSpec, size: float, *, host: float = 0) -> ModelSpec:
    profiles = (replace(spec.profiles[0], memory=gib(size), host_memory=gib(host)), *spec.profiles[1:])
    return replace(spec, profiles=profiles)


def catalog(*models: ModelSpec, digest: str = "d") -> Catalog:
    bare = NodeSpec(reserve=ReserveSpec(host=Bytes(0), disk=Bytes(0), device=Bytes(0)))
    return Catalog(
        revision=Revision(f"revision of {digest}"),
        digest=Digest(digest),
        models={spec.name: spec for spec in sorted(models, key=lambda spec: spec.name)},
        cluster=ClusterSpec(nodes=dict.fromkeys((BOX, GPU_1, GPU_2), bare)),
    )


@dataclass
class World:
    """Three nodes whose agents do what they are told, when `act` is called."""

    path: Path
    store: MemoryStore = field(default_factory=MemoryStore)
    live: LiveCatalog = field(default_factory=lambda: LiveCatalog("test"))
    clock: HandClock = field(default_factory=HandClock)
    facts: dict[ReplicaId, ReplicaFact] = field(default_factory=dict)
    looked: list[WeightsSpec] = field(default_factory=list)
    found: tuple[WeightsFact, ...] = ()
    nodes: dict[NodeName, NodeReport] = field(
        default_factory=lambda: {
            BOX: node("box", host=64),
            GPU_1: node("gpu-1", device("A"), device("B")),
            GPU_2: node("gpu-2", device("C")),
        }
    )

    def __post_init__(self) -> None:
        engines = Engines()
        self.controller = Controller(
            store=self.store, live=self.live, engines=engines, clock=self.clock, record=lambda _: None
        )
        self.foresight = Foresight(
            store=self.store,
            place=Directory(self.path),
            live=self.live,
            liveness=self.controller.liveness,
            engines=engines,
            clock=self.clock,
            node=BOX,
            look=self._look,
        )

    def _look(self, wanted: Iterable[WeightsSpec]) -> tuple[WeightsFact, ...]:
        self.looked += wanted
        return self.found

    async def push(self, made: Catalog) -> None:
        self.live.accept(made, self.clock.now())
        await publish(self.store, made, self.clock.now())
        await self.tell(made.digest)

    async def tell(self, digest: Digest | None = None) -> None:
        for name, report in self.nodes.items():
            here = tuple(fact for fact in self.facts.values() if fact.node == name)
            self.nodes[name] = replace(
                report, at=self.clock.now().wall, replicas=here, catalog=digest or report.catalog
            )
            await self.store.put(keys.report(name), encode(self.nodes[name]))

    async def act(self) -> None:
        """What should run is ready, what should stop is gone."""
        entries = (await self.store.list(keys.NODES)).entries
        assigned = [decode(entry.value, Assignment) for entry in entries if "/assignments/" in entry.key]
        known = {assignment.replica for assignment in assigned}
        self.facts = {id: fact for id, fact in self.facts.items() if id in known}
        for assignment in assigned:
            stopping = assignment.want is Want.STOP
            self.facts[assignment.replica] = fact_of(assignment, Phase.STOPPED if stopping else Phase.READY)
        await self.tell()

    async def settle(self) -> None:
        for _ in range(12):
            await self.clock.sleep(1)
            await self.controller.reconcile()
            await self.act()

    async def foresee(self, made: Catalog | None) -> Forecast:
        return (await self.foresight.foresee(made))[0]


def fact_of(assignment: Assignment, phase: Phase) -> ReplicaFact:
    return ReplicaFact(
        id=assignment.replica,
        model=assignment.model,
        profile=assignment.profile.name,
        engine=assignment.profile.engine,
        node=assignment.node,
        spec=assignment.spec,
        revision=assignment.revision,
        phase=phase,
        since=NOW.wall,
        level=assignment.level,
        launched=assignment.launched,
        devices=assignment.devices,
        url="http://127.0.0.1:9",
        footprint=assignment.footprint,
        load=EngineLoad(running=0, waiting=0),
    )


def placed(facts: Iterable[ReplicaFact]) -> Counter[tuple[str, str, tuple[str, ...]]]:
    return Counter((fact.model, fact.node, fact.devices) for fact in facts if fact.phase is Phase.READY)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


FIRST = (
    sized(gpu_model("big", 2), 40, host=2),
    sized(gpu_model("small"), 10),
    sized(cpu_model("plain", scaling=replicas_of(2)), 20),
)


async def test_what_is_foreseen_is_what_the_controller_then_does(world: World) -> None:
    await world.tell(Digest("d"))
    first = catalog(*FIRST)
    foreseen = await world.foresee(first)
    await world.push(first)
    await world.settle()
    assert placed(world.facts.values()) == placed(foreseen.end.observed.replicas.values())
    assert sum(placed(world.facts.values()).values()) == 4

    wanted = (
        sized(gpu_model("big", 2, context=8192), 40, host=2),
        sized(gpu_model("urgent", priority=9), 22),
        sized(cpu_model("plain", scaling=replicas_of(3)), 20),
        sized(gpu_model("never", 3), 60),
    )
    second = catalog(*wanted, digest="e")
    foreseen = await world.foresee(second)
    before = {fact.id for fact in world.facts.values()}
    assert {going.fact.id for going in foreseen.stops} <= before
    await world.push(second)
    await world.settle()
    assert placed(world.facts.values()) == placed(foreseen.end.observed.replicas.values())
    assert {fact.id for fact in world.facts.values()} & before == {
        fact.id for fact in foreseen.end.observed.replicas.values()
    } & before
    assert "never" in {refused.model for refused in foreseen.thought.plan.unschedulable}
    assert (await world.foresee(second)).is_empty


async def test_a_drain_is_foreseen_with_where_everything_goes(world: World) -> None:
    first = catalog(sized(gpu_model("small"), 10), sized(gpu_model("other"), 10))
    await world.push(first)
    await world.settle()
    await world.store.put(keys.cordon(GPU_1), encode(Cordon(at=NOW.wall, by="ann", drain=True)))
    await world.store.put(keys.cordon(GPU_2), encode(Cordon(at=NOW.wall, by="ann")))
    at = {fact.model: fact.node for fact in world.facts.values()}
    foreseen = await world.foresee(first)
    drained = {going.fact.model for going in foreseen.stops if going.stop.reason is Reason.NODE_DRAINED}
    assert drained == {name for name, where in at.items() if where == GPU_1}
    await world.settle()
    assert placed(world.facts.values()) == placed(foreseen.end.observed.replicas.values())


async def test_foreseeing_writes_nothing(world: World) -> None:
    await world.push(catalog(*FIRST))
    await world.settle()
    before = await world.store.list("")
    await world.foresee(catalog(sized(cpu_model("x"), 4), digest="f"))
    after = await world.store.list("")
    assert (after.revision, after.entries) == (before.revision, before.entries)
    assert world.live.current is not None
    assert world.live.current.digest == "d"


async def test_this_machines_files_are_looked_for_and_the_other_nodes_are_taken_at_their_word(world: World) -> None:
    source = WeightsSpec(source="file:///models/a.gguf")
    spec = cpu_model("a", weights=source)
    await world.push(catalog())
    assert spec.profiles[0].memory is None
    foreseen = await world.foresee(catalog(spec, digest="new"))
    assert world.looked == [source]
    assert foreseen.is_empty
    assert foreseen.thought.plan.waiting == {"a": "waiting for the node to look up its files"}, "the others have not"
    world.found = (WeightsFact(source=source.source, entry=None, size=gib(3), last_wanted=NOW.wall),)
    foreseen = await world.foresee(catalog(spec, digest="new"))
    assert [coming.launch.node for coming in foreseen.launches] == ["box"], "where its file is"
    assert foreseen.launches[0].missing == ()


async def test_a_node_that_fell_silent_gets_nothing(world: World) -> None:
    await world.push(catalog())
    await world.controller.reconcile()
    for _ in range(5):
        await world.clock.sleep(5)
        for name in (BOX, GPU_1):
            world.nodes[name] = replace(world.nodes[name], at=world.clock.now().wall)
            await world.store.put(keys.report(name), encode(world.nodes[name]))
        await world.controller.reconcile()
    spread = sized(gpu_model("small", scaling=replicas_of(3)), 20)
    foreseen = await world.foresee(catalog(spread))
    assert {coming.launch.node for coming in foreseen.launches} == {GPU_1}


async def test_the_followed_catalog_is_read_as_it_stands_on_disk(world: World) -> None:
    with pytest.raises(CatalogInvalid):
        await world.foresee(None)  # an empty directory
    (world.path / "a.yaml").write_text("apiVersion: llmgw/v1\nkind: Cluster\nname: home\n")
    forecast, loaded, before = await world.foresight.foresee(None)
    assert forecast.end.catalog.cluster.name == "home"
    assert loaded.warnings
    assert before is None
    (world.path / "a.yaml").write_text("apiVersion: llmgw/v1\nkind: Clust\n")
    with pytest.raises(CatalogInvalid):
        await world.foresee(None)
    (world.path / "a.yaml").unlink()
    world.path.rmdir()
    with pytest.raises(CatalogUnreadable):
        await world.foresee(None)
