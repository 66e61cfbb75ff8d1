"""How many replicas of each model should run now, and why. Pure.

A model's base is what its scaling block, or the window that it is in, asks for at least; of an on-demand model whose
base is 0 it is 1 for as long as it was asked for or used within the idle time-out. Scaling adds to the base, and the
ceiling bounds the sum.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from math import inf, nextafter
from typing import Final

from llmgw.catalog import windows
from llmgw.catalog.spec import Catalog, ClusterSpec, ModelSpec, ScalingSpec, Window
from llmgw.facts import Ask, Observed, Phase, ReplicaFact
from llmgw.ids import ModelName
from llmgw.memo import Once
from llmgw.plan import Reason, Wish
from llmgw.units import Instant, Seconds, Wall, format_seconds

SOON: Final = 5.0
"""Seconds after an ask within which the gateway's count of who waits has come, also from afar."""
_NOT_ASKED: Final = "on demand, and not asked for"
_NO_CLOCK: Final = datetime.fromtimestamp(0, UTC)
_WINDOWS: Final = 4  #: windows of a model that are told of in a line
_IN_USE: Final = frozenset((Phase.PLACING, Phase.FETCHING, Phase.STARTING, Phase.READY))
"""A replica that drains answers what it has, and no more: that says nothing about who is waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How many replicas at least and at most. `on_demand`: the base is there only because it was asked for."""

    base: int
    ceiling: int
    window: Window | None = None
    on_demand: bool = False
    waited: bool = False  #: a request waits for it
    why: str = ""
    reason: Reason = Reason.SCALED_DOWN  #: that a replica beyond them is stopped for


def demand(
    catalog: Catalog, observed: Observed, asks: Mapping[ModelName, Ask], now: Instant
) -> Mapping[ModelName, Ask]:
    """The asks brought up to date with what is in use. Absent: of a model that left, or is not on-demand.

    Use refreshes only what was asked for, or is wanted anyway: so that the end of a window stops no model that is in
    use, which nobody had to ask for while it was ready. An on-demand replica that was found running and never asked
    for counts as asked for now, so that it is not stopped before anybody could ask. Stamps only move forward; one
    from a clock ahead of ours counts as now.
    """
    current = {name: _clamped(asks[name], now.wall) for name in sorted(asks) if _on_demand(catalog, name)}
    local = windows.at(now.wall, catalog.cluster.time_zone)
    uses: dict[ModelName, Wall] = {}
    for replica in observed.replicas.values():
        if not _on_demand(catalog, replica.model):
            continue
        if replica.adopted and replica.phase.occupies_memory:
            current.setdefault(replica.model, Ask(asked=now.wall))
        if (used := _used(replica, observed, now.wall)) is not None:
            uses[replica.model] = max(used, uses.get(replica.model, used))
    for name, used in uses.items():
        ask = current.get(name)
        if ask is None and _base(catalog.models[name].scaling, local)[0] > 0:
            current[name] = Ask(asked=used, used=used)
        elif ask is not None and (ask.used is None or ask.used < used):
            current[name] = replace(ask, used=used)
    longest = catalog.cluster.gateway.cold_start_timeout
    return {name: _with_since(ask, longest) for name, ask in current.items()}


def desired(
    catalog: Catalog,
    *,
    now: Instant,
    stopped: bool = False,
    asks: Mapping[ModelName, Ask] | None = None,
    extra: Mapping[ModelName, int] | None = None,
    running: Mapping[ModelName, int] | None = None,
    fallbacks: Collection[ModelName] = (),
    held: Mapping[ModelName, int] | None = None,
) -> tuple[Wish, ...]:
    """A wish for every model, in name order. In this order: the operator's switch, suspended, the count.

    `extra`: replicas beyond the base, by scaling. `running`: replicas that run now, of suspended models. `fallbacks`:
    models that stand in for another now. `held`: requests that wait at gateways; None: nobody counts them, and who
    asked is taken to wait.
    """
    if stopped:
        why, reason = "stopped by the operator", Reason.SYSTEM_STOPPED
        return tuple(Wish(model=name, count=0, why=why, reason=reason) for name in sorted(catalog.models))
    asks, extra, running = asks or {}, extra or {}, running or {}
    resting = _all_at_rest(catalog)
    wishes = dict(resting.wishes)
    stirred = _stirred(catalog, asks, now.wall, fallbacks, held)
    for name in (stirred.keys() | extra.keys()) & wishes.keys():
        wishes[name] = _wish(name, stirred.get(name) or resting.bounds[name], asks.get(name), extra.get(name, 0))
    for name in resting.suspended:
        wishes[name] = _held(name, running.get(name, 0))
    return tuple(wishes.values())


