"""Forecasts: passes on as if all of it had been carried out, to the fixed point."""

from dataclasses import replace

from forecast_worlds import BOX, DEN, NOW, known, model, report, running
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.catalog.spec import PlacementSpec, ScalingSpec
from llmgw.facts import Cordon, DiskFact, Phase
from llmgw.ids import NodeName
from llmgw.plan import Reason, Stopped
from llmgw.schedule.forecast import Forecast, forecast
from llmgw.schedule.think import Known
from llmgw.units import GIB, Bytes


def launched(seen: Forecast) -> list[tuple[str, str, int]]:
    return [(coming.launch.model, coming.launch.node, coming.number) for coming in seen.launches]


def stopped(seen: Forecast) -> list[tuple[str, Reason, int]]:
    return [(going.fact.id, going.stop.reason, going.number) for going in seen.stops]


def ends(seen: Forecast) -> dict[str, str]:
    return {fact.model: fact.node for fact in seen.end.observed.replicas.values()}


def test_what_runs_already_needs_nothing() -> None:
    smol = model("smol", 4)
    seen = forecast(known([smol], [running(smol, "r1")]), NOW)
    assert seen.is_empty
    assert seen.settled
    assert seen.passes == 1
    assert ends(seen) == {"smol": "box"}


def test_an_empty_node_is_filled_in_one_pass_and_a_second_finds_nothing() -> None:
    seen = forecast(known([model("a", 4), model("b", 4)]), NOW)
    assert launched(seen) == [("a", "box", 1), ("b", "box", 1)]
    assert (seen.passes, seen.settled) == (2, True)
    assert {status.state for status in seen.thought.statuses} == {"ready"}


def test_a_changed_model_is_stopped_first_and_launched_when_its_memory_is_free() -> None:
    before, after = model("smol", 20), model("smol", 20)
    after = replace(after, profiles=(replace(after.profiles[0], context=8192),))
    seen = forecast(known([after], [running(before, "r1")]), NOW)
    assert stopped(seen) == [("r1", Reason.CHANGED, 1)]
    assert launched(seen) == [("smol", "box", 2)]
    assert seen.settled


def test_what_makes_room_goes_before_what_needs_it_comes() -> None:
    low, high = model("low", 20), model("high", 20, priority=5)
    seen = forecast(known([low, high], [running(low, "r1")]), NOW)
    assert stopped(seen) == [("r1", Reason.PRESSURE, 1)]
    assert launched(seen) == [("high", "box", 2)]
    assert ends(seen) == {"high": "box"}
    assert [refused.model for refused in seen.thought.plan.unschedulable] == ["low"]


def test_a_model_that_left_stops_though_it_was_still_starting() -> None:
    gone = model("gone", 4)
    seen = forecast(known([], [running(gone, "r1", phase=Phase.STARTING)]), NOW)
    assert stopped(seen) == [("r1", Reason.REMOVED, 1)]
    assert ends(seen) == {}


def test_what_is_under_way_is_taken_as_done_and_is_no_action() -> None:
    smol, old = model("smol", 4), model("old", 25)
    seen = forecast(
        known([smol], [running(smol, "r1", phase=Phase.FETCHING), running(old, "r2", phase=Phase.DRAINING)]), NOW
    )
    assert seen.is_empty
    assert {fact.id: fact.phase for fact in seen.end.observed.replicas.values()} == {"r1": Phase.READY}


def test_a_launch_that_waits_for_what_is_leaving_is_told() -> None:
    smol, old = model("smol", 20), model("old", 25)
    seen = forecast(known([smol], [running(old, "r2", phase=Phase.DRAINING)]), NOW)
    assert launched(seen) == [("smol", "box", 2)]
    assert stopped(seen) == []


def test_a_drained_node_is_emptied_and_its_replicas_go_on_elsewhere() -> None:
    smol = model("smol", 4)
    world = known([smol], [running(smol, "r1")], [report(BOX), report(DEN)])
    world = replace(world, observed=replace(world.observed, cordons={BOX: Cordon(at=NOW.wall, by="ann", drain=True)}))
    seen = forecast(world, NOW)
    assert [(id, reason) for id, reason, _ in stopped(seen)] == [("r1", Reason.NODE_DRAINED)]
    assert ends(seen) == {"smol": "den"}


def test_files_that_are_fetched_fill_the_disk_once() -> None:
    source = "pypi://a==1/a.gguf"
    twice = model("a", 1, source=source), model("b", 1, source=source)
    seen = forecast(known(twice), NOW)
    assert [len(coming.missing) for coming in seen.launches] == [1, 1]
    end = seen.end.observed.nodes[BOX]
    assert end.disk.free == 47 * GIB
    assert [fact.source for fact in end.weights] == [source]


def test_a_disk_that_the_first_model_fills_refuses_the_second() -> None:
    small = replace(report(), disk=DiskFact(total=Bytes(9 * GIB), free=Bytes(5 * GIB)))
    first, second = model("a", 1, source="pypi://a==1/a", priority=1), model("b", 1, source="pypi://b==1/b")
    seen = forecast(known([first, second], nodes=[small]), NOW)
    assert launched(seen) == [("a", "box", 1)]
    (refused,) = seen.thought.plan.unschedulable
    assert [rejection.reason for rejection in refused.rejections] == [Reason.DISK]


