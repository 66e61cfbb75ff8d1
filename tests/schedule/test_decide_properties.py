"""What holds of every decision, over random fleets of several nodes and devices."""

from collections import Counter
from dataclasses import replace

from fleets import ON_DEMAND, Fleet, cpu_model, device, gpu_model, node, policy, replicas_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from make import NOW, gib, spec_of

from llmgw.catalog.spec import ModelSpec
from llmgw.desired import desired
from llmgw.facts import Ask, Cordon, Level, Phase, ReplicaFact
from llmgw.ids import ModelName, NodeName
from llmgw.plan import Plan, Reason
from llmgw.schedule.claims import LEAVING
from llmgw.schedule.decide import decide
from llmgw.units import Wall

NAMES = ("a", "b", "c", "d", "e")
NODES = ("n1", "n2", "n3")

phases = st.sampled_from(
    [Phase.READY, Phase.READY, Phase.READY, Phase.STARTING, Phase.PLACING, Phase.DRAINING, Phase.STOPPING]
)


@st.composite
def models(draw: st.DrawFn, name: str) -> ModelSpec:
    fields = {
        "priority": draw(st.integers(0, 2)),
        "pinned": draw(st.sampled_from([False, False, False, True])),
        "groups": draw(st.sampled_from([(), (), ("g",)])),
        "scaling": draw(st.sampled_from([replicas_of(1), replicas_of(1), replicas_of(2), ON_DEMAND])),
        "suspend": draw(st.sampled_from([False] * 9 + [True])),
    }
    devices = draw(st.integers(0, 2))
    if not devices:
        return cpu_model(name, **fields)
    return gpu_model(name, devices, exclusive=draw(st.sampled_from([False, False, True])), **fields)


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    reports, policies = [], {}
    for name in draw(st.lists(st.sampled_from(NODES), unique=True, min_size=1, max_size=3)):
        cards = [
            device(f"{name}-{index}", draw(st.integers(4, 12)), name=draw(st.sampled_from(["x", "x", "y"])))
            for index in range(draw(st.integers(0, 3)))
        ]
        reports.append(node(name, *cards, host=draw(st.integers(4, 20))))
        budget = st.none() | st.integers(2, 12).map(float)
        policies[name] = policy(host=draw(budget), device=draw(budget))
    fleet = Fleet(*reports, policies=policies)
    last_used = {}
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=5)):
        model = fleet.has(draw(models(name)), draw(st.integers(1, 9)), host=draw(st.integers(0, 2)))
        if model.scaling.on_demand and draw(st.booleans()):
            fleet.asks[model.name] = Ask(
                asked=Wall(NOW.wall - draw(st.integers(0, 400))),
                used=draw(st.none() | st.integers(0, 400).map(lambda ago: Wall(NOW.wall - ago))),
            )
        for number in range(draw(st.integers(0, 2))):
            fact = _resident(draw, fleet, model, f"{name}-{number}")
            if fact is not None:
                last_used[fact.id] = Wall(NOW.wall - draw(st.integers(0, 1000)))
    fleet.fields["last_used"] = last_used
    if draw(st.sampled_from([False, False, True])):
        chosen = draw(st.sampled_from(sorted(fleet.nodes)))
        fleet.fields["cordons"] = {chosen: Cordon(at=NOW.wall, by="ann", drain=draw(st.booleans()))}
    return fleet


def _resident(draw: st.DrawFn, fleet: Fleet, model: ModelSpec, id: str) -> ReplicaFact | None:
    """Where it could have been placed: on as many devices as it wants."""
    report = fleet.nodes[draw(st.sampled_from(sorted(fleet.nodes)))]
    wanted = model.profiles[0].devices
    if wanted > len(report.devices):
        return None
    uuids = tuple(sorted(one.uuid for one in report.devices))[:wanted]
    spec = "old" if draw(st.sampled_from([False, False, True])) else spec_of(model)
    return fleet.runs(
        model, report.node, *uuids, id=id, phase=draw(phases), running=draw(st.sampled_from([0, 0, 1])), spec=spec,
        since=Wall(NOW.wall - draw(st.integers(0, 400))), footprint=fleet.footprints[spec_of(model), Level.FULL],
    )  # fmt: skip


Taken = Counter[tuple[str, str]]


