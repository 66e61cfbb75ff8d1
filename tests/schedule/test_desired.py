"""desired, demand, next_due: how many replicas, and until when. One rule a test, then properties."""

from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make import NOW, catalog, model, observed, replica

from llmgw.catalog.spec import Defaults, GatewaySettings, ModelSpec, ScalingSpec, Window
from llmgw.desired import Bounds, all_bounds, demand, desired, next_due
from llmgw.facts import Ask, Phase, ReplicaFact
from llmgw.ids import ModelName, ReplicaId
from llmgw.plan import Reason, Wish
from llmgw.units import Instant, Mono, Seconds, Wall

A = ModelName("a")
IDLE = 900.0
MONDAY = Instant(Mono(0), Wall(datetime(2026, 11, 30, 9, 0, tzinfo=UTC).timestamp()))
WORK = Window(days=(0, 1, 2, 3, 4), start=8 * 60, end=19 * 60, min=2, max=4)


def scaled(name: str = "a", **scaling: Any) -> ModelSpec:
    return model(name, scaling=ScalingSpec(**scaling))


def lazy(name: str = "a", **scaling: Any) -> ModelSpec:
    return scaled(name, **{"min": 0, "on_demand": True} | scaling)


def wish(spec: ModelSpec, *, now: Instant = NOW, ask: Ask | None = None, extra: int = 0, **fields: Any) -> Wish:
    asks = {} if ask is None else {spec.name: ask}
    (only,) = desired(catalog(spec), now=now, asks=asks, extra={spec.name: extra}, **fields)
    return only


def ago(seconds: float, now: Instant = NOW) -> Wall:
    return Wall(now.wall - seconds)


def at(day: int, hour: int, minute: int = 0) -> Instant:
    return Instant(Mono(0), Wall(datetime(2026, 11, 30 + day, hour, minute, tzinfo=UTC).timestamp()))


# the count


def test_a_model_wants_its_minimum() -> None:
    assert wish(scaled(min=3, max=5)).count == 3
    assert wish(scaled()).why == "in the catalog"


def test_every_model_has_one_wish_in_name_order() -> None:
    wishes = desired(catalog(model("b"), model("c"), model("a")), now=NOW)
    assert [w.model for w in wishes] == ["a", "b", "c"]


def test_stopped_means_none_of_anything_suspended_or_pinned_or_asked_for() -> None:
    models = [model("a", pinned=True), model("b", suspend=True), lazy("c"), scaled("d", min=2, max=2)]
    asks = {ModelName("c"): Ask(asked=NOW.wall)}
    wishes = desired(
        catalog(*models), now=NOW, stopped=True, asks=asks, extra={ModelName("d"): 1}, running={ModelName("b"): 1}
    )
    assert [(w.count, w.held, w.reason) for w in wishes] == [(0, False, Reason.SYSTEM_STOPPED)] * 4


def test_suspended_means_as_many_as_run_now_whatever_the_minimum() -> None:
    spec = model("a", suspend=True, scaling=ScalingSpec(min=2, max=4))
    for running in (0, 1, 3):
        found = wish(spec, running={A: running})
        assert (found.count, found.held) == (running, True)
    assert wish(spec).count == 0


def test_extra_is_added_to_the_base_and_bounded_by_the_ceiling() -> None:
    spec = scaled(min=1, max=3)
    assert [wish(spec, extra=extra).count for extra in (0, 1, 2, 3)] == [1, 2, 3, 3]
    assert wish(spec, extra=1).why == "in the catalog; 2 of at most 3: busy"


def test_a_base_above_the_ceiling_counts() -> None:
    assert wish(scaled(min=4, max=2), extra=1).count == 4


def test_a_base_of_0_is_0_whatever_the_extra() -> None:
    found = wish(scaled(min=0, max=3), extra=2)
    assert (found.count, found.reason, found.why) == (0, Reason.NOT_WANTED, "its scaling.min is 0")


def test_what_is_one_too_many_is_scaled_down() -> None:
    assert wish(scaled(min=1, max=3)).reason is Reason.SCALED_DOWN


