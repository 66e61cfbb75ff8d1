"""One look at the store: everything that a view is made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from llmgw.catalog.spec import ModelSpec
from llmgw.facts import Cordon, NodeReport, RecoveryRecord
from llmgw.ids import ModelName, NodeName, ReplicaId
from llmgw.plan import Assignment, ModelStatus, Stopped
from llmgw.store import keys
from llmgw.store.api import Entry, Store
from llmgw.store.codec import decode
from llmgw.store.values import Applied, CatalogStatus, HistoryEntry

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Store values, decoded. `models`: of the catalog in force. `assignments`: of every node."""

    applied: Applied | None = None
    status: CatalogStatus | None = None
    stopped: Stopped | None = None
    models: Mapping[ModelName, ModelSpec] = field(default_factory=dict)
    explained: Mapping[ModelName, ModelStatus] = field(default_factory=dict)
    reports: Mapping[NodeName, NodeReport] = field(default_factory=dict)
    assignments: Mapping[ReplicaId, Assignment] = field(default_factory=dict)
    cordons: Mapping[NodeName, Cordon] = field(default_factory=dict)


async def look(store: Store) -> Seen:
    """Read the store. Raises what `codec.decode` raises: a value from a newer llmgw, or no such value."""
    applied = await _get(store, keys.APPLIED, Applied)
    models = (await store.list(f"{keys.MODELS}{applied.digest}/")).entries if applied else ()
    nodes = (await store.list(keys.NODES)).entries
    specs = [_read(entry, ModelSpec) for entry in models]
    explained = [_read(entry, ModelStatus) for entry in (await store.list(keys.EXPLAIN)).entries]
    reports = [_read(entry, NodeReport) for entry in nodes if entry.key.endswith("/report")]
    assignments = [_read(entry, Assignment) for entry in nodes if "/assignments/" in entry.key]
    cordons = (await store.list(keys.CORDONS)).entries
    return Seen(
        applied=applied,
        status=await _get(store, keys.CATALOG_STATUS, CatalogStatus),
        stopped=await _get(store, keys.STOPPED, Stopped),
        models={spec.name: spec for spec in specs},
        explained={status.model: status for status in explained},
        reports={report.node: report for report in reports},
        assignments={assignment.replica: assignment for assignment in assignments},
        cordons={NodeName(keys.last(entry.key)): _read(entry, Cordon) for entry in cordons},
    )


async def history(store: Store) -> tuple[HistoryEntry, ...]:
    """Applied catalogs, oldest first."""
    return tuple(_read(entry, HistoryEntry) for entry in (await store.list(keys.HISTORY)).entries)


async def recoveries(store: Store, model: ModelName) -> tuple[tuple[NodeName, RecoveryRecord], ...]:
    """What is remembered of a model's failures, by node; of several specs, the newest."""
    newest: dict[NodeName, RecoveryRecord] = {}
    for entry in (await store.list(keys.RECOVERY)).entries:
        record, node = _read(entry, RecoveryRecord), NodeName(keys.last(entry.key))
        if record.model == model and (node not in newest or newest[node].last.at < record.last.at):
            newest[node] = record
    return tuple(sorted(newest.items()))


async def _get(store: Store, key: str, kind: type[T]) -> T | None:
    entry = await store.get(key)
    return None if entry is None else _read(entry, kind)


def _read(entry: Entry, kind: type[T]) -> T:
    return decode(entry.value, kind, where=entry.key)
