"""What failures lead to."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make import NOW, failed, model, replica

from llmgw.catalog.spec import RecoverySettings
from llmgw.facts import FailureKind, Phase, RecoveryRecord, ReplicaFact
from llmgw.schedule.recovery import account, backoff, may_try, proved_stable
from llmgw.units import Seconds, Wall

SETTINGS = RecoverySettings()
A = model("a")


def failures(*kinds: FailureKind) -> RecoveryRecord:
    record = None
    for number, kind in enumerate(kinds):
        record = account(failed(A, f"r{number}", kind), record, SETTINGS, NOW)
    assert record is not None
    return record


def replace_failure(fact: ReplicaFact, *, at: float) -> ReplicaFact:
    assert fact.failure is not None
    return replace(fact, failure=replace(fact.failure, at=Wall(at)))


def test_three_crashes_are_retried_the_fourth_is_quarantined() -> None:
    crash = FailureKind.CRASH
    assert [failures(*[crash] * n).quarantined for n in (1, 2, 3, 4)] == [False, False, False, True]


def test_a_terminal_failure_is_quarantined_at_once_with_its_reason() -> None:
    record = failures(FailureKind.TERMINAL)
    assert record.quarantined
    assert record.last.reason == "it broke"
    assert record.retry_at == NOW.wall + SETTINGS.quarantine_retry


def test_a_fetch_is_retried_for_ever() -> None:
    record = failures(*[FailureKind.FETCH] * 20)
    assert not record.quarantined
    assert record.retry_at is not None
    assert record.retry_at - NOW.wall <= SETTINGS.backoff_cap * 1.2


def test_the_same_replica_counts_once() -> None:
    once = account(failed(A, "r"), None, SETTINGS, NOW)
    assert account(failed(A, "r"), once, SETTINGS, NOW) == once


def test_a_node_without_a_port_or_disk_to_spare_is_not_the_models_fault() -> None:
    assert not failures(*[FailureKind.NODE] * 20).quarantined


def test_two_failures_that_are_both_still_reported_count_once_each() -> None:
    first = replace_failure(failed(A, "r1"), at=NOW.wall - 5)
    second = replace_failure(failed(A, "r2"), at=NOW.wall)
    record = None
    for fact in (first, second, first, second):
        record = account(fact, record, SETTINGS, NOW)
    assert record is not None
    assert record.attempts == 2


def test_a_failure_from_the_future_delays_nothing_and_hides_no_later_one() -> None:
    ahead = account(replace_failure(failed(A, "r1"), at=Wall(NOW.wall + 86_400)), None, SETTINGS, NOW)
    ahead = replace(ahead, retry_at=Wall(NOW.wall + 86_402))
    assert may_try(ahead, NOW)
    after = account(failed(A, "r2"), ahead, SETTINGS, NOW)
    assert after.last_replica == "r2"
    assert not may_try(after, NOW)


def test_no_probing_when_the_operator_says_never() -> None:
    never = replace(SETTINGS, quarantine_retry=Seconds(0))
    record = account(failed(A, "r", FailureKind.TERMINAL), None, never, NOW)
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


@given(st.lists(st.sampled_from(list(FailureKind)), min_size=1, max_size=12))
def test_attempts_count_every_failure_in_a_row(kinds: list[FailureKind]) -> None:
    assert failures(*kinds).attempts == len(kinds)