# windows


def test_inside_a_window_its_minimum_and_maximum_count() -> None:
    spec = scaled(min=1, max=1, windows=(WORK,))
    assert [wish(spec, now=MONDAY, extra=extra).count for extra in (0, 1, 2, 3)] == [2, 3, 4, 4]
    assert wish(spec, now=MONDAY).why == "window mon-fri 08:00-19:00"
    assert wish(spec, now=MONDAY, extra=1).why == "window mon-fri 08:00-19:00; 3 of at most 4: busy"


def test_outside_a_window_the_models_own_count() -> None:
    spec = scaled(min=1, max=1, windows=(WORK,))
    assert wish(spec, now=at(0, 7, 59), extra=3).count == 1
    assert wish(spec, now=at(0, 19), extra=3).count == 1


def test_a_window_of_0_stops_the_model_and_says_so() -> None:
    found = wish(scaled(min=1, windows=(replace(WORK, min=0, max=0),)), now=MONDAY, extra=1)
    assert (found.count, found.reason, found.why) == (0, Reason.NOT_WANTED, "window mon-fri 08:00-19:00: none")


def test_a_model_of_windows_alone_is_not_wanted_outside_them() -> None:
    found = wish(scaled(min=0, windows=(WORK,)), now=at(0, 20))
    assert (found.count, found.reason, found.why) == (0, Reason.NOT_WANTED, "outside its windows (mon-fri 08:00-19:00)")


def test_a_window_without_a_maximum_has_the_models() -> None:
    spec = scaled(min=1, max=3, windows=(replace(WORK, min=1, max=0),))
    assert wish(spec, now=MONDAY, extra=5).count == 3


def test_windows_are_told_by_the_clusters_zone() -> None:
    spec = scaled(min=1, max=1, windows=(WORK,))
    berlin = catalog(spec, time_zone="Europe/Berlin")
    early = at(0, 7, 30)  # 08:30 in Berlin
    assert desired(berlin, now=early)[0].count == 2
    assert desired(catalog(spec), now=early)[0].count == 1


def test_an_on_demand_model_has_its_windows_minimum_without_being_asked_for() -> None:
    spec = lazy(windows=(WORK,))
    inside, outside = wish(spec, now=MONDAY), wish(spec, now=at(0, 20))
    assert (inside.count, inside.on_demand) == (2, False)
    assert (outside.count, outside.reason) == (0, Reason.NOT_WANTED)


# on demand


def test_an_on_demand_model_is_not_wanted_until_it_is_asked_for() -> None:
    found = wish(lazy())
    assert (found.count, found.on_demand, found.why) == (0, False, "on demand, and not asked for")


def test_asked_for_it_is_wanted_once() -> None:
    found = wish(lazy(max=3), ask=Ask(asked=ago(12)))
    assert (found.count, found.on_demand, found.asked) == (1, True, ago(12))
    assert found.why == "asked for in the last minute"


def test_it_is_wanted_up_to_the_end_of_its_idle_time_out_and_no_longer() -> None:
    used = Ask(asked=ago(5000), used=ago(IDLE))
    assert wish(lazy(), ask=used).count == 1
    assert wish(lazy(), ask=used).why == "used 15m ago"
    later = wish(lazy(), ask=used, now=Instant(NOW.mono, Wall(NOW.wall + 0.001)))
    assert (later.count, later.reason, later.why) == (0, Reason.IDLE, "on demand, and idle for more than 15m")


def test_its_own_idle_time_out_counts_before_the_clusters_and_0_is_the_clusters() -> None:
    ask = Ask(asked=ago(200), used=ago(100))
    assert wish(lazy(idle_timeout=Seconds(99)), ask=ask).count == 0
    assert wish(lazy(idle_timeout=Seconds(101)), ask=ask).count == 1
    cluster = catalog(lazy(idle_timeout=Seconds(0)), defaults=Defaults(idle_timeout=Seconds(99)))
    assert desired(cluster, now=NOW, asks={A: ask})[0].count == 0


