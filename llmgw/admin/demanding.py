"""How many replicas of one model are wanted, and by what, from store values. Pure: the functions that decide it."""

from collections.abc import Iterable, Mapping

from llmgw.admin.reading import Asked, Seen
from llmgw.admin.stories import DemandRow
from llmgw.catalog import windows
from llmgw.catalog.spec import Catalog, ClusterSpec, ModelSpec, Window
from llmgw.desired import Bounds, all_bounds, idle_timeout
from llmgw.facts import ModelLoad, Observed, Phase, ReplicaFact
from llmgw.ids import ModelName, NodeName, ReplicaId
from llmgw.schedule import scaling
from llmgw.store.values import Applied
from llmgw.units import Wall


def demand_row(seen: Seen, spec: ModelSpec, asked: Asked, now: Wall) -> DemandRow | None:
    """None while no catalog is in force."""
    if seen.applied is None:
        return None
    cluster = _cluster(seen.applied)
    bounds = _bounds(seen, spec, cluster, asked, now)
    timeout = idle_timeout(spec.scaling, cluster)
    load = _load(seen, spec.name, asked)
    return DemandRow(
        base=bounds.base,
        ceiling=max(bounds.ceiling, bounds.base),
        window=_window(bounds.window),
        changes_at=_changes_at(spec, cluster, now),
        time_zone=cluster.time_zone,
        extra=asked.scaling.extra,
        busy_since=asked.scaling.busy_since,
        quiet_since=asked.scaling.quiet_since,
        up_after=cluster.scaling.up_after,
        down_after=cluster.scaling.down_after,
        ready=load.ready,
        starting=load.starting,
        running=load.running,
        waiting=load.waiting,
        held=asked.held,
        measured=_measured(_facts(seen, spec.name), asked),
        on_demand=spec.scaling.on_demand,
        asked_at=asked.ask.asked if asked.ask is not None else None,
        used_at=asked.ask.used if asked.ask is not None else None,
        idle_timeout=timeout,
        unloads_at=asked.ask.last + timeout if asked.ask is not None and bounds.on_demand else None,
        suspended=spec.suspend,
    )


def _cluster(applied: Applied) -> ClusterSpec:
    return ClusterSpec(
        time_zone=applied.time_zone, scaling=applied.scaling, defaults=applied.defaults, gateway=applied.gateway
    )


def _bounds(seen: Seen, spec: ModelSpec, cluster: ClusterSpec, asked: Asked, now: Wall) -> Bounds:
    assert seen.applied is not None, "asked only once a catalog is in force"
    alone = Catalog(
        revision=seen.applied.revision, digest=seen.applied.digest, models={spec.name: spec}, cluster=cluster
    )
    asks = {spec.name: asked.ask} if asked.ask is not None else {}
    fallbacks = {told.fallback for told in seen.explained.values() if told.fallback is not None}
    return all_bounds(alone, asks, now, fallbacks)[spec.name]


def _window(window: Window | None) -> str | None:
    return None if window is None else windows.describe(window)


def _changes_at(spec: ModelSpec, cluster: ClusterSpec, now: Wall) -> Wall | None:
    if not spec.scaling.windows:
        return None
    change = windows.next_change(spec.scaling.windows, windows.at(now, cluster.time_zone))
    return None if change is None else Wall(change.timestamp())


def _facts(seen: Seen, name: ModelName) -> Mapping[ReplicaId, ReplicaFact]:
    return {fact.id: fact for report in seen.reports.values() for fact in report.replicas if fact.model == name}


def _load(seen: Seen, name: ModelName, asked: Asked) -> ModelLoad:
    """As scaling counts it, with assignments that no agent has reported yet."""
    facts = _facts(seen, name)
    observed = Observed(nodes={}, replicas=facts, recovery={}, footprints={}, outstanding=asked.outstanding)
    load = scaling.loads(observed, {name: asked.held}).get(name, ModelLoad())
    coming = sum(
        assigned.model == name and id not in observed.replicas and assigned.want == "run"
        for id, assigned in seen.assignments.items()
    )
    return ModelLoad(
        ready=load.ready,
        starting=load.starting + coming,
        running=load.running,
        waiting=load.waiting,
        known=load.known,
    )


def _measured(facts: Mapping[ReplicaId, ReplicaFact], asked: Asked) -> int | None:
    """By the nodes that it is ready on, else by any."""
    ready = {(fact.spec, fact.node) for fact in facts.values() if fact.phase is Phase.READY}
    found = _requests(asked, ready) or _requests(asked, asked.concurrency)
    return sum(found) // len(found) if found else None


def _requests(asked: Asked, where: Iterable[tuple[str, NodeName]]) -> list[int]:
    keys = set(where)
    return [known.requests for key, known in asked.concurrency.items() if key in keys]
