"""The replica's state machine: events in, effects out, never an illegal step."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.agent.lifecycle import (
    FINAL,
    LEGAL,
    MAX_LAUNCHES,
    Adopted,
    Assigned,
    Broke,
    Do,
    Drained,
    DrainTimedOut,
    Event,
    Exited,
    FetchFailed,
    Gone,
    Hastened,
    IllegalTransition,
    Launched,
    LaunchFailed,
    Lifecycle,
    Lost,
    ProbesFailed,
    ProbesPassed,
    RunWanted,
    StopWanted,
    Tell,
    Unwell,
    WeightsReady,
)  # fmt: skip
from llmgw.facts import Failure, FailureKind, Phase
from llmgw.units import Instant, Mono, Wall

NOW = Instant(Mono(0), Wall(1000))
FAILURE = Failure(kind=FailureKind.CRASH, reason="ended with exit code 1", at=Wall(1000))

births = st.sampled_from([Assigned(True), Assigned(False), Adopted(), Lost(FAILURE), StopWanted()])
later = st.sampled_from(
    [
        WeightsReady(), FetchFailed(FAILURE), Launched(), LaunchFailed(FAILURE), ProbesPassed(), ProbesFailed(FAILURE),
        Exited(FAILURE), Exited(FAILURE, port_clash=True), StopWanted(), StopWanted(eviction=True), RunWanted(),
        Drained(), DrainTimedOut(), Hastened(), Broke(FAILURE), Gone(), Unwell(FAILURE),
    ]
)  # fmt: skip


def through(*events: Event) -> Lifecycle:
    life = Lifecycle(NOW)
    for event in events:
        life.step(event, NOW)
    return life


@settings(deadline=None)  # a busy machine is no failure
@given(births, st.lists(later, max_size=30))
def test_whatever_happens_in_whatever_order_every_step_is_legal(birth: Event, events: list[Event]) -> None:
    life = Lifecycle(NOW)
    phase = life.phase
    for event in [birth, *events]:
        effects = life.step(event, NOW)
        assert life.phase is phase or life.phase in LEGAL[phase], life.story()
        assert sum(isinstance(effect, Do) for effect in effects) <= 1, life.story()
        phase = life.phase


@settings(deadline=None)  # a busy machine is no failure
@given(births, st.lists(later, max_size=30), st.lists(later, max_size=10))
def test_a_final_phase_is_never_left(birth: Event, events: list[Event], more: list[Event]) -> None:
    life = through(birth, *events)
    if life.finished:
        phase = life.phase
        assert all(life.step(event, NOW) == () for event in more)
        assert life.phase is phase


@settings(deadline=None)  # a busy machine is no failure
@given(births, st.lists(later, max_size=20), st.lists(later, max_size=20))
def test_a_stop_that_is_no_eviction_ends_stopped(birth: Event, before: list[Event], after: list[Event]) -> None:
    """Whatever comes in between, unless it is taken back or becomes an eviction: then drained and gone is stopped."""
    life = through(birth, *before)
    if life.phase is Phase.FAILED:
        return
    changes_its_mind = (RunWanted, StopWanted)
    for event in [StopWanted(), *(e for e in after if not isinstance(e, changes_its_mind)), Drained(), Gone()]:
        life.step(event, NOW)
    assert life.phase is Phase.STOPPED, life.story()
    assert life.failure is None


@settings(deadline=None)  # a busy machine is no failure
@given(births, st.lists(later, max_size=30))
def test_a_failed_replica_says_why_and_processes_are_ended_before_it_is_final(
    birth: Event, events: list[Event]
) -> None:
    life = Lifecycle(NOW)
    launched = False
    for event in [birth, *events]:
        before = life.phase
        effects = life.step(event, NOW)
        launched |= Do.LAUNCH in effects or Do.PROBE in effects
        if life.phase in FINAL and before not in FINAL:
            assert Do.FINISH in effects
            assert not launched or before is Phase.STOPPING, life.story()
    if life.phase is Phase.FAILED:
        assert life.failure is not None


def test_the_usual_way_up_and_down() -> None:
    life = Lifecycle(NOW)
    assert life.step(Assigned(True), NOW) == (Do.FETCH,)
    assert life.step(WeightsReady(), NOW) == (Do.LAUNCH,)
    assert life.step(Launched(), NOW) == (Do.PROBE,)
    assert life.step(ProbesPassed(), NOW) == (Do.SERVE, Tell("ready"))
    assert life.step(StopWanted(), NOW) == (Do.DRAIN,)
    assert life.step(Drained(), NOW) == (Do.END,)
    assert life.step(Gone(), NOW) == (Do.FINISH, Tell("stopped"))
    assert life.phase is Phase.STOPPED


def test_a_fetch_that_fails_starts_no_process_and_ends_none() -> None:
    life = through(Assigned(True))
    assert life.step(FetchFailed(FAILURE), NOW) == (Do.FINISH, Tell("failed", FAILURE.reason))
    assert life.phase is Phase.FAILED


def test_a_port_clash_is_retried_a_few_times_then_a_failure() -> None:
    life = through(Assigned(False))
    clash = Exited(FAILURE, port_clash=True)
    tries = [life.step(clash, NOW)[0] for _ in range(MAX_LAUNCHES)]
    assert tries == [Do.LAUNCH] * (MAX_LAUNCHES - 1) + [Do.END]


def test_a_port_clash_once_ready_is_a_crash() -> None:
    life = through(Assigned(False), Launched(), ProbesPassed())
    assert life.step(Exited(FAILURE, port_clash=True), NOW) == (Do.END,)


def test_an_eviction_not_drained_in_time_is_given_up_and_a_plain_stop_is_not() -> None:
    ready = (Assigned(False), Launched(), ProbesPassed())
    evicted = through(*ready, StopWanted(eviction=True))
    assert evicted.step(DrainTimedOut(), NOW)[0] is Do.SERVE
    assert evicted.phase is Phase.READY
    stopped = through(*ready, StopWanted(eviction=True), StopWanted())
    assert stopped.step(DrainTimedOut(), NOW)[0] is Do.END


def test_an_adopted_replica_asked_to_stop_before_it_answered_drains_all_the_same() -> None:
    life = through(Adopted(), StopWanted())
    assert life.phase is Phase.DRAINING
    life.step(RunWanted(), NOW)
    assert life.phase is Phase.STARTING


def test_a_second_birth_is_an_error_that_tells_the_story() -> None:
    life = through(Assigned(False), Launched())
    with pytest.raises(IllegalTransition, match="Launched"):
        life.step(Assigned(False), NOW)
    with pytest.raises(IllegalTransition, match="before birth"):
        Lifecycle(NOW).step(ProbesPassed(), NOW)


def test_the_table_names_every_phase_and_only_final_phases_lead_nowhere() -> None:
    assert LEGAL.keys() == set(Phase)
    assert {phase for phase, nexts in LEGAL.items() if not nexts} == FINAL
