"""What must be true once the world is at rest: nothing runs that is not wanted, and what is wanted and fits is up.

It reckons for itself what fits, and only claims what is plain: where a companion or a group is in play, it is silent.
"""

from collections import Counter
from collections.abc import Iterator

from llmgw.catalog.spec import ModelSpec, ProfileSpec, spec_digest
from llmgw.facts import Footprint, Level, Phase, ReplicaFact
from llmgw.ids import ModelName, NodeName
from llmgw.plan import Wish
from llmgw.schedule.think import Known, Thought
from llmgw.testing.world_checks import LEAVING, cost, each_device, placeable, residents, wanted
from llmgw.weights.lookup import on_node


def beyond_wishes(known: Known, thought: Thought) -> Iterator[str]:
    """No replica too many, no companion alone, and none left in the middle of something."""
    wishes = {wish.model: wish for wish in thought.wishes}
    staying = [one for one in known.observed.replicas.values() if one.phase.occupies_memory]
    for one in staying:
        if one.phase is not Phase.READY and one.node not in known.observed.unreachable:
            yield f"{one.model} {one.id} on {one.node} is still {one.phase}"
    for name, count in Counter(one.model for one in staying).items():
        if count > wanted(known, wishes, name):
            yield f"{count} of {name} run, {wanted(known, wishes, name)} wanted"
    yield from _companions(known, wishes, staying)


def _companions(known: Known, wishes: dict[ModelName, Wish], staying: list[ReplicaFact]) -> Iterator[str]:
    for one in staying:
        profile = _profile_of(known, one)
        if profile is not None and profile.draft_model is not None:
            beside = [other for other in staying if other.model == profile.draft_model and other.node == one.node]
            if not beside:
                yield f"{one.model} on {one.node} runs without its draft {profile.draft_model}"
    for name in {one.model for one in staying}:
        own = wishes[name].count if name in wishes else 0
        here = [one for one in staying if one.model == name]
        alone = [one for one in here if not _drafts_here(one, staying)]
        if len(alone) > own:
            yield f"{len(alone)} of {name} run and draft for nobody, {own} wanted for themselves"


def _drafts_here(companion: ReplicaFact, staying: list[ReplicaFact]) -> bool:
    """Whether it drafts for one beside it, by what that one was launched with: a suspended one keeps its old spec."""
    return any(one.node == companion.node and one.draft == companion.model for one in staying)


def _profile_of(known: Known, replica: ReplicaFact) -> ProfileSpec | None:
    """What it runs, as shrunk to its level."""
    model = known.catalog.models.get(replica.model)
    full = [p for p in model.profiles if spec_digest(model.name, p) == replica.spec] if model else []
    if not full or replica.level is Level.FULL:
        return full[0] if full else None
    return known.levels.get((replica.spec, replica.level), full[0])


def missing(known: Known, thought: Thought) -> Iterator[str]:
    """Wished models with too few replicas that would fit somewhere: beside all that is there, or in the place of
    what has less priority and nothing to do."""
    companions = {p.draft_model for m in known.catalog.models.values() for p in m.profiles if p.draft_model}
    for wish in thought.wishes:
        model = known.catalog.models[wish.model]
        if model.suspend or known.stopped is not None:
            continue
        up = [r for r in known.observed.replicas.values() if r.model == wish.model and r.phase.occupies_memory]
        if len(up) >= wish.count:
            continue
        for profile in model.profiles:
            if profile.draft_model is not None or model.groups or wish.model in companions:
                break  # the next profile may be tried only when this one cannot be had
            for node in sorted(known.observed.nodes):
                if _fits(known, model, profile, node):
                    yield f"{wish.count} of {wish.model} wanted, {len(up)} run, and {profile.name} fits on {node}"


def could_serve(known: Known, model: ModelSpec) -> NodeName | None:
    """A node where an on-demand model that is asked for now finds room, in the place of what is as dispensable."""
    companions = {p.draft_model for m in known.catalog.models.values() for p in m.profiles if p.draft_model}
    plain = not (model.groups or model.suspend or model.name in companions or model.profiles[0].draft_model)
    if not plain or known.stopped is not None:
        return None
    nodes = sorted(known.observed.nodes)
    return next((node for node in nodes if _fits(known, model, model.profiles[0], node, equals=True)), None)


def _fits(known: Known, model: ModelSpec, profile: ProfileSpec, node: NodeName, *, equals: bool = False) -> bool:
    observed, report, spec = known.observed, known.observed.nodes[node], spec_digest(model.name, profile)
    footprint = observed.footprint(spec, node)
    engines = {engine.name for engine in report.engines if engine.why is None}
    if footprint is None or profile.engine not in engines or (spec, node) in observed.recovery:
        return False
    if node in observed.unreachable or node in observed.cordons or not placeable(known, model, node):
        return False
    absent = [one for one in profile.roles.values() if on_node(report.weights, one) is None]
    if sum(one.size or 0 for one in absent) > report.disk.free - known.catalog.cluster.node(node).reserve.disk:
        return False
    firm = [one for one in residents(observed, node) if not _gives_way(known, one, model, equals=equals)]
    return _host_fits(known, node, footprint, firm, model) and _devices_fit(
        known, node, profile, footprint, firm, model
    )


def _gives_way(known: Known, resident: ReplicaFact, to: ModelSpec, *, equals: bool) -> bool:
    """Plainly: a lesser one that nobody pinned or suspended, and that is nobody's companion. `equals`: so does an equal
    that is there only because it was asked for."""
    model = known.catalog.models.get(resident.model)
    if model is None or resident.phase in LEAVING:
        return False
    bound = model.pinned or model.suspend or any(profile.draft_model for profile in model.profiles)
    companion = any(p.draft_model == model.name for m in known.catalog.models.values() for p in m.profiles)
    lesser = model.priority < to.priority
    equal = equals and model.scaling.on_demand and model.priority == to.priority
    return not bound and not companion and not known.observed.active(resident) and (lesser or equal)


def _host_fits(known: Known, node: NodeName, need: Footprint, firm: list[ReplicaFact], model: ModelSpec) -> bool:
    policy, memory = known.catalog.cluster.node(node), known.observed.nodes[node].memory
    room = memory.total - policy.reserve.host - memory.foreign
    if policy.budget.host is not None and not model.pinned:
        room = min(room, policy.budget.host)
    return need.host + sum(cost(known.observed, one).host for one in firm) <= room


def _devices_fit(
    known: Known, node: NodeName, profile: ProfileSpec, need: Footprint, firm: list[ReplicaFact], model: ModelSpec
) -> bool:
    if not profile.devices:
        return True
    policy, found = known.catalog.cluster.node(node), 0
    for device in known.observed.nodes[node].devices:
        beside = [one for one in firm if device.uuid in one.devices]
        apart = profile.exclusive or any(one.exclusive for one in beside)
        if not device.healthy or device.divided or (apart and beside):
            continue
        room = device.total - policy.reserve.device - (device.foreign or 0)
        if policy.budget.device is not None and not model.pinned:
            room = min(room, policy.budget.device)
        held = sum(each_device(cost(known.observed, one), one.devices) for one in beside)
        found += held + -(-need.device // profile.devices) <= room
    return found >= profile.devices
