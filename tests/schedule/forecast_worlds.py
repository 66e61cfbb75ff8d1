"""Worlds to forecast: one or more nodes, models of declared sizes, and what runs already."""

from collections.abc import Iterable
from dataclasses import replace

from llmgw.catalog.spec import (
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
    DeviceFact,
    DiskFact,
    EngineFact,
    Footprint,
    Level,
    MemoryFact,
    NodeReport,
    Observed,
    Phase,
    ReplicaFact,
)
from llmgw.ids import Digest, EngineName, ModelName, NodeName, ProfileName, ReplicaId, Revision
from llmgw.schedule.think import Known
from llmgw.units import GIB, Bytes, Instant, Mono, Wall

NOW = Instant(Mono(1000.0), Wall(1_000_000.0))
CPU = EngineName("cpu")
BOX, DEN = NodeName("box"), NodeName("den")


def model(name: str, size: float, *, devices: int = 0, source: str = "", **fields: object) -> ModelSpec:
    weights = WeightsSpec(source=source, size=Bytes(3 * GIB)) if source else None
    profile = ProfileSpec(
        name=ProfileName("p"), engine=CPU, memory=Bytes(int(size * GIB)), devices=devices, weights=weights
    )
    return ModelSpec(name=ModelName(name), profiles=(profile,), **fields)  # type: ignore[arg-type]


def footprint(profile: ProfileSpec) -> Footprint:
    memory = profile.memory or Bytes(0)
    if profile.devices:
        return Footprint(host=Bytes(0), device=memory, source="declared")
    return Footprint(host=memory, source="declared")


def report(node: NodeName = BOX, *, total: float = 33, devices: int = 0) -> NodeReport:
    return NodeReport(
        node=node,
        at=NOW.wall,
        memory=MemoryFact(total=Bytes(int(total * GIB)), available=Bytes(int(total * GIB)), foreign=Bytes(0)),
        disk=DiskFact(total=Bytes(100 * GIB), free=Bytes(50 * GIB)),
        engines=(EngineFact(name=CPU),),
        catalog=Digest("d"),
        devices=tuple(
            DeviceFact(
                uuid=f"{node}-{n}", name="L4", index=n, total=Bytes(24 * GIB), free=Bytes(24 * GIB), foreign=Bytes(0)
            )
            for n in range(devices)
        ),
    )


def running(spec: ModelSpec, id: str, node: NodeName = BOX, *, phase: Phase = Phase.READY) -> ReplicaFact:
    profile = spec.profiles[0]
    return ReplicaFact(
        id=ReplicaId(id),
        model=spec.name,
        profile=profile.name,
        engine=profile.engine,
        node=node,
        spec=spec_digest(spec.name, profile),
        revision=Revision("old"),
        phase=phase,
        since=Wall(NOW.wall - 3600),
        footprint=footprint(profile),
    )


def known(
    models: Iterable[ModelSpec], replicas: Iterable[ReplicaFact] = (), nodes: Iterable[NodeReport] | None = None
) -> Known:
    specs = {spec.name: spec for spec in models}
    facts = {fact.id: fact for fact in replicas}
    reports = [report()] if nodes is None else list(nodes)
    reserve = ReserveSpec(host=Bytes(GIB), disk=Bytes(GIB), device=Bytes(0))
    return Known(
        catalog=Catalog(
            revision=Revision("new"),
            digest=Digest("d"),
            models=dict(sorted(specs.items())),
            cluster=ClusterSpec(nodes={each.node: NodeSpec(reserve=reserve) for each in reports}),
        ),
        observed=Observed(
            nodes={
                each.node: replace(each, replicas=tuple(fact for fact in facts.values() if fact.node == each.node))
                for each in reports
            },
            replicas=facts,
            recovery={},
            footprints={
                (spec_digest(spec.name, profile), Level.FULL): footprint(profile)
                for spec in specs.values()
                for profile in spec.profiles
            },
        ),
    )
