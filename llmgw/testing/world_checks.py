"""What must be true of every decision, whatever happens in the world. A violation names the rule and the figures.

The checks reckon for themselves: they share no code with what decides.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from random import Random
from typing import Any, TypeVar

from llmgw.catalog.spec import ModelSpec, spec_digest
from llmgw.facts import Footprint, Level, Observed, Phase, ReplicaFact
from llmgw.ids import ModelName, NodeName, ReplicaId
from llmgw.plan import Launch, Reason, Wish
from llmgw.schedule.think import Known, Thought
from llmgw.testing.world_controller import Mind
from llmgw.units import Bytes, Instant, Wall

LEAVING = frozenset({Phase.DRAINING, Phase.STOPPING})

THRASH = 8
"""Evictions of one model within a minute that nothing in a world explains: requests come every few seconds at most,
and what was loaded for one is to serve it first."""

RESTLESS = 25
"""Launches of one model within a minute that nothing in a world explains: three replicas, and back-offs of seconds."""

T = TypeVar("T")


class Violation(AssertionError):
    """A rule that a decision broke."""


@dataclass(slots=True)
class Checks:
    """Checks each decision; every `shuffle_every`th is also made anew from the same facts in another order."""

    mind: Mind
    random: Random
    shuffle_every: int = 10
    decisions: int = 0
    busy_passes: list[float] = field(default_factory=list)  #: when plans were not empty
    evicted: dict[ModelName, list[float]] = field(default_factory=dict)  #: when, in the last minute
    launched: dict[ModelName, list[float]] = field(default_factory=dict)

    def decided(self, known: Known, thought: Thought, now: Instant) -> None:
        """Raises Violation with all that is wrong."""
        self.decisions += 1
        if thought.plan.launches or thought.plan.stops:
            self.busy_passes.append(now.mono)
        wrong = [*faults_of(known, thought, now), *self._thrashing(thought, now)]
        if self.decisions % self.shuffle_every == 0:
            other = self.mind(shuffled(known, self.random), now)
            if other.plan != thought.plan:
                wrong.append(f"the plan depends on the order of its input: {other.plan} is not {thought.plan}")
        if wrong:
            raise Violation("; ".join(wrong))

    def _thrashing(self, thought: Thought, now: Instant) -> Iterator[str]:
        for stop in thought.plan.stops:
            if stop.eviction:
                lately = [at for at in self.evicted.get(stop.model, ()) if at > now.mono - 60]
                self.evicted[stop.model] = [*lately, now.mono]
                if len(lately) >= THRASH:
                    yield f"{stop.model} was evicted {len(lately) + 1} times within a minute"
        for launch in thought.plan.launches:
            lately = [at for at in self.launched.get(launch.model, ()) if at > now.mono - 60]
            self.launched[launch.model] = [*lately, now.mono]
            if len(lately) >= RESTLESS:
                yield f"{launch.model} was launched {len(lately) + 1} times within a minute"


def faults_of(known: Known, thought: Thought, now: Instant) -> Iterator[str]:
    """Every rule that the decision breaks, in words."""
    yield from _when_nothing_may_happen(known, thought)
    yield from _stops(known, thought, now)
    yield from _launches(known, thought, now)
    yield from _room(known, thought)
    yield from _groups(known, thought)
    yield from _drafts(known, thought)
    yield from _counts(known, thought)
    yield from _stamps(known, thought, now)


def _when_nothing_may_happen(known: Known, thought: Thought) -> Iterator[str]:
    plan = thought.plan
    if known.stopped is not None and plan.launches:
        yield f"launches {_names(plan.launches)} while stopped by the operator"
    if not known.settled and (plan.launches or any(stop.eviction for stop in plan.stops)):
        yield f"launches {_names(plan.launches)} or evicts before nodes settled"


def _names(launches: Iterable[Launch]) -> str:
    return ", ".join(f"{one.model} on {one.node}" for one in launches)


def _stops(known: Known, thought: Thought, now: Instant) -> Iterator[str]:
    observed, models = known.observed, known.catalog.models
    kept = {id for ids in thought.plan.keep.values() for id in ids}
    for stop in thought.plan.stops:
        fact, spec = observed.replicas.get(stop.replica), models.get(stop.model)
        what = f"{stop.model} {stop.replica} on {stop.node}"
        if fact is None:
            yield f"stops {what}, which is not there"
            continue
        if (fact.model, fact.node) != (stop.model, stop.node):
            yield f"stops {what}, which is {fact.model} on {fact.node}"
        if not fact.phase.occupies_memory or fact.phase in LEAVING:
            yield f"stops {what}, which is {fact.phase} already"
        if not stop.reason:
            yield f"stops {what} for no reason"
        if stop.replica in kept:
            yield f"stops and keeps {what}"
        if stop.eviction and spec is not None and spec.pinned:
            yield f"evicts {what}, which is pinned"
        if stop.eviction and observed.active(fact):
            yield f"evicts {what}, which is active"
        if stop.eviction and spec is not None and _is_reserved(known, fact, spec, now):
            yield f"evicts {what}, which was loaded for a request that it has not served"
        if spec is not None and spec.suspend and known.stopped is None and not _drained(observed, fact.node):
            yield f"stops {what} ({stop.reason}), which is suspended"


def _is_reserved(known: Known, fact: ReplicaFact, spec: ModelSpec, now: Instant) -> bool:
    """A request waits that asked for it, and nothing was sent to it since."""
    ask, observed = known.asks.get(fact.model), known.observed
    if ask is None or not spec.scaling.on_demand or not known.held.get(fact.model):
        return False
    mine = [observed.last_used.get(one.id, Wall(0)) for one in observed.replicas.values() if one.model == fact.model]
    asked, used = (min(stamp, now.wall) for stamp in (ask.asked, max([*mine, ask.used or Wall(0)])))
    served = used >= asked  # where the clock was set back, both count as now: nobody knows which came first
    return not served and now.wall - asked <= known.catalog.cluster.gateway.cold_start_timeout


def _drained(observed: Observed, node: NodeName) -> bool:
    cordon = observed.cordons.get(node)
    return cordon is not None and cordon.drain


def _launches(known: Known, thought: Thought, now: Instant) -> Iterator[str]:
    for launch in thought.plan.launches:
        for fault in _launch(known, thought, launch, now):
            yield f"launches {launch.model} on {launch.node} {fault}"


def _launch(known: Known, thought: Thought, launch: Launch, now: Instant) -> Iterator[str]:
    observed, spec = known.observed, known.catalog.models.get(launch.model)
    report = observed.nodes.get(launch.node)
    if spec is None or report is None:
        yield "though there is no such model or node"
        return
    if launch.node in observed.unreachable or launch.node in observed.cordons:
        yield "though it is unreachable or cordoned"
    if spec.suspend:
        yield "though the model is suspended"
    full = [profile for profile in spec.profiles if spec_digest(spec.name, profile) == launch.spec]
    if not full:
        yield f"with a profile {launch.profile.name} that the catalog does not have"
    elif launch.level is Level.FULL and launch.profile != full[0]:
        yield "with a changed profile at full level"
    elif launch.level is not Level.FULL and launch.profile != known.levels.get((launch.spec, launch.level)):
        yield f"with a profile that is not its level {launch.level}"
    if not placeable(known, spec, launch.node):
        yield f"which its placement {spec.placement} does not allow"
    engines = {engine.name: engine for engine in report.engines}
    engine = engines.get(launch.profile.engine)
    if engine is None or (engine.why is not None and not launch.profile.options.keys() & set(engine.own_program)):
        yield f"which has no engine {launch.profile.engine}"
    healthy = {device.uuid for device in report.devices if device.healthy and not device.divided}
    if len(set(launch.devices)) != launch.profile.devices or not healthy >= set(launch.devices):
        yield f"with devices {launch.devices}, of {launch.profile.devices} wanted and {sorted(healthy)} there"
    record = thought.recovery.get((launch.spec, launch.node), observed.recovery.get((launch.spec, launch.node)))
    if record is not None:
        early = record.retry_at is None or (record.retry_at > now.wall and record.last.at <= now.wall)
        if early:
            yield f"before its back-off ends: {record}"
        deepest = max([level.depth for spec, level in known.levels if spec == launch.spec], default=0)
        if launch.level.depth < min(record.level.depth, deepest):
            yield f"at level {launch.level}, less than recovery's {record.level}"


def placeable(known: Known, spec: ModelSpec, node: NodeName) -> bool:
    wanted, policy = spec.placement, known.catalog.cluster.node(node)
    return (
        (not wanted.nodes or node in wanted.nodes)
        and (not wanted.pools or policy.pool in wanted.pools)
        and all(policy.labels.get(key) == value for key, value in wanted.labels.items())
    )


# -- memory


def cost(observed: Observed, replica: ReplicaFact) -> Footprint:
    """What a resident counts: the figure for its spec as known now, else what it was launched with."""
    known = observed.footprint(replica.spec, replica.node, replica.level) or replica.footprint
    return known or Footprint(host=replica.resident or Bytes(0), device=replica.device_resident or Bytes(0))


def each_device(footprint: Footprint, devices: tuple[str, ...]) -> int:
    return -(-footprint.device // len(devices)) if devices else 0


def residents(observed: Observed, node: NodeName) -> list[ReplicaFact]:
    """All that hold memory there, leaving ones too."""
    return [one for _, one in sorted(observed.replicas.items()) if one.node == node and one.phase.occupies_memory]


def _room(known: Known, thought: Thought) -> Iterator[str]:
    """Each launch fits beside all that is still there: capacity is physics; the budget is policy for what is not
    pinned. What others grew to, or an operator's smaller budget, only keeps new ones out."""
    observed = known.observed
    for node in sorted({launch.node for launch in thought.plan.launches} & observed.nodes.keys()):
        here = residents(observed, node)
        new = [launch for launch in thought.plan.launches if launch.node == node]
        yield from _host_room(known, node, here, new)
        yield from _device_room(known, node, here, new)


