"""The whole story of one model, from store values. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from llmgw.admin import views
from llmgw.admin.advice import advice
from llmgw.admin.demanding import demand_row
from llmgw.admin.places import places, static_filters
from llmgw.admin.reading import Asked, Seen
from llmgw.admin.shapes import EventRow
from llmgw.admin.stories import ExplainOutput, ExternalRow, FailureRow, FallbackRow, FileRow, PlaceRow, ProfileRow
from llmgw.catalog.spec import ModelSpec, ProfileSpec, spec_digest
from llmgw.facts import Event, Level, RecoveryRecord
from llmgw.ids import ModelName, NodeName, SpecDigest
from llmgw.plan import ModelStatus, Unschedulable
from llmgw.schedule.filters import Filters
from llmgw.units import Wall
from llmgw.weights.lookup import on_node

EVENTS: Final = 10  #: that are told of
ADVICE: Final = 12  #: lines of it at most


def explain(
    seen: Seen,
    spec: ModelSpec,
    name: str,
    asked: Asked,
    recoveries: Iterable[tuple[SpecDigest, NodeName, RecoveryRecord]],
    happened: Iterable[tuple[int, Event]],
    now: Wall,
    *,
    ended: bool = True,
) -> ExplainOutput:
    """`name`: that it was asked for by. `recoveries`: of the model; `happened`: every event with its number; `ended`:
    an engine of the model has ended, and its log is there."""
    told = seen.explained.get(spec.name)
    row = views.model_row(seen, spec, now)
    replicas = tuple(each for each in views.replicas(seen).replicas if each.model == spec.name)
    profile = _profile(seen, spec, told)
    nodes = places(seen, spec, told)
    failures = tuple(_failures(spec, recoveries, now))
    refusing = {each.node for each in told.rejections} if told else set()
    concerned = [place for place in nodes if place.node in refusing]
    advised = advice(row, replicas, concerned, failures, stopped=seen.stopped is not None, ended=ended)
    return ExplainOutput(
        asked=name,
        model=row,
        why=told.why if told else "",
        profile=None if profile is None else _profile_row(seen, profile, nodes),
        replicas=replicas,
        places=nodes,
        files=tuple(_files(seen, profile)) if profile is not None else (),
        failures=failures,
        events=_events(spec.name, happened),
        advice=tuple(islice(advised, ADVICE)),
        profiles=tuple(_profiles(seen, spec, told, failures)),
        level=told.level if told else Level.FULL,
        demand=demand_row(seen, spec, asked, now),
        fallback=_fallback(spec, told),
        stands_in_for=tuple(sorted(other.model for other in seen.explained.values() if other.fallback == spec.name)),
        drafts_for=_drafts_for(seen, spec.name),
        external=_external(spec),
    )


def _external(spec: ModelSpec) -> ExternalRow | None:
    there = spec.external
    if there is None:
        return None
    key = None if there.api_key is None else there.api_key.from_env or there.api_key.from_file
    return ExternalRow(url=there.url, model=there.model or spec.name, key=key)


def _drafts_for(seen: Seen, name: ModelName) -> tuple[str, ...]:
    wanting = (each for each in seen.models.values() if any(p.draft_model == name for p in each.profiles))
    return tuple(sorted(each.name for each in wanting))


def _fallback(spec: ModelSpec, told: ModelStatus | None) -> FallbackRow | None:
    if spec.fallback is None:
        return None
    return FallbackRow(model=spec.fallback, serves=told is not None and told.fallback is not None)


def _profile(seen: Seen, spec: ModelSpec, told: ModelStatus | None) -> ProfileSpec | None:
    """As it was launched, at its level; else as it is tried next, as the catalog has it, or the first."""
    name = told.profile if told is not None else None
    if told is not None and told.shrunk is not None:
        return told.shrunk
    assigned = seen.assignments.get(told.replica) if told is not None and told.replica is not None else None
    if assigned is not None and assigned.profile.name == name:
        return assigned.profile
    named = (each for each in spec.profiles if each.name == name)
    return next(named, None) or next(iter(spec.profiles), None)


def _profiles(
    seen: Seen, spec: ModelSpec, told: ModelStatus | None, failures: Sequence[FailureRow]
) -> Iterator[ProfileRow]:
    """In the catalog's order. Those before the one that is used were passed over."""
    names = [profile.name for profile in spec.profiles]
    used = names.index(told.profile) if told is not None and told.profile in names else 0
    filters = static_filters(seen)
    for index, profile in enumerate(spec.profiles):
        row = _profile_row(seen, profile, ())
        yield replace(row, passed_over=_passed_over(seen, spec, profile, failures, filters)) if index < used else row


def _passed_over(
    seen: Seen, spec: ModelSpec, profile: ProfileSpec, failures: Sequence[FailureRow], filters: Filters
) -> str:
    """What keeps it from being used now; else what can be said of when the other was launched."""
    failed = [row for row in failures if row.profile == profile.name]
    parts = [f"{'given up' if row.quarantined else 'failed'} on {row.node}: {row.reason}" for row in failed]
    ruled_out = [refusal for node in sorted(seen.reports) if (refusal := filters.refusal(spec, profile, node))]
    if ruled_out:
        parts.append(str(Unschedulable(model=spec.name, rejections=tuple(ruled_out), nodes=len(seen.reports))))
    if parts:
        return "; ".join(parts)
    return "there was no room for it, or it was not in the catalog yet, when the other was launched"


def _profile_row(seen: Seen, profile: ProfileSpec, places: Sequence[PlaceRow]) -> ProfileRow:
    nodes = [place.node for place in places if place.verdict == "placed"] or [place.node for place in places]
    engines = (fact for node in nodes for fact in seen.reports[NodeName(node)].engines if fact.name == profile.engine)
    return ProfileRow(
        name=profile.name,
        engine=profile.engine,
        engine_version=next((fact.version for fact in engines if fact.version is not None), None),
        context=profile.context,
        parallel=profile.parallel,
        devices=profile.devices,
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
            size=wanted.expected if fact is None else fact.size,
            licence=fact.licence if fact else None,
        )


def _failures(
    spec: ModelSpec, recoveries: Iterable[tuple[SpecDigest, NodeName, RecoveryRecord]], now: Wall
) -> Iterator[FailureRow]:
    names = {spec_digest(spec.name, profile): profile.name for profile in spec.profiles}
    for digest, node, record in recoveries:
        yield FailureRow(
            node=node,
            kind=record.last.kind,
            reason=record.last.reason,
            at=record.last.at,
            attempts=record.attempts,
            retry_at=None if record.retry_at is None else max(record.retry_at, now),
            quarantined=record.quarantined,
            action=record.action,
            level=record.level,
            delays=record.delays,
            profile=names.get(digest),
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
