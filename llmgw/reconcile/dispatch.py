"""Write what was decided: assignments, endpoints, statuses. Deciding is done; this only says it to the others."""

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from llmgw.catalog.spec import Catalog, ModelSpec, ProfileSpec, spec_digest
from llmgw.errors import StaleRevision
from llmgw.facts import Ask, Event, Level, Measured, Phase, RecoveryRecord, ReplicaFact
from llmgw.ids import ModelName, NodeName, ReplicaId, SpecDigest
from llmgw.memo import Kept
from llmgw.plan import Assignment, Endpoint, Launch, ModelStatus, Plan, Stop, Want
from llmgw.reconcile.observe import Seen
from llmgw.schedule.think import Known, Thought
from llmgw.store import keys
from llmgw.store.api import Delete, Put, Store
from llmgw.store.batches import write_all
from llmgw.store.codec import decode, encode
from llmgw.units import Instant, Wall, format_bytes

GONE: Final = frozenset({Phase.STOPPED, Phase.FAILED})

USE_TOLD: Final = 10.0
"""Seconds between two stamps of use that are written."""

Record = Callable[[Event], None]


async def apply(store: Store, plan: Plan, seen: Seen, catalog: Catalog, now: Instant, record: Record) -> None:
    """Carry the plan out, in this order: withdraw and publish endpoints together with the stops, then launch.

    A stopped replica's endpoint goes in the same transaction as its assignment changes, so that no gateway ever
    sees a replica being drained as an endpoint.
    """
    stops = [_stopping(stop, seen, catalog) for stop in plan.stops]
    leaving = {assignment.replica for assignment in stops}
    adopted = [_adopting(id, seen, catalog) for ids in plan.keep.values() for id in ids]
    # In this order: of more than one transaction takes, what is withdrawn must not come after the stop.
    changes = await _endpoint_changes(store, seen, catalog, leaving)
    changes += [_put_assignment(assignment) for assignment in (*stops, *filter(None, adopted))]
    changes += _forgotten(seen)
    await write_all(store, changes)
    for stop in plan.stops:
        why = f"{stop.reason} {stop.detail}".strip()
        record(_event(now, stop.model, "evicted" if stop.eviction else "stopping", f"{stop.replica}: {why}"))
    for launch in plan.launches:
        assignment = _launching(launch, seen, catalog)
        await store.put(keys.assignment(launch.node, assignment.replica), encode(assignment))
        record(_event(now, launch.model, "launched", _describe(assignment, launch.why)))


async def write_statuses(store: Store, statuses: Sequence[ModelStatus]) -> None:
    """Each model's status, and none of models that left."""
    wanted = {put.key: put for put in (_told.of(status.model, status) for status in statuses)}
    present = {entry.key: entry.value for entry in (await store.list(keys.EXPLAIN)).entries}
    changed = [put for key, put in wanted.items() if present.get(key) != put.value]
    await write_all(store, [*changed, *(Delete(key) for key in present.keys() - wanted.keys())])


def _telling(status: ModelStatus) -> Put:
    return Put(keys.explain(status.model), encode(status))


_told: Final[Kept[ModelName, Put]] = Kept(_telling)


async def write_recovery(store: Store, records: Mapping[tuple[SpecDigest, NodeName], RecoveryRecord | None]) -> None:
    """Put the records, delete where None."""
    for (spec, node), record in records.items():
        key = keys.recovery(spec, node)
        await write_all(store, [Delete(key) if record is None else Put(key, encode(record))])


async def write_demand(store: Store, known: Known, thought: Thought) -> None:
    """Asks and scaling states that changed. A gateway may ask meanwhile: its stamp is never put back."""
    for model, ask in thought.asks.items():
        before = known.asks.get(model)
        if ask is None or before is None or _is_worth_writing(before, ask):
            await _write_ask(store, model, before, ask)
    changed = [
        Delete(keys.scaling(model)) if state is None else Put(keys.scaling(model), encode(state))
        for model, state in thought.scaling.items()
    ]
    await write_all(store, changed)


