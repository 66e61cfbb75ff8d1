"""Memory that replicas were seen to take, which counts at the next launch in place of an estimate. Pure.

The rule. A replica's peak of resident memory (anonymous and mapped pages together: weights that are mapped must stay
resident too, or it crawls) counts once the replica

 - runs at full level, and
 - has answered a request, since an engine takes memory as it works, and
 - has been ready for `recovery.stable`, or has ended after it served.

The highest peak ever seen for a spec on a node is kept: what happened once will happen again. A declared `memory` wins
over it, and it wins over an estimate. A peak above the declaration is told once, with both figures: the declaration
still counts, so that what the catalog says stays true, but the operator has to know.

Kept for as long as the catalog has the spec, and 30 days after it was last vouched for; 1,000 at most.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from llmgw.catalog.spec import Catalog, ProfileSpec, RecoverySettings, specs_of
from llmgw.facts import Event, Footprint, Level, Measured, Phase, ReplicaFact
from llmgw.ids import NodeName, SpecDigest
from llmgw.units import MIB, Bytes, Instant, Seconds, format_bytes

Key = tuple[SpecDigest, NodeName]

FORGOTTEN_AFTER: Final = Seconds(30 * 86400)
MOST: Final = 1000  #: entries
_VOUCHED: Final = Seconds(86400)  #: how stale `at` may be before it is written anew: a disk write a day
_REPLICAS: Final = 8  #: remembered, so that each counts once as a sample
_ENDED: Final = frozenset({Phase.DRAINING, Phase.STOPPING, Phase.STOPPED, Phase.FAILED})


def counts(fact: ReplicaFact, settings: RecoverySettings, now: Instant) -> bool:
    """Whether its peak is to be believed: the rule above."""
    if fact.resident_peak is None or not fact.served or fact.level is not Level.FULL:
        return False
    stable = fact.phase is Phase.READY and now.since(fact.since) >= settings.stable
    return stable or fact.phase in _ENDED


def account(
    known: Mapping[Key, Measured], facts: Iterable[ReplicaFact], catalog: Catalog, now: Instant
) -> dict[Key, Measured | None]:
    """What changes: peaks that grew or were vouched for anew; None where one is to be forgotten."""
    changes: dict[Key, Measured | None] = {}
    for fact in sorted(facts, key=lambda fact: fact.id):
        if counts(fact, catalog.cluster.recovery, now):
            key = (fact.spec, fact.node)
            before = changes.get(key) or known.get(key)
            after = _merged(before, fact, now)
            if after != before:
                changes[key] = after
    kept = {**known, **{key: one for key, one in changes.items() if one is not None}}
    if not kept:
        return changes
    wanted = specs_of(catalog)
    by_age = sorted(kept, key=lambda key: (key[0] in wanted, kept[key].at, key))
    surplus = set(by_age[: max(0, len(by_age) - MOST)])
    old = {key for key in kept if key[0] not in wanted and now.since(kept[key].at) > FORGOTTEN_AFTER}
    return changes | dict.fromkeys(surplus | old)


def warnings(known: Mapping[Key, Measured], catalog: Catalog, now: Instant) -> tuple[dict[Key, Measured], list[Event]]:
    """Peaks above their declarations that were not told yet: what to remember having told, and the telling."""
    told: dict[Key, Measured] = {}
    events: list[Event] = []
    for key, one in sorted(known.items()):
        model, profile = specs_of(catalog).get(key[0], (None, None))
        if model is None or profile is None or profile.memory is None:
            continue
        text = _exceeds(one, profile)
        if text and one.warned_for != profile.memory:
            told[key] = replace(one, warned_for=profile.memory)
            message = f"profile {profile.name} on {key[1]}: {text}: raise it, or leave it out to have this counted"
            events.append(
                Event(at=now.wall, subject=f"model/{model.name}", reason="memory underdeclared", message=message)
            )
    return told, events


def footprint(one: Measured, profile: ProfileSpec) -> Footprint | None:
    """What a launch is counted for; None where a part that matters was never seen."""
    if profile.devices > 0 and one.device is None:
        return None
    return Footprint(host=one.host, device=one.device or Bytes(0), source="measured")


def _merged(before: Measured | None, fact: ReplicaFact, now: Instant) -> Measured:
    assert fact.resident_peak is not None, "only what counts is merged"
    host = Bytes(-(-fact.resident_peak // MIB) * MIB)  # whole MiB: not a disk write for each page
    if before is None:
        return Measured(host=host, device=fact.device_peak, at=now.wall, replicas=(fact.id,))
    device = fact.device_peak if before.device is None else Bytes(max(before.device, fact.device_peak or 0))
    fresh = fact.id not in before.replicas
    merged = replace(
        before,
        host=Bytes(max(before.host, host)),
        device=device,
        samples=before.samples + fresh,
        replicas=(*before.replicas, fact.id)[-_REPLICAS:] if fresh else before.replicas,
    )
    stale = now.since(before.at) >= _VOUCHED
    return replace(merged, at=now.wall) if stale or merged != before else before


def _exceeds(one: Measured, profile: ProfileSpec) -> str:
    """Both figures, or nothing where the declaration holds."""
    assert profile.memory is not None, "asked only where it is declared"
    if profile.devices == 0:
        seen, declared = one.host, profile.memory + (profile.host_memory or 0)
        return _compared("", seen, declared)
    device = _compared("device ", one.device or 0, profile.memory)
    host = "" if profile.host_memory is None else _compared("host ", one.host, profile.host_memory)
    return device or host


def _compared(what: str, seen: int, declared: int) -> str:
    if seen <= declared:
        return ""
    return f"it took {format_bytes(seen)} of {what}memory at its peak, declared are {format_bytes(declared)}"