def _host_room(known: Known, node: NodeName, here: list[ReplicaFact], new: list[Launch]) -> Iterator[str]:
    policy, memory = known.catalog.cluster.node(node), known.observed.nodes[node].memory
    held = sum(cost(known.observed, one).host for one in here) + sum(one.footprint.host for one in new)
    capacity = memory.total - policy.reserve.host - memory.foreign
    asks = [one for one in new if one.footprint.host]
    if asks and held > capacity:
        yield f"{_names(asks)}: {held} bytes of host memory would be held, capacity is {capacity}"
    free = [one for one in asks if not _forced(known, one)]
    if free and policy.budget.host is not None and held > policy.budget.host:
        yield f"{_names(free)}: {held} bytes of host memory would be held, the budget is {policy.budget.host}"


def _device_room(known: Known, node: NodeName, here: list[ReplicaFact], new: list[Launch]) -> Iterator[str]:
    policy = known.catalog.cluster.node(node)
    for device in known.observed.nodes[node].devices:
        asks = [one for one in new if device.uuid in one.devices]
        if not asks:
            continue
        beside = [one for one in here if device.uuid in one.devices]
        held = sum(each_device(cost(known.observed, one), one.devices) for one in beside)
        held += sum(each_device(one.footprint, one.devices) for one in asks)
        capacity = device.total - policy.reserve.device - (device.foreign or 0)
        if held > capacity:
            yield f"{_names(asks)}: {held} bytes of {device.uuid} would be held, capacity is {capacity}"
        free = [one for one in asks if not _forced(known, one)]
        if free and policy.budget.device is not None and held > policy.budget.device:
            yield f"{_names(free)}: {held} bytes of {device.uuid} would be held, the budget is {policy.budget.device}"
        alone = [one.model for one in asks if one.profile.exclusive]
        alone += [one.model for one in beside if one.exclusive]
        if alone and len(asks) + len(beside) > 1:
            yield f"{_names(asks)}: {alone[0]} has {device.uuid} for itself"


