"""Answers from store values. Pure: no I/O, no clock."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from llmgw import __version__
from llmgw.admin.member_views import member_rows
from llmgw.admin.node_views import is_silent, node_row
from llmgw.admin.reading import Seen
from llmgw.admin.shapes import (
    CatalogRow,
    ComingRow,
    ConditionRow,
    EventRow,
    EventsOutput,
    FetchRow,
    HoldRow,
    ModelRow,
    ModelsOutput,
    NodesOutput,
    PinnedRow,
    ProblemRow,
    ProgressRow,
    ReplicaRow,
    ReplicasOutput,
    StatusOutput,
    StoppedRow,
    SuspendedRow,
)
from llmgw.catalog.holds import Held
from llmgw.catalog.spec import ModelSpec
from llmgw.errors import Problem
from llmgw.facts import Event, Footprint, Phase, Progress, ReplicaFact, Suspension
from llmgw.ids import ModelName, NodeName, ReplicaId, Revision
from llmgw.memo import Kept
from llmgw.plan import Assignment, ModelState, ModelStatus, Stopped, Want
from llmgw.store.values import CatalogStatus
from llmgw.units import Wall


def status(seen: Seen, node: NodeName, now: Wall) -> StatusOutput:
    """The whole picture on one page. `node`: the machine that answers."""
    return StatusOutput(
        llmgw=__version__,
        node=node,
        catalog=catalog(seen),
        stopped=stopped(seen.stopped),
        models=models(seen, now).models,
        nodes=nodes(seen).nodes,
        cluster=(seen.applied.cluster or None) if seen.applied else None,
        unknown_nodes=_unknown_nodes(seen),
        members=member_rows(seen),
    )


def _unknown_nodes(seen: Seen) -> tuple[str, ...]:
    """Settings under a misspelt name would do nothing, in silence. Nothing is said before any node has reported."""
    if seen.applied is None or not seen.reports:
        return ()
    return tuple(sorted(set(seen.applied.nodes) - set(seen.reports)))


def models(seen: Seen, now: Wall) -> ModelsOutput:
    """The models of the catalog in force, in name order. One that left is gone here while its engine still drains."""
    of_replicas = _of_replicas(seen)
    rows = (_model_row(seen, seen.models[name], now, of_replicas) for name in sorted(seen.models))
    return ModelsOutput(models=tuple(rows))


def replicas(seen: Seen) -> ReplicasOutput:
    """Every wanted or running replica, by model and id."""
    facts = {fact.id: fact for report in seen.reports.values() for fact in report.replicas}
    silent = {node for node in seen.reports if is_silent(seen, node)}
    rows = [_running(fact, seen.assignments.get(fact.id), silent=fact.node in silent) for fact in facts.values()]
    rows += [_placing(assignment) for id, assignment in seen.assignments.items() if id not in facts]
    return ReplicasOutput(replicas=tuple(sorted(rows, key=lambda row: (row.model, row.id))))


def nodes(seen: Seen) -> NodesOutput:
    return NodesOutput(nodes=tuple(node_row(seen, seen.reports[name]) for name in sorted(seen.reports)))


def events(happened: Iterable[tuple[int, Event]]) -> EventsOutput:
    """`happened`: each event with its number."""
    return EventsOutput(
        events=tuple(
            EventRow(at=e.at, subject=e.subject, reason=e.reason, message=e.message, number=number)
            for number, e in happened
        )
    )


def stopped(switch: Stopped | None) -> StoppedRow | None:
    return None if switch is None else StoppedRow(at=switch.at, by=switch.by)


def problem_rows(problems: Iterable[Problem]) -> tuple[ProblemRow, ...]:
    return tuple(
        ProblemRow(file=p.file, line=p.line, column=p.column, path=p.path, message=p.message) for p in problems
    )


def not_ready(seen: Seen) -> str | None:
    """Why the daemon is not ready, or None once a catalog is in force."""
    if seen.applied is not None:
        return None
    if seen.status is None:
        return "the catalog has not been read yet"
    if seen.status.error:
        return "no catalog is in force: its source cannot be read; `llmgw status` says why"
    if seen.status.problems:
        return f"no catalog is in force: {count(len(seen.status.problems), 'problem')}; `llmgw status` lists them"
    if seen.status.held is not None:
        return f"no catalog is in force: {seen.status.held.message}"
    return "no catalog is in force yet"


def catalog(seen: Seen) -> CatalogRow:
    known = seen.status or CatalogStatus(source="")
    applied = seen.applied.revision if seen.applied else known.applied
    return CatalogRow(
        source=known.source or None,
        attempted=known.attempted,
        applied=applied,
        applied_at=seen.applied.at if seen.applied else known.applied_at,
        error=known.error,
        watcher=known.watcher if seen.status else None,
        problems=problem_rows(known.problems),
        conditions=tuple(
            ConditionRow(
                type=c.type, status=c.status, reason=c.reason, message=c.message, since=c.since, observed=c.observed
            )
            for c in known.conditions
        ),
        passed_at=known.passed_at,
        held=hold(known.held),
        suspended=_suspension(seen.suspended),
        pinned=None
        if seen.pinned is None
        else PinnedRow(revision=seen.pinned.revision, at=seen.pinned.at, by=seen.pinned.by),
    )


def hold(held: Held | None) -> HoldRow | None:
    return None if held is None else HoldRow(reason=held.reason, message=held.message, models=held.models)


def _suspension(word: Suspension | None) -> SuspendedRow | None:
    return None if word is None else SuspendedRow(at=word.at, by=word.by)


def model_row(seen: Seen, spec: ModelSpec, now: Wall) -> ModelRow:
    """A model as the controller explained it last; one it has not looked at yet counts as loading."""
    return _model_row(seen, spec, now, _of_replicas(seen))


@dataclass(frozen=True, slots=True)
class _OfReplicas:
    """What of all replicas is told of their models."""

    footprints: Mapping[ReplicaId, Footprint]  #: that their placement counted
    fetching: Mapping[ModelName, tuple[FetchRow, ...]]


def _of_replicas(seen: Seen) -> _OfReplicas:
    footprints = {id: each.footprint for id, each in seen.assignments.items() if each.footprint is not None}
    fetching: dict[ModelName, tuple[FetchRow, ...]] = {}
    for node in sorted(seen.reports):
        for fact in seen.reports[node].replicas:
            if fact.footprint is not None:
                footprints[fact.id] = fact.footprint
            if fact.phase is Phase.FETCHING and fact.progress is not None:
                row = FetchRow(node=node, replica=fact.id, progress=_progress(fact.progress))
                fetching[fact.model] = (*fetching.get(fact.model, ()), row)
    return _OfReplicas(footprints, fetching)


def _model_row(seen: Seen, spec: ModelSpec, now: Wall, of_replicas: _OfReplicas) -> ModelRow:
    told = seen.explained.get(spec.name)
    replica = None if told is None else told.replica
    return _rows.of(
        spec.name,
        spec,
        told,
        (of_replicas.footprints.get(replica) if replica is not None else None) or (told.footprint if told else None),
        seen.suspensions.get(spec.name),
        seen.applied.revision if seen.applied else None,
        of_replicas.fetching.get(spec.name, ()),
        # One that is due waits for what the reason names: it comes at any moment, and not in the past.
        None if told is None or told.retry_at is None else max(told.retry_at, now),
    )


def _row(
    spec: ModelSpec,
    told: ModelStatus | None,
    footprint: Footprint | None,
    suspension: Suspension | None,
    revision: Revision | None,
    fetching: tuple[FetchRow, ...],
    retry_at: Wall | None,
) -> ModelRow:
    told = told or ModelStatus(model=spec.name, state=ModelState.LOADING, reason="not looked at yet")
    profile = next((p for p in spec.profiles if p.name == told.profile), spec.profiles[0] if spec.profiles else None)
    return ModelRow(
        name=spec.name,
        aliases=spec.aliases,
        description=spec.description,
        priority=spec.priority,
        pinned=spec.pinned,
        labels=spec.labels,
        state=told.state,
        reason=told.explanation,
        wanted=told.wanted,
        engine=profile.engine if profile else None,
        profile=told.profile,
        replica=told.replica,
        since=told.since or None,
        attempts=told.attempts,
        retry_at=retry_at,
        progress=None if told.progress is None else _progress(told.progress),
        revision=told.revision,
        footprint=footprint.host if footprint else None,
        footprint_source=footprint.source if footprint else None,
        level=told.level,
        suspended=spec.suspend,
        suspension=_suspension(suspension),
        spec_revision=told.spec_revision or revision,
        rollout_failed=told.rollout_failed or None,
        fetching=fetching,
    )


_rows: Final[Kept[ModelName, ModelRow]] = Kept(_row)
"""While all that they tell is the same: who looks once a second at ten thousand models sees few of them change."""


def count(number: int, noun: str) -> str:
    """`1 model`, `2 models`"""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _running(fact: ReplicaFact, assignment: Assignment | None, *, silent: bool = False) -> ReplicaRow:
    reason = assignment.why if assignment and assignment.want is Want.STOP else ""
    if silent:
        reason = f"as {fact.node} said last: its agent is silent"
    return ReplicaRow(
        id=fact.id,
        model=fact.model,
        profile=fact.profile,
        engine=fact.engine,
        node=fact.node,
        state=fact.phase,
        level=fact.level,
        pid=fact.pid,
        url=fact.url,
        revision=fact.revision,
        reason=fact.failure.reason if fact.failure else reason,
        since=fact.since,
        adopted=fact.adopted,
        footprint=fact.footprint.host if fact.footprint else None,
        resident=fact.resident,
        running=fact.load.running if fact.load else None,
        waiting=fact.load.waiting if fact.load else None,
        progress=None if fact.progress is None else _progress(fact.progress),
        footprint_source=fact.footprint.source if fact.footprint else None,
        footprint_device=fact.footprint.device if fact.footprint else None,
        resident_peak=fact.resident_peak,
        device_resident=fact.device_resident,
        device_peak=fact.device_peak,
        devices=fact.devices,
        coming=tuple(ComingRow(source=one.source, progress=_progress(one.progress)) for one in fact.coming),
    )


def _placing(assignment: Assignment) -> ReplicaRow:
    """An assignment that no agent has reported on."""
    return ReplicaRow(
        id=assignment.replica,
        model=assignment.model,
        profile=assignment.profile.name,
        engine=assignment.profile.engine,
        node=assignment.node,
        state=Phase.PLACING if assignment.want is Want.RUN else Phase.STOPPING,
        level=assignment.level,
        pid=None,
        url=None,
        revision=assignment.revision,
        reason=assignment.why,
        since=None,
        adopted=False,
        footprint=assignment.footprint.host,
        resident=None,
        running=None,
        waiting=None,
        progress=None,
        footprint_source=assignment.footprint.source,
        footprint_device=assignment.footprint.device,
        devices=assignment.devices,
    )


def _progress(progress: Progress) -> ProgressRow:
    return ProgressRow(
        done=progress.done,
        total=progress.total,
        rate=progress.rate,
        left=progress.left,
        waiting=progress.waiting,
        waits_for=progress.waits_for,
    )
