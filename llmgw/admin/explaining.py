"""The whole story of one model, from store values. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from llmgw.admin import views
from llmgw.admin.advice import advice
from llmgw.admin.reading import Seen
from llmgw.admin.shapes import EventRow
from llmgw.admin.stories import ExplainOutput, FailureRow, FileRow, HolderRow, PlaceRow, ProfileRow
from llmgw.catalog.spec import ModelSpec, NodeSpec, ProfileSpec
from llmgw.facts import Event, NodeReport, RecoveryRecord, ReplicaFact
from llmgw.ids import ModelName, NodeName
from llmgw.plan import ModelStatus, Rejection
from llmgw.schedule import room
from llmgw.units import Bytes
from llmgw.weights.lookup import on_node

EVENTS: Final = 10  #: that are told of


def explain(
    seen: Seen,
    spec: ModelSpec,
    asked: str,
    recoveries: Iterable[tuple[NodeName, RecoveryRecord]],
    happened: Iterable[tuple[int, Event]],
) -> ExplainOutput:
    """`recoveries`: of the model, by node; `happened`: every event with its number."""
    told = seen.explained.get(spec.name)
    row = views.model_row(seen, spec)
    replicas = tuple(each for each in views.replicas(seen).replicas if each.model == spec.name)
    profile = _profile(spec, told)
    places = tuple(_place(seen, spec, seen.reports[node], told) for node in sorted(seen.reports))
    failures = tuple(_failure(node, record) for node, record in recoveries)
    return ExplainOutput(
        asked=asked,
        model=row,
        why=told.why if told else "",
        profile=None if profile is None else _profile_row(seen, profile, places),
        replicas=replicas,
        places=places,
        files=tuple(_files(seen, profile)) if profile is not None else (),
        failures=failures,
        events=_events(spec.name, happened),
        advice=tuple(advice(row, replicas, places, failures, stopped=seen.stopped is not None)),
    )


def _profile(spec: ModelSpec, told: ModelStatus | None) -> ProfileSpec | None:
    named = (each for each in spec.profiles if told is not None and each.name == told.profile)
    return next(named, None) or next(iter(spec.profiles), None)


def _profile_row(seen: Seen, profile: ProfileSpec, places: Sequence[PlaceRow]) -> ProfileRow:
    nodes = [place.node for place in places if place.verdict == "placed"] or [place.node for place in places]
    engines = (fact for node in nodes for fact in seen.reports[NodeName(node)].engines if fact.name == profile.engine)
    return ProfileRow(
        name=profile.name,
        engine=profile.engine,
        engine_version=next((fact.version for fact in engines if fact.version is not None), None),
        context=profile.context,
        parallel=profile.parallel,
    )


def _files(seen: Seen, profile: ProfileSpec) -> Iterator[FileRow]:
    """Each file, on the first node that has it."""
    for role, wanted in profile.roles.items():
        held = ((node, on_node(seen.reports[node].weights, wanted)) for node in sorted(seen.reports))
        node, fact = next(((node, fact) for node, fact in held if fact is not None), (None, None))
        yield FileRow(
            role=role,
            source=wanted.source,
            node=node,
            here=fact is not None,
            size=wanted.size if fact is None else fact.size,
            licence=fact.licence if fact else None,
        )


def _place(seen: Seen, spec: ModelSpec, report: NodeReport, told: ModelStatus | None) -> PlaceRow:
    policy = seen.applied.policies.get(report.node, NodeSpec()) if seen.applied else NodeSpec()
    residents = [fact for fact in report.replicas if fact.phase.occupies_memory]
    held = sum(map(_cost, residents))
    capacity = room.capacity(report.memory, policy.reserve.host, held)
    refusal = _refusal(told, report.node)
    here = any(fact.model == spec.name for fact in residents)
    return PlaceRow(
        node=report.node,
        verdict="placed" if here else "refused" if refusal is not None else "open",
        reason=str(refusal.reason) if refusal else "",
        need=refusal.need if refusal else Bytes(0),
        have=refusal.have if refusal else Bytes(0),
        detail=refusal.detail if refusal else "",
        capacity=capacity,
        budget=None if policy.budget.host is None else room.allowed(capacity, policy.budget.host),
        held=held,
        holders=tuple(_holder(seen, fact) for fact in residents if fact.model != spec.name),
    )


def _refusal(told: ModelStatus | None, node: NodeName) -> Rejection | None:
    return next((each for each in told.rejections if each.node == node), None) if told else None


def _holder(seen: Seen, fact: ReplicaFact) -> HolderRow:
    spec = seen.models.get(fact.model)
    return HolderRow(
        model=fact.model,
        replica=fact.id,
        state=fact.phase,
        memory=_cost(fact),
        priority=spec.priority if spec else 0,
        pinned=spec.pinned if spec else False,
    )


def _cost(fact: ReplicaFact) -> Bytes:
    return fact.footprint.host if fact.footprint is not None else fact.resident or Bytes(0)


def _failure(node: NodeName, record: RecoveryRecord) -> FailureRow:
    return FailureRow(
        node=node,
        kind=record.last.kind,
        reason=record.last.reason,
        at=record.last.at,
        attempts=record.attempts,
        retry_at=record.retry_at,
        quarantined=record.quarantined,
    )


def _events(model: ModelName, happened: Iterable[tuple[int, Event]]) -> tuple[EventRow, ...]:
    """Those about the model itself, and those about replicas of it, whose messages begin with its name."""
    about = [
        pair
        for pair in happened
        if pair[1].subject == f"model/{model}"
        or (pair[1].subject.startswith("replica/") and pair[1].message.partition(":")[0] == model)
    ]
    return views.events(about[-EVENTS:]).events