def next_due(catalog: Catalog, asks: Mapping[ModelName, Ask], now: Instant) -> Wall | None:
    """When the wishes change though nothing happens: a window begins or ends, an idle time-out or a wait is over."""
    cluster, local = catalog.cluster, windows.at(now.wall, catalog.cluster.time_zone)
    changes = {catalog.models[name].scaling.windows for name in _all_at_rest(catalog).clocked}
    begins = (windows.next_change(each, local) for each in changes)
    due = [at.timestamp() for at in begins if at is not None]
    for name, ask in asks.items():
        if _on_demand(catalog, name):
            ask = _clamped(ask, now.wall)
            ends = [ask.last + idle_timeout(catalog.models[name].scaling, cluster)]
            if _is_unserved(ask):
                ends += [ask.asked + SOON, ask.asked + cluster.gateway.cold_start_timeout]
            due += [nextafter(end, inf) for end in ends]  # until then, and then too
    return Wall(min((at for at in due if at > now.wall), default=0)) or None


def all_bounds(
    catalog: Catalog,
    asks: Mapping[ModelName, Ask],
    now: Wall,
    fallbacks: Collection[ModelName] = (),
    held: Mapping[ModelName, int] | None = None,
) -> Mapping[ModelName, Bounds]:
    """The bounds of every model, in name order. Scaling and wishes must agree on them."""
    return {**_all_at_rest(catalog).bounds, **_stirred(catalog, asks, now, fallbacks, held)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _AtRest:
    """A catalog while nobody asks for anything, in name order. `clocked`: models whose bounds the clock changes."""

    bounds: Mapping[ModelName, Bounds]
    wishes: Mapping[ModelName, Wish]
    clocked: frozenset[ModelName]
    suspended: frozenset[ModelName]


def _rest(catalog: Catalog) -> _AtRest:
    """What takes the time of a pass over a large catalog: made once for each model, put together once for each catalog.
    Of a model with windows it is what nobody asks for."""
    pairs = {name: _at_rest(catalog.models[name]) for name in sorted(catalog.models)}
    return _AtRest(
        bounds={name: bounds for name, (bounds, _) in pairs.items()},
        wishes={name: wish for name, (_, wish) in pairs.items()},
        clocked=frozenset(name for name in pairs if catalog.models[name].scaling.windows),
        suspended=frozenset(name for name in pairs if catalog.models[name].suspend),
    )


_all_at_rest: Final = Once(_rest)


def _model_at_rest(model: ModelSpec) -> tuple[Bounds, Wish]:
    # Neither the cluster's settings nor the time say anything of a model that nobody asks for, and that has no windows.
    bounds = _bounds(model, ClusterSpec(), None, False, _NO_CLOCK, Wall(0), False)
    return bounds, _wish(model.name, bounds, None, 0)


_at_rest: Final = Once(_model_at_rest)


def _stirred(
    catalog: Catalog,
    asks: Mapping[ModelName, Ask],
    now: Wall,
    fallbacks: Collection[ModelName],
    held: Mapping[ModelName, int] | None,
) -> dict[ModelName, Bounds]:
    """Of the models that are asked for, stand in for others, or have windows: all that are not at rest."""
    cluster, local = catalog.cluster, windows.at(now, catalog.cluster.time_zone)
    found: dict[ModelName, Bounds] = {}
    for name in (_all_at_rest(catalog).clocked | asks.keys() | set(fallbacks)) & catalog.models.keys():
        ask = None if name not in asks else _clamped(asks[name], now)
        waited = ask is not None and _waits(ask, None if held is None else held.get(name, 0), cluster, now)
        found[name] = _bounds(catalog.models[name], cluster, ask, waited, local, now, name in fallbacks)
    return found


def idle_timeout(scaling: ScalingSpec, cluster: ClusterSpec) -> Seconds:
    """How long an on-demand model is kept after its last use. 0 or absent: the cluster's."""
    return scaling.idle_timeout or cluster.defaults.idle_timeout


def _bounds(
    model: ModelSpec, cluster: ClusterSpec, ask: Ask | None, waited: bool, local: datetime, now: Wall, fallback: bool
) -> Bounds:
    if model.external is not None:
        return Bounds(base=0, ceiling=0, why="others run it")
    scaling = model.scaling
    base, window = _base(scaling, local)
    ceiling = window.max if window is not None and window.max > 0 else scaling.max
    if base > 0 or not scaling.on_demand:
        return _steady(base, ceiling, window, scaling.windows, waited and base > 0)
    if ask is None and not fallback:
        return _asleep(ceiling, window)
    base, why = _asked_for(ask, waited, idle_timeout(scaling, cluster), now)
    if not base and fallback:
        base, why = 1, "serves in another's place"
    reason = Reason.SCALED_DOWN if base else Reason.NOT_WANTED if ask is None else Reason.IDLE
    return Bounds(
        base=base, ceiling=ceiling, window=window, on_demand=base > 0, waited=waited, why=why, reason=reason
    )  # fmt: skip


def _base(scaling: ScalingSpec, local: datetime) -> tuple[int, Window | None]:
    """Wanted whether asked for or not, and the window that says so."""
    window = windows.active(scaling.windows, local) if scaling.windows else None
    return (scaling.min if window is None else window.min), window


def _asked_for(ask: Ask | None, waited: bool, timeout: Seconds, now: Wall) -> tuple[int, str]:
    """1 for as long as it was asked for or used lately, or a request waits for it, however long it takes to load."""
    if ask is None:
        return 0, _NOT_ASKED
    idle = Seconds(now - ask.last)
    if idle <= timeout or waited:
        return 1, f"{'asked for' if _is_unserved(ask) else 'used'} {_ago(idle)}"
    return 0, f"on demand, and idle for more than {format_seconds(timeout)}"


def _is_unserved(ask: Ask) -> bool:
    return ask.used is None or ask.asked > ask.used


def _waits(ask: Ask, held: int | None, cluster: ClusterSpec, now: Wall) -> bool:
    """A request waits for the model, or for what was loaded for it: asked for and not used since. No longer than one
    is held, and not for one that has left; whose count may yet be on its way."""
    since = now - ask.asked
    if not _is_unserved(ask) or since > cluster.gateway.cold_start_timeout:
        return False
    return held is None or held > 0 or since <= SOON


@lru_cache(maxsize=1024)  # as most models of a large catalog are
def _asleep(ceiling: int, window: Window | None) -> Bounds:
    """On demand, and not asked for."""
    return Bounds(base=0, ceiling=ceiling, window=window, why=_NOT_ASKED, reason=Reason.NOT_WANTED)


@lru_cache(maxsize=1024)  # many models have the same
def _steady(base: int, ceiling: int, window: Window | None, others: tuple[Window, ...], waited: bool) -> Bounds:
    """Wanted whether asked for or not. `window`: the one that holds now; `others`: those that it has."""
    if window is not None:
        why = f"window {windows.describe(window)}" + ("" if base else ": none")
    elif not base:
        why = f"outside its windows ({_told(others)})" if others else "its scaling.min is 0"
    else:
        why = "in the catalog" if base == 1 else f"at least {base}"
    reason = Reason.SCALED_DOWN if base else Reason.NOT_WANTED
    return Bounds(base=base, ceiling=ceiling, window=window, waited=waited, why=why, reason=reason)


def _wish(model: ModelName, bounds: Bounds, ask: Ask | None, extra: int) -> Wish:
    most = max(bounds.ceiling, bounds.base)
    count = min(bounds.base + max(extra, 0), most) if bounds.base else 0
    busy = f"{bounds.why}; {count} of at most {most}: busy"
    return Wish(
        model=model,
        count=count,
        why=busy if count > bounds.base else bounds.why,
        reason=bounds.reason,
        on_demand=bounds.on_demand,
        waited=bounds.waited,
        asked=None if ask is None else ask.asked,
        since=None if ask is None or not bounds.waited else ask.since or ask.asked,
    )


def _held(model: ModelName, running: int) -> Wish:
    return Wish(model=model, count=running, why=f"suspended: as it is, with {running}", held=True)


def _on_demand(catalog: Catalog, name: ModelName) -> bool:
    model = catalog.models.get(name)
    return model is not None and model.external is None and model.scaling.on_demand


def _clamped(ask: Ask, now: Wall) -> Ask:
    if ask.last <= now:
        return ask
    used, since = (None if stamp is None else min(stamp, now) for stamp in (ask.used, ask.since))
    return Ask(asked=min(ask.asked, now), used=used, since=since)


def _with_since(ask: Ask, longest: Seconds) -> Ask:
    """With the first ask that a request may still wait for: those before were answered, or have waited too long."""
    since = None
    if _is_unserved(ask):
        since = Wall(max(ask.asked - longest, ask.asked if ask.since is None else ask.since))
    return ask if since == ask.since else replace(ask, since=since)


def _used(replica: ReplicaFact, observed: Observed, now: Wall) -> Wall | None:
    """When it was last used; None: nobody has said."""
    if replica.phase not in _IN_USE:
        return None
    if observed.active(replica):
        return now
    used = observed.last_used.get(replica.id)
    return None if used is None else min(used, now)


def _told(some: tuple[Window, ...]) -> str:
    """`mon-fri 08:00-19:00, sat 10:00-14:00`"""
    more = f" and {len(some) - _WINDOWS} more" if len(some) > _WINDOWS else ""
    return ", ".join(windows.describe(window) for window in some[:_WINDOWS]) + more


def _ago(idle: Seconds) -> str:
    """Coarse on purpose: a text that changed with every pass would be written to the store with every pass."""
    if idle < 60:
        return "in the last minute"
    return f"{format_seconds(idle // 60 * 60)} ago"
