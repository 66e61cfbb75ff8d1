"""What a failure leads to. Records are kept for each replica spec on each node, and a success deletes them.

| kind            | 1st in a row | 2nd     | 3rd      | 4th        | later      |
|-----------------|--------------|---------|----------|------------|------------|
| crash, detached | retry        | retry   | retry    | quarantine | quarantine |
| oom             | degrade      | minimal | fallback | quarantine | quarantine |
| hang            | retry        | degrade | minimal  | fallback   | quarantine |
| terminal        | quarantine   |         |          |            |            |
| fetch, node     | retry, for ever                                           |

The column is the number of failures in a row of any kind, the row the latest one's kind. What is done is the more
severe of the table's step and the last one: neither step nor level falls before a success.

A degrading step goes to its level, or where there is none to the next smaller that exists; without one smaller than
the level at hand it is a plain retry. Without a fallback model, fallback is quarantine.
A fetch that fails, or a node without a port or disk to spare, says nothing about the model, and networks come back: it
only delays, up to the cap, and changes neither step nor level.
Quarantine still makes one probing attempt every `quarantine_retry`, and is lifted when the node's facts change.
"""

from collections.abc import Collection, Mapping
from typing import Final

from llmgw.catalog.spec import Catalog, ModelSpec, ProfileSpec, RecoverySettings, specs_of
from llmgw.facts import Action, FailureKind, Level, NodeReport, Observed, Phase, RecoveryRecord, ReplicaFact
from llmgw.ids import EngineName, NodeName, ReplicaId, SpecDigest, short_hash
from llmgw.plan import Levels
from llmgw.units import Instant, Seconds, Wall

CLOCK_JUMP: Final = 60.0
"""Seconds that clocks may differ by."""

_NOT_ITS_FAULT: Final = frozenset({FailureKind.FETCH, FailureKind.NODE})
_CRASH: Final = (Action.RETRY, Action.RETRY, Action.RETRY, Action.QUARANTINE)
_TABLE: Final[Mapping[FailureKind, tuple[Action, ...]]] = {
    FailureKind.CRASH: _CRASH,
    FailureKind.DETACHED: _CRASH,
    FailureKind.OOM: (Action.DEGRADE, Action.MINIMAL, Action.FALLBACK, Action.QUARANTINE),
    FailureKind.HANG: (Action.RETRY, Action.DEGRADE, Action.MINIMAL, Action.FALLBACK, Action.QUARANTINE),
    FailureKind.TERMINAL: (Action.QUARANTINE,),
}
_LEVEL: Final[Mapping[Action, Level]] = {Action.DEGRADE: Level.DEGRADED, Action.MINIMAL: Level.MINIMAL}
_STEP: Final[Mapping[Level, Action]] = {level: action for action, level in _LEVEL.items()}

Key = tuple[SpecDigest, NodeName]


def changes(observed: Observed, catalog: Catalog, levels: Levels, now: Instant) -> dict[Key, RecoveryRecord | None]:
    """The records that change: failures counted; None where a success, a spec that left or a node that changed has
    them forgotten."""
    failed = _failed(observed)
    if not failed and not observed.recovery:
        return {}
    models = specs_of(catalog)
    existing: dict[SpecDigest, set[Level]] = {}
    for spec, level in levels if failed else ():
        existing.setdefault(spec, set()).add(level)
    changed = _forgotten(observed, models, catalog.cluster.recovery, now)
    for _, _, fact in failed:
        key = (fact.spec, fact.node)
        before = observed.recovery.get(key)
        if fact.spec not in models or (before is not None and _is_counted(fact, before, now)):
            continue
        model, profile = models[fact.spec]
        changed[key] = account(
            fact,
            changed.get(key, before),
            catalog.cluster.recovery,
            now,
            levels=existing.get(fact.spec, ()),
            has_fallback=model.fallback is not None,
            facts=_facts(profile, observed.nodes.get(fact.node)),
        )
    return changed


def _failed(observed: Observed) -> list[tuple[Wall, ReplicaId, ReplicaFact]]:
    """Oldest failure first. One whose remains are still being ended counts already: what comes next has to wait."""
    return sorted((fact.failure.at, fact.id, fact) for fact in observed.replicas.values() if fact.failure is not None)


def _forgotten(
    observed: Observed,
    models: Mapping[SpecDigest, tuple[ModelSpec, ProfileSpec]],
    settings: RecoverySettings,
    now: Instant,
) -> dict[Key, RecoveryRecord | None]:
    proven: dict[Key, Wall] = {}  #: the latest moment that a stable replica became ready
    # A record that goes while its failure is still reported would be made anew of that, for the node as it is now.
    reported = {(fact.spec, fact.node) for fact in observed.replicas.values() if fact.failure is not None}
    for fact in observed.replicas.values() if observed.recovery else ():
        if proved_stable(fact, settings, now):
            proven[fact.spec, fact.node] = max(fact.since, proven.get((fact.spec, fact.node), fact.since))
    return {
        (spec, node): None
        for (spec, node), record in observed.recovery.items()
        if spec not in models
        or _was_before(record, proven.get((spec, node)), now)
        or ((spec, node) not in reported and _lifted(record, models[spec][1], observed.nodes.get(node)))
    }


