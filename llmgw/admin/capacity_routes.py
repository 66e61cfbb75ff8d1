"""Routes about what replicas were measured to hold: asked for, and written down."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from llmgw.admin import reading
from llmgw.admin.answers import NotThere, answer, failure
from llmgw.admin.bodies import read_body
from llmgw.admin.capacities import CapacitiesOutput, CapacityRequest, CapacityRow
from llmgw.admin.model_routes import find_model
from llmgw.admin.reading import Seen
from llmgw.catalog.spec import ModelSpec, ProfileSpec, spec_digest
from llmgw.catalog.yamldoc import quoted
from llmgw.clock import Clock
from llmgw.facts import Concurrency, Event, Level, Phase, ReplicaFact, Usage
from llmgw.ids import NodeName, ReplicaId, SpecDigest
from llmgw.store import keys
from llmgw.store.api import Delete, Put, Store
from llmgw.store.codec import decode, encode
from llmgw.store.events import EventLog
from llmgw.units import Seconds, format_seconds

_Records = Mapping[tuple[SpecDigest, NodeName], Concurrency]

CONFLICT: Final = "conflict"
"""`error.code` where a replica is not in a state that it can be measured in."""


def capacity_routes(store: Store, events: EventLog, clock: Clock) -> APIRouter:
    routes = APIRouter()

    async def listed(seen: Seen, of: ModelSpec | None) -> Response:
        found = capacity_rows(seen, await capacity_records(store), of)
        return answer(CapacitiesOutput(capacities=found, in_flight=await in_flight(store)))

    @routes.get("/capacities")
    async def capacities(model: str | None = Query(default=None, min_length=1, max_length=200)) -> Response:
        seen = await reading.look(store)
        return await listed(seen, None if model is None else find_model(seen, model))

    @routes.post("/capacities")
    async def measured(request: Request) -> Response:
        told = await read_body(request, CapacityRequest)
        seen = await reading.look(store)
        replica = _replica(seen, told.replica)
        profiles = _profiles(seen)
        if replica.phase is not Phase.READY or replica.level is not Level.FULL or replica.spec not in profiles:
            return failure(409, CONFLICT, _unfit(replica, changed=replica.spec not in profiles))
        now = clock.now().wall
        value = Concurrency(
            requests=told.requests,
            at=now,
            ttft=Seconds(told.ttft),
            itl=Seconds(told.itl),
            tokens_per_second=told.tokens_per_second,
        )
        known = await capacity_records(store)
        # What the catalog has no more is of no use, and nothing else would ever remove it.
        gone = [Delete(keys.concurrency(*key)) for key in known if key[0] not in profiles]
        await store.txn([Put(keys.concurrency(replica.spec, replica.node), encode(value)), *gone])
        events.record(Event(at=now, subject=f"model/{replica.model}", reason="measured", message=_told(replica, value)))
        return await listed(seen, seen.models.get(replica.model))

    return routes


async def capacity_records(store: Store) -> dict[tuple[SpecDigest, NodeName], Concurrency]:
    found: dict[tuple[SpecDigest, NodeName], Concurrency] = {}
    for entry in (await store.list(keys.CONCURRENCY)).entries:
        spec, _, node = entry.key.removeprefix(keys.CONCURRENCY).partition("/")
        found[SpecDigest(spec), NodeName(node)] = decode(entry.value, Concurrency, where=entry.key)
    return found


async def in_flight(store: Store) -> dict[str, int]:
    """Requests at each replica, over all gateways."""
    found: Counter[str] = Counter()
    for entry in (await store.list(keys.USAGE)).entries:
        for replica, use in decode(entry.value, Usage, where=entry.key).replicas.items():
            if use.outstanding > 0:
                found[replica] += use.outstanding
    return dict(found)


def capacity_rows(seen: Seen, known: _Records, of: ModelSpec | None = None) -> tuple[CapacityRow, ...]:
    """Of the profiles that the catalog in force has, by model, profile and node."""
    profiles = _profiles(seen)
    found = [
        CapacityRow(
            model=profiles[spec][0].name,
            profile=profiles[spec][1].name,
            node=node,
            requests=one.requests,
            ttft=one.ttft,
            itl=one.itl,
            tokens_per_second=one.tokens_per_second,
            at=one.at,
        )
        for (spec, node), one in known.items()
        if spec in profiles and (of is None or profiles[spec][0].name == of.name)
    ]
    return tuple(sorted(found, key=lambda row: (row.model, row.profile, row.node)))


def _profiles(seen: Seen) -> dict[SpecDigest, tuple[ModelSpec, ProfileSpec]]:
    return {
        spec_digest(model.name, profile): (model, profile)
        for model in seen.models.values()
        for profile in model.profiles
    }


def _replica(seen: Seen, asked: str) -> ReplicaFact:
    """Raises NotThere."""
    for report in seen.reports.values():
        for fact in report.replicas:
            if fact.id == ReplicaId(asked):
                return fact
    raise NotThere(f"no replica {quoted(asked)}: it may have ended meanwhile; `llmgw replicas` lists what there is")


def _unfit(replica: ReplicaFact, *, changed: bool) -> str:
    if replica.phase is not Phase.READY:
        return f"replica {replica.id} is {replica.phase} by now: what was measured on it is not kept"
    if changed:
        return f"the profile of replica {replica.id} was changed meanwhile: what was measured on it is not kept"
    return f"replica {replica.id} runs {replica.level}, shrunk to fit: only what a full one holds is kept"


def _told(replica: ReplicaFact, value: Concurrency) -> str:
    held = "1 request" if value.requests == 1 else f"{value.requests} requests at once"
    return (
        f"profile {replica.profile} holds {held} on {replica.node}: first token within {format_seconds(value.ttft)}, "
        f"{value.itl * 1000:.0f}ms between tokens, {value.tokens_per_second:.0f} tokens a second"
    )
