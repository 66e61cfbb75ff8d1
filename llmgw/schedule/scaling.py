"""One replica more while a model is busy, one less while it is quiet. Pure.

DESIGN's rule, in its order: nothing to scale; nobody knows the load; busy; quiet; neither. A timer says since when;
once it was held for long enough, one step is taken, and the next counts anew.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from llmgw.catalog.spec import Catalog, ScalingSettings
from llmgw.desired import Bounds, all_bounds
from llmgw.facts import (
    Ask,
    Concurrency,
    Event,
    Level,
    ModelLoad,
    Observed,
    Phase,
    ReplicaFact,
    ScalingState,
)
from llmgw.ids import ModelName, NodeName, SpecDigest
from llmgw.units import Instant, Wall, format_seconds

ROOM: Final = 0.7
"""Of what the other replicas were measured to hold: with no more than that under way, one can be done without."""

_COMING: Final = frozenset((Phase.PLACING, Phase.FETCHING, Phase.STARTING))


def step(
    state: ScalingState,
    *,
    base: int,
    ceiling: int,
    load: ModelLoad,
    measured: int | None,
    settings: ScalingSettings,
    now: Wall,
) -> tuple[ScalingState, str | None]:
    """The state that follows, and the figures of a step where one was taken.

    `measured`: requests at once that one replica holds; None: nobody has measured.
    """
    if base <= 0 or ceiling <= base:
        return ScalingState(), None
    state = _bounded(state, ceiling - base, now)
    if not load.known:
        return ScalingState(extra=state.extra), None
    if _busy(load, measured, settings):
        return _while_busy(state, base, ceiling, load, measured, settings, now)
    if _quiet(state, load, measured):
        return _while_quiet(state, base, load, settings, now)
    return ScalingState(extra=state.extra), None


def loads(observed: Observed, held: Mapping[ModelName, int]) -> Mapping[ModelName, ModelLoad]:
    """What each model that has replicas, or held requests, has to do. Absent: nothing."""
    tallies: defaultdict[ModelName, _Tally] = defaultdict(_Tally)
    for replica in observed.replicas.values():
        tallies[replica.model].add(replica, observed.outstanding.get(replica.id))
    for name, waiting in held.items():
        tallies[name].waiting += max(0, waiting)
    return {name: tally.load() for name, tally in tallies.items()}


@dataclass(slots=True)
class _Tally:
    ready: int = 0
    starting: int = 0
    running: int = 0
    waiting: int = 0
    read: bool = False

    def add(self, replica: ReplicaFact, outstanding: int | None) -> None:
        """`outstanding`: requests that gateways have there; None: none of them has sent any. An engine whose every
        thread is taken does not answer what its load is: what gateways sent beyond its slots waits, whoever counts."""
        if replica.phase is Phase.READY:
            self.ready += 1
            self.read |= replica.load is not None or outstanding is not None
            running = replica.load.running if replica.load is not None else 0
            waiting = replica.load.waiting if replica.load is not None else 0
            total = max(running + waiting, outstanding or 0)
            running = max(running, min(total - waiting, replica.parallel))
            self.running += running
            self.waiting += total - running
        elif replica.phase in _COMING:
            self.starting += 1

    def load(self) -> ModelLoad:
        known = self.read or not self.ready
        return ModelLoad(
            ready=self.ready, starting=self.starting, running=self.running, waiting=self.waiting, known=known
        )  # fmt: skip


def step_all(
    catalog: Catalog,
    observed: Observed,
    held: Mapping[ModelName, int],
    scaling: Mapping[ModelName, ScalingState],
    asks: Mapping[ModelName, Ask],
    concurrency: Mapping[tuple[SpecDigest, NodeName], Concurrency],
    now: Instant,
    *,
    fallbacks: Collection[ModelName] = (),
) -> tuple[Mapping[ModelName, ScalingState], tuple[Event, ...]]:
    """Every model's state that says anything, and an event for each step. A suspended model keeps its extra."""
    can = {
        name: bounds
        for name, bounds in all_bounds(catalog, asks, now.wall, fallbacks, held).items()
        if bounds.ceiling > bounds.base > 0 or catalog.models[name].suspend
    }
    seen = loads(observed, held) if can else {}
    measured = _measured(observed, concurrency) if can and concurrency else {}
    states: dict[ModelName, ScalingState] = {}
    events: list[Event] = []
    for name, bounds in can.items():
        state, text = _step(catalog, bounds, name, scaling, seen, measured, now)
        if state != ScalingState():
            states[name] = state
        if text is not None:
            grown = state.extra > scaling.get(name, ScalingState()).extra
            reason = "scaled up" if grown else "scaled down"
            events.append(Event(at=now.wall, subject=f"model/{name}", reason=reason, message=text))
    return states, tuple(events)


