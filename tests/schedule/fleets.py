"""Short ways to build fleets of several nodes with devices. Memory in whole GiB."""

from collections.abc import Mapping
from typing import Any

from make import CPU, NOW, gib, spec_of

from llmgw.catalog.spec import (
    BudgetSpec,
    Catalog,
    ClusterSpec,
    ModelSpec,
    NodeSpec,
    ProfileSpec,
    ReserveSpec,
    ScalingSpec,
    spec_digest,
)
from llmgw.desired import desired
from llmgw.facts import (
    Ask,
    DeviceFact,
    DiskFact,
    EngineFact,
    EngineLoad,
    Footprint,
    Level,
    MemoryFact,
    NodeReport,
    Observed,
    Phase,
    ReplicaFact,
)
from llmgw.ids import Digest, EngineName, ModelName, NodeName, ProfileName, ReplicaId, Revision
from llmgw.plan import Levels, Plan, Reason, Rejection
from llmgw.schedule.decide import decide
from llmgw.units import Bytes, Wall

GPU = EngineName("gpu")
ENGINES = (EngineFact(name=CPU, version="1"), EngineFact(name=GPU, version="1"))


def device(uuid: str, total: float = 24, *, foreign: float | None = 0, name: str = "card", **fields: Any) -> DeviceFact:
    used = fields.pop("used", gib(foreign or 0))
    known = None if foreign is None else gib(foreign)
    return DeviceFact(uuid=uuid, name=name, index=0, total=gib(total), used=used, foreign=known, **fields)


def node(name: str, *devices: DeviceFact, host: float = 64, disk: float = 500, **fields: Any) -> NodeReport:
    return NodeReport(
        node=NodeName(name),
        at=NOW.wall,
        memory=MemoryFact(total=gib(host), available=gib(host), foreign=gib(fields.pop("foreign", 0))),
        disk=DiskFact(total=gib(1000), free=gib(disk)),
        engines=fields.pop("engines", ENGINES),
        catalog=Digest("d"),
        devices=devices,
        **fields,
    )


def gpu_model(name: str, devices: int = 1, *, context: int = 4096, **fields: Any) -> ModelSpec:
    own = {key: fields.pop(key) for key in ("exclusive", "weights", "draft_model") if key in fields}
    profile = ProfileSpec(name=ProfileName("g"), engine=GPU, devices=devices, context=context, **own)
    return ModelSpec(name=ModelName(name), profiles=(profile,), **fields)


def cpu_model(name: str, **fields: Any) -> ModelSpec:
    own = {key: fields.pop(key) for key in ("weights", "draft_model") if key in fields}
    profile = ProfileSpec(name=ProfileName("c"), engine=CPU, **own)
    return ModelSpec(name=ModelName(name), profiles=(profile,), **fields)


def replicas_of(count: int) -> ScalingSpec:
    return ScalingSpec(min=count, max=count)


ON_DEMAND = ScalingSpec(min=0, max=1, on_demand=True)


def settled_nodes(**nodes: Any) -> dict[NodeName, NodeSpec]:
    """Policies; nodes not named have no reserve either."""
    return {NodeName(name.replace("_", "-")): policy for name, policy in nodes.items()}


def policy(*, device: float | None = None, host: float | None = None, reserve: float = 0, **fields: Any) -> NodeSpec:
    return NodeSpec(
        budget=BudgetSpec(host=None if host is None else gib(host), device=None if device is None else gib(device)),
        reserve=ReserveSpec(host=Bytes(0), disk=Bytes(0), device=gib(reserve)),
        **fields,
    )


