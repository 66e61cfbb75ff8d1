"""What a catalog would lead to: passes made one after the other, each as if its decisions had been carried out. Pure.

Every stop ends, every launch becomes ready, every file is fetched; nobody asks for anything, and no time passes. What
waits for time (a back-off, a window) is left waiting.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from llmgw.catalog.schemas import did_you_mean
from llmgw.catalog.spec import Catalog, ProfileSpec, WeightsSpec, spec_digest
from llmgw.catalog.yamldoc import quoted
from llmgw.facts import (
    Ask,
    DeviceFact,
    EngineLoad,
    Footprint,
    Level,
    NodeReport,
    Observed,
    Phase,
    ReplicaFact,
    WeightsFact,
)
from llmgw.ids import NodeName, ReplicaId, SpecDigest
from llmgw.plan import Assignment, Launch, Levels, Stop
from llmgw.schedule.think import Known, Thought, merged, think
from llmgw.units import Bytes, Instant
from llmgw.weights.lookup import on_node
from llmgw.weights.naming import canonical, entry_name, is_local

MOST_PASSES: Final = 50
"""After which a forecast ends unsettled."""

_LEAVING: Final = frozenset({Phase.DRAINING, Phase.STOPPING, Phase.STOPPED, Phase.FAILED})
_COMING: Final = frozenset({Phase.PLACING, Phase.FETCHING, Phase.STARTING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Coming:
    """A launch of one of the passes. `replica`: the id it was given here; `missing`: files that the node lacks then."""

    replica: ReplicaId
    launch: Launch
    number: int  #: of the pass, from 1
    missing: tuple[WeightsSpec, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Going:
    """A stop of one of the passes. `fact`: what is stopped."""

    stop: Stop
    fact: ReplicaFact
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """`begin` and `end`: what is known before the first pass and after the last. `settled`: another pass would change
    nothing. `thought`: the last pass's."""

    begin: Known
    end: Known
    thought: Thought
    launches: tuple[Coming, ...] = ()
    stops: tuple[Going, ...] = ()
    passes: int = 0
    settled: bool = True

    @property
    def is_empty(self) -> bool:
        return not (self.launches or self.stops)


def forecast(known: Known, now: Instant, *, most: int = MOST_PASSES) -> Forecast:
    """Passes up to the fixed point, at most `most` of them."""
    begin, launches, stops = known, list[Coming](), list[Going]()
    for number in range(1, most + 1):
        thought = think(known, now)
        facts = known.observed.replicas
        stops += [Going(stop=stop, fact=facts[stop.replica], number=number) for stop in thought.plan.stops]
        coming = [_coming(launch, known.observed, number, order) for order, launch in enumerate(thought.plan.launches)]
        launches += coming
        after = _carried_out(known, thought, coming, now)
        if after == known:
            return Forecast(
                begin=begin, end=known, thought=thought, launches=tuple(launches), stops=tuple(stops), passes=number
            )
        known = after
    return Forecast(
        begin=begin,
        end=known,
        thought=thought,
        launches=tuple(launches),
        stops=tuple(stops),
        passes=most,
        settled=False,
    )


def asked_for(known: Known, asked: Iterable[str], now: Instant) -> Known:
    """As if requests for these models, by name or alias, had just come.

    Raises ValueError for a name that the catalog does not have.
    """
    models = {name: spec.name for spec in known.catalog.models.values() for name in spec.names}
    asks = dict(known.asks)
    for name in asked:
        if name not in models:
            raise ValueError(f"no model {quoted(name)} in the catalog{did_you_mean(name, models)}")
        before = asks.get(models[name])
        asks[models[name]] = Ask(asked=now.wall, used=before.used if before is not None else None)
    return replace(known, asks=asks)


def _coming(launch: Launch, observed: Observed, number: int, order: int) -> Coming:
    report = observed.nodes[launch.node]
    wanted = {canonical(spec.source): spec for spec in launch.profile.roles.values()}
    missing = tuple(spec for spec in wanted.values() if on_node(report.weights, spec) is None)
    return Coming(replica=ReplicaId(f"planned-{number}-{order}"), launch=launch, number=number, missing=missing)


def _carried_out(known: Known, thought: Thought, coming: Iterable[Coming], now: Instant) -> Known:
    """What is known once the plan has been carried out, and what was under way has come to its end."""
    stopped = {stop.replica for stop in thought.plan.stops}
    observed = known.observed
    replicas = {
        id: _arrived(fact, now)
        for id, fact in observed.replicas.items()
        if id not in stopped and fact.phase not in _LEAVING
    }
    replicas |= {each.replica: _replica(each, known.catalog, now) for each in coming}
    begun = [fact for fact in observed.replicas.values() if fact.phase in _COMING and fact.id not in stopped]
    profiles = _profiles(known.catalog, known.levels) if begun else {}
    fetched = [(fact.node, profiles.get((fact.spec, fact.level))) for fact in begun]
    fetched += [(each.launch.node, each.launch.profile) for each in coming]
    return replace(
        known,
        observed=replace(
            observed,
            nodes=_nodes(observed, replicas, fetched, now),
            replicas=replicas,
            recovery=merged(observed.recovery, thought.recovery),
        ),
        asks=merged(known.asks, thought.asks),
        scaling=merged(known.scaling, thought.scaling),
    )


