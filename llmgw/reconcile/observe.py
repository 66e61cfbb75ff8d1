"""Read the store into one `Observed`: what agents report, merged with what was assigned and not yet reported."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeVar

import structlog

from llmgw.catalog.spec import Catalog, ProfileSpec, spec_digest
from llmgw.engine.api import Engine
from llmgw.engine.manager import Engines
from llmgw.facts import (
    Footprint,
    Level,
    Measured,
    NodeReport,
    Observed,
    Phase,
    RecoveryRecord,
    ReplicaFact,
    Usage,
    WeightsFact,
)
from llmgw.ids import NodeName, ReplicaId, SpecDigest
from llmgw.plan import Assignment, Stopped, Want
from llmgw.reconcile import measured as measuring
from llmgw.store import keys
from llmgw.store.api import Entry, Store
from llmgw.store.codec import decode
from llmgw.units import Bytes, Instant, Wall
from llmgw.weights.lookup import on_node

log = structlog.get_logger("llmgw.reconcile")

T = TypeVar("T")

UNKNOWN_OVERHEAD = 1.2
"""A footprint nobody can estimate: the weights' size times this, marked `guess`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One pass's view: the core's `Observed`, and what only dispatch needs."""

    observed: Observed
    assignments: Mapping[ReplicaId, Assignment] = field(default_factory=dict)
    reported: Mapping[ReplicaId, ReplicaFact] = field(default_factory=dict)  #: as the agents have it
    stopped: Stopped | None = None
    measured: Mapping[tuple[SpecDigest, NodeName], Measured] = field(default_factory=dict)


async def observe(store: Store, engines: Engines, catalog: Catalog, now: Instant) -> Seen:
    """Everything a pass decides from. `now` stamps the replicas that no agent reported yet."""
    entries = (await store.list(keys.NODES)).entries
    reports = {report.node: report for report in _all(entries, "/report", NodeReport)}
    assignments = {assigned.replica: assigned for assigned in _all(entries, "/assignments/", Assignment)}
    reported = {fact.id: fact for report in reports.values() for fact in report.replicas}
    usages = [decode(entry.value, Usage, where=entry.key) for entry in (await store.list(keys.USAGE)).entries]
    outstanding, last_used = _use(usages, now)
    stopped = await store.get(keys.STOPPED)
    measured = await measured_records(store)
    observed = Observed(
        nodes=reports,
        replicas=_replicas(reported, assignments, now),
        recovery=await recovery_records(store),
        footprints=dict(_footprints(catalog, reports, engines)),
        measured=measured_footprints(catalog, measured),
        outstanding=outstanding,
        last_used=last_used,
    )
    return Seen(
        observed=observed,
        assignments=assignments,
        reported=reported,
        stopped=None if stopped is None else decode(stopped.value, Stopped, where=stopped.key),
        measured=measured,
    )


async def recovery_records(store: Store) -> dict[tuple[SpecDigest, NodeName], RecoveryRecord]:
    found: dict[tuple[SpecDigest, NodeName], RecoveryRecord] = {}
    for entry in (await store.list(keys.RECOVERY)).entries:
        spec, _, node = entry.key.removeprefix(keys.RECOVERY).partition("/")
        found[SpecDigest(spec), NodeName(node)] = decode(entry.value, RecoveryRecord, where=entry.key)
    return found


async def measured_records(store: Store) -> dict[tuple[SpecDigest, NodeName], Measured]:
    found: dict[tuple[SpecDigest, NodeName], Measured] = {}
    for entry in (await store.list(keys.MEASURED)).entries:
        spec, _, node = entry.key.removeprefix(keys.MEASURED).partition("/")
        found[SpecDigest(spec), NodeName(node)] = decode(entry.value, Measured, where=entry.key)
    return found


def _replicas(
    reported: Mapping[ReplicaId, ReplicaFact], assignments: Mapping[ReplicaId, Assignment], now: Instant
) -> dict[ReplicaId, ReplicaFact]:
    """A decision counts before its agent has acted on it: assigned is `placing`, told to stop is `draining`."""
    replicas = dict(reported)
    for assigned in assignments.values():
        fact = reported.get(assigned.replica) or _placing(assigned, now)
        leaving = assigned.want is Want.STOP and not fact.kept_serving
        if leaving and fact.phase in (Phase.PLACING, Phase.FETCHING, Phase.STARTING, Phase.READY):
            fact = replace(fact, phase=Phase.DRAINING)
        replicas[assigned.replica] = fact
    return replicas


