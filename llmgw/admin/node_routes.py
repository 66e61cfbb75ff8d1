"""Routes about one node: whether new replicas go there, and whether those that are there stay."""

from dataclasses import replace
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from llmgw.admin import node_views, reading
from llmgw.admin.answers import NotThere, answer
from llmgw.admin.bodies import read_body
from llmgw.admin.reading import Seen
from llmgw.admin.shapes import CordonOutput, CordonRequest, UncordonRequest
from llmgw.catalog.schemas import did_you_mean
from llmgw.catalog.yamldoc import quoted
from llmgw.clock import Clock
from llmgw.errors import StaleRevision
from llmgw.facts import Cordon, Event
from llmgw.ids import NodeName
from llmgw.store import keys
from llmgw.store.api import Store
from llmgw.store.codec import decode, encode
from llmgw.store.events import EventLog

ATTEMPTS: Final = 3
"""Tries to write where others write at the same time."""


def node_routes(store: Store, events: EventLog, clock: Clock) -> APIRouter:
    routes = APIRouter()

    def record(node: NodeName, reason: str, by: str) -> None:
        events.record(Event(at=clock.now().wall, subject=f"node/{node}", reason=reason, message=f"by {by}"))

    async def output(node: NodeName, *, changed: bool) -> Response:
        seen = await reading.look(store)
        return answer(
            CordonOutput(
                changed=changed,
                node=node,
                cordon=node_views.cordon_row(seen.cordons.get(node)),
                replicas=len(node_views.residents(seen, node)),
            )
        )

    @routes.post("/cordon")
    async def cordon(request: Request) -> Response:
        asked = await read_body(request, CordonRequest)
        node = find_node(await reading.look(store), asked.node)
        wanted = Cordon(at=clock.now().wall, by=_who(asked.by), drain=asked.drain)
        changed = await _put(store, node, wanted)
        if changed:
            record(node, "drained" if wanted.drain else "cordoned", wanted.by)
        return await output(node, changed=changed)

    @routes.post("/uncordon")
    async def uncordon(request: Request) -> Response:
        asked = await read_body(request, UncordonRequest)
        there = NodeName(asked.node)
        seen = await reading.look(store)
        node = there if there in seen.cordons else find_node(seen, asked.node)
        changed = node in seen.cordons
        await store.delete(keys.cordon(node))
        if changed:
            record(node, "uncordoned", _who(asked.by))
        return await output(node, changed=changed)

    return routes


async def _put(store: Store, node: NodeName, wanted: Cordon) -> bool:
    """False where it is so already: since when and by whom then stays as it was. Raises StaleRevision."""
    for attempt in range(ATTEMPTS):
        entry = await store.get(keys.cordon(node))
        if entry is not None:
            known = decode(entry.value, Cordon, where=entry.key)
            if replace(known, at=wanted.at, by=wanted.by) == wanted:
                return False
        try:
            await store.put(keys.cordon(node), encode(wanted), if_revision=entry.revision if entry else 0)
            return True
        except StaleRevision:
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def find_node(seen: Seen, asked: str) -> NodeName:
    """One that has reported, or that the catalog in force lists. Raises NotThere, with what may have been meant."""
    known = {*seen.reports, *(seen.applied.nodes if seen.applied else ())}
    if asked in known:
        return NodeName(asked)
    hint = did_you_mean(asked, known) or "; `llmgw nodes` lists what there is"
    raise NotThere(f"no node {quoted(asked)}{hint}")


def _who(by: str) -> str:
    return by.strip()[:200] or "someone"
