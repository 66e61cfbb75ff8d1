"""Store values as controller, agent and catalog would have written them: what the admin API and the CLI tell of."""

from dataclasses import replace
from typing import Final

from llmgw.catalog.spec import ModelSpec, ProfileSpec, WeightsSpec
from llmgw.errors import Problem
from llmgw.facts import (
    ComingFile,
    DiskFact,
    EngineFact,
    EngineLoad,
    Failure,
    FailureKind,
    Footprint,
    MemoryFact,
    NodeReport,
    Phase,
    Progress,
    ReplicaFact,
    WeightsFact,
)
from llmgw.ids import Digest, EngineName, ModelName, NodeName, ProfileName, ReplicaId, Revision, SpecDigest
from llmgw.plan import Assignment, ModelState, ModelStatus, Want
from llmgw.store import keys
from llmgw.store.codec import decode, encode
from llmgw.store.contents import contents_of
from llmgw.store.memory import MemoryStore
from llmgw.store.values import Applied, CatalogStatus, Condition, ConditionType, HistoryEntry
from llmgw.units import GIB, MIB, Bytes, Wall
from llmgw.weights.naming import entry_name

NOW: Final = Wall(1_800_000_000.0)
NODE: Final = NodeName("gpu-1")
GOOD: Final = Revision("a" * 40)
BAD: Final = Revision("b" * 40)
DIGEST: Final = Digest("d" * 64)
QWEN: Final = ModelName("qwen")
SMOL: Final = ModelName("smol")
SMOL_SOURCE: Final = "pypi://smol==1/smol.gguf"
OLD_SOURCE: Final = "pypi://old==1/old.gguf"
PROBLEM: Final = Problem("models.yaml", 3, 5, "$.profiles[0].engine", "no engine 'vlm'; did you mean 'vllm'?")


def profile(source: str | None = None) -> ProfileSpec:
    weights = WeightsSpec(source=source) if source else None
    return ProfileSpec(name=ProfileName("main"), engine=EngineName("cpu"), weights=weights)


def model(name: ModelName, source: str | None = None, **fields: object) -> ModelSpec:
    return ModelSpec(name=name, profiles=(profile(source),), **fields)  # type: ignore[arg-type]


def told(name: ModelName, state: ModelState, reason: str = "", **fields: object) -> ModelStatus:
    return ModelStatus(
        model=name, state=state, reason=reason, wanted=1, since=Wall(NOW - 60), revision=GOOD, **fields  # type: ignore[arg-type]
    )  # fmt: skip


def replica(id: str, name: ModelName, phase: Phase, **fields: object) -> ReplicaFact:
    return ReplicaFact(
        id=ReplicaId(id),
        model=name,
        profile=ProfileName("main"),
        engine=EngineName("cpu"),
        node=NODE,
        spec=SpecDigest("5" * 16),
        revision=GOOD,
        phase=phase,
        since=Wall(NOW - 30),
        **fields,  # type: ignore[arg-type]
    )


def ready(id: str, name: ModelName) -> ReplicaFact:
    return replica(
        id,
        name,
        Phase.READY,
        pid=4242,
        url="http://127.0.0.1:18001",
        footprint=Footprint(host=Bytes(300 * MIB)),
        resident=Bytes(254 * MIB),
        load=EngineLoad(running=1, waiting=2),
    )


def failed(id: str, name: ModelName, reason: str) -> ReplicaFact:
    return replica(id, name, Phase.FAILED, failure=Failure(kind=FailureKind.CRASH, reason=reason, at=NOW))


def fetching(id: str, name: ModelName, done: int, total: int | None, *, waits_for: str | None = None) -> ReplicaFact:
    """`waits_for`: None: it does not wait."""
    size = None if total is None else Bytes(total)
    waiting = waits_for is not None
    progress = Progress(done=Bytes(done), total=size, waiting=waiting, waits_for=waits_for or "")
    coming = (ComingFile(source=SMOL_SOURCE, progress=progress),)
    return replica(id, name, Phase.FETCHING, progress=progress, coming=coming)


def cached(source: str, *, age: float = 0.0, licence: str | None = "Apache-2.0", size: int = 93 * MIB) -> WeightsFact:
    return WeightsFact(
        source=source,
        entry=entry_name(source, None),
        size=Bytes(size),
        last_wanted=Wall(NOW - age),
        licence=licence,
    )


