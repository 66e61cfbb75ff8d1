"""What a failure leads to: a retry after a back-off, or quarantine.

| kind             | 1st-3rd in a row | later      |
|------------------|------------------|------------|
| crash, oom, hang, detached | retry  | quarantine |
| fetch, node      | retry            | retry      |
| terminal         | quarantine       | quarantine |

A fetch that fails, or a node without a port or disk to spare, says nothing about the model, and networks come back: it
is retried for ever, at the cap.
Quarantine still makes one probing attempt every `quarantine_retry`.
"""

from typing import Final

from llmgw.catalog.spec import RecoverySettings
from llmgw.facts import Action, Failure, FailureKind, Phase, RecoveryRecord, ReplicaFact
from llmgw.ids import short_hash
from llmgw.units import Instant, Seconds, Wall

RETRIES: Final = 3

CLOCK_JUMP: Final = 60.0
"""Seconds that clocks may differ by."""

_NOT_ITS_FAULT: Final = frozenset({FailureKind.FETCH, FailureKind.NODE})


def account(
    failed: ReplicaFact, record: RecoveryRecord | None, settings: RecoverySettings, now: Instant
) -> RecoveryRecord:
    """The record after one more failure. Counting it twice changes nothing, however long it is reported."""
    assert failed.failure is not None, f"{failed.id} is in phase {failed.phase} without a failure"
    if record is not None and (record.last_replica == failed.id or _is_older(failed.failure, record, now)):
        return record
    attempts = 1 + (record.attempts if record else 0)
    kind = failed.failure.kind
    quarantined = kind is FailureKind.TERMINAL or (kind not in _NOT_ITS_FAULT and attempts > RETRIES)
    if quarantined:
        retry_at = Wall(now.wall + settings.quarantine_retry) if settings.quarantine_retry > 0 else None
    else:
        retry_at = Wall(now.wall + backoff(attempts, settings, jitter_of(failed.id)))
    return RecoveryRecord(
        model=failed.model,
        attempts=attempts,
        last=failed.failure,
        last_replica=failed.id,
        retry_at=retry_at,
        action=Action.QUARANTINE if quarantined else Action.RETRY,
    )


def _is_older(failure: Failure, record: RecoveryRecord, now: Instant) -> bool:
    """Whether it came before the one counted last, and so was counted too, unless that one's stamp means nothing."""
    return failure.at < record.last.at <= now.wall + CLOCK_JUMP


def backoff(attempts: int, settings: RecoverySettings, jitter: float) -> Seconds:
    """Doubles from `backoff` to `backoff_cap`, times 0.8 to 1.2 by `jitter` (0..1), so that a crowd spreads."""
    plain = min(settings.backoff * 2.0 ** min(attempts - 1, 32), settings.backoff_cap)
    return Seconds(plain * (0.8 + 0.4 * jitter))


def jitter_of(replica: str) -> float:
    """A number in [0, 1) from a random id: spread without randomness here."""
    return int(short_hash(replica, 8), 16) / 2**32


def proved_stable(replica: ReplicaFact, settings: RecoverySettings, now: Instant) -> bool:
    """Ready for `stable` seconds: only then are earlier failures forgotten, so that an engine which dies on its
    first long prompt does not loop at the first back-off."""
    return replica.phase is Phase.READY and now.since(replica.since) >= settings.stable


def may_try(record: RecoveryRecord | None, now: Instant) -> bool:
    """Whether a launch is allowed now. A failure that is yet to happen was stamped by a clock since set back: how
    long ago it was is unknown, and nobody waits for that time to come round again."""
    if record is None:
        return True
    return record.retry_at is not None and (record.retry_at <= now.wall or record.last.at > now.wall + CLOCK_JUMP)