def _placing(assigned: Assignment, now: Instant) -> ReplicaFact:
    return ReplicaFact(
        id=assigned.replica,
        model=assigned.model,
        profile=assigned.profile.name,
        engine=assigned.profile.engine,
        node=assigned.node,
        spec=assigned.spec,
        revision=assigned.revision,
        phase=Phase.PLACING,
        since=now.wall,
        level=assigned.level,
        footprint=assigned.footprint,
    )


def _use(usages: Iterable[Usage], now: Instant) -> tuple[dict[ReplicaId, int], dict[ReplicaId, Wall]]:
    """Over all gateways: requests outstanding, and the latest use, clamped to now."""
    outstanding: dict[ReplicaId, int] = {}
    last_used: dict[ReplicaId, Wall] = {}
    for usage in usages:
        for replica, use in usage.replicas.items():
            outstanding[replica] = outstanding.get(replica, 0) + use.outstanding
            last_used[replica] = max(last_used.get(replica, Wall(0)), min(use.last_used, now.wall))
    return outstanding, last_used


def _footprints(
    catalog: Catalog, reports: Mapping[NodeName, NodeReport], engines: Engines
) -> Iterable[tuple[tuple[SpecDigest, Level], Footprint]]:
    for model in catalog.models.values():
        for profile in model.profiles:
            footprint = footprint_of(profile, reports.values(), engines)
            if footprint is not None:
                yield (spec_digest(model.name, profile), Level.FULL), footprint


def measured_footprints(
    catalog: Catalog, measured: Mapping[tuple[SpecDigest, NodeName], Measured]
) -> dict[tuple[SpecDigest, NodeName], Footprint]:
    """What was measured, of the profiles that the catalog has and that declare nothing themselves."""
    profiles = {spec_digest(model.name, one): one for model in catalog.models.values() for one in model.profiles}
    found: dict[tuple[SpecDigest, NodeName], Footprint] = {}
    for (spec, node), one in measured.items():
        profile = profiles.get(spec)
        if profile is not None and profile.memory is None and (seen := measuring.footprint(one, profile)) is not None:
            found[spec, node] = seen
    return found


def footprint_of(profile: ProfileSpec, reports: Collection[NodeReport], engines: Engines) -> Footprint | None:
    """Declared, else estimated by the engine from the weights on any node, else guessed from the declared size.

    None: unknown, which is never taken for 0.
    """
    if profile.memory is not None:
        beside = profile.host_memory or Bytes(0)
        if profile.devices > 0:
            return Footprint(host=beside, device=profile.memory, source="declared")
        return Footprint(host=Bytes(profile.memory + beside), source="declared")
    here: dict[str, WeightsFact] = {}
    for role, spec in profile.roles.items():
        found = (on_node(report.weights, spec) for report in reports)
        if (fact := next(filter(None, found), None)) is not None:
            here[role] = fact
    engine = engines.by_name.get(profile.engine)
    estimate = _estimate(engine, profile, here) if engine else None
    if estimate is not None:
        return estimate
    sizes = [here[role].size if role in here else spec.size for role, spec in profile.roles.items()]
    known = [size for size in sizes if size is not None]
    if not known or len(known) < len(sizes):
        return None
    return Footprint(host=Bytes(int(sum(known) * UNKNOWN_OVERHEAD)), source="guess")


def _estimate(engine: Engine, profile: ProfileSpec, here: Mapping[str, WeightsFact]) -> Footprint | None:
    """The engine's word, or None where its plugin fails: that must not cost the other models their pass."""
    try:
        found = engine.footprint(profile, here, Level.FULL)
        if found is not None and not isinstance(found, Footprint):
            raise TypeError(f"it returned {found!r:.80}")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin's failure, whatever it is, stays its own
        _complain(engine.name, f"{type(error).__name__}: {error}")
        return None
    return found


@lru_cache(maxsize=256)
def _complain(engine: str, why: str) -> None:
    """Once for each failure: it comes again at every pass."""
    log.warning("footprint_failed", engine=engine, error=why)


def _all(entries: Iterable[Entry], part: str, kind: type[T]) -> list[T]:
    return [decode(entry.value, kind, where=entry.key) for entry in entries if part in entry.key]