def test_a_model_that_is_not_on_demand_does_not_mind_being_asked_for() -> None:
    assert wish(scaled(min=0), ask=Ask(asked=NOW.wall)).count == 0


def test_it_grows_beyond_one_only_while_it_is_asked_for() -> None:
    assert wish(lazy(max=3), ask=Ask(asked=NOW.wall), extra=1).count == 2
    assert wish(lazy(max=3), ask=Ask(asked=ago(2 * IDLE)), extra=1).count == 0


def test_what_takes_longer_to_load_than_it_may_be_idle_is_waited_for_all_the_same() -> None:
    spec = lazy(idle_timeout=Seconds(5))
    assert wish(spec, ask=Ask(asked=ago(299))).count == 1
    assert wish(spec, ask=Ask(asked=ago(299), used=ago(298))).count == 0
    assert wish(spec, ask=Ask(asked=ago(301))).count == 0


def test_a_fallback_counts_as_asked_for() -> None:
    found = wish(lazy(), fallbacks={A})
    assert (found.count, found.on_demand, found.why) == (1, True, "serves in another's place")
    assert wish(scaled(min=0), fallbacks={A}).count == 0
    assert wish(scaled(min=2, max=2), fallbacks={A}).count == 2
    assert wish(lazy(), fallbacks={A}, ask=Ask(asked=ago(12))).why == "asked for in the last minute"


# waited for


def test_it_is_waited_for_from_the_ask_to_the_first_use() -> None:
    assert wish(lazy(), ask=Ask(asked=ago(1))).waited
    assert wish(lazy(), ask=Ask(asked=ago(1), used=ago(2))).waited
    assert not wish(lazy(), ask=Ask(asked=ago(2), used=ago(1))).waited
    assert not wish(lazy(), ask=Ask(asked=ago(1), used=ago(1))).waited


def test_it_is_waited_for_no_longer_than_a_request_is_held() -> None:
    cluster = catalog(lazy(), gateway=GatewaySettings(cold_start_timeout=Seconds(10)))
    assert desired(cluster, now=NOW, asks={A: Ask(asked=ago(10))})[0].waited
    assert not desired(cluster, now=NOW, asks={A: Ask(asked=ago(10.1))})[0].waited


def test_it_is_not_waited_for_when_all_who_asked_have_left() -> None:
    assert wish(lazy(), ask=Ask(asked=ago(6)), held={A: 1}).waited
    assert not wish(lazy(), ask=Ask(asked=ago(6)), held={}).waited
    assert wish(lazy(), ask=Ask(asked=ago(5)), held={}).waited, "their count may be on its way"
    assert not wish(lazy(), ask=Ask(asked=ago(6), used=ago(1)), held={A: 1}).waited, "served, and at work for the rest"
    assert not wish(lazy(), ask=Ask(asked=ago(301)), held={A: 1}).waited, "no request is held for so long"


def test_what_loads_for_nobody_any_more_ends_with_its_idle_time_out() -> None:
    spec = lazy(idle_timeout=Seconds(20))
    assert wish(spec, ask=Ask(asked=ago(21)), held={A: 3}).count == 1
    assert wish(spec, ask=Ask(asked=ago(21)), held={A: 0}).count == 0
    assert wish(spec, ask=Ask(asked=ago(20)), held={A: 0}).count == 1


def test_what_is_wanted_anyway_is_waited_for_only_once_it_is_asked_for() -> None:
    assert not wish(scaled()).waited
    assert not wish(lazy(windows=(WORK,)), now=MONDAY).waited
    assert wish(lazy(windows=(WORK,)), now=MONDAY, ask=Ask(asked=ago(1, MONDAY))).waited


def test_one_too_many_of_an_on_demand_model_in_use_is_scaled_down() -> None:
    assert wish(lazy(max=2), ask=Ask(asked=ago(9), used=ago(1))).reason is Reason.SCALED_DOWN


def test_a_model_wanted_at_0_is_not_waited_for() -> None:
    assert not wish(scaled(min=0), ask=Ask(asked=NOW.wall)).waited


# asks, brought up to date