def taken(fact: ReplicaFact) -> Taken:
    """What a replica holds, by node and dimension."""
    assert fact.footprint is not None
    found: Taken = Counter({(fact.node, "host"): fact.footprint.host})
    for uuid in fact.devices:
        found[fact.node, uuid] += -(-fact.footprint.device // len(fact.devices))
    return found


def launched(plan: Plan) -> list[tuple[ModelName, Taken]]:
    found: list[tuple[ModelName, Taken]] = []
    for launch in plan.launches:
        one: Taken = Counter({(launch.node, "host"): launch.footprint.host})
        for uuid in launch.devices:
            one[launch.node, uuid] += -(-launch.footprint.device // len(launch.devices))
        found.append((launch.model, one))
    return found


def applied(fleet: Fleet, plan: Plan) -> None:
    """The fleet once agents carried the plan out."""
    for stop in plan.stops:
        fleet.replicas[stop.replica] = replace(fleet.replicas[stop.replica], phase=Phase.STOPPING)
    for id, fact in tuple(fleet.replicas.items()):
        if fact.phase in LEAVING:
            del fleet.replicas[id]
        elif fact.phase in (Phase.STARTING, Phase.PLACING):
            fleet.replicas[id] = replace(fact, phase=Phase.READY)
    for launch in plan.launches:
        fleet.launched += 1
        id = f"new-{fleet.launched}-{launch.model}"
        fleet.runs(
            fleet.models[launch.model], launch.node, *launch.devices, id=id, phase=Phase.STARTING, since=NOW.wall
        )


def picture(fleet: Fleet) -> str:
    """What a failure shows: nodes, models, what runs."""
    lines = [
        f"{report.node}: host {report.memory.total / gib(1)}, "
        f"{[(one.uuid, one.name, one.total / gib(1)) for one in report.devices]}, "
        f"{fleet.cluster.node(report.node).budget}"
        for report in fleet.nodes.values()
    ]
    for model in fleet.models.values():
        footprint, profile = fleet.footprints[spec_of(model), Level.FULL], model.profiles[0]
        lines.append(
            f"{model.name}: {footprint.host / gib(1)} + {footprint.device / gib(1)} on {profile.devices}"
            f"{' alone' * profile.exclusive}, priority {model.priority}{' pinned' * model.pinned}"
            f"{' suspended' * model.suspend} {model.groups} {model.scaling}"
        )
    lines += [
        f"  {fact.id} {fact.node} {fact.devices} {fact.phase} {fact.load} {fact.spec}"
        for fact in fleet.replicas.values()
    ]
    return "\n".join([*lines, f"{fleet.asks} {fleet.fields.get('cordons')}", ""])


def at_rest(fleet: Fleet) -> Plan:
    story = []
    for _ in range(30):
        plan = fleet.plan()
        story.append(
            [f"{one.model}>{one.node}{one.devices}" for one in plan.launches]
            + [f"{one.replica} {one.reason} {one.detail}" for one in plan.stops]
            + [f"{name}: {why}" for name, why in plan.waiting.items()]
        )
        moving = {*LEAVING, Phase.STARTING, Phase.PLACING} & {fact.phase for fact in fleet.replicas.values()}
        if plan.is_empty and not moving:
            return plan
        applied(fleet, plan)
    raise AssertionError(picture(fleet) + "still moving: " + "; ".join(map(str, story[-6:])))


many = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@given(fleets())
@many
def test_any_order_of_the_input_gives_the_same_plan(fleet: Fleet) -> None:
    wishes = desired(fleet.catalog, now=NOW, asks=fleet.asks)
    seen, catalog = fleet.observed, fleet.catalog
    other = replace(
        seen,
        nodes=dict(reversed(seen.nodes.items())),
        replicas=dict(reversed(seen.replicas.items())),
        footprints=dict(reversed(seen.footprints.items())),
    )
    turned = replace(catalog, models=dict(reversed(catalog.models.items())))
    assert decide(wishes, catalog, seen, NOW) == decide(wishes[::-1], turned, other, NOW)


@given(fleets())
@many
def test_carried_out_it_comes_to_rest_and_stays_there(fleet: Fleet) -> None:
    at_rest(fleet)
    assert fleet.plan().is_empty


@given(fleets())
@many
def test_nothing_pinned_or_decoding_is_evicted(fleet: Fleet) -> None:
    observed = fleet.observed
    for stop in fleet.plan().stops:
        if stop.eviction:
            assert not observed.active(observed.replicas[stop.replica])
            assert not fleet.models[ModelName(stop.model)].pinned


@given(fleets())
@many
def test_launches_fit_what_is_there_beside_all_that_is_not_gone(fleet: Fleet) -> None:
    plan = fleet.plan()
    held: Taken = Counter()
    for fact in fleet.replicas.values():
        held += taken(fact)
    before = Counter(held)
    unpinned: Taken = Counter()
    for name, one in launched(plan):
        held += one
        if not fleet.models[name].pinned:
            unpinned += one
    for (name, dimension), total in held.items():
        if total == before[name, dimension]:
            continue
        report, limits = fleet.nodes[NodeName(name)], fleet.cluster.node(NodeName(name)).budget
        capacity = next((one.total for one in report.devices if one.uuid == dimension), report.memory.total)
        assert total <= capacity, (name, dimension, plan)
        budget = limits.host if dimension == "host" else limits.device
        if budget is not None and unpinned[name, dimension]:
            assert before[name, dimension] + unpinned[name, dimension] <= budget, (name, dimension, plan)


@given(fleets())
@many
def test_exclusive_devices_are_shared_with_nobody(fleet: Fleet) -> None:
    plan = fleet.plan()
    holders: dict[str, list[bool]] = {}
    for fact in fleet.replicas.values():
        for uuid in fact.devices:
            holders.setdefault(uuid, []).append(fact.exclusive)
    for launch in plan.launches:
        for uuid in launch.devices:
            here = holders.setdefault(uuid, [])
            assert not (launch.profile.exclusive and here), (uuid, plan)
            assert not any(here), (uuid, plan)
            here.append(launch.profile.exclusive)


@given(fleets())
@many
def test_devices_of_a_launch_are_as_many_as_asked_for_and_of_one_kind(fleet: Fleet) -> None:
    for launch in fleet.plan().launches:
        kinds = {one.uuid: one.name for one in fleet.nodes[launch.node].devices}
        assert len(set(launch.devices)) == launch.profile.devices
        assert len({kinds[uuid] for uuid in launch.devices}) <= 1


@given(fleets())
@many
def test_models_of_one_group_come_to_no_node_together(fleet: Fleet) -> None:
    plan = fleet.plan()
    there: dict[str, set[ModelName]] = {}
    for fact in fleet.replicas.values():
        if fleet.models[fact.model].groups:
            there.setdefault(fact.node, set()).add(fact.model)
    for launch in plan.launches:
        if fleet.models[launch.model].groups:
            assert there.get(launch.node, set()) <= {launch.model}, plan
            there.setdefault(launch.node, set()).add(launch.model)


@given(fleets())
@many
def test_at_rest_no_lower_priority_holds_what_a_refused_one_would_need(fleet: Fleet) -> None:
    plan = at_rest(fleet)
    for refused in plan.unschedulable:
        model = fleet.models[refused.model]
        if model.profiles[0].devices or model.groups or model.suspend or fleet.fields.get("cordons"):
            continue
        need = fleet.footprints[spec_of(model), Level.FULL].host
        for name, report in fleet.nodes.items():
            keeps = [
                fact for fact in fleet.replicas.values() if fact.node == name and not _is_lower(fleet, fact, model)
            ]
            limits = fleet.cluster.node(name).budget
            budget = report.memory.total if model.pinned or limits.host is None else limits.host
            room = min(budget, report.memory.total) - sum(taken(fact)[name, "host"] for fact in keeps)
            assert need > room, (refused, name)


def _is_lower(fleet: Fleet, fact: ReplicaFact, model: ModelSpec) -> bool:
    other = fleet.models[fact.model]
    forced = other.pinned or other.suspend or fleet.observed.active(fact)
    return not forced and other.priority < model.priority and not other.scaling.on_demand


@given(fleets())
@many
def test_every_stop_has_its_reason_and_every_wish_its_verdict(fleet: Fleet) -> None:
    plan = fleet.plan()
    assert all(isinstance(stop.reason, Reason) for stop in plan.stops)
    told = {
        *plan.keep,
        *(one.model for one in plan.launches),
        *plan.waiting,
        *(one.model for one in plan.unschedulable),
    }
    wishes = desired(fleet.catalog, now=NOW, asks=fleet.asks)
    assert told >= {wish.model for wish in wishes if wish.count and not wish.held}, plan


@given(fleets())
@many
def test_never_more_stay_or_come_than_are_wished_for(fleet: Fleet) -> None:
    plan = at_rest(fleet)
    running = Counter(fact.model for fact in fleet.replicas.values())
    for wish in desired(fleet.catalog, now=NOW, asks=fleet.asks):
        if not fleet.models[wish.model].suspend:
            assert running[wish.model] <= wish.count, plan
