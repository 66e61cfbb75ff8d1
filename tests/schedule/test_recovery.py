"""What failures lead to."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make import CPU, NODE, NOW, catalog, failed, model, observed, replica, report, spec_of

from llmgw.catalog.spec import RecoverySettings
from llmgw.facts import (
    Action,
    DeviceFact,
    EngineFact,
    Failure,
    FailureKind,
    Level,
    NodeReport,
    Phase,
    RecoveryRecord,
    ReplicaFact,
)
from llmgw.ids import ModelName, ReplicaId
from llmgw.plan import Levels
from llmgw.schedule.recovery import account, backoff, changes, may_try, node_facts, proved_stable
from llmgw.units import Instant, Seconds, Wall

SETTINGS = RecoverySettings()
A = model("a")
A_WITH_FALLBACK = replace(A, fallback=ModelName("b"))
BOTH = (Level.DEGRADED, Level.MINIMAL)
CRASH, OOM, HANG, FETCH = FailureKind.CRASH, FailureKind.OOM, FailureKind.HANG, FailureKind.FETCH
RETRY, DEGRADE, MINIMAL, FALLBACK, QUARANTINE = Action
BLAMED = [kind for kind in FailureKind if kind not in (FailureKind.FETCH, FailureKind.NODE)]


def count(fact: ReplicaFact, record: RecoveryRecord | None, **fields: object) -> RecoveryRecord:
    asked = {"levels": BOTH, "has_fallback": True, **fields}
    return account(fact, record, SETTINGS, NOW, **asked)  # type: ignore[arg-type]


def story(
    kinds: Sequence[FailureKind], levels: Collection[Level] = BOTH, has_fallback: bool = True
) -> list[RecoveryRecord]:
    """The record after each of the failures."""
    records: list[RecoveryRecord] = []
    for number, kind in enumerate(kinds):
        before = records[-1] if records else None
        records.append(count(failed(A, f"r{number:02}", kind), before, levels=levels, has_fallback=has_fallback))
    return records


def failures(*kinds: FailureKind) -> RecoveryRecord:
    return story(kinds)[-1]


def replace_failure(fact: ReplicaFact, *, at: float) -> ReplicaFact:
    assert fact.failure is not None
    return replace(fact, failure=replace(fact.failure, at=Wall(at)))


# -- the table


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        (FailureKind.CRASH, [RETRY, RETRY, RETRY, QUARANTINE, QUARANTINE]),
        (FailureKind.DETACHED, [RETRY, RETRY, RETRY, QUARANTINE, QUARANTINE]),
        (FailureKind.OOM, [DEGRADE, MINIMAL, FALLBACK, QUARANTINE, QUARANTINE]),
        (FailureKind.HANG, [RETRY, DEGRADE, MINIMAL, FALLBACK, QUARANTINE, QUARANTINE]),
        (FailureKind.TERMINAL, [QUARANTINE, QUARANTINE]),
        (FailureKind.FETCH, [RETRY] * 20),
        (FailureKind.NODE, [RETRY] * 20),
    ],
)
def test_each_kind_of_failure_takes_its_steps(kind: FailureKind, steps: list[Action]) -> None:
    assert [record.action for record in story([kind] * len(steps))] == steps


@pytest.mark.parametrize(
    ("kind", "levels"),
    [
        (FailureKind.OOM, [Level.DEGRADED, Level.MINIMAL, Level.MINIMAL, Level.MINIMAL]),
        (FailureKind.HANG, [Level.FULL, Level.DEGRADED, Level.MINIMAL, Level.MINIMAL]),
        (FailureKind.CRASH, [Level.FULL] * 4),
        (FailureKind.FETCH, [Level.FULL] * 4),
    ],
)
def test_a_degrading_step_lowers_the_level(kind: FailureKind, levels: list[Level]) -> None:
    assert [record.level for record in story([kind] * 4)] == levels


def test_the_column_counts_failures_of_any_kind_the_row_is_the_latest_kinds() -> None:
    assert failures(CRASH, OOM).action is MINIMAL
    assert failures(CRASH, CRASH, OOM).action is FALLBACK
    assert failures(OOM, CRASH, CRASH, CRASH).action is QUARANTINE


def test_a_milder_row_never_takes_back_what_a_severer_one_did() -> None:
    assert [record.action for record in story([OOM, CRASH, CRASH])] == [DEGRADE, DEGRADE, DEGRADE]
    assert failures(OOM, OOM, OOM, HANG).action is FALLBACK
    assert failures(FailureKind.TERMINAL, CRASH).action is QUARANTINE
    assert failures(OOM, HANG).level is Level.DEGRADED


def test_without_a_fallback_model_that_step_is_quarantine() -> None:
    steps = [record.action for record in story([OOM] * 3, has_fallback=False)]
    assert steps == [DEGRADE, MINIMAL, QUARANTINE]
    fallen = failures(OOM, OOM, OOM)
    assert count(failed(A, "z", CRASH), fallen, has_fallback=False).action is QUARANTINE


def test_a_level_that_does_not_exist_is_passed_over() -> None:
    records = story([OOM, OOM, OOM], levels=(Level.MINIMAL,))
    assert [record.level for record in records] == [Level.MINIMAL] * 3
    assert [record.action for record in records] == [MINIMAL, MINIMAL, FALLBACK]


def test_a_degrading_step_without_a_smaller_level_is_a_plain_retry() -> None:
    assert [record.action for record in story([OOM, OOM, OOM], levels=())] == [RETRY, RETRY, FALLBACK]
    assert story([OOM], levels=())[0].level is Level.FULL
    only = story([OOM, OOM], levels=(Level.DEGRADED,))
    assert [(record.action, record.level) for record in only] == [(DEGRADE, Level.DEGRADED)] * 2


def test_a_step_to_minimal_takes_the_next_best_where_there_is_only_degraded() -> None:
    assert story([CRASH, OOM], levels=(Level.DEGRADED,))[1].level is Level.DEGRADED


def test_a_terminal_failure_keeps_its_reason() -> None:
    record = failures(FailureKind.TERMINAL)
    assert record.last.reason == "it broke"
    assert record.retry_at == NOW.wall + SETTINGS.quarantine_retry


def test_weights_that_cannot_be_had_delay_and_are_not_held_against_the_model() -> None:
    record = failures(*[FETCH] * 20)
    assert (record.attempts, record.delays) == (0, 20)
    assert record.retry_at is not None
    assert SETTINGS.backoff_cap * 0.8 <= record.retry_at - NOW.wall <= SETTINGS.backoff_cap * 1.2
    assert failures(OOM, FETCH, OOM).action is MINIMAL
    assert failures(FETCH, OOM, FETCH).level is Level.DEGRADED
    assert failures(FETCH, FETCH, OOM).delays == 0


def test_a_quarantined_model_whose_weights_cannot_be_had_stays_quarantined() -> None:
    record = failures(FailureKind.TERMINAL, FETCH)
    assert record.quarantined
    assert record.retry_at == NOW.wall + SETTINGS.quarantine_retry


# -- properties

kinds = st.lists(st.sampled_from(list(FailureKind)), min_size=1, max_size=12)
some_levels = st.sets(st.sampled_from(BOTH))


@given(kinds, some_levels, st.booleans())
def test_steps_and_levels_only_ever_go_up_the_ladder(
    failed_with: list[FailureKind], levels: set[Level], fallback: bool
) -> None:
    records = story(failed_with, levels, fallback)
    for before, after in pairwise(records):
        assert after.action.severity >= before.action.severity
        assert after.level.depth >= before.level.depth
    assert all(record.level in {Level.FULL, *levels} for record in records)
    assert fallback or all(record.action is not FALLBACK for record in records)


@given(st.lists(st.sampled_from(BLAMED), min_size=5, max_size=8), some_levels, st.booleans())
def test_the_ladder_ends(failed_with: list[FailureKind], levels: set[Level], fallback: bool) -> None:
    assert story(failed_with, levels, fallback)[4].quarantined


@given(kinds)
def test_every_failure_counts_once_as_an_attempt_or_as_a_delay(failed_with: list[FailureKind]) -> None:
    records = story(failed_with)
    blamed = [kind for kind in failed_with if kind in BLAMED]
    assert records[-1].attempts == len(blamed)
    assert (records[-1].delays == 0) is (failed_with[-1] in BLAMED)


@given(kinds, st.data())
def test_counting_again_what_is_still_reported_changes_nothing(
    failed_with: list[FailureKind], data: st.DataObject
) -> None:
    facts = [replace_failure(failed(A, f"r{n}", kind), at=NOW.wall + n // 2) for n, kind in enumerate(failed_with)]
    seen = observed(*facts)
    first = changes(seen, catalog(A), {}, NOW)
    record = first[spec_of(A), NODE]
    assert record is not None
    again = replace(seen, recovery={(spec_of(A), NODE): record}, replicas={f.id: f for f in data.draw(shuffled(facts))})
    assert changes(again, catalog(A), {}, NOW) == {}


def shuffled(facts: list[ReplicaFact]) -> st.SearchStrategy[list[ReplicaFact]]:
    return st.permutations(facts)


@given(kinds)
def test_after_a_success_the_ladder_starts_anew(failed_with: list[FailureKind]) -> None:
    before = replace(failures(*failed_with), last=Failure(kind=CRASH, reason="", at=Wall(NOW.wall - 400)))
    stable = replica(A, since=Wall(NOW.wall - 300))
    seen = observed(stable, recovery={spec_of(A): before})
    assert changes(seen, catalog(A), {}, NOW) == {(spec_of(A), NODE): None}


# -- counting


def test_the_same_replica_counts_once() -> None:
    once = count(failed(A, "r"), None)
    assert count(failed(A, "r"), once) == once


def test_a_failure_counts_before_what_is_left_of_the_replica_is_gone_and_not_again_after() -> None:
    ending = replace(failed(A), phase=Phase.STOPPING)
    (record,) = changes(observed(ending), catalog(A), {}, NOW).values()
    assert record is not None
    assert (record.attempts, may_try(record, NOW)) == (1, False)
    gone = observed(replace(ending, phase=Phase.FAILED, since=NOW.wall), recovery={spec_of(A): record})
    assert changes(gone, catalog(A), {}, NOW) == {}


def test_two_failures_that_are_both_still_reported_count_once_each() -> None:
    first = replace_failure(failed(A, "r1"), at=NOW.wall - 5)
    second = replace_failure(failed(A, "r2"), at=NOW.wall)
    record = None
    for fact in (first, second, first, second):
        record = count(fact, record)
    assert record is not None
    assert record.attempts == 2


def test_two_failures_at_the_same_moment_count_once_each() -> None:
    record = None
    for fact in (failed(A, "r1"), failed(A, "r2"), failed(A, "r1"), failed(A, "r2")):
        record = count(fact, record)
    assert record is not None
    assert record.attempts == 2


def test_a_failure_from_the_future_delays_nothing_and_hides_no_later_one() -> None:
    ahead = count(replace_failure(failed(A, "r1"), at=Wall(NOW.wall + 86_400)), None)
    ahead = replace(ahead, retry_at=Wall(NOW.wall + 86_402))
    assert may_try(ahead, NOW)
    after = count(failed(A, "r2"), ahead)
    assert after.last_replica == "r2"
    assert not may_try(after, NOW)


def test_no_probing_when_the_operator_says_never() -> None:
    never = replace(SETTINGS, quarantine_retry=Seconds(0))
    record = account(failed(A, "r", FailureKind.TERMINAL), None, never, NOW, levels=(), has_fallback=False)
    assert record.retry_at is None
    assert not may_try(record, NOW)


def test_ready_for_a_moment_is_no_success() -> None:
    assert not proved_stable(replica(A, since=Wall(NOW.wall - 299)), SETTINGS, NOW)
    assert proved_stable(replica(A, since=Wall(NOW.wall - 300)), SETTINGS, NOW)
    assert not proved_stable(replica(A, since=Wall(0), phase=Phase.STARTING), SETTINGS, NOW)


@pytest.mark.parametrize("jitter", [0.0, 0.5, 1.0])
def test_back_off_doubles_to_its_cap(jitter: float) -> None:
    spread = 0.8 + 0.4 * jitter
    waits = [backoff(n, SETTINGS, jitter) / spread for n in (1, 2, 3, 9, 1000)]
    assert waits == pytest.approx([2, 4, 8, 300, 300])


# -- what changes in a pass


def test_a_pass_counts_by_the_models_own_levels_and_fallback() -> None:
    levels: Levels = {(spec_of(A), Level.DEGRADED): replace(A.profiles[0], context=2048)}
    seen = observed(failed(A, "r1", OOM), replace_failure(failed(A, "r2", OOM), at=NOW.wall + 1))
    (record,) = changes(seen, catalog(A), levels, NOW).values()
    assert record is not None
    assert (record.attempts, record.level, record.action) == (2, Level.DEGRADED, DEGRADE)
    third = replace(seen, replicas={ReplicaId("r3"): replace_failure(failed(A, "r3", OOM), at=NOW.wall + 2)})
    third = replace(third, recovery={(spec_of(A), NODE): record})
    (plain,) = changes(third, catalog(A), levels, NOW).values()
    (fallen,) = changes(third, catalog(A_WITH_FALLBACK), levels, NOW).values()
    assert plain is not None
    assert fallen is not None
    assert (plain.action, fallen.action) == (QUARANTINE, FALLBACK)


def test_what_was_ready_already_when_another_failed_is_no_success_after_it() -> None:
    steady = replica(A, "steady", since=Wall(NOW.wall - 4000))
    broken = failed(A, "broken")
    (record,) = changes(observed(steady, broken), catalog(A), {}, NOW).values()
    seen = observed(steady, recovery={spec_of(A): record} if record else {})
    assert changes(seen, catalog(A), {}, NOW) == {}
    later = replica(A, "later", since=Wall(NOW.wall + 10))
    seen = replace(seen, replicas={later.id: later})
    assert list(changes(seen, catalog(A), {}, Instant(NOW.mono, Wall(NOW.wall + 310))).values()) == [None]


def test_records_of_specs_that_left_the_catalog_go() -> None:
    seen = observed(recovery={spec_of(A): failures(CRASH)})
    assert changes(seen, catalog(model("b")), {}, NOW) == {(spec_of(A), NODE): None}
    assert changes(observed(failed(A)), catalog(model("b")), {}, NOW) == {}


def quarantined_on(node: NodeReport) -> RecoveryRecord:
    """Of a profile that uses no devices."""
    return count(failed(A, "r", FailureKind.TERMINAL), None, facts=node_facts(node, CPU, devices=False))


@pytest.mark.parametrize(
    "changed",
    [
        report(engines=[EngineFact(name=CPU, version="2")]),
        report(engines=[EngineFact(name=CPU, version="1", path="/opt/other")]),
        report(total=64),
    ],
    ids=["engine version", "engine path", "memory"],
)
def test_quarantine_is_lifted_when_its_node_has_changed(changed: NodeReport) -> None:
    record = quarantined_on(report())
    same = observed(node=report(disk=50, foreign=3), recovery={spec_of(A): record})
    assert changes(same, catalog(A), {}, NOW) == {}
    seen = observed(node=changed, recovery={spec_of(A): record})
    assert changes(seen, catalog(A), {}, NOW) == {(spec_of(A), NODE): None}


def test_quarantine_is_lifted_only_when_the_failure_is_reported_no_more() -> None:
    """llmgw may be killed right after it counted one: the next one finds it reported by a node that has changed."""
    record, changed = quarantined_on(report()), report(engines=[EngineFact(name=CPU, version="2")])
    seen = observed(failed(A, "r", FailureKind.TERMINAL), node=changed, recovery={spec_of(A): record})
    assert changes(seen, catalog(A), {}, NOW) == {}
    gone = observed(node=changed, recovery={spec_of(A): record})
    assert changes(gone, catalog(A), {}, NOW) == {(spec_of(A), NODE): None}


def test_a_device_that_comes_falls_ill_or_recovers_lifts_quarantine_of_what_uses_devices() -> None:
    device = DeviceFact(uuid="GPU-1", name="g", index=0)
    on_devices = replace(A, profiles=(replace(A.profiles[0], devices=1),))
    looks = [report(), report(devices=(device,)), report(devices=(replace(device, why="it fell off the bus"),))]
    for before, after in pairwise([*looks, looks[1]]):
        ended = failed(on_devices, "r", FailureKind.TERMINAL)
        (record,) = changes(observed(ended, node=before), catalog(on_devices), {}, NOW).values()
        assert record is not None
        again = observed(node=after, recovery={spec_of(on_devices): record})
        assert changes(again, catalog(on_devices), {}, NOW) == {(spec_of(on_devices), NODE): None}
        same = observed(node=before, recovery={spec_of(on_devices): record})
        assert changes(same, catalog(on_devices), {}, NOW) == {}
    on_the_cpu = observed(node=looks[1], recovery={spec_of(A): quarantined_on(looks[0])})
    assert changes(on_the_cpu, catalog(A), {}, NOW) == {}


def test_an_engine_that_cannot_be_used_lifts_nothing_and_one_that_came_does() -> None:
    broken = report(engines=[EngineFact(name=CPU, why="not installed")])
    fine = quarantined_on(report())
    assert changes(observed(node=broken, recovery={spec_of(A): fine}), catalog(A), {}, NOW) == {}
    missing = quarantined_on(broken)
    assert changes(observed(node=report(), recovery={spec_of(A): missing}), catalog(A), {}, NOW) != {}


def test_only_quarantine_is_lifted() -> None:
    record = count(failed(A, "r"), None, facts=node_facts(report(), CPU))
    seen = observed(node=report(total=64), recovery={spec_of(A): record})
    assert changes(seen, catalog(A), {}, NOW) == {}
