"""One pass's thinking: everything known in, everything decided out. The daemon, `plan` and simulations all call it.

In this order: failures are counted, asks brought up to date, scaling steps taken, models that others stand in for
found; then what is wished for, the plan, and each model's story.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from llmgw.catalog.spec import Catalog, ModelSpec, spec_digest
from llmgw.desired import demand, desired, next_due
from llmgw.facts import Ask, Concurrency, Event, Observed, Phase, RecoveryRecord, ScalingState
from llmgw.ids import ModelName, NodeName, SpecDigest, shortened
from llmgw.plan import Levels, ModelStatus, Plan, Rollout, Stopped, Wish
from llmgw.schedule import recovery, rollout, scaling
from llmgw.schedule.claims import LEAVING
from llmgw.schedule.decider import Decider
from llmgw.schedule.explain import Surfaces, statuses
from llmgw.schedule.rollout import Rollouts
from llmgw.units import Instant, Wall

K = TypeVar("K")
V = TypeVar("V")

RecoveryKey = tuple[SpecDigest, NodeName]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """All that one pass decides from. `catalog`: the effective one (`rollout.effective`)."""

    catalog: Catalog
    observed: Observed
    levels: Levels = field(default_factory=dict)
    surfaces: Surfaces = field(default_factory=dict)  #: what models serve, as far as their engines say
    asks: Mapping[ModelName, Ask] = field(default_factory=dict)
    scaling: Mapping[ModelName, ScalingState] = field(default_factory=dict)
    held: Mapping[ModelName, int] = field(default_factory=dict)  #: requests that gateways hold, by model
    concurrency: Mapping[tuple[SpecDigest, NodeName], Concurrency] = field(default_factory=dict)
    covered: Collection[ModelName] = ()  #: models that another served for until now
    rollouts: Rollouts = field(default_factory=dict)
    stopped: Stopped | None = None
    settled: bool = True  #: False: nodes may be missing that are about to report: nothing is launched or evicted


@dataclass(frozen=True, slots=True, kw_only=True)
class Thought:
    """All that follows. Of `recovery`, `asks`, `scaling` and `rollouts` only what changes; None: to be forgotten."""

    plan: Plan
    wishes: tuple[Wish, ...]
    statuses: tuple[ModelStatus, ...]
    recovery: Mapping[RecoveryKey, RecoveryRecord | None] = field(default_factory=dict)
    asks: Mapping[ModelName, Ask | None] = field(default_factory=dict)
    scaling: Mapping[ModelName, ScalingState | None] = field(default_factory=dict)
    rollouts: Mapping[ModelName, Rollout | None] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    due: Wall | None = None  #: when the next pass is worth making though nothing changes


def think(known: Known, now: Instant, *, decider: Decider | None = None) -> Thought:
    """Pure: the same known at the same moment gives the same thought. `decider`: one that remembers its last answer."""
    catalog = known.catalog
    records = recovery.changes(known.observed, catalog, known.levels, now)
    observed = replace(known.observed, recovery=merged(known.observed.recovery, records))
    asks = demand(catalog, observed, known.asks, now)
    wishes = _wishes(known, observed, asks, known.scaling, (), now)
    instead = stand_ins(catalog, observed, wishes, known.covered)
    steps, events = scaling.step_all(
        catalog, observed, known.held, known.scaling, asks, known.concurrency, now, fallbacks=set(instead.values())
    )
    if instead or steps != known.scaling:
        wishes = _wishes(known, observed, asks, steps, set(instead.values()), now)
    decider = decider or Decider()
    plan = decider.decide(wishes, catalog, observed, now, levels=known.levels, settled=known.settled)
    told = statuses(
        plan, wishes, catalog, observed, stopped=known.stopped is not None, instead=instead, levels=known.levels,
        surfaces=known.surfaces,
    )  # fmt: skip
    rollouts = rollout.step(catalog, observed, known.rollouts, plan, now)
    fared = {**known.rollouts, **rollouts}  # one that fails now is told at once: not first that the model is stuck
    due = [at for at in (plan.due, next_due(catalog, asks, now), _next_step(steps, catalog, now)) if at is not None]
    return Thought(
        plan=plan,
        wishes=wishes,
        statuses=tuple(_as_returned(one, fared) for one in told) if fared else told,
        recovery=records,
        asks=_changes(known.asks, asks),
        scaling=_changes(known.scaling, steps),
        rollouts=rollouts,
        events=(*events, *_told(rollouts, now)),
        # What a rollout that failed returns to is planned at once, by the pass that knows of it.
        due=now.wall if any(one is not None and one.failed for one in rollouts.values()) else min(due, default=None),
    )


def _told(rollouts: Mapping[ModelName, Rollout | None], now: Instant) -> Iterator[Event]:
    for name, one in rollouts.items():
        if one is not None and one.failed is not None:
            text = f"{shortened(one.revision)}: {one.why}; it returns to {shortened(one.good_revision)}"
            yield Event(at=now.wall, subject=f"model/{name}", reason="rollout failed", message=text)


def _as_returned(status: ModelStatus, rollouts: Mapping[ModelName, Rollout | None]) -> ModelStatus:
    """With what it failed at, where it is wanted as before."""
    one = rollouts.get(status.model)
    if one is None or one.failed is None:
        return status
    failed = f"{shortened(one.revision)} failed: {one.why}"
    reason = f"{failed}; as of {shortened(one.good_revision)}" + (f": {status.reason}" if status.reason else "")
    return replace(status, spec_revision=one.good_revision, rollout_failed=failed, reason=reason)


def stand_ins(
    catalog: Catalog, observed: Observed, wishes: Collection[Wish], covered: Collection[ModelName] = ()
) -> dict[ModelName, ModelName]:
    """The models that are wanted, gave up or are in quarantine, and have no ready replica: to their fallbacks. One that
    is `covered` already stays so until it is ready, though its failures were forgotten meanwhile."""
    ready = {fact.model for fact in observed.replicas.values() if fact.phase is Phase.READY}
    given_up = {spec for (spec, _), record in observed.recovery.items() if record.exhausted}
    found: dict[ModelName, ModelName] = {}
    for wish in wishes:
        if not wish.count:
            continue
        model = catalog.models[wish.model]
        if model.fallback is None or model.name in ready:
            continue
        if model.name in covered or _gave_up(model, given_up):
            found[model.name] = model.fallback
    return found


def _next_step(steps: Mapping[ModelName, ScalingState], catalog: Catalog, now: Instant) -> Wall | None:
    """When a model will have been busy or quiet for long enough."""
    settings = catalog.cluster.scaling
    ends = [state.busy_since + settings.up_after for state in steps.values() if state.busy_since is not None]
    ends += [state.quiet_since + settings.down_after for state in steps.values() if state.quiet_since is not None]
    return Wall(min((end for end in ends if end > now.wall), default=0)) or None


def _gave_up(model: ModelSpec, given_up: Collection[SpecDigest]) -> bool:
    return any(spec_digest(model.name, profile) in given_up for profile in model.profiles)


def _wishes(
    known: Known,
    observed: Observed,
    asks: Mapping[ModelName, Ask],
    steps: Mapping[ModelName, ScalingState],
    fallbacks: Collection[ModelName],
    now: Instant,
) -> tuple[Wish, ...]:
    suspended = {name for name, model in known.catalog.models.items() if model.suspend}
    running = Counter(
        fact.model
        for fact in (observed.replicas.values() if suspended else ())
        if fact.model in suspended
        and fact.phase.occupies_memory
        and fact.phase not in LEAVING
        and fact.node not in observed.lost
    )
    return desired(
        known.catalog,
        now=now,
        stopped=known.stopped is not None,
        asks=asks,
        extra={name: state.extra for name, state in steps.items()},
        running=running,
        fallbacks=fallbacks,
        held=known.held,
    )


def merged(before: Mapping[K, V], changes: Mapping[K, V | None]) -> dict[K, V]:
    """`before` with the changes made; None: left out."""
    after = {key: value for key, value in before.items() if key not in changes}
    return after | {key: value for key, value in changes.items() if value is not None}


def _changes(before: Mapping[K, V], after: Mapping[K, V]) -> dict[K, V | None]:
    changed: dict[K, V | None] = {key: value for key, value in after.items() if before.get(key) != value}
    return changed | dict.fromkeys(before.keys() - after.keys())