def _arrived(fact: ReplicaFact, now: Instant) -> ReplicaFact:
    return replace(fact, phase=Phase.READY, since=now.wall, progress=None) if fact.phase in _COMING else fact


def _replica(coming: Coming, catalog: Catalog, now: Instant) -> ReplicaFact:
    launch = coming.launch
    assigned = Assignment(
        replica=coming.replica,
        model=launch.model,
        profile=launch.profile,
        spec=launch.spec,
        node=launch.node,
        revision=catalog.revision,
        footprint=launch.footprint,
        level=launch.level,
        launched=launch.launched,
        devices=launch.devices,
    )
    return replace(assigned.placing(now.wall), phase=Phase.READY, load=EngineLoad(running=0, waiting=0))


def _profiles(catalog: Catalog, levels: Levels) -> dict[tuple[SpecDigest, Level], ProfileSpec]:
    full = {
        (spec_digest(model.name, profile), Level.FULL): profile
        for model in catalog.models.values()
        for profile in model.profiles
    }
    return {**full, **levels}


def _nodes(
    observed: Observed,
    replicas: Mapping[ReplicaId, ReplicaFact],
    fetched: Iterable[tuple[NodeName, ProfileSpec | None]],
    now: Instant,
) -> Mapping[NodeName, NodeReport]:
    """The reports that such nodes would send: their replicas, devices, weights and disks."""
    profiles: dict[NodeName, list[ProfileSpec]] = {}
    for node, profile in fetched:
        if profile is not None:
            profiles.setdefault(node, []).append(profile)
    sizes = {fact.source: fact.size for report in observed.nodes.values() for fact in report.weights}
    before, after = _by_node(observed.replicas.values()), _by_node(replicas.values())
    nodes = dict(observed.nodes)
    for name in {*before, *after, *profiles} & nodes.keys():
        if before.get(name) == after.get(name) and name not in profiles:
            continue
        report = _with_weights(nodes[name], profiles.get(name, ()), sizes, now)
        here = after.get(name, [])
        nodes[name] = replace(
            report,
            replicas=tuple(sorted(here, key=lambda fact: fact.id)),
            devices=tuple(_device(device, before.get(name, []), here) for device in report.devices),
        )
    return nodes


def _by_node(facts: Iterable[ReplicaFact]) -> dict[NodeName, list[ReplicaFact]]:
    found: dict[NodeName, list[ReplicaFact]] = {}
    for fact in facts:
        found.setdefault(fact.node, []).append(fact)
    return found


def _with_weights(
    report: NodeReport, profiles: Iterable[ProfileSpec], sizes: Mapping[str, Bytes], now: Instant
) -> NodeReport:
    """With every file of the profiles there. One whose size nobody knows fills no disk."""
    weights, filled = list(report.weights), 0
    for profile in profiles:
        for spec in profile.roles.values():
            if on_node(weights, spec) is None:
                fact = _fetched(spec, sizes, now)
                weights.append(fact)
                filled += 0 if is_local(fact.source) else fact.size
    disk = replace(report.disk, free=Bytes(max(0, report.disk.free - filled)))
    return replace(report, weights=tuple(weights), disk=disk) if len(weights) > len(report.weights) else report


def _fetched(spec: WeightsSpec, sizes: Mapping[str, Bytes], now: Instant) -> WeightsFact:
    source = canonical(spec.source)
    return WeightsFact(
        source=source,
        entry=None if is_local(source) else entry_name(source, spec.sha256),
        size=size_of(spec, sizes) or Bytes(0),
        last_wanted=now.wall,
        sha256=spec.sha256,
    )


def size_of(spec: WeightsSpec, sizes: Mapping[str, Bytes]) -> Bytes | None:
    """As its source or the catalog tells, else as a node has it (`sizes`, by canonical source); None: nobody knows."""
    return spec.expected if spec.expected is not None else sizes.get(canonical(spec.source))


def _device(device: DeviceFact, before: Iterable[ReplicaFact], after: Iterable[ReplicaFact]) -> DeviceFact:
    """What the driver would tell once those of `before` that went are gone and the new ones are there."""
    kept, had = {fact.id for fact in after}, {fact.id for fact in before}
    more = sum(on_device(fact, device.uuid) for fact in after if fact.id not in had)
    less = sum(on_device(fact, device.uuid, now=True) for fact in before if fact.id not in kept)
    if more == less:
        return device
    used = Bytes(min(device.total, max(0, device.used - less + more)))
    return replace(device, used=used, free=Bytes(device.total - used))


def on_device(fact: ReplicaFact, uuid: str, *, now: bool = False) -> Bytes:
    """What a replica takes of a device: as its placement counts; `now`: as the driver says, where it does."""
    if uuid not in fact.devices:
        return Bytes(0)
    counted = _device_memory(fact.footprint)
    taken = fact.device_resident if now and fact.device_resident is not None else counted
    return Bytes(-(-taken // len(fact.devices)))


def _device_memory(footprint: Footprint | None) -> Bytes:
    return footprint.device if footprint is not None else Bytes(0)