def report(*replicas: ReplicaFact, weights: tuple[WeightsFact, ...] = (), node: NodeName = NODE) -> NodeReport:
    return NodeReport(
        node=node,
        at=Wall(NOW - 1),
        memory=MemoryFact(total=Bytes(32 * GIB), available=Bytes(20 * GIB), foreign=Bytes(2 * GIB)),
        disk=DiskFact(total=Bytes(100 * GIB), free=Bytes(40 * GIB)),
        engines=(
            EngineFact(name=EngineName("cpu"), version="1.0"),
            EngineFact(name=EngineName("vllm"), why="not installed: pip install vllm"),
        ),
        replicas=replicas,
        weights=weights,
    )


def assignment(id: str, name: ModelName, want: Want = Want.RUN, why: str = "", source: str | None = None) -> Assignment:
    return Assignment(
        replica=ReplicaId(id),
        model=name,
        profile=profile(source),
        spec=SpecDigest("5" * 16),
        node=NODE,
        revision=GOOD,
        footprint=Footprint(host=Bytes(300 * MIB)),
        want=want,
        why=why,
    )


class Seeds:
    """Writes values into a store, the way their owners do."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self._models: dict[ModelName, ModelSpec] = {}
        self._digest: Digest | None = None

    async def put(self, key: str, value: object) -> None:
        await self.store.put(key, encode(value))

    async def catalog(self, *models: ModelSpec, revision: Revision = GOOD, digest: Digest = DIGEST) -> None:
        """Besides those that it has already, where the digest is the same."""
        self._models = (self._models if digest == self._digest else {}) | {spec.name: spec for spec in models}
        self._digest = digest
        contents = contents_of(self._models)
        for key, value in contents.values.items():
            await self.store.put(key, value)
        applied = Applied(revision=revision, digest=digest, at=Wall(NOW - 300), cluster="home", parts=contents.parts)
        await self.put(keys.APPLIED, applied)
        await self.status(applied=revision, attempted=revision)

    async def settings(self, **fields: object) -> None:
        """The catalog in force says so of the cluster."""
        entry = await self.store.get(keys.APPLIED)
        assert entry is not None, "there is a catalog"
        applied = replace(decode(entry.value, Applied), **fields)  # type: ignore[arg-type]
        await self.put(keys.APPLIED, applied)

    async def status(self, *, applied: Revision | None, attempted: Revision | None, **fields: object) -> None:
        condition = Condition(type=ConditionType.READY, status=False, reason="ModelsNotReady", message="1 of 2 ready")
        value = CatalogStatus(
            source="/srv/catalog", applied=applied, attempted=attempted, conditions=(condition,), **fields  # type: ignore[arg-type]
        )  # fmt: skip
        await self.put(keys.CATALOG_STATUS, value)

    async def explain(self, *statuses: ModelStatus) -> None:
        for status in statuses:
            await self.put(keys.explain(status.model), status)

    async def report(
        self, *replicas: ReplicaFact, weights: tuple[WeightsFact, ...] = (), node: NodeName = NODE
    ) -> None:
        await self.put(keys.report(node), report(*replicas, weights=weights, node=node))

    async def assign(self, *assignments: Assignment) -> None:
        for each in assignments:
            await self.put(keys.assignment(NODE, each.replica), each)

    async def history(self, number: int, *sources: str, digest: str) -> None:
        entry = HistoryEntry(number=number, revision=GOOD, digest=Digest(digest), at=NOW, sources=sources)
        await self.put(keys.history(number), entry)


async def full() -> Seeds:
    """Two models, one ready and one being fetched; an old cache entry that nobody wants."""
    seeds = Seeds()
    await seeds.catalog(
        model(QWEN, aliases=("default",), description="a big one", labels={"team": "search"}),
        model(SMOL, SMOL_SOURCE, priority=5),
    )
    await seeds.explain(
        told(QWEN, ModelState.READY, replica=ReplicaId("r1"), profile=ProfileName("main")),
        told(SMOL, ModelState.LOADING, "fetching its weights", replica=ReplicaId("r2")),
    )
    await seeds.report(
        ready("r1", QWEN),
        fetching("r2", SMOL, 10 * MIB, 100 * MIB),
        weights=(cached(SMOL_SOURCE), cached(OLD_SOURCE, age=100 * 86400)),
    )
    await seeds.assign(assignment("r1", QWEN), assignment("r2", SMOL, source=SMOL_SOURCE))
    return seeds
