"""One look at the store: everything that a view is made from."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from llmgw.catalog.spec import ModelSpec, spec_digest
from llmgw.facts import Ask, Concurrency, Cordon, NodeReport, RecoveryRecord, ScalingState, Suspension, Usage
from llmgw.ids import ModelName, NodeName, ReplicaId, SpecDigest
from llmgw.memo import Kept
from llmgw.plan import Assignment, ModelStatus, Rollout, Stopped
from llmgw.store import keys
from llmgw.store.api import Entry, Store
from llmgw.store.codec import decode
from llmgw.store.contents import Catalogs, NotWhole
from llmgw.store.election import Leader
from llmgw.store.histories import decode_entry
from llmgw.store.values import Applied, CatalogStatus, HistoryEntry, Member, Pinned

T = TypeVar("T")

_catalogs: Final = Catalogs()
"""What was read of catalogs before; under its key it never changes, whichever store it is of."""


def _status(raw: bytes, key: str) -> ModelStatus:
    return decode(raw, ModelStatus, where=key)


_statuses: Final[Kept[str, ModelStatus]] = Kept(_status)
"""Of models, by their key: most are at each look what they were, and the same object then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Store values, decoded. `models`: of the catalog in force, `suspend` also where the operator said so.
    `assignments`: of every node."""

    applied: Applied | None = None
    status: CatalogStatus | None = None
    stopped: Stopped | None = None
    models: Mapping[ModelName, ModelSpec] = field(default_factory=dict)
    explained: Mapping[ModelName, ModelStatus] = field(default_factory=dict)
    reports: Mapping[NodeName, NodeReport] = field(default_factory=dict)
    assignments: Mapping[ReplicaId, Assignment] = field(default_factory=dict)
    cordons: Mapping[NodeName, Cordon] = field(default_factory=dict)
    suspensions: Mapping[ModelName, Suspension] = field(default_factory=dict)  #: of models, by the operator
    rollouts: Mapping[ModelName, Rollout] = field(default_factory=dict)
    suspended: Suspension | None = None  #: the catalog
    pinned: Pinned | None = None
    members: tuple[Member, ...] = ()
    leader: Leader | None = None


async def look(store: Store) -> Seen:
    """Read the store. Raises what `codec.decode` raises: a value from a newer llmgw, or no such value."""
    applied, specs = await _in_force(store)
    nodes = (await store.list(keys.NODES)).entries
    held = (await store.list(keys.SUSPENSIONS)).entries
    suspensions = {ModelName(keys.last(entry.key)): _read(entry, Suspension) for entry in held}
    models = {name: _as_suspended(spec, suspensions) for name, spec in specs.items()} if suspensions else specs
    explained = [_statuses.of(each.key, each.value, each.key) for each in (await store.list(keys.EXPLAIN)).entries]
    reports = [_read(entry, NodeReport) for entry in nodes if entry.key.endswith("/report")]
    assignments = [_read(entry, Assignment) for entry in nodes if "/assignments/" in entry.key]
    cordons = (await store.list(keys.CORDONS)).entries
    rollouts = (await store.list(keys.ROLLOUTS)).entries
    members = (await store.list(keys.MEMBERS)).entries
    return Seen(
        applied=applied,
        status=await _get(store, keys.CATALOG_STATUS, CatalogStatus),
        stopped=await _get(store, keys.STOPPED, Stopped),
        models=models,
        explained={status.model: status for status in explained},
        reports={report.node: report for report in reports},
        assignments={assignment.replica: assignment for assignment in assignments},
        cordons={NodeName(keys.last(entry.key)): _read(entry, Cordon) for entry in cordons},
        suspensions=suspensions,
        rollouts={ModelName(keys.last(entry.key)): _read(entry, Rollout) for entry in rollouts},
        suspended=await _get(store, keys.SUSPENDED, Suspension),
        pinned=await _get(store, keys.PINNED, Pinned),
        members=tuple(_read(entry, Member) for entry in members),
        leader=await _get(store, keys.LEADER, Leader),
    )


async def _in_force(store: Store) -> tuple[Applied | None, Mapping[ModelName, ModelSpec]]:
    """Nothing is in force while not all of it is there: right after a start, say."""
    try:
        found = await _catalogs.in_force(store)
    except NotWhole:
        return None, {}
    return (None, {}) if found is None else (found.applied, found.check().models)


def _as_suspended(spec: ModelSpec, suspensions: Collection[ModelName]) -> ModelSpec:
    return replace(spec, suspend=True) if spec.name in suspensions else spec


async def history(store: Store) -> tuple[HistoryEntry, ...]:
    """Applied catalogs, oldest first."""
    return tuple(decode_entry(entry.value, where=entry.key) for entry in (await store.list(keys.HISTORY)).entries)


async def recoveries(store: Store, model: ModelName) -> tuple[tuple[SpecDigest, NodeName, RecoveryRecord], ...]:
    """What is remembered of a model's failures, by node and then time: of each profile, and of specs that it had."""
    found: list[tuple[SpecDigest, NodeName, RecoveryRecord]] = []
    for entry in (await store.list(keys.RECOVERY)).entries:
        record = _read(entry, RecoveryRecord)
        if record.model == model:
            spec, _, node = entry.key.removeprefix(keys.RECOVERY).partition("/")
            found.append((SpecDigest(spec), NodeName(node), record))
    return tuple(sorted(found, key=lambda each: (each[1], -each[2].last.at)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of one model now. `concurrency`: of its specs, by spec and node."""

    ask: Ask | None = None
    scaling: ScalingState = ScalingState()
    held: int = 0
    outstanding: Mapping[ReplicaId, int] = field(default_factory=dict)  #: requests, of the model's replicas
    concurrency: Mapping[tuple[SpecDigest, NodeName], Concurrency] = field(default_factory=dict)


async def asked(store: Store, spec: ModelSpec, replicas: Collection[ReplicaId]) -> Asked:
    """`replicas`: the model's. Requests are counted over all gateways."""
    usages = [_read(entry, Usage) for entry in (await store.list(keys.USAGE)).entries]
    concurrency: dict[tuple[SpecDigest, NodeName], Concurrency] = {}
    for digest in {spec_digest(spec.name, profile) for profile in spec.profiles}:
        prefix = f"{keys.CONCURRENCY}{digest}/"
        for entry in (await store.list(prefix)).entries:
            concurrency[digest, NodeName(entry.key.removeprefix(prefix))] = _read(entry, Concurrency)
    return Asked(
        ask=await _get(store, keys.ask(spec.name), Ask),
        scaling=await _get(store, keys.scaling(spec.name), ScalingState) or ScalingState(),
        held=sum(usage.held.get(spec.name, 0) for usage in usages),
        outstanding=_outstanding(usages, replicas),
        concurrency=concurrency,
    )


def _outstanding(usages: Iterable[Usage], replicas: Collection[ReplicaId]) -> dict[ReplicaId, int]:
    found: dict[ReplicaId, int] = {}
    for usage in usages:
        for id, use in usage.replicas.items():
            if id in replicas:
                found[id] = found.get(id, 0) + use.outstanding
    return found


async def _get(store: Store, key: str, kind: type[T]) -> T | None:
    entry = await store.get(key)
    return None if entry is None else _read(entry, kind)


def _read(entry: Entry, kind: type[T]) -> T:
    return decode(entry.value, kind, where=entry.key)