def _is_worth_writing(before: Ask, after: Ask) -> bool:
    """A model in use is used anew at every pass; its stamp need not reach the disk every time."""
    used = before.used is None or (after.used or Wall(0)) - before.used >= USE_TOLD
    return (after.asked, after.since) != (before.asked, before.since) or used


async def _write_ask(store: Store, model: ModelName, before: Ask | None, ask: Ask | None) -> None:
    """What was written since this pass read it is newer than what it knows: only the later stamps count then.

    One that a gateway writes at this very moment is left to the pass that it leads to.
    """
    entry = await store.get(keys.ask(model))
    if ask is None:
        if entry is not None:
            await store.delete(entry.key)
        return
    known = None if entry is None else decode(entry.value, Ask, where=entry.key)
    if known is not None and known != before:
        stamps = [used for used in (known.used, ask.used) if used is not None]
        ask = Ask(asked=max(known.asked, ask.asked), used=max(stamps, default=None), since=ask.since)
    with suppress(StaleRevision):
        await store.put(keys.ask(model), encode(ask), if_revision=0 if entry is None else entry.revision)


async def write_measured(store: Store, changes: Mapping[tuple[SpecDigest, NodeName], Measured | None]) -> None:
    """Put what was measured, delete where None."""
    await write_all(
        store,
        [
            Delete(keys.measured(spec, node)) if one is None else Put(keys.measured(spec, node), encode(one))
            for (spec, node), one in changes.items()
        ],
    )


def endpoints(
    facts: Iterable[ReplicaFact], catalog: Catalog, leaving: set[ReplicaId], lost: Collection[NodeName] = ()
) -> dict[ReplicaId, Endpoint]:
    """Ready replicas whose model is in the catalog, that are not being stopped, and whose node is there."""
    return {
        fact.id: Endpoint(
            id=fact.id,
            model=fact.model,
            url=fact.url,
            names=catalog.models[fact.model].names,
            engine=fact.engine,
            pool=catalog.cluster.node(fact.node).pool,
            surfaces=fact.surfaces,
            **_share(fact, catalog.models[fact.model]),
        )
        for fact in facts
        if fact.phase is Phase.READY
        and fact.url
        and fact.model in catalog.models
        and fact.id not in leaving
        and fact.node not in lost
    }


async def _endpoint_changes(store: Store, seen: Seen, catalog: Catalog, leaving: set[ReplicaId]) -> list[Put | Delete]:
    """What makes the published endpoints the right ones."""
    facts = seen.observed.replicas
    wanted = endpoints(facts.values(), catalog, leaving, seen.observed.lost)
    present = {entry.key: entry.value for entry in (await store.list(keys.ENDPOINTS)).entries}
    values = {keys.endpoint(facts[id].node, id): encode(endpoint) for id, endpoint in sorted(wanted.items())}
    gone = [Delete(key) for key in present if key not in values]
    return [*gone, *(Put(key, value) for key, value in values.items() if present.get(key) != value)]


def _forgotten(seen: Seen) -> list[Put | Delete]:
    """Assignments whose replica is reported gone; the agent forgets it when the key is gone."""
    return [
        Delete(keys.assignment(assigned.node, id))
        for id, assigned in seen.assignments.items()
        if (fact := seen.reported.get(id)) is not None and fact.phase in GONE
    ]


def _share(fact: ReplicaFact, model: ModelSpec) -> dict[str, Any]:
    """Its profile's share of the traffic; of one that the catalog no longer has, an equal one."""
    same = [profile for profile in model.profiles if spec_digest(model.name, profile) == fact.spec]
    named = [profile for profile in model.profiles if profile.name == fact.profile]
    for profile in (*same, *named):
        slots = fact.slots if profile.max_requests is None else profile.max_requests or None
        return {"weight": profile.weight, "tier": profile.tier, "slots": slots}
    return {"slots": fact.slots}