def _forced(known: Known, launch: Launch) -> bool:
    """Pinned, or what a pinned one needs beside it."""
    models = known.catalog.models
    needed_by = [m for m in models.values() if any(p.draft_model == launch.model for p in m.profiles)]
    return models[launch.model].pinned or any(model.pinned for model in needed_by)


# -- who goes with whom


def _staying(known: Known, thought: Thought, node: NodeName) -> list[tuple[ModelName, str]]:
    """Models on a node after the plan, leaving ones not counted."""
    stopped = {stop.replica for stop in thought.plan.stops}
    here = [one for one in residents(known.observed, node) if one.phase not in LEAVING and one.id not in stopped]
    new = [launch for launch in thought.plan.launches if launch.node == node]
    return [*((one.model, str(one.id)) for one in here), *((one.model, "new") for one in new)]


def _groups(known: Known, thought: Thought) -> Iterator[str]:
    """What is launched shares no group with anything that still resides there."""
    models = known.catalog.models
    for node in sorted({launch.node for launch in thought.plan.launches}):
        new = [launch.model for launch in thought.plan.launches if launch.node == node]
        here = {one.model for one in residents(known.observed, node)} | set(new)
        for one, other in combinations(sorted(here), 2):
            if one not in new and other not in new:
                continue
            shared = _group(models, one) & _group(models, other)
            if shared:
                yield f"{one} and {other} would be on {node}, both of group {min(shared)}"


def _group(models: Mapping[ModelName, ModelSpec], name: ModelName) -> set[str]:
    return set(models[name].groups) if name in models else set()


def _drafts(known: Known, thought: Thought) -> Iterator[str]:
    """A primary has its companion beside it, when it is launched and for as long as it is kept."""
    for launch in thought.plan.launches:
        draft = launch.profile.draft_model
        if draft is not None and draft not in {model for model, _ in _staying(known, thought, launch.node)}:
            yield f"{launch.model} would be on {launch.node} without its draft {draft}"
    for stop in thought.plan.stops:
        if stop.reason in (Reason.CHANGED, Reason.SYSTEM_STOPPED, Reason.REMOVED):
            continue  # it is replaced beside its primary, or both go
        staying = _staying(known, thought, stop.node)
        primaries = [name for name, id in staying if id != "new" and _drafted_by(known, ReplicaId(id)) == stop.model]
        if primaries and stop.model not in {model for model, _ in staying}:
            yield f"{stop.model} is stopped on {stop.node} ({stop.reason}) and {primaries[0]} stays without its draft"