def _step(
    catalog: Catalog,
    bounds: Bounds,
    name: ModelName,
    scaling: Mapping[ModelName, ScalingState],
    seen: Mapping[ModelName, ModelLoad],
    measured: Mapping[ModelName, int],
    now: Instant,
) -> tuple[ScalingState, str | None]:
    state = scaling.get(name, ScalingState())
    if catalog.models[name].suspend:
        return ScalingState(extra=state.extra), None
    return step(
        state,
        base=bounds.base,
        ceiling=bounds.ceiling,
        load=seen.get(name, ModelLoad()),
        measured=measured.get(name),
        settings=catalog.cluster.scaling,
        now=now.wall,
    )


def _busy(load: ModelLoad, measured: int | None, settings: ScalingSettings) -> bool:
    replicas = max(load.ready, 1)
    if load.waiting / replicas >= settings.up_waiting:
        return True
    return measured is not None and load.running + load.waiting > measured * replicas


def _quiet(state: ScalingState, load: ModelLoad, measured: int | None) -> bool:
    if load.waiting or not state.extra:
        return False
    return measured is None or load.running <= ROOM * measured * max(load.ready - 1, 0)


def _while_busy(
    state: ScalingState,
    base: int,
    ceiling: int,
    load: ModelLoad,
    measured: int | None,
    settings: ScalingSettings,
    now: Wall,
) -> tuple[ScalingState, str | None]:
    since = now if state.busy_since is None else state.busy_since
    count = base + state.extra
    if now - since < settings.up_after or count >= ceiling or load.starting:
        return ScalingState(extra=state.extra, busy_since=since), None
    holds = "" if measured is None else f", of {measured} that one replica holds"
    text = (
        f"{count} to {count + 1} replicas: {_wait(load.waiting)} and {load.running} run on {load.ready}{holds}, "
        f"busy for {format_seconds(now - since)}; at most {ceiling}"
    )
    return ScalingState(extra=state.extra + 1, busy_since=now), text


def _while_quiet(
    state: ScalingState, base: int, load: ModelLoad, settings: ScalingSettings, now: Wall
) -> tuple[ScalingState, str | None]:
    since = now if state.quiet_since is None else state.quiet_since
    if now - since < settings.down_after:
        return ScalingState(extra=state.extra, quiet_since=since), None
    count = base + state.extra
    text = (
        f"{count} to {count - 1} replica{'s' if count > 2 else ''}: none waits and {load.running} run on {load.ready}, "
        f"quiet for {format_seconds(now - since)}; at least {base}"
    )
    return ScalingState(extra=state.extra - 1, quiet_since=now), text


def _wait(requests: int) -> str:
    return "1 request waits" if requests == 1 else f"{requests} requests wait"


def _bounded(state: ScalingState, room: int, now: Wall) -> ScalingState:
    """No more than there is room for under a ceiling that came down; no stamp from a clock ahead of ours."""
    busy, quiet = state.busy_since, state.quiet_since
    return ScalingState(
        extra=min(max(state.extra, 0), room),
        busy_since=None if busy is None else min(busy, now),
        quiet_since=None if quiet is None else min(quiet, now),
    )


def _measured(
    observed: Observed, concurrency: Mapping[tuple[SpecDigest, NodeName], Concurrency]
) -> Mapping[ModelName, int]:
    """What one ready replica of a model holds: the mean of those measured where they run, and 1 at least.

    A replica that was shrunk is another thing than what was measured.
    """
    figures: defaultdict[ModelName, list[int]] = defaultdict(list)
    for replica in observed.replicas.values():
        known = concurrency.get((replica.spec, replica.node))
        if known is not None and replica.phase is Phase.READY and replica.level is Level.FULL:
            figures[replica.model].append(known.requests)
    return {name: max(1, sum(found) // len(found)) for name, found in figures.items()}
