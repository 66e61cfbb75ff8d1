"""Table rows from the daemon's answers. Pure: `now` in seconds since the Unix epoch."""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from llmgw.admin.shapes import (
    DeviceRow,
    EngineRow,
    EventRow,
    ModelRow,
    NodeRow,
    ProblemRow,
    ProgressRow,
    ReplicaRow,
    WeightsRow,
)
from llmgw.cli.text import ago, fetched, short_revision, size, waits
from llmgw.errors import Problem
from llmgw.units import format_seconds

MODEL_HEADERS: Final = ("MODEL", "STATE", "ENGINE", "SINCE", "ALIASES", "REASON")
REPLICA_HEADERS: Final = (
    "REPLICA", "MODEL", "ENGINE", "NODE", "STATE", "PID", "MEMORY", "COUNTED", "BUSY", "URL", "REVISION",
    "REASON",
)  # fmt: skip
NODE_HEADERS: Final = (
    "NODE", "POOL", "STATE", "REPORTED", "MEMORY FREE", "FOR ENGINES", "DISK FREE", "REPLICAS", "ENGINES",
)  # fmt: skip
DEVICE_HEADERS: Final = (
    "NODE", "DEVICE", "UUID", "MEMORY FREE", "FOR ENGINES", "COUNTED", "FREE FOR THEM", "OURS", "FOREIGN", "STATE",
)  # fmt: skip
ENGINE_HEADERS: Final = ("NODE", "ENGINE", "VERSION", "PATH, OR WHY NOT")
EVENT_HEADERS: Final = ("WHEN", "SUBJECT", "REASON", "MESSAGE")
WEIGHTS_HEADERS: Final = ("ENTRY", "NODE", "SIZE", "SOURCE", "VERDICT")

_NOT_TRIED: Final = frozenset({"stopped", "inactive"})
"""States in which nothing is tried again, whatever was planned before."""

_ENTRY_SHOWN: Final = 22  #: characters of an entry's name in a table: `v1-sha256-` and twelve digits


def model_cells(row: ModelRow, now: float) -> tuple[str, ...]:
    state = f"{row.state} ({row.level})" if row.level != "full" and row.state not in _NOT_TRIED else row.state
    return (row.name, state, row.engine or "", ago(row.since, now), ", ".join(row.aliases), model_reason(row, now))


def model_reason(row: ModelRow, now: float) -> str:
    """The reason, with how far a fetch is and when the next try comes: one that is due already waits for what the
    reason names."""
    word = f"suspended by {row.suspension.by}" if row.suspension is not None else ""
    parts = [word, _with_progress(row.reason, _fetching(row))]
    if row.retry_at is not None and row.retry_at > now and row.state not in _NOT_TRIED:
        parts.append(f"next try in {format_seconds(row.retry_at - now)}")
    return "; ".join(filter(None, parts))


def replica_cells(row: ReplicaRow) -> tuple[str, ...]:
    busy = "" if row.running is None else f"{row.running}+{row.waiting or 0}"
    reason = _with_progress(row.reason, _progress(row.progress))
    pid = "" if row.pid is None else str(row.pid)
    counted = f"{size(row.footprint)} {row.footprint_source or ''}".strip()
    state = row.state if row.level == "full" else f"{row.state} ({row.level})"
    return (
        row.id, row.model, row.engine, row.node, state, pid, size(row.resident), counted, busy,
        row.url or "", short_revision(row.revision), reason,
    )  # fmt: skip


def node_cells(row: NodeRow, now: float) -> tuple[str, ...]:
    engines = ", ".join(f"{e.name} {e.version or ''}".strip() if e.why is None else f"no {e.name}" for e in row.engines)
    return (
        row.name,
        row.pool,
        node_state(row),
        ago(row.reported_at, now),
        f"{size(row.memory_available)} of {size(row.memory_total)}",
        f"{size(row.memory_counted)} of {size(limit(row.memory_capacity, row.memory_budget))} counted",
        f"{size(row.disk_free)} of {size(row.disk_total)}",
        str(row.replicas),
        engines,
    )


def node_state(row: NodeRow) -> str:
    """Whether new replicas go there, and what is there stays."""
    if row.silent:
        return "silent"
    if row.cordon is None:
        return "in use"
    return "draining" if row.cordon.drain else "cordoned"


def limit(capacity: int, budget: int | None) -> int:
    """The most that engines may take: physics and policy."""
    return capacity if budget is None else min(capacity, budget)


def device_cells(node: NodeRow, row: DeviceRow) -> tuple[str, ...]:
    """What our engines use there, and what others do, is empty where the driver does not tell."""
    state = row.why or ("divided by MIG" if row.divided else "ok")
    ours = None if row.foreign is None else max(0, row.used - row.foreign)
    name = f"- {row.name}" if row.parent is not None else row.name
    most = limit(row.capacity, row.budget)
    return (
        node.name,
        name,
        row.uuid,
        f"{size(row.free)} of {size(row.total)}",
        size(most),
        size(row.counted),
        size(max(0, most - row.counted)),
        size(ours),
        size(row.foreign),
        state,
    )


def engine_cells(node: NodeRow, row: EngineRow) -> tuple[str, ...]:
    return (node.name, row.name, row.version or "", row.why or row.path or "")


def missing_engines(nodes: Iterable[NodeRow], wanted: Collection[str] | None = None) -> Iterator[str]:
    """Why a node cannot use an engine, of the `wanted` ones or of all."""
    for node in nodes:
        for engine in node.engines:
            if engine.why is not None and (wanted is None or engine.name in wanted):
                yield f"{node.name}: engine {engine.name} cannot be used: {engine.why}"


def event_cells(row: EventRow, now: float) -> tuple[str, ...]:
    return (ago(row.at, now), row.subject, row.reason, row.message)


def short_entry(entry: str) -> str:
    """Enough of it to name it by; of one that was set aside, that it was."""
    for aside in ("corrupt-", "kept-"):
        if entry.startswith(aside):
            return f"{aside}{entry.removeprefix(aside)[:_ENTRY_SHOWN]}"
    return entry[:_ENTRY_SHOWN]


def weights_cells(row: WeightsRow) -> tuple[str, ...]:
    if row.outcome:
        verdict = f"{row.outcome}: {row.reason}" if row.reason else row.outcome
    elif row.removable:
        verdict = f"removable: {row.reason}" if row.reason else "removable"
    else:
        verdict = f"kept: {row.reason}"
    return (short_entry(row.entry), row.node, size(row.size), row.source, verdict)


def problem_line(row: ProblemRow) -> str:
    """`models.yaml:3:5: $.profiles[0].engine: no engine 'vlm'`"""
    return str(Problem(row.file, row.line, row.column, row.path, row.message))


def _fetching(row: ModelRow) -> str:
    """Of each node where there are several, or where another replica than the one that is told of fetches. Replicas of
    a node that share their downloads are told of once."""
    if len(row.fetching) < (1 if row.progress is None else 2):
        return _progress(row.progress)
    return "; ".join(dict.fromkeys(f"{_progress(each.progress)} on {each.node}" for each in row.fetching))


def _with_progress(reason: str, told: str) -> str:
    """That it is fetching is said once."""
    return told if told and reason == "fetching" else "; ".join(filter(None, (reason, told)))


def _progress(progress: ProgressRow | None) -> str:
    if progress is None:
        return ""
    if progress.waiting and not progress.done:
        return waits(progress.waits_for)
    turn = f", {waits(progress.waits_for)}" if progress.waiting else ""
    return f"fetching {fetched(progress.done, progress.total, progress.rate)}{turn}"
