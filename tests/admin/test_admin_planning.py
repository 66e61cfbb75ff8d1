"""A forecast as it is told: stops and launches that belong together, what is fetched, nodes before and after."""

from dataclasses import replace

from forecast_worlds import BOX, DEN, NOW, known, model, report, running

from llmgw.admin.planning import plan_output, route_rows
from llmgw.admin.plans import ActionRow, PlanOutput, RouteRow
from llmgw.catalog.spec import (
    Catalog,
    ClusterSpec,
    ExternalSpec,
    ModelSpec,
    NodeSpec,
    ReserveSpec,
    ScalingSpec,
    WeightsSpec,
)
from llmgw.facts import Cordon, Phase, WeightsFact
from llmgw.ids import Digest, ModelName, NodeName, Revision
from llmgw.schedule.forecast import forecast
from llmgw.schedule.think import Known
from llmgw.units import GIB, Bytes
from llmgw.weights.naming import entry_name


def told(world: Known, routes: tuple[RouteRow, ...] = ()) -> PlanOutput:
    return plan_output(forecast(world, NOW), routes=routes)


def kinds(plan: PlanOutput) -> list[tuple[str, str, str | None, str | None]]:
    return [
        (a.kind, a.model, a.stops.node if a.stops else None, a.starts.node if a.starts else None) for a in plan.actions
    ]


def only(plan: PlanOutput) -> ActionRow:
    (action,) = plan.actions
    return action


def test_a_changed_model_that_fits_beside_itself_is_replaced_start_first() -> None:
    before, after = model("a", 4), model("a", 4)
    after = replace(after, profiles=(replace(after.profiles[0], context=8192),))
    action = only(told(known([after], [running(before, "r1")])))
    assert (action.kind, action.start_first) == ("replace", True)
    assert action.stops is not None
    assert (action.stops.replica, action.stops.reason) == ("r1", "spec changed")


def test_a_changed_model_that_does_not_is_stopped_first() -> None:
    before, after = model("a", 20), model("a", 20)
    after = replace(after, profiles=(replace(after.profiles[0], context=8192),))
    action = only(told(known([after], [running(before, "r1")])))
    assert (action.kind, action.start_first, action.number) == ("replace", False, 1)


def test_what_leaves_a_drained_node_is_told_with_where_it_goes_on() -> None:
    spec = model("a", 4)
    world = known([spec], [running(spec, "r1")], [report(BOX), report(DEN)])
    cordons = {BOX: Cordon(at=NOW.wall, by="ann", drain=True)}
    world = replace(world, observed=replace(world.observed, cordons=cordons))
    plan = told(world)
    assert kinds(plan) == [("drain", "a", "box", "den")]
    assert [(node.node, node.cordoned, node.replicas_before, node.replicas_after) for node in plan.nodes] == [
        ("box", True, 1, 0),
        ("den", False, 0, 1),
    ]


def test_what_leaves_a_drained_node_for_nowhere_is_told_alone() -> None:
    spec = model("a", 4)
    world = known([spec], [running(spec, "r1")])
    cordons = {BOX: Cordon(at=NOW.wall, by="ann", drain=True)}
    plan = told(replace(world, observed=replace(world.observed, cordons=cordons)))
    assert kinds(plan) == [("drain", "a", "box", None)]
    assert [refused.model for refused in plan.refused] == ["a"]


def test_what_is_evicted_and_finds_a_place_elsewhere_moves() -> None:
    low, high = model("low", 20), model("high", 30, priority=5)
    world = known([low, high], [running(low, "r1")], [report(BOX), report(DEN, total=22)])
    plan = told(world)
    assert kinds(plan) == [("move", "low", "box", "den"), ("launch", "high", None, "box")]
    assert plan.refused == ()


def test_one_replica_fewer_is_a_stop_though_another_version_starts() -> None:
    spec = model("a", 4, scaling=ScalingSpec(min=1, max=1))
    plan = told(known([spec], [running(spec, "r1"), running(spec, "r2")]))
    assert [(action.kind, action.starts) for action in plan.actions] == [("stop", None)]


def test_a_file_that_two_models_share_is_fetched_once_for_each_node() -> None:
    source = "pypi://a==1/a.gguf"
    models = [model("a", 30, source=source), model("b", 30, source=source), model("c", 1, source=source)]
    plan = told(known(models, nodes=[report(BOX), report(DEN)]))
    assert len(plan.actions) == 3
    assert plan.fetch == 6 * GIB
    assert sum(node.disk_before - node.disk_after for node in plan.nodes) == 6 * GIB


