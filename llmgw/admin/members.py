"""The processes of a fleet: who leads, who stands by, since when; and having one begin anew."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from llmgw.admin import reading
from llmgw.admin.answers import NotThere, answer
from llmgw.admin.bodies import read_body
from llmgw.admin.member_views import member_row, member_rows
from llmgw.admin.shapes import VERSION, MemberRow
from llmgw.catalog.yamldoc import quoted
from llmgw.clock import Clock
from llmgw.store import keys
from llmgw.store.api import Store
from llmgw.store.codec import encode
from llmgw.store.values import Member, RestartOrder, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersOutput:
    """`llmgw restart`: the processes that live, in the order in which they are to begin anew."""

    version: int = VERSION
    members: tuple[MemberRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRequest:
    """The body of `POST /api/v1/restart`. `instance`: the one that is to begin anew, and no later one."""

    role: str
    name: str
    instance: str
    by: str = ""


MEMBERS: Final = {"members": MembersOutput}


def member_routes(store: Store, clock: Clock) -> APIRouter:
    routes = APIRouter()

    @routes.get("/members")
    async def members() -> Response:
        return answer(MembersOutput(members=member_rows(await reading.look(store))))

    @routes.post("/restart")
    async def restart(request: Request) -> Response:
        asked = await read_body(request, RestartRequest)
        seen = await reading.look(store)
        found = [each for each in seen.members if (each.role, each.name) == (asked.role, asked.name)]
        if not found:
            raise NotThere(f"no {quoted(asked.role)} named {quoted(asked.name)} lives")
        order = RestartOrder(instance=asked.instance, at=clock.now().wall, by=asked.by.strip()[:200] or "someone")
        await store.put(keys.restart(asked.role, asked.name), encode(order))
        return answer(MembersOutput(members=tuple(member_row(each, seen) for each in found)))

    return routes


def agent_urls(members: Iterable[Member]) -> dict[str, str]:
    """Where each node's agent is asked."""
    return {each.name: each.url for each in members if each.role is Role.AGENT}