def _was_before(record: RecoveryRecord, ready: Wall | None, now: Instant) -> bool:
    """Whether its last failure came before one of the spec's replicas became ready, there to stay: one that was ready
    already proves nothing about the next launch. A stamp from a clock since set back counts as old."""
    return ready is not None and (record.last.at <= ready or record.last.at > now.wall + CLOCK_JUMP)


def _lifted(record: RecoveryRecord, profile: ProfileSpec, report: NodeReport | None) -> bool:
    """Whether the node has changed since it was quarantined there, and the engine can be used."""
    if not record.quarantined or not record.facts or report is None:
        return False
    usable = any(one.name == profile.engine and one.why is None for one in report.engines)
    return usable and _facts(profile, report) != record.facts


def _facts(profile: ProfileSpec, report: NodeReport | None) -> str:
    return node_facts(report, profile.engine, devices=profile.devices > 0)


def node_facts(report: NodeReport | None, engine: EngineName, *, devices: bool = True) -> str:
    """A short hash of what an attempt depends on besides the spec: which program runs, in how much memory, and where
    it uses them, on which `devices`. Empty: not known."""
    if report is None:
        return ""
    programs = sorted(f"{one.version} {one.path} {one.why is None}" for one in report.engines if one.name == engine)
    accelerators = sorted(f"{one.uuid} {one.healthy} {one.divided}" for one in report.devices if devices)
    return short_hash("\n".join([*programs, *accelerators, str(report.memory.total)]), 16)


def account(
    failed: ReplicaFact,
    record: RecoveryRecord | None,
    settings: RecoverySettings,
    now: Instant,
    *,
    levels: Collection[Level],
    has_fallback: bool,
    facts: str = "",
) -> RecoveryRecord:
    """The record after one more failure. Counting it twice changes nothing, however long it is reported.

    `levels`: those that exist besides FULL. `facts`: the node's, which its quarantine is good for.
    """
    assert failed.failure is not None, f"{failed.id} is in phase {failed.phase} without a failure"
    if record is not None and _is_counted(failed, record, now):
        return record
    attempts, delays = (record.attempts, record.delays) if record else (0, 0)
    action, level = (record.action, record.level) if record else (Action.RETRY, Level.FULL)
    if failed.failure.kind in _NOT_ITS_FAULT:
        delays += 1
    else:
        attempts, delays = attempts + 1, 0
        step, level = _step(failed.failure.kind, attempts, level, levels)
        action = max(step, action, key=lambda each: each.severity)
    if action is Action.FALLBACK and not has_fallback:
        action = Action.QUARANTINE
    return RecoveryRecord(
        model=failed.model,
        attempts=attempts,
        last=failed.failure,
        last_replica=failed.id,
        retry_at=_retry_at(action, delays or attempts, failed.id, settings, now),
        action=action,
        level=level,
        delays=delays,
        facts=facts if action is Action.QUARANTINE else "",
    )


def _step(kind: FailureKind, attempts: int, level: Level, levels: Collection[Level]) -> tuple[Action, Level]:
    """What the table says to do, and the level of the next attempt."""
    row = _TABLE[kind]
    action = row[min(attempts, len(row)) - 1]
    if action not in _LEVEL:
        return action, level
    by_depth = sorted(levels, key=lambda each: each.depth)
    small_enough = [each for each in by_depth if each.depth >= _LEVEL[action].depth]
    reached = (small_enough or by_depth[-1:] or [level])[0]
    return (_STEP[reached], reached) if reached.depth > level.depth else (Action.RETRY, level)


def _retry_at(action: Action, number: int, replica: str, settings: RecoverySettings, now: Instant) -> Wall | None:
    if action is not Action.QUARANTINE:
        return Wall(now.wall + backoff(number, settings, jitter_of(replica)))
    return Wall(now.wall + settings.quarantine_retry) if settings.quarantine_retry > 0 else None


def _is_counted(failed: ReplicaFact, record: RecoveryRecord, now: Instant) -> bool:
    """Whether its failure is the one counted last, or came before that and so was counted too, unless that one's
    stamp means nothing. Of two at the same moment the one with the smaller id is the first."""
    assert failed.failure is not None
    if record.last_replica == failed.id:
        return True
    before = (failed.failure.at, failed.id) < (record.last.at, record.last_replica)
    return before and record.last.at <= now.wall + CLOCK_JUMP


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


def hold_until(
    records: Mapping[NodeName, RecoveryRecord], settings: RecoverySettings, now: Instant, *, elsewhere: bool
) -> Wall | None:
    """Until when a spec is not launched on any node: the back-off is the model's, not a node's. None: it may be.

    `elsewhere`: there are nodes where it has not failed for good. One that gave up on a node does not fall upon all
    the others in a row: it backs off between them too.
    """
    held = [
        record.retry_at
        for record in records.values()
        if not record.exhausted and record.retry_at is not None and not may_try(record, now)
    ]
    closed = [record for record in records.values() if record.exhausted and not may_try(record, now)]
    if elsewhere and closed:
        last = max(closed, key=lambda record: (record.last.at, record.last_replica))
        number = max(1, sum(record.attempts for record in closed))
        until = Wall(min(last.last.at, now.wall) + backoff(number, settings, jitter_of(last.last_replica)))
        held += [until] if until > now.wall else []
    return max(held, default=None)