def test_a_size_that_no_document_declares_is_taken_from_a_node_that_has_the_file() -> None:
    weights = WeightsSpec(source="pypi://a==1/a.gguf")
    spec = model("a", 30)
    spec = replace(spec, profiles=(replace(spec.profiles[0], weights=weights),))
    plan = told(known([spec], nodes=[report(BOX)]))
    assert (plan.fetch, plan.fetch_unknown) == (0, 1)
    there = WeightsFact(
        source=weights.source, entry=entry_name(weights.source, None), size=Bytes(7 * GIB), last_wanted=NOW.wall
    )
    plan = told(known([spec], nodes=[report(BOX), replace(report(DEN, total=5), weights=(there,))]))
    assert (plan.fetch, plan.fetch_unknown) == (7 * GIB, 0)


def test_replicas_of_a_node_that_is_given_up_are_not_counted_as_ready() -> None:
    spec = model("a", 4)
    world = known([spec], [running(spec, "r1", DEN)], [report(BOX), report(DEN)])
    world = replace(world, observed=replace(world.observed, unreachable=frozenset({DEN}), lost=frozenset({DEN})))
    plan = told(world)
    assert [(action.kind, action.starts.node if action.starts else None) for action in plan.actions] == [
        ("launch", "box")
    ]
    assert [(row.model, row.ready) for row in plan.models] == [("a", 1)]


def test_what_is_under_way_is_counted_and_is_no_action() -> None:
    spec = model("a", 4)
    plan = told(known([spec], [running(spec, "r1", phase=Phase.FETCHING)]))
    assert (plan.actions, plan.under_way, plan.changes) == ((), 1, False)


def test_accelerators_are_told_before_and_after_with_the_budget() -> None:
    spec = model("a", 10, devices=1)
    plan = told(known([spec], nodes=[report(BOX, devices=2)]))
    first, second = plan.nodes[0].devices
    assert (first.memory.before, first.memory.after, first.memory.capacity) == (0, 10 * GIB, 24 * GIB)
    assert (second.memory.before, second.memory.after) == (0, 0)
    starts = only(plan).starts
    assert starts is not None
    assert [(device.name, device.index) for device in starts.devices] == [("L4", 0)]


def test_routes_are_what_changes_requests_alone() -> None:
    def catalog(**fields: object) -> Catalog:
        nodes = {NodeName("box"): NodeSpec(reserve=ReserveSpec())}
        spec = replace(model("a", 4), **fields)  # type: ignore[arg-type]
        return Catalog(
            revision=Revision("r"), digest=Digest("d"), models={spec.name: spec}, cluster=ClusterSpec(nodes=nodes)
        )

    assert route_rows(catalog(), catalog()) == ()
    assert route_rows(catalog(), catalog(priority=3, description="x")) == ()
    ((name, changes),) = [(row.model, row.changes) for row in route_rows(catalog(), catalog(aliases=("fast",)))]
    assert (name, len(changes)) == ("a", 1)
    assert "fast" in changes[0]


def test_a_model_that_comes_or_goes_without_an_engine_is_told_as_a_route() -> None:
    outside = ModelSpec(name=ModelName("far"), profiles=(), external=ExternalSpec(url="https://api.example.org/v1"))
    idle = replace(model("idle", 4), scaling=ScalingSpec(on_demand=True))
    began = known([idle])
    before, after = began.catalog, replace(began.catalog, models={outside.name: outside})
    rows = route_rows(before, after)
    assert [(row.model, row.changes) for row in rows] == [
        ("far", ("added (external: https://api.example.org/v1)",)),
        ("idle", ("removed (1 profile: p (cpu))",)),
    ]
    plan = told(replace(began, catalog=after), routes=rows)
    assert (plan.actions, plan.routes, plan.changes) == ((), rows, True)

    eager = known([model("a", 4)])
    rows = route_rows(replace(eager.catalog, models={}), eager.catalog)
    assert [row.model for row in rows] == ["a"]
    assert told(eager, routes=rows).routes == (), "its launch is told"


def test_a_suspended_model_that_runs_an_older_version_is_told_as_that() -> None:
    before, after = model("a", 4), model("a", 4)
    after = replace(after, profiles=(replace(after.profiles[0], context=8192),), suspend=True)
    plan = told(known([after], [running(before, "r1")]))
    assert plan.actions == ()
    (end,) = plan.models
    assert (end.outdated, end.suspended, end.ready) == (1, True, 1)
