"""scaling: when a model gets a replica more or less. One rule a test, then properties."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from make import NODE, NOW, catalog, model, observed, replica, spec_of

from llmgw.catalog.spec import ModelSpec, ScalingSettings, ScalingSpec
from llmgw.facts import Ask, Concurrency, EngineLoad, Event, Level, ModelLoad, Phase, ScalingState
from llmgw.ids import ModelName, NodeName
from llmgw.schedule.scaling import loads, step, step_all
from llmgw.units import Instant, Mono, Seconds, Wall

A = ModelName("a")
UP, DOWN = 30.0, 300.0
SETTINGS = ScalingSettings(up_waiting=2, up_after=Seconds(UP), down_after=Seconds(DOWN))
BUSY = ModelLoad(ready=1, running=4, waiting=2)
QUIET = ModelLoad(ready=2, running=1)
ROOMY = ModelLoad(ready=2, running=0)


def ago(seconds: float) -> Wall:
    return Wall(NOW.wall - seconds)


def after(
    state: ScalingState, load: ModelLoad, *, base: int = 1, ceiling: int = 3, measured: int | None = None
) -> ScalingState:
    return step(
        state, base=base, ceiling=ceiling, load=load, measured=measured, settings=SETTINGS, now=NOW.wall
    )[0]  # fmt: skip


def text_of(state: ScalingState, load: ModelLoad, **fields: Any) -> str | None:
    given = {"base": 1, "ceiling": 3, "measured": None} | fields
    return step(state, load=load, settings=SETTINGS, now=NOW.wall, **given)[1]


# busy


def test_as_many_waiting_for_each_replica_as_is_set_make_it_busy() -> None:
    assert after(ScalingState(), ModelLoad(ready=2, waiting=4)).busy_since == NOW.wall
    assert after(ScalingState(), ModelLoad(ready=2, waiting=3)).busy_since is None


def test_with_no_replica_ready_the_waiting_count_as_for_one() -> None:
    assert after(ScalingState(), ModelLoad(waiting=2)).busy_since == NOW.wall
    assert after(ScalingState(), ModelLoad(waiting=1)).busy_since is None


def test_more_under_way_than_was_measured_makes_it_busy_though_few_wait() -> None:
    assert after(ScalingState(), ModelLoad(ready=2, running=8, waiting=1), measured=4).busy_since == NOW.wall
    assert after(ScalingState(), ModelLoad(ready=2, running=7, waiting=1), measured=4).busy_since is None
    assert after(ScalingState(), ModelLoad(ready=0, running=5), measured=4).busy_since == NOW.wall


def test_without_a_measurement_what_runs_makes_nothing_busy() -> None:
    assert after(ScalingState(), ModelLoad(ready=1, running=999)).busy_since is None


def test_busy_ends_the_quiet() -> None:
    assert after(ScalingState(extra=1, quiet_since=ago(9)), BUSY) == ScalingState(extra=1, busy_since=NOW.wall)


def test_busy_for_long_enough_takes_one_more_and_counts_anew() -> None:
    assert after(ScalingState(busy_since=ago(UP - 1)), BUSY) == ScalingState(busy_since=ago(UP - 1))
    assert after(ScalingState(busy_since=ago(UP)), BUSY) == ScalingState(extra=1, busy_since=NOW.wall)


def test_at_the_ceiling_it_grows_no_further_and_stays_busy() -> None:
    state = ScalingState(extra=2, busy_since=ago(UP))
    assert after(state, BUSY) == state
    assert text_of(state, BUSY) is None


def test_while_one_is_starting_none_is_added_and_the_time_runs_on() -> None:
    state = ScalingState(busy_since=ago(UP))
    assert after(state, replace(BUSY, starting=1)) == state


# quiet


def test_quiet_for_long_enough_takes_one_less_and_counts_anew() -> None:
    assert after(ScalingState(extra=2), QUIET) == ScalingState(extra=2, quiet_since=NOW.wall)
    early = ScalingState(extra=2, quiet_since=ago(DOWN - 1))
    assert after(early, QUIET) == early
    assert after(ScalingState(extra=2, quiet_since=ago(DOWN)), QUIET) == ScalingState(extra=1, quiet_since=NOW.wall)


def test_one_request_that_waits_is_not_quiet() -> None:
    assert after(ScalingState(extra=1, quiet_since=ago(9)), replace(QUIET, waiting=1)) == ScalingState(extra=1)


def test_without_extra_replicas_there_is_nothing_to_be_quiet_about() -> None:
    assert after(ScalingState(), QUIET) == ScalingState()


def test_where_measured_it_is_quiet_only_if_the_others_have_room() -> None:
    state = ScalingState(extra=1)
    assert after(state, ModelLoad(ready=3, running=14), measured=10).quiet_since == NOW.wall
    assert after(state, ModelLoad(ready=3, running=15), measured=10).quiet_since is None
    assert after(state, ModelLoad(ready=1, running=1), measured=10).quiet_since is None
    assert after(state, ModelLoad(ready=0, running=0), measured=10).quiet_since == NOW.wall


def test_quiet_ends_the_busy() -> None:
    assert after(ScalingState(extra=1, busy_since=ago(9)), QUIET) == ScalingState(extra=1, quiet_since=NOW.wall)


def test_neither_busy_nor_quiet_ends_both_and_keeps_the_extra() -> None:
    some = replace(QUIET, waiting=1)
    assert after(ScalingState(extra=1, busy_since=ago(9)), some) == ScalingState(extra=1)
    assert after(ScalingState(extra=1, quiet_since=ago(9)), some) == ScalingState(extra=1)


# nothing to scale, nothing known


def test_a_base_of_0_ends_the_extra_and_both_timers() -> None:
    assert after(ScalingState(extra=2, busy_since=ago(9)), BUSY, base=0) == ScalingState()


def test_a_ceiling_no_higher_than_the_base_ends_the_extra_and_both_timers() -> None:
    assert after(ScalingState(extra=2, quiet_since=ago(9)), BUSY, base=3, ceiling=3) == ScalingState()


def test_without_a_load_report_both_timers_end_and_the_extra_stays() -> None:
    unknown = replace(BUSY, known=False)
    assert after(ScalingState(extra=2, busy_since=ago(UP)), unknown) == ScalingState(extra=2)
    assert after(ScalingState(extra=2, quiet_since=ago(DOWN)), unknown) == ScalingState(extra=2)


def test_a_ceiling_that_came_down_takes_the_extra_with_it() -> None:
    assert after(ScalingState(extra=6), BUSY, base=1, ceiling=3).extra == 2


# clocks


def test_a_stamp_from_a_clock_ahead_counts_as_now() -> None:
    ahead = Wall(NOW.wall + 9999)
    assert after(ScalingState(busy_since=ahead), BUSY) == ScalingState(busy_since=NOW.wall)
    assert after(ScalingState(extra=1, quiet_since=ahead), QUIET) == ScalingState(extra=1, quiet_since=NOW.wall)


# words


def test_a_step_says_its_figures() -> None:
    up = text_of(ScalingState(extra=1, busy_since=ago(31)), BUSY, measured=4)
    assert up == "2 to 3 replicas: 2 requests wait and 4 run on 1, of 4 that one replica holds, busy for 31s; at most 3"
    down = text_of(ScalingState(extra=1, quiet_since=ago(DOWN)), QUIET)
    assert down == "2 to 1 replica: none waits and 1 run on 2, quiet for 5m; at least 1"


def test_words_agree_with_their_numbers() -> None:
    one = text_of(ScalingState(busy_since=ago(31)), ModelLoad(ready=1, running=9, waiting=1), measured=4)
    assert one is not None
    assert "replicas: 1 request waits and 9 run on 1" in one
    three = text_of(ScalingState(extra=2, quiet_since=ago(DOWN)), QUIET)
    assert three is not None
    assert three.startswith("3 to 2 replicas:")


def test_no_step_says_nothing() -> None:
    assert text_of(ScalingState(), BUSY) is None
    assert text_of(ScalingState(extra=1), QUIET) is None
    assert text_of(ScalingState(extra=1), BUSY, base=0) is None


def test_without_a_measurement_none_is_told() -> None:
    up = text_of(ScalingState(busy_since=ago(31)), BUSY)
    assert up == "1 to 2 replicas: 2 requests wait and 4 run on 1, busy for 31s; at most 3"


# loads


def test_load_is_the_engines_and_the_gateways_queue() -> None:
    a, b = model("a"), model("b")
    world = observed(
        replica(a, "1", running=2),
        replace(replica(a, "2"), load=EngineLoad(running=1, waiting=3)),
        replica(a, "3", phase=Phase.STARTING),
        replica(a, "4", phase=Phase.PLACING),
        replica(a, "5", phase=Phase.DRAINING, running=9),
    )
    found = loads(world, {A: 4, b.name: 1})
    assert found[A] == ModelLoad(ready=2, starting=2, running=3, waiting=7)
    assert found[b.name] == ModelLoad(waiting=1)


def test_load_is_unknown_only_when_no_ready_replica_could_be_read() -> None:
    a = model("a")
    deaf, fine = replace(replica(a, "1"), load=None), replica(a, "2", running=1)
    assert not loads(observed(deaf), {})[A].known
    assert loads(observed(deaf, fine), {})[A].known
    assert loads(observed(replica(a, phase=Phase.STARTING)), {A: 2})[A].known


# all models


def stepped(
    *models: ModelSpec,
    state: ScalingState,
    held: int = 9,
    ask: Ask | None = None,
    fallbacks: Collection[ModelName] = (),
) -> tuple[dict[ModelName, ScalingState], tuple[Event, ...]]:
    cat = catalog(*models, scaling=SETTINGS)
    asks = {} if ask is None else {m.name: ask for m in models}
    world = observed(*map(replica, models))
    states, events = step_all(cat, world, {A: held}, {A: state}, asks, {}, NOW, fallbacks=fallbacks)
    return dict(states), events


def test_a_step_is_an_event() -> None:
    states, events = stepped(model("a", scaling=ScalingSpec(max=2)), state=ScalingState(busy_since=ago(UP)))
    assert states == {"a": ScalingState(extra=1, busy_since=NOW.wall)}
    ((subject, reason),) = [(e.subject, e.reason) for e in events]
    assert (subject, reason) == ("model/a", "scaled up")
    quiet = ScalingState(extra=1, quiet_since=ago(DOWN))
    states, events = stepped(model("a", scaling=ScalingSpec(max=2)), state=quiet, held=0)
    assert states == {"a": ScalingState(quiet_since=NOW.wall)}
    assert [e.reason for e in events] == ["scaled down"]


def test_states_that_say_nothing_or_whose_model_left_are_forgotten() -> None:
    scaled = model("a", scaling=ScalingSpec(max=2))
    assert stepped(scaled, state=ScalingState(busy_since=ago(9)), held=0) == ({}, ())
    assert stepped(model("b"), state=ScalingState(extra=1)) == ({}, ())
    assert stepped(model("a"), state=ScalingState(extra=1)) == ({}, ())


def test_an_on_demand_model_scales_while_it_is_asked_for() -> None:
    lazy = model("a", scaling=ScalingSpec(min=0, max=2, on_demand=True))
    state = ScalingState(extra=1, busy_since=ago(9))
    assert stepped(lazy, state=state, ask=Ask(asked=NOW.wall))[0] == {"a": state}
    assert stepped(lazy, state=state)[0] == {}
    assert stepped(lazy, state=state, fallbacks={A})[0] == {"a": state}


def test_a_suspended_model_keeps_its_extra_and_takes_no_step() -> None:
    held = model("a", suspend=True, scaling=ScalingSpec(max=3))
    state = ScalingState(extra=1, busy_since=ago(UP))
    assert stepped(held, state=state)[0] == {"a": ScalingState(extra=1)}
    assert stepped(replace(held, scaling=ScalingSpec(min=0, max=3)), state=state)[0] == {"a": ScalingState(extra=1)}


def test_what_was_measured_where_its_replicas_run_counts() -> None:
    scaled = model("a", scaling=ScalingSpec(max=2))
    held = Concurrency(requests=8, at=NOW.wall, ttft=Seconds(1), itl=Seconds(0.1), tokens_per_second=9.0)
    here, elsewhere = (spec_of(scaled), NODE), (spec_of(scaled), NodeName("other"))
    cat, world = catalog(scaled, scaling=SETTINGS), observed(replica(scaled, running=9))
    assert step_all(cat, world, {}, {}, {}, {here: replace(held, requests=10)}, NOW)[0] == {}
    small = observed(replace(replica(scaled, running=9), level=Level.DEGRADED))
    assert step_all(cat, world, {}, {}, {}, {here: held}, NOW)[0] == {"a": ScalingState(busy_since=NOW.wall)}
    assert step_all(cat, world, {}, {}, {}, {elsewhere: held}, NOW)[0] == {}
    assert step_all(cat, small, {}, {}, {}, {here: held}, NOW)[0] == {}
    coming = observed(replica(scaled, phase=Phase.STARTING))
    patient = catalog(scaled, scaling=replace(SETTINGS, up_waiting=9))
    assert step_all(patient, coming, {A: 3}, {}, {}, {here: replace(held, requests=1)}, NOW)[0] == {}, "not ready"


def test_of_replicas_measured_differently_the_mean_counts() -> None:
    scaled = model("a", scaling=ScalingSpec(max=3))
    held = Concurrency(requests=2, at=NOW.wall, ttft=Seconds(1), itl=Seconds(0.1), tokens_per_second=9.0)
    other = NodeName("other")
    measured = {(spec_of(scaled), NODE): held, (spec_of(scaled), other): replace(held, requests=6)}
    for running, busy in ((4, False), (5, True)):
        world = observed(replica(scaled, "1", running=running), replace(replica(scaled, "2", running=4), node=other))
        states, _ = step_all(catalog(scaled), world, {}, {}, {}, measured, NOW)
        assert (states == {"a": ScalingState(busy_since=NOW.wall)}) == busy


# properties

some_loads = st.builds(
    ModelLoad,
    ready=st.integers(0, 4),
    starting=st.integers(0, 1),
    running=st.integers(0, 20),
    waiting=st.integers(0, 9),
    known=st.sampled_from([True, True, True, False]),
)
hours = st.lists(st.tuples(some_loads, st.integers(0, 2), st.integers(0, 4), st.floats(-500, 500)), max_size=30)


@given(hours, st.none() | st.integers(1, 8))
def test_a_life_of_steps_stays_in_bounds_one_at_a_time(
    life: list[tuple[ModelLoad, int, int, float]], measured: int | None
) -> None:
    state, now, story = ScalingState(), NOW.wall, []
    for load, base, ceiling, passed in life:
        now = Wall(now + passed)  # the clock may jump back
        before = state
        state, text = step(
            before, base=base, ceiling=ceiling, load=load, measured=measured, settings=SETTINGS, now=now
        )  # fmt: skip
        story.append((now, base, ceiling, load, state, text))
        room = max(0, ceiling - base) if base else 0
        assert 0 <= state.extra <= room, story
        assert state.busy_since is None or state.quiet_since is None, story
        assert all(stamp is None or stamp <= now for stamp in (state.busy_since, state.quiet_since)), story
        kept = min(before.extra, room)
        assert (text is not None) == (state.extra != kept), story
        assert abs(state.extra - kept) <= 1, story


def test_what_gateways_sent_beyond_the_slots_waits_though_the_engine_does_not_answer() -> None:
    a = model("a")
    deaf = replace(replica(a), load=None, parallel=2)
    assert loads(observed(deaf, outstanding={deaf.id: 7}), {})[A] == ModelLoad(ready=1, running=2, waiting=5)
    told = replace(deaf, load=EngineLoad(running=2, waiting=1))
    assert loads(observed(told, outstanding={deaf.id: 7}), {})[A] == ModelLoad(ready=1, running=2, waiting=5)
    assert loads(observed(told, outstanding={deaf.id: 1}), {})[A] == ModelLoad(ready=1, running=2, waiting=1)
    early = replace(deaf, load=EngineLoad(running=0, waiting=0))  # read before the request was sent
    assert loads(observed(early, outstanding={deaf.id: 1}), {})[A] == ModelLoad(ready=1, running=1, waiting=0)


@given(some_loads, st.integers(1, 3), st.integers(1, 6))
def test_the_same_load_for_ever_comes_to_rest(load: ModelLoad, base: int, ceiling: int) -> None:
    state, now = ScalingState(), NOW.wall
    for _ in range(40):
        now = Wall(now + DOWN)
        state, text = step(
            state, base=base, ceiling=ceiling, load=replace(load, starting=0), measured=None, settings=SETTINGS, now=now
        )
    assert text is None


def test_instants_of_one_clock_and_stamps_of_another_are_told_apart() -> None:
    scaled = model("a", scaling=ScalingSpec(max=2))
    later = Instant(Mono(0), Wall(NOW.wall + UP))  # mono began anew: only wall counts
    state = {A: ScalingState(busy_since=NOW.wall)}
    states, _ = step_all(catalog(scaled, scaling=SETTINGS), observed(replica(scaled)), {A: 5}, state, {}, {}, later)
    assert states[A].extra == 1