def brought(
    spec: ModelSpec, *replicas: ReplicaFact, ask: Ask | None = None, now: Instant = NOW, **f: Any
) -> Ask | None:
    asks = {} if ask is None else {spec.name: ask}
    return demand(catalog(spec), observed(*replicas, **f), asks, now).get(spec.name)


def test_use_refreshes_what_was_asked_for() -> None:
    spec = lazy()
    used = {ReplicaId("a-1"): ago(3)}
    assert brought(spec, replica(spec), ask=Ask(asked=ago(60)), last_used=used) == Ask(asked=ago(60), used=ago(3))


def test_use_does_not_stand_for_an_ask() -> None:
    spec = lazy()
    assert brought(spec, replica(spec), last_used={ReplicaId("a-1"): ago(3)}) is None


def test_a_window_that_ends_stops_nothing_that_is_in_use() -> None:
    spec, end = lazy(windows=(WORK,)), at(0, 19)
    cat = catalog(spec)

    def at_the_end(used: dict[ReplicaId, Wall]) -> tuple[int, bool]:
        before = demand(cat, observed(replica(spec), last_used=used), {}, at(0, 18, 59))
        (found,) = desired(cat, now=end, asks=demand(cat, observed(replica(spec), last_used=used), before, end))
        return found.count, found.waited

    assert at_the_end({ReplicaId("a-1"): ago(120, end)}) == (1, False)
    assert at_the_end({ReplicaId("a-1"): ago(IDLE + 1, end)}) == (0, False)
    assert at_the_end({}) == (0, False)
    after = demand(cat, observed(replica(spec), last_used={ReplicaId("a-1"): ago(120, end)}), {}, end)
    assert after == {}, "use that began outside a window is no ask"


def test_a_request_in_flight_is_use_now_by_either_count() -> None:
    spec, old = lazy(), Ask(asked=ago(60), used=ago(50))
    now = Ask(asked=ago(60), used=NOW.wall)
    assert brought(spec, replica(spec, running=1), ask=old) == now
    assert brought(spec, replica(spec), ask=old, outstanding={ReplicaId("a-1"): 1}) == now


def test_the_latest_use_of_any_replica_counts() -> None:
    spec = lazy(max=2)
    used = {ReplicaId("a-1"): ago(3), ReplicaId("a-2"): ago(9)}
    found = brought(spec, replica(spec, "a-1"), replica(spec, "a-2"), ask=Ask(asked=ago(60)), last_used=used)
    assert found is not None
    assert found.used == ago(3)


def test_absent_or_silent_replicas_leave_the_stamps_alone() -> None:
    spec, ask = lazy(), Ask(asked=ago(60), used=ago(50))
    assert brought(spec, ask=ask) == ask
    assert brought(spec, replica(spec), ask=ask) == ask
    assert brought(spec, ask=ask, last_used={ReplicaId("unknown"): NOW.wall}) == ask


def test_stamps_never_move_back() -> None:
    spec, ask = lazy(), Ask(asked=ago(60), used=ago(5))
    assert brought(spec, replica(spec), ask=ask, last_used={ReplicaId("a-1"): ago(30)}) == ask


def test_what_a_draining_replica_still_answers_is_not_what_is_waited_for() -> None:
    spec, ask = lazy(), Ask(asked=ago(1))
    assert brought(spec, replica(spec, phase=Phase.DRAINING, running=1), ask=ask) == replace(ask, since=ago(1))


def test_a_stamp_from_a_clock_ahead_counts_as_now() -> None:
    spec = lazy()
    ahead = Ask(asked=Wall(NOW.wall + 9999), used=Wall(NOW.wall + 9999))
    assert brought(spec, ask=ahead) == Ask(asked=NOW.wall, used=NOW.wall)
    used = {ReplicaId("a-1"): Wall(NOW.wall + 9999)}
    assert brought(spec, replica(spec), ask=Ask(asked=ago(1)), last_used=used) == Ask(asked=ago(1), used=NOW.wall)
    assert wish(spec, ask=ahead).count == 1