def _launching(launch: Launch, seen: Seen, catalog: Catalog) -> Assignment:
    return Assignment(
        replica=ReplicaId(secrets.token_hex(6)),
        model=launch.model,
        profile=launch.profile,
        spec=launch.spec,
        node=launch.node,
        footprint=launch.footprint,
        level=launch.level,
        launched=launch.launched,
        devices=launch.devices,
        draft_url=_draft_url(launch, seen),
        **_from_catalog(catalog, launch.node, launch.profile),
    )


def _draft_url(launch: Launch, seen: Seen) -> str | None:
    """Of the companion beside it, which was launched before."""
    if launch.profile.draft_model is None:
        return None
    for fact in seen.observed.replicas.values():
        beside = fact.model == launch.profile.draft_model and fact.node == launch.node
        if beside and fact.phase is Phase.READY:
            return fact.url
    return None


def _adopting(id: ReplicaId, seen: Seen, catalog: Catalog) -> Assignment | None:
    """An assignment for a kept replica that has none (adopted), or whose eviction was given up."""
    assigned = seen.assignments.get(id)
    if assigned is not None:
        return replace(assigned, want=Want.RUN, why="", eviction=False) if assigned.want is Want.STOP else None
    return _for_fact(seen.observed.replicas[id], catalog)


def _stopping(stop: Stop, seen: Seen, catalog: Catalog) -> Assignment:
    assigned = seen.assignments.get(stop.replica) or _for_fact(seen.observed.replicas[stop.replica], catalog)
    return replace(assigned, want=Want.STOP, why=str(stop.reason), eviction=stop.eviction)


def _for_fact(fact: ReplicaFact, catalog: Catalog) -> Assignment:
    """The assignment of a replica that was adopted without one. Its agent has the profile it was launched from;
    of one that is no longer in the catalog the name and engine are enough to stop it."""
    model: ModelSpec | None = catalog.models.get(fact.model)
    named = [profile for profile in model.profiles if profile.name == fact.profile] if model else []
    profile = named[0] if named else ProfileSpec(name=fact.profile, engine=fact.engine)
    assert fact.footprint is not None, "an adopted replica reports what its placement counted"
    return Assignment(
        replica=fact.id,
        model=fact.model,
        profile=profile,
        spec=fact.spec,
        node=fact.node,
        footprint=fact.footprint,
        level=fact.level,
        launched=fact.launched,
        devices=fact.devices,
        **{**_from_catalog(catalog, fact.node, profile), "revision": fact.revision},
    )


def _from_catalog(catalog: Catalog, node: NodeName, profile: ProfileSpec) -> dict[str, Any]:
    defaults = catalog.cluster.defaults
    return {
        "revision": catalog.revision,
        "start_timeout": profile.start_timeout or defaults.start_timeout,
        "drain_timeout": defaults.drain_timeout,
        "disk_reserve": catalog.cluster.node(node).reserve.disk,
        "fetching": catalog.cluster.weights.limits,
    }


def _put_assignment(assignment: Assignment) -> Put | Delete:
    return Put(keys.assignment(assignment.node, assignment.replica), encode(assignment))


def _event(now: Instant, model: ModelName, reason: str, message: str) -> Event:
    return Event(at=now.wall, subject=f"model/{model}", reason=reason, message=message)


def _describe(assignment: Assignment, why: str) -> str:
    footprint, level = assignment.footprint, assignment.level
    memory = f"{format_bytes(footprint.host)} host memory"
    if assignment.devices:
        memory += f" and {format_bytes(footprint.device)} on {', '.join(assignment.devices)}"
    shrunk = "" if level is Level.FULL else f" at level {level}"
    text = f"{assignment.replica} on {assignment.node}: profile {assignment.profile.name}{shrunk}"
    return f"{text}, {memory} ({footprint.source}); {why}" if why else f"{text}, {memory} ({footprint.source})"