def _drafted_by(known: Known, id: ReplicaId) -> ModelName | None:
    fact = known.observed.replicas[id]
    spec = known.catalog.models.get(fact.model)
    for profile in spec.profiles if spec is not None else ():
        if spec is not None and spec_digest(spec.name, profile) == fact.spec:
            return known.levels.get((fact.spec, fact.level), profile).draft_model
    return None


# -- how many


def _counts(known: Known, thought: Thought) -> Iterator[str]:
    wishes = {wish.model: wish for wish in thought.wishes}
    if len(wishes) != len(thought.wishes):
        yield "a model is wished twice"
    for name, wish in wishes.items():
        spec = known.catalog.models.get(name)
        if spec is not None and not spec.suspend and not 0 <= wish.count <= most(spec):
            yield f"{wish.count} of {name} wished, at most {most(spec)}"
    launched = Counter(launch.model for launch in thought.plan.launches)
    for name, count in launched.items():
        if count > wanted(known, wishes, name):
            yield f"{count} of {name} launched at once, {wanted(known, wishes, name)} wanted"


def most(spec: ModelSpec) -> int:
    """Replicas that it is ever wanted in."""
    windows = spec.scaling.windows
    own = [spec.scaling.min, spec.scaling.max, 1 if spec.scaling.on_demand else 0]
    return max(own + [max(window.min, window.max) for window in windows] + [1])  # 1: as another's fallback


def wanted(known: Known, wishes: Mapping[ModelName, Wish], name: ModelName) -> int:
    """Its own wish, and one beside each replica that it drafts for."""
    own = wishes[name].count if name in wishes else 0
    own += sum(one.draft == name and one.phase.occupies_memory for one in known.observed.replicas.values())
    for model in known.catalog.models.values():
        if any(profile.draft_model == name for profile in model.profiles) and model.name in wishes:
            own += wishes[model.name].count
    return own


def _stamps(known: Known, thought: Thought, now: Instant) -> Iterator[str]:
    for model, ask in thought.asks.items():
        before = known.asks.get(model)
        if ask is None:
            continue
        for stamp in (ask.asked, ask.used):
            if stamp is not None and stamp > now.wall:
                yield f"{model} asked for or used in the future: {ask}"
        if before is not None and ask.asked < min(before.asked, now.wall):
            yield f"the ask of {model} moved back from {before.asked} to {ask.asked}"
        if before is not None and before.used and (ask.used or 0) < min(before.used, now.wall):
            yield f"the use of {model} moved back from {before.used} to {ask.used}"
    for model, state in thought.scaling.items():
        if state is not None and not state.extra >= 0:
            yield f"{model} has {state.extra} replicas more"
        for stamp in (state.busy_since, state.quiet_since) if state is not None else ():
            if stamp is not None and stamp > now.wall:
                yield f"{model} busy or quiet since the future: {state}"


# -- order


def shuffled(known: Known, random: Random) -> Known:
    """The same facts, in another order."""
    observed = known.observed
    nodes = {
        name: replace(
            report,
            replicas=_mixed(report.replicas, random),
            weights=_mixed(report.weights, random),
            devices=_mixed(report.devices, random),
            engines=_mixed(report.engines, random),
        )
        for name, report in observed.nodes.items()
    }
    mixed = replace(
        observed,
        nodes=_mixed_map(nodes, random),
        replicas=_mixed_map(observed.replicas, random),
        recovery=_mixed_map(observed.recovery, random),
        footprints=_mixed_map(observed.footprints, random),
        measured=_mixed_map(observed.measured, random),
        outstanding=_mixed_map(observed.outstanding, random),
        last_used=_mixed_map(observed.last_used, random),
        cordons=_mixed_map(observed.cordons, random),
    )
    return replace(
        known,
        observed=mixed,
        levels=_mixed_map(known.levels, random),
        asks=_mixed_map(known.asks, random),
        scaling=_mixed_map(known.scaling, random),
        held=_mixed_map(known.held, random),
        concurrency=_mixed_map(known.concurrency, random),
    )


def _mixed(items: Iterable[T], random: Random) -> tuple[T, ...]:
    mixed = list(items)
    random.shuffle(mixed)
    return tuple(mixed)


def _mixed_map(mapping: Mapping[Any, Any], random: Random) -> dict[Any, Any]:
    return dict(_mixed(mapping.items(), random))
