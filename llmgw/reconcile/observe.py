"""Read the store into one `Observed`: what agents report, merged with what was assigned and not yet reported."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from llmgw.catalog.spec import Catalog, specs_of
from llmgw.engine.sizes import Sizes
from llmgw.facts import (
    Ask,
    Concurrency,
    Cordon,
    Footprint,
    Measured,
    NodeReport,
    Observed,
    Phase,
    RecoveryRecord,
    ReplicaFact,
    ScalingState,
    Suspension,
    Usage,
)
from llmgw.ids import ModelName, NodeName, ReplicaId, SpecDigest
from llmgw.memo import Kept
from llmgw.plan import Assignment, Levels, Rollout, Stopped, Want
from llmgw.reconcile import measured as measuring
from llmgw.reconcile.decoded import Decoded
from llmgw.reconcile.liveness import Liveness
from llmgw.schedule.explain import Surfaces
from llmgw.schedule.think import Known
from llmgw.store import keys
from llmgw.store.api import Store
from llmgw.store.codec import decode
from llmgw.store.values import Role
from llmgw.units import Instant, Wall

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One pass's view: what the core decides from, and what only dispatch needs."""

    observed: Observed
    braked: bool = False  #: too many nodes are silent at once
    assignments: Mapping[ReplicaId, Assignment] = field(default_factory=dict)
    reported: Mapping[ReplicaId, ReplicaFact] = field(default_factory=dict)  #: as the agents have it
    stopped: Stopped | None = None
    measured: Mapping[tuple[SpecDigest, NodeName], Measured] = field(default_factory=dict)
    levels: Levels = field(default_factory=dict)
    surfaces: Surfaces = field(default_factory=dict)
    asks: Mapping[ModelName, Ask] = field(default_factory=dict)
    scaling: Mapping[ModelName, ScalingState] = field(default_factory=dict)
    held: Mapping[ModelName, int] = field(default_factory=dict)  #: requests, over all gateways
    concurrency: Mapping[tuple[SpecDigest, NodeName], Concurrency] = field(default_factory=dict)
    suspensions: Mapping[ModelName, Suspension] = field(default_factory=dict)  #: by the operator
    rollouts: Mapping[ModelName, Rollout] = field(default_factory=dict)

    def known(self, catalog: Catalog, *, settled: bool = True, covered: frozenset[ModelName] = frozenset()) -> Known:
        """What a pass thinks about."""
        return Known(
            catalog=suspended(catalog, self.suspensions),
            observed=self.observed,
            levels=self.levels,
            surfaces=self.surfaces,
            asks=self.asks,
            scaling=self.scaling,
            held=self.held,
            concurrency=self.concurrency,
            rollouts=self.rollouts,
            covered=covered,
            stopped=self.stopped,
            settled=settled,
        )


async def observe(
    store: Store,
    sizes: Sizes,
    catalog: Catalog,
    now: Instant,
    *,
    liveness: Liveness | None = None,
    decoded: Decoded | None = None,
) -> Seen:
    """Everything a pass decides from. `now` stamps the replicas that no agent reported yet. `decoded`, of that store,
    saves decoding anew what is as it was."""
    decoded = decoded or Decoded(store)
    entries = (await store.list(keys.NODES)).entries
    found = decoded.of(keys.NODES, (entry for entry in entries if entry.key.endswith("/report")), NodeReport)
    reports = {report.node: report for report in found.values()}
    given = decoded.of(keys.NODES, (entry for entry in entries if "/assignments/" in entry.key), Assignment)
    assignments = {assigned.replica: assigned for assigned in given.values()}
    liveness = liveness or Liveness()
    reach = liveness.look(reports.values(), now, alive=await _alive(store) if liveness.presence else None)
    reported = {fact.id: fact for report in reports.values() for fact in report.replicas}
    usages = (await decoded.all(keys.USAGE, Usage)).values()
    outstanding, last_used = _use(usages, now)
    stopped = await store.get(keys.STOPPED)
    measured = await _by_spec_and_node(decoded, keys.MEASURED, Measured)
    sized = sizes.of(catalog, reports.values())
    observed = Observed(
        nodes=reports,
        replicas=_replicas(reported, assignments, now),
        recovery=await _by_spec_and_node(decoded, keys.RECOVERY, RecoveryRecord),
        footprints=sized.footprints,
        measured=measured_footprints(catalog, measured),
        unreachable=reach.unreachable,
        lost=reach.lost,
        replaced=reach.replaced,
        cordons={NodeName(name): one for name, one in (await decoded.all(keys.CORDONS, Cordon)).items()},
        outstanding=outstanding,
        last_used=last_used,
    )
    return Seen(
        observed=observed,
        braked=reach.braked,
        assignments=assignments,
        reported=reported,
        stopped=None if stopped is None else decode(stopped.value, Stopped, where=stopped.key),
        measured=measured,
        levels=sized.levels,
        surfaces=sized.surfaces,
        asks={ModelName(name): one for name, one in (await decoded.all(keys.ASKS, Ask)).items()},
        scaling={ModelName(name): one for name, one in (await decoded.all(keys.SCALING, ScalingState)).items()},
        held=_held(usages),
        concurrency=await _by_spec_and_node(decoded, keys.CONCURRENCY, Concurrency),
        suspensions={ModelName(name): one for name, one in (await decoded.all(keys.SUSPENSIONS, Suspension)).items()},
    )