def test_devices_are_taken_and_the_driver_would_tell() -> None:
    spec = model("big", 40, devices=2)
    seen = forecast(known([spec], nodes=[report(devices=2)]), NOW)
    (coming,) = seen.launches
    assert coming.launch.devices == ("box-0", "box-1")
    assert [(d.used, d.free) for d in seen.end.observed.nodes[BOX].devices] == [(20 * GIB, 4 * GIB)] * 2


def test_devices_are_free_again_when_what_was_on_them_goes() -> None:
    spec = model("big", 20, devices=1)
    fact = replace(running(spec, "r1"), devices=("box-0",))
    box = report(devices=1)
    used = replace(box.devices[0], used=Bytes(20 * GIB), free=Bytes(4 * GIB))
    seen = forecast(known([], [fact], [replace(box, devices=(used,))]), NOW)
    assert seen.end.observed.nodes[BOX].devices[0].used == 0


def test_replicas_of_one_model_are_counted_and_what_is_missing_of_them_is_refused() -> None:
    spec = model("two", 20, scaling=ScalingSpec(min=2, max=2))
    seen = forecast(known([spec]), NOW)
    assert launched(seen) == [("two", "box", 1)]
    assert [refused.model for refused in seen.thought.plan.unschedulable] == ["two"]


def test_a_placement_by_node_is_kept_to() -> None:
    spec = model("a", 4, placement=PlacementSpec(nodes=(DEN,)))
    assert ends(forecast(known([spec], nodes=[report(BOX), report(DEN)]), NOW)) == {"a": "den"}


def test_nothing_is_wanted_while_the_operator_has_stopped_it_all() -> None:
    smol = model("smol", 4)
    world = replace(known([smol], [running(smol, "r1")]), stopped=Stopped(at=NOW.wall, by="ann"))
    seen = forecast(world, NOW)
    assert stopped(seen) == [("r1", Reason.SYSTEM_STOPPED, 1)]
    assert not seen.launches


def test_a_forecast_ends_after_so_many_passes_and_says_that_it_did_not_settle() -> None:
    seen = forecast(known([model("a", 4)]), NOW, most=1)
    assert launched(seen) == [("a", "box", 1)]
    assert (seen.passes, seen.settled) == (1, False)


def test_the_same_question_has_the_same_answer() -> None:
    world = known([model(name, 7, priority=n) for n, name in enumerate("abcdef")], nodes=[report(BOX), report(DEN)])
    assert forecast(world, NOW) == forecast(world, NOW)


NAMES = ("a", "b", "c", "d", "e")


@st.composite
def worlds(draw: st.DrawFn) -> Known:
    """Some nodes, models of some sizes, and replicas that run: of these models, of earlier versions and of others."""
    nodes = [
        report(NodeName(f"n{n}"), total=draw(st.integers(8, 40)), devices=draw(st.integers(0, 2))) for n in range(3)
    ]
    models = [
        model(
            name,
            draw(st.integers(1, 20)),
            devices=draw(st.integers(0, 2)),
            priority=draw(st.integers(0, 2)),
            pinned=draw(st.booleans()) and draw(st.booleans()),
            scaling=ScalingSpec(min=(least := draw(st.integers(1, 2))), max=least),
            source=draw(st.sampled_from(["", "pypi://a==1/a", "pypi://b==1/b"])),
        )
        for name in draw(st.lists(st.sampled_from(NAMES), unique=True))
    ]
    world = known(models, nodes=nodes[: draw(st.integers(1, 3))])
    facts = {}
    for number in range(draw(st.integers(0, 4))):
        spec = draw(st.sampled_from([*models, model("old", 3)]))
        if draw(st.booleans()):
            spec = replace(spec, profiles=(replace(spec.profiles[0], context=1),))
        node = draw(st.sampled_from(sorted(world.observed.nodes)))
        devices = world.observed.nodes[node].devices
        if len(devices) < spec.profiles[0].devices:
            continue
        fact = running(
            spec, f"r{number}", node, phase=draw(st.sampled_from([Phase.READY, Phase.STARTING, Phase.DRAINING]))
        )
        facts[fact.id] = replace(fact, devices=tuple(d.uuid for d in devices[: spec.profiles[0].devices]))
    reports = {
        name: replace(each, replicas=tuple(fact for fact in facts.values() if fact.node == name))
        for name, each in world.observed.nodes.items()
    }
    return replace(world, observed=replace(world.observed, replicas=facts, nodes=reports))


@given(worlds())
@settings(max_examples=150, deadline=None)
def test_a_forecast_comes_to_rest_and_from_there_nothing_is_left_to_do(world: Known) -> None:
    seen = forecast(world, NOW)
    assert seen.settled
    again = forecast(seen.end, NOW)
    assert again.is_empty
    assert again.passes == 1
    assert again.end == seen.end


@given(worlds())
@settings(max_examples=150, deadline=None)
def test_what_a_forecast_ends_with_is_what_was_there_and_came_and_did_not_go(world: Known) -> None:
    seen = forecast(world, NOW)
    gone = {going.fact.id for going in seen.stops} | {
        fact.id for fact in world.observed.replicas.values() if fact.phase is Phase.DRAINING
    }
    came = {coming.replica for coming in seen.launches}
    assert set(seen.end.observed.replicas) == (set(world.observed.replicas) | came) - gone
    for name, node in seen.end.observed.nodes.items():
        here = [fact for fact in seen.end.observed.replicas.values() if fact.node == name]
        assert {fact.id for fact in node.replicas} == {fact.id for fact in here}
        assert len({fact.source for fact in node.weights}) == len(node.weights)
        for device in node.devices:
            assert device.used + device.free == device.total
