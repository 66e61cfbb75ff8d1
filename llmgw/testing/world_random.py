"""Random worlds: small fleets and catalogs with a bit of everything, and what happens to them, all from one seed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from llmgw.catalog.spec import (
    BudgetSpec,
    Catalog,
    ClusterSpec,
    Defaults,
    ModelSpec,
    NodeSpec,
    PlacementSpec,
    ProfileSpec,
    RecoverySettings,
    ReserveSpec,
    ScalingSettings,
    ScalingSpec,
    WeightsSpec,
    Window,
)
from llmgw.facts import DeviceFact, DiskFact, EngineFact, FailureKind, MemoryFact, NodeReport
from llmgw.ids import Digest, EngineName, ModelName, NodeName, ProfileName, Revision
from llmgw.testing.world_values import ALL_DAYS, Behaviour, Fault, FaultKind
from llmgw.units import GIB, MIB, Bytes, Seconds, Wall

CPU: Final = EngineName("cpu")
GPU: Final = EngineName("gpu")

ODD_FAILURES: Final = (
    FailureKind.CRASH, FailureKind.OOM, FailureKind.HANG, FailureKind.NODE, FailureKind.DETACHED,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Lot:
    """What a seed stands for."""

    fleet: tuple[NodeReport, ...]
    catalog: Catalog
    behaviours: dict[ModelName, Behaviour]


def draw(seed: int, *, nodes: int = 6, models: int = 10) -> Lot:
    """A fleet of at most `nodes`, a catalog of at most `models`."""
    random = Random(seed)
    few = min(random.randint(1, nodes), random.randint(1, nodes))  # room is short, mostly
    names = [NodeName(f"n{number}") for number in range(1, few + 1)]
    catalog = _catalog(random, names, random.randint(1, models))
    behaviours = {name: _behaviour(random) for name in catalog.models}
    return Lot(fleet=tuple(_node(random, name) for name in names), catalog=catalog, behaviours=behaviours)


# -- fleets


def _gib(random: Random, low: float, high: float) -> Bytes:
    """Whole quarters of a GiB, so that figures in a story can be read."""
    return Bytes(round(random.uniform(low, high) * 4) * GIB // 4)


def _node(random: Random, name: NodeName) -> NodeReport:
    total = _gib(random, 6, 32)
    foreign = _gib(random, 0, 2)
    count = random.choice((0, 0, 1, 1, 2, 4))
    devices = tuple(_device(random, name, index) for index in range(count))
    broken = EngineFact(name=GPU, why="no driver") if random.random() < 0.1 else EngineFact(name=GPU, version="1")
    return NodeReport(
        node=name,
        at=Wall(0),
        memory=MemoryFact(total=total, available=Bytes(total - foreign), foreign=foreign),
        disk=DiskFact(total=Bytes(1000 * GIB), free=_gib(random, 5, 80)),
        engines=(EngineFact(name=CPU, version="1"), broken),
        devices=devices,
    )


def _device(random: Random, node: NodeName, index: int) -> DeviceFact:
    total, foreign = _gib(random, 8, 24), Bytes(random.choice((0, 256, 1024)) * MIB)
    why = "fell off the bus" if random.random() < 0.05 else None
    return DeviceFact(
        uuid=f"GPU-{node}-{index}",
        name="sim",
        index=index,
        total=total,
        used=foreign,
        free=Bytes(total - foreign),
        foreign=foreign,
        why=why,
    )


# -- catalogs


def _catalog(random: Random, nodes: list[NodeName], count: int) -> Catalog:
    names = [ModelName(f"m{number}") for number in range(1, count + 1)]
    models: dict[ModelName, ModelSpec] = {}
    for name in names:
        models[name] = _model(random, name, nodes, models)
    cluster = ClusterSpec(
        nodes={name: _policy(random, number) for number, name in enumerate(nodes) if random.random() < 0.8},
        defaults=Defaults(
            start_timeout=Seconds(120),
            drain_timeout=Seconds(random.choice((10, 60))),
            idle_timeout=Seconds(random.choice((60, 300))),
        ),
        scaling=ScalingSettings(
            up_after=Seconds(random.choice((5, 30))),
            down_after=Seconds(random.choice((60, 300))),
            min_residency=Seconds(random.choice((0, 30))),
        ),
        recovery=RecoverySettings(quarantine_retry=Seconds(random.choice((300, 1800)))),
    )
    return Catalog(revision=Revision("r0"), digest=Digest("d0"), models=models, cluster=cluster)


def _policy(random: Random, number: int) -> NodeSpec:
    host = _gib(random, 6, 32) if random.random() < 0.25 else None
    device = _gib(random, 6, 20) if random.random() < 0.15 else None
    return NodeSpec(
        pool="gpu" if number % 2 else "default",
        labels={"zone": "a" if number % 3 else "b"},
        budget=BudgetSpec(host=host, device=device),
        reserve=ReserveSpec(host=_gib(random, 0.5, 2)),
    )


def _model(random: Random, name: ModelName, nodes: list[NodeName], before: dict[ModelName, ModelSpec]) -> ModelSpec:
    count = 1 if random.random() < 0.75 else 2
    profiles = [_profile(random, ProfileName(f"p{number}")) for number in range(count)]
    plain = [other for other in before.values() if not _drafts(other) and not other.suspend]
    if plain and random.random() < 0.1:
        profiles[0] = _with_draft(profiles[0], random.choice(plain).name)
    given: dict[str, Any] = {
        "priority": random.choice((0, 0, 0, 1, 2)),
        "pinned": random.random() < 0.08,
        "suspend": random.random() < 0.03,
        "scaling": _scaling(random),
    }
    if before and random.random() < 0.15:
        given["fallback"] = random.choice(sorted(before))
    if random.random() < 0.15:
        given["groups"] = (random.choice(("g1", "g2")),)
    if random.random() < 0.2:
        given["placement"] = _placement(random, nodes)
    return ModelSpec(name=name, profiles=tuple(profiles), **given)


def _drafts(model: ModelSpec) -> bool:
    return any(profile.draft_model is not None for profile in model.profiles)


def _with_draft(profile: ProfileSpec, draft: ModelName | None) -> ProfileSpec:
    """At every level."""
    return replace(
        profile,
        draft_model=draft,
        degraded=None if profile.degraded is None else replace(profile.degraded, draft_model=draft),
        minimal=None if profile.minimal is None else replace(profile.minimal, draft_model=draft),
    )


def _profile(random: Random, name: ProfileName) -> ProfileSpec:
    devices = random.choice((0, 0, 0, 1, 1, 2))
    context = random.choice((2048, 4096, 8192))
    memory: Bytes | None = _gib(random, 0.5, random.choice((4, 8, 12)))
    weights = None
    if random.random() < 0.4:
        size = _gib(random, 0.5, 8)
        weights = WeightsSpec(source=f"pypi://w{random.randint(1, 6)}==1.0/m{size}.gguf", size=size)
        memory = None if random.random() < 0.4 else memory
    plain = ProfileSpec(
        name=name,
        engine=GPU if devices else CPU,
        weights=weights,
        context=context,
        parallel=random.choice((1, 2, 4)),
        devices=devices,
        exclusive=devices > 0 and random.random() < 0.1,
        memory=memory,
        host_memory=_gib(random, 0.25, 2) if devices else None,
    )
    if memory is None or random.random() < 0.5:
        return plain
    half = replace(plain, context=context // 2, memory=Bytes(memory // 2), exclusive=False)
    least = replace(half, engine=CPU, devices=0, memory=Bytes(memory // 4), host_memory=None)
    return replace(plain, degraded=half, minimal=least if random.random() < 0.7 else None)


def _scaling(random: Random) -> ScalingSpec:
    if random.random() < 0.5:
        return ScalingSpec(min=0, max=random.choice((1, 1, 2)), on_demand=True)
    least = random.choice((1, 1, 1, 2))
    windows: tuple[Window, ...] = ()
    if random.random() < 0.15:
        begins = random.randrange(0, 20) * 60
        windows = (Window(days=ALL_DAYS, start=begins, end=begins + 120, min=random.choice((0, 1, 2)), max=0),)
    return ScalingSpec(min=least, max=least + random.choice((0, 0, 1)), windows=windows)


def _placement(random: Random, nodes: list[NodeName]) -> PlacementSpec:
    match random.randrange(3):
        case 0:
            return PlacementSpec(pools=(random.choice(("default", "gpu")),))
        case 1:
            return PlacementSpec(nodes=tuple(sorted(random.sample(nodes, random.randint(1, len(nodes))))))
        case _:
            return PlacementSpec(labels={"zone": random.choice("ab")}, spread=random.random() < 0.5)


def _behaviour(random: Random) -> Behaviour:
    return Behaviour(
        start=Seconds(random.choice((2, 10, 45))),
        stop=Seconds(random.choice((0, 1, 5))),
        takes=1.3 if random.random() < 0.05 else 1.0,
        crashes=Seconds(1200) if random.random() < 0.05 else None,
    )


# -- what happens


def another(random: Random, lot: Lot, catalog: Catalog, number: int) -> Catalog:
    """A catalog one commit later: a model changed, gone, back, or ranked otherwise."""
    models = dict(catalog.models)
    name = random.choice(sorted(lot.catalog.models))
    nodes = [report.node for report in lot.fleet]
    match random.randrange(4):
        case 0 if len(models) > 1:
            models.pop(name, None)
        case 1 if name in models:
            models[name] = replace(models[name], priority=random.choice((0, 1, 2)), pinned=random.random() < 0.2)
        case 2:
            models[name] = lot.catalog.models[name]
        case _:
            before = {other: model for other, model in models.items() if other < name}
            models[name] = _model(random, name, nodes, before)
    return replace(
        catalog,
        revision=Revision(f"r{number}"),
        digest=Digest(f"d{number}"),
        models=dict(sorted(_whole(models).items())),
    )


def _whole(models: dict[ModelName, ModelSpec]) -> dict[ModelName, ModelSpec]:
    """What refers to a model that is gone, or may not be referred to, no longer does: as a valid catalog must."""
    whole = {}
    for name, model in models.items():
        if model.fallback is not None and model.fallback not in models:
            model = replace(model, fallback=None)
        profiles = tuple(_without_bad_draft(profile, models) for profile in model.profiles)
        whole[name] = replace(model, profiles=profiles)
    return whole


def _without_bad_draft(profile: ProfileSpec, models: dict[ModelName, ModelSpec]) -> ProfileSpec:
    draft = models.get(profile.draft_model) if profile.draft_model is not None else None
    if profile.draft_model is None or (draft is not None and not _drafts(draft)):
        return profile
    return _with_draft(profile, None)


def mishaps(random: Random, lot: Lot) -> Iterator[Fault]:
    """One after the other, without end."""
    nodes, models = [report.node for report in lot.fleet], sorted(lot.catalog.models)
    while True:
        kind = random.choice(list(FaultKind))
        yield Fault(
            at=Seconds(0),
            kind=kind,
            node=random.choice(nodes),
            model=random.choice(models),
            lasts=Seconds(random.choice((5, 30, 120, 600))),
            size=_gib(random, 1, 12) if kind is not FaultKind.DISK else _gib(random, 10, 80),
            on_devices=random.random() < 0.5,
            seconds=random.choice((-7200, -90, -5, 5, 90, 7200)),
            count=random.randint(1, 5),
            failure=random.choice(ODD_FAILURES),
        )