def test_an_adopted_replica_that_nobody_asked_for_counts_as_asked_for_when_found() -> None:
    spec = lazy()
    assert brought(spec, replica(spec, adopted=True)) == Ask(asked=NOW.wall, since=NOW.wall)
    assert brought(spec, replica(spec)) is None
    assert brought(spec, replica(spec, adopted=True), ask=Ask(asked=ago(60))) == Ask(asked=ago(60), since=ago(60))
    assert brought(spec, replica(spec, adopted=True, phase=Phase.STOPPED)) is None


def test_neither_use_nor_adoption_makes_an_ask_of_a_model_that_is_not_on_demand() -> None:
    spec = model("a")
    assert brought(spec, replica(spec, adopted=True, running=1)) is None


def test_use_in_a_window_leaves_an_ask_where_it_is() -> None:
    spec, used = lazy(windows=(WORK,)), {ReplicaId("a-1"): ago(3, MONDAY)}
    asks = {A: Ask(asked=ago(60, MONDAY))}
    found = demand(catalog(spec), observed(replica(spec), last_used=used), asks, MONDAY)
    assert found == {A: Ask(asked=ago(60, MONDAY), used=ago(3, MONDAY))}


def test_asks_of_models_that_left_or_are_not_on_demand_are_dropped() -> None:
    asks = {A: Ask(asked=ago(1)), ModelName("gone"): Ask(asked=ago(1)), ModelName("lazy"): Ask(asked=ago(1))}
    found = demand(catalog(model("a"), lazy("lazy")), observed(), asks, NOW)
    assert found == {"lazy": Ask(asked=ago(1), since=ago(1))}


def test_an_ask_that_nobody_can_wait_for_any_more_gives_no_precedence() -> None:
    found = brought(lazy(), ask=Ask(asked=ago(1), since=ago(5000)))
    assert found == Ask(asked=ago(1), since=ago(301))


def test_the_first_ask_since_it_was_last_used_is_remembered_until_it_is_used() -> None:
    spec = lazy()
    assert brought(spec, ask=Ask(asked=ago(1), used=ago(90), since=ago(30))) == Ask(
        asked=ago(1), used=ago(90), since=ago(30)
    )
    assert brought(spec, ask=Ask(asked=ago(5), used=ago(2), since=ago(30))) == Ask(asked=ago(5), used=ago(2))


# until when


def test_nothing_is_due_where_nothing_ends() -> None:
    assert next_due(catalog(model("a"), lazy("b")), {}, NOW) is None
    assert next_due(catalog(lazy()), {A: Ask(asked=ago(5000), used=ago(4000))}, NOW) is None


def test_asks_of_what_is_not_on_demand_are_due_at_no_time() -> None:
    assert next_due(catalog(model("a")), {A: Ask(asked=NOW.wall), ModelName("gone"): Ask(asked=NOW.wall)}, NOW) is None


def test_the_end_of_an_idle_time_out_is_due_and_then_it_is_not_wanted() -> None:
    spec, ask = lazy(), Ask(asked=ago(60), used=ago(50))
    due = next_due(catalog(spec), {A: ask}, NOW)
    assert due == pytest.approx(NOW.wall - 50 + IDLE)
    assert wish(spec, ask=ask, now=Instant(NOW.mono, due or Wall(0))).count == 0


def test_the_end_of_a_wait_is_due() -> None:
    assert next_due(catalog(lazy()), {A: Ask(asked=ago(60))}, NOW) == pytest.approx(NOW.wall - 60 + 300)
    assert next_due(catalog(lazy()), {A: Ask(asked=ago(1))}, NOW) == pytest.approx(NOW.wall + 4)


def test_a_windows_begin_and_end_are_due() -> None:
    spec = scaled(windows=(WORK,))
    assert next_due(catalog(spec), {}, at(0, 7)) == at(0, 8).wall
    assert next_due(catalog(spec), {}, MONDAY) == at(0, 19).wall