class Fleet:
    """Nodes, models with sizes, and what runs: asked for a plan."""

    def __init__(self, *nodes: NodeReport, policies: Mapping[str, NodeSpec] | None = None, **cluster: Any) -> None:
        names = {report.node: (policies or {}).get(report.node, policy()) for report in nodes}
        self.nodes = {report.node: report for report in nodes}
        self.cluster = ClusterSpec(nodes=names, **cluster)
        self.models: dict[ModelName, ModelSpec] = {}
        self.footprints: dict[Any, Footprint] = {}
        self.replicas: dict[ReplicaId, ReplicaFact] = {}
        self.asks: dict[ModelName, Ask] = {}
        self.levels: dict[Any, ProfileSpec] = {}
        self.fields: dict[str, Any] = {}
        self.launched = 0

    def has(self, model: ModelSpec, size: float, *, host: float = 0, listed: bool = True) -> ModelSpec:
        """In the catalog, each profile with `size` GiB (on devices where it uses some)."""
        if listed:
            self.models[model.name] = model
        for profile in model.profiles:
            footprint = (
                Footprint(host=gib(host), device=gib(size)) if profile.devices else Footprint(host=gib(size + host))
            )
            self.footprints[spec_digest(model.name, profile), Level.FULL] = footprint
        return model

    def sized(self, model: ModelSpec, profile: ProfileSpec, level: Level, size: float) -> None:
        """A level of a profile."""
        self.levels[spec_digest(model.name, model.profiles[0]), level] = profile
        footprint = Footprint(host=Bytes(0), device=gib(size)) if profile.devices else Footprint(host=gib(size))
        self.footprints[spec_digest(model.name, model.profiles[0]), level] = footprint

    def runs(self, model: ModelSpec, where: str, *devices: str, id: str = "", **fields: Any) -> ReplicaFact:
        spec = spec_of(model)
        busy = fields.pop("running", 0)
        fact = ReplicaFact(
            id=ReplicaId(id or f"{model.name}-{len(self.replicas)}"),
            model=model.name,
            profile=fields.pop("profile", model.profiles[0].name),
            engine=model.profiles[0].engine,
            node=NodeName(where),
            spec=fields.pop("spec", spec),
            revision=Revision("r"),
            phase=fields.pop("phase", Phase.READY),
            since=fields.pop("since", Wall(NOW.wall - 3600)),
            url="http://127.0.0.1:9",
            devices=devices,
            exclusive=model.profiles[0].exclusive,
            draft=model.profiles[0].draft_model,
            footprint=fields.pop("footprint", self.footprints.get((spec, Level.FULL))),
            load=EngineLoad(running=busy, waiting=0),
            **fields,
        )
        self.replicas[fact.id] = fact
        return fact

    def asked(self, model: ModelSpec, ago: float, *, used: float | None = None) -> None:
        """`ago` and `used`: seconds before now."""
        self.asks[model.name] = Ask(asked=Wall(NOW.wall - ago), used=None if used is None else Wall(NOW.wall - used))

    @property
    def catalog(self) -> Catalog:
        models = dict(sorted(self.models.items()))
        return Catalog(revision=Revision("r"), digest=Digest("d"), models=models, cluster=self.cluster)

    @property
    def observed(self) -> Observed:
        return Observed(
            nodes=self.nodes,
            replicas=self.replicas,
            recovery=self.fields.get("recovery", {}),
            footprints=self.footprints,
            **{key: value for key, value in self.fields.items() if key != "recovery"},
        )

    @property
    def known_levels(self) -> Levels:
        return self.levels

    def plan(self, *, extra: Mapping[ModelName, int] | None = None, settled: bool = True) -> Plan:
        running = {name: sum(r.model == name for r in self.replicas.values()) for name in self.models}
        wishes = desired(self.catalog, now=NOW, asks=self.asks, extra=extra, running=running)
        return decide(wishes, self.catalog, self.observed, NOW, levels=self.levels, settled=settled)


def where(plan: Plan) -> dict[str, list[str]]:
    """Nodes of each model's launches."""
    found: dict[str, list[str]] = {}
    for launch in plan.launches:
        found.setdefault(launch.model, []).append(launch.node)
    return found


def stopped(plan: Plan) -> dict[str, Reason]:
    return {stop.replica: stop.reason for stop in plan.stops}


def refusals(plan: Plan, model: str) -> dict[str, Rejection]:
    """By node."""
    return {one.node: one for item in plan.unschedulable if item.model == model for one in item.rejections}