def suspended(catalog: Catalog, names: Collection[ModelName]) -> Catalog:
    """The catalog with those models suspended, whatever it says of them itself: the same object as long as it is so."""
    found = frozenset(names) & catalog.models.keys()
    return _suspended.of("", catalog, found) if found else catalog


def _with_suspended(catalog: Catalog, names: Collection[ModelName]) -> Catalog:
    found = {name: replace(catalog.models[name], suspend=True) for name in names}
    return replace(catalog, models={**catalog.models, **found})


_suspended: Final[Kept[str, Catalog]] = Kept(_with_suspended, most=1)


async def _alive(store: Store) -> frozenset[NodeName]:
    return frozenset(
        NodeName(keys.last(entry.key)) for entry in (await store.list(keys.member(Role.AGENT, ""))).entries
    )


async def _by_spec_and_node(decoded: Decoded, prefix: str, kind: type[T]) -> dict[tuple[SpecDigest, NodeName], T]:
    found: dict[tuple[SpecDigest, NodeName], T] = {}
    for key, one in (await decoded.all(prefix, kind)).items():
        spec, _, node = key.partition("/")
        found[SpecDigest(spec), NodeName(node)] = one
    return found


def _replicas(
    reported: Mapping[ReplicaId, ReplicaFact], assignments: Mapping[ReplicaId, Assignment], now: Instant
) -> dict[ReplicaId, ReplicaFact]:
    """A decision counts before its agent has acted on it: assigned is `placing`, told to stop is `draining`."""
    replicas = dict(reported)
    for assigned in assignments.values():
        fact = reported.get(assigned.replica) or assigned.placing(now.wall)
        leaving = assigned.want is Want.STOP and not fact.kept_serving
        if leaving and fact.phase in (Phase.PLACING, Phase.FETCHING, Phase.STARTING, Phase.READY):
            fact = replace(fact, phase=Phase.DRAINING)
        replicas[assigned.replica] = fact
    return replicas


def _use(usages: Iterable[Usage], now: Instant) -> tuple[dict[ReplicaId, int], dict[ReplicaId, Wall]]:
    """Over all gateways: requests outstanding, and the latest use, clamped to now."""
    outstanding: dict[ReplicaId, int] = {}
    last_used: dict[ReplicaId, Wall] = {}
    for usage in usages:
        for replica, use in usage.replicas.items():
            outstanding[replica] = outstanding.get(replica, 0) + use.outstanding
            last_used[replica] = max(last_used.get(replica, Wall(0)), min(use.last_used, now.wall))
    return outstanding, last_used


def _held(usages: Iterable[Usage]) -> dict[ModelName, int]:
    held: dict[ModelName, int] = {}
    for usage in usages:
        for model, count in usage.held.items():
            held[model] = held.get(model, 0) + count
    return held


def measured_footprints(
    catalog: Catalog, measured: Mapping[tuple[SpecDigest, NodeName], Measured]
) -> dict[tuple[SpecDigest, NodeName], Footprint]:
    """What was measured, of the profiles that the catalog has and that declare nothing themselves."""
    found: dict[tuple[SpecDigest, NodeName], Footprint] = {}
    for (spec, node), one in measured.items():
        _, profile = specs_of(catalog).get(spec, (None, None))
        if profile is not None and profile.memory is None and (seen := measuring.footprint(one, profile)) is not None:
            found[spec, node] = seen
    return found
