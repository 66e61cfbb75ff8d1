"""Forgetting failures at the operator's word: the next pass tries at once, at full size."""

from collections.abc import Collection
from dataclasses import replace

from llmgw.admin.shapes import ResetOutput, ResetRow
from llmgw.facts import Event, RecoveryRecord
from llmgw.ids import ModelName, NodeName
from llmgw.plan import Rollout
from llmgw.store import keys
from llmgw.store.api import Store
from llmgw.store.codec import decode, encode
from llmgw.store.events import EventLog
from llmgw.units import Wall


async def forget_failures(
    store: Store, events: EventLog, models: Collection[ModelName], *, by: str, at: Wall
) -> ResetOutput:
    """Delete what is remembered of these models' failures, on every node and of every profile."""
    found: dict[ModelName, list[tuple[NodeName, RecoveryRecord]]] = {name: [] for name in models}
    for entry in (await store.list(keys.RECOVERY)).entries:
        record = decode(entry.value, RecoveryRecord, where=entry.key)
        if record.model in found:
            await store.delete(entry.key)
            found[record.model].append((NodeName(keys.last(entry.key)), record))
    again = await _begin_anew(store, models)
    rows = tuple(replace(_row(name, records), rollout=name in again) for name, records in sorted(found.items()))
    for row in rows:
        if row.failures:
            message = f"{row.failures} forgotten of {', '.join(row.nodes)}, by {by}"
            events.record(Event(at=at, subject=f"model/{row.model}", reason="failures reset", message=message))
    return ResetOutput(models=rows)


async def _begin_anew(store: Store, models: Collection[ModelName]) -> frozenset[str]:
    """The models whose rollout had failed: it is tried again too."""
    again: set[str] = set()
    for entry in (await store.list(keys.ROLLOUTS)).entries:
        rollout = decode(entry.value, Rollout, where=entry.key)
        if rollout.failed is not None and keys.last(entry.key) in models:
            await store.put(entry.key, encode(replace(rollout, failed=None, why="")))
            again.add(keys.last(entry.key))
    return frozenset(again)


def _row(name: ModelName, records: list[tuple[NodeName, RecoveryRecord]]) -> ResetRow:
    return ResetRow(
        model=name,
        failures=sum(record.attempts + record.delays for _, record in records),
        quarantined=any(record.quarantined for _, record in records),
        nodes=tuple(sorted({node for node, _ in records})),
    )