def test_what_is_due_first_counts() -> None:
    asked = {A: Ask(asked=ago(IDLE - 60, MONDAY), used=ago(IDLE - 60, MONDAY))}
    assert next_due(catalog(lazy(windows=(WORK,))), asked, MONDAY) == pytest.approx(MONDAY.wall + 60)


# properties

stamps = st.floats(min_value=NOW.wall - 10_000, max_value=NOW.wall + 10_000)
some_asks = st.builds(Ask, asked=stamps, used=st.none() | stamps)
scalings = st.builds(
    ScalingSpec,
    min=st.integers(0, 3),
    max=st.integers(0, 5),
    on_demand=st.booleans(),
    idle_timeout=st.none() | st.floats(0, 5000),
    windows=st.just(())
    | st.builds(lambda least, most: (replace(WORK, min=least, max=most),), *[st.integers(0, 4)] * 2),
)
moments = st.floats(min_value=0, max_value=8 * 86400).map(lambda s: Instant(Mono(0), Wall(MONDAY.wall + s)))


@given(scalings, st.none() | some_asks, st.integers(-2, 9), moments, st.booleans())
def test_desired_is_within_bounds(scaling: ScalingSpec, ask: Ask | None, extra: int, now: Instant, back: bool) -> None:
    spec = model("a", scaling=scaling)
    asks = {} if ask is None else {A: ask}
    fallbacks: Collection[ModelName] = {A} if back else ()
    (found,) = desired(catalog(spec), now=now, asks=asks, extra={A: extra}, fallbacks=fallbacks)
    bounds: Bounds = all_bounds(catalog(spec), asks, now.wall, fallbacks)[A]
    assert bounds.base <= found.count <= max(bounds.base, bounds.ceiling)
    assert found.count >= 0
    assert not bounds.base <= 0 < found.count
    assert found.on_demand <= (found.count > 0)
    assert found.waited <= (found.count > 0)


@given(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), some_asks),
    st.lists(st.tuples(st.sampled_from(["a", "b", "c", "d"]), st.booleans(), st.none() | stamps, st.integers(0, 1))),
)
def test_stamps_move_forward_only_and_never_past_now(
    asks: dict[str, Ask], uses: list[tuple[str, bool, float | None, int]]
) -> None:
    models = [lazy(name, windows=(WORK,) if name == "d" else ()) for name in "abcd"]  # at NOW, d's window is open
    by_name = {m.name: m for m in models}
    facts = [
        replica(by_name[ModelName(name)], f"r{n}", adopted=adopted, running=running)
        for n, (name, adopted, _, running) in enumerate(uses)
    ]
    used = {ReplicaId(f"r{n}"): Wall(u) for n, (_, _, u, _) in enumerate(uses) if u is not None}
    before = {ModelName(name): ask for name, ask in asks.items()}
    after = demand(catalog(*models), observed(*facts, last_used=used), before, NOW)
    for name, ask in before.items():
        assert min(ask.asked, NOW.wall) <= after[name].asked <= NOW.wall
        assert min(ask.used or 0, NOW.wall) <= (after[name].used or 0) <= NOW.wall
    assert demand(catalog(*models), observed(*facts, last_used=used), after, NOW) == after
    assert demand(catalog(*models), observed(*facts[::-1], last_used=used), before, NOW) == after


@given(scalings, st.none() | some_asks, moments, st.sampled_from([None, {}, {A: 2}]))
def test_before_what_is_due_nothing_changes_by_itself(
    scaling: ScalingSpec, ask: Ask | None, now: Instant, held: dict[ModelName, int] | None
) -> None:
    cat = catalog(model("a", scaling=scaling))
    asks = demand(cat, observed(), {} if ask is None else {A: ask}, now)
    due = next_due(cat, asks, now) or Wall(now.wall + 8 * 86400)
    assert due > now.wall
    (first,) = desired(cat, now=now, asks=asks, held=held)
    for share in (0.25, 0.5, 0.999):
        later = Instant(Mono(0), Wall(now.wall + share * (due - now.wall)))
        (then,) = desired(cat, now=later, asks=asks, held=held)
        assert (then.count, then.waited) == (first.count, first.waited)
