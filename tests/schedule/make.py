"""Short ways to build what the core takes. Memory in whole GiB."""

from collections.abc import Iterable, Mapping
from typing import Any

from llmgw.catalog.spec import (
    BudgetSpec,
    Catalog,
    ClusterSpec,
    ModelSpec,
    NodeSpec,
    ProfileSpec,
    ReserveSpec,
    WeightsSpec,
    spec_digest,
)
from llmgw.facts import (
    DiskFact,
    EngineFact,
    EngineLoad,
    Failure,
    FailureKind,
    Footprint,
    Level,
    MemoryFact,
    NodeReport,
    Observed,
    Phase,
    RecoveryRecord,
    ReplicaFact,
)
from llmgw.ids import Digest, EngineName, ModelName, NodeName, ProfileName, ReplicaId, Revision, SpecDigest
from llmgw.units import GIB, Bytes, Instant, Mono, Wall

NODE = NodeName("box")
CPU = EngineName("cpu")
NOW = Instant(Mono(1000.0), Wall(1_000_000.0))


def gib(count: float) -> Bytes:
    return Bytes(int(count * GIB))


def model(name: str, *, context: int = 4096, weights: WeightsSpec | None = None, **fields: Any) -> ModelSpec:
    profile = ProfileSpec(name=ProfileName("p"), engine=CPU, context=context, weights=weights)
    return ModelSpec(name=ModelName(name), profiles=(profile,), **fields)


def catalog(*models: ModelSpec, budget: float | None = None, **cluster: Any) -> Catalog:
    node = NodeSpec(
        budget=BudgetSpec(host=None if budget is None else gib(budget)), reserve=ReserveSpec(host=gib(1), disk=gib(1))
    )
    return Catalog(
        revision=Revision("abc"),
        digest=Digest("d"),
        models={m.name: m for m in sorted(models, key=lambda m: m.name)},
        cluster=ClusterSpec(nodes={NODE: node}, **cluster),
    )


def spec_of(m: ModelSpec) -> SpecDigest:
    return spec_digest(m.name, m.profiles[0])


def replica(m: ModelSpec, id: str = "", *, phase: Phase = Phase.READY, size: float = 4, **fields: Any) -> ReplicaFact:
    running = fields.pop("running", 0)
    return ReplicaFact(
        id=ReplicaId(id or f"{m.name}-1"),
        model=m.name,
        profile=ProfileName("p"),
        engine=CPU,
        node=NODE,
        spec=fields.pop("spec", spec_of(m)),
        revision=Revision("abc"),
        phase=phase,
        since=fields.pop("since", Wall(NOW.wall - 10)),
        url="http://127.0.0.1:1",
        footprint=Footprint(host=gib(size)),
        load=EngineLoad(running=running, waiting=0),
        **fields,
    )


def failed(m: ModelSpec, id: str = "", kind: FailureKind = FailureKind.CRASH) -> ReplicaFact:
    failure = Failure(kind=kind, reason="it broke", at=NOW.wall)
    return replica(m, id, phase=Phase.FAILED, failure=failure)


def report(
    *, total: float = 32, foreign: float = 0, disk: float = 100, engines: Iterable[EngineFact] | None = None, **f: Any
) -> NodeReport:
    return NodeReport(
        node=NODE,
        at=NOW.wall,
        memory=MemoryFact(total=gib(total), available=gib(total - foreign), foreign=gib(foreign)),
        disk=DiskFact(total=gib(1000), free=gib(disk)),
        catalog=f.pop("catalog", Digest("d")),
        engines=tuple(engines) if engines is not None else (EngineFact(name=CPU, version="1"),),
        **f,
    )


def observed(
    *replicas: ReplicaFact,
    sizes: Mapping[ModelSpec, float] | Iterable[tuple[ModelSpec, float]] = (),
    node: NodeReport | None = None,
    recovery: Mapping[SpecDigest, RecoveryRecord] | None = None,
    **fields: Any,
) -> Observed:
    pairs = sizes.items() if isinstance(sizes, Mapping) else sizes
    return Observed(
        nodes={NODE: node or report()},
        replicas={r.id: r for r in replicas},
        recovery={(spec, NODE): record for spec, record in (recovery or {}).items()},
        footprints={(spec_of(m), Level.FULL): Footprint(host=gib(size)) for m, size in pairs},
        **fields,
    )
