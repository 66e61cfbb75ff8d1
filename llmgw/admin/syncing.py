"""The routes that have the catalog's source looked at now, and that give what is there."""

from collections.abc import Awaitable, Callable
from typing import Final

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from llmgw.admin.answers import answer
from llmgw.admin.bodies import read_body
from llmgw.admin.syncs import CatalogAnswer, SyncOutput, SyncRequest
from llmgw.admin.views import hold, problem_rows
from llmgw.catalog.live import CatalogState
from llmgw.catalog.spec import Catalog
from llmgw.errors import CatalogInvalid

LONGEST: Final = 600.0
"""Seconds that an answer may be waited for."""

Refresh = Callable[[float, bool], Awaitable[tuple[CatalogState, bool]]]
"""Has the source looked at now, and waits so many seconds until what is found there is in force, or refused: how the
catalog stands then, and whether that came to be in time. 0: only has it looked at. Whether branches and tags of weights
are asked for what they are at now."""


Read = Callable[[str | None], Awaitable[Catalog]]
"""The followed catalog as it stands there, or at a revision. Raises CatalogInvalid, CatalogUnreadable."""


def sync_routes(refresh: Refresh | None, read: Read | None) -> APIRouter:
    """None: nobody here follows a catalog."""
    routes = APIRouter()

    @routes.get("/catalog")
    async def catalog(revision: str | None = None) -> Response:
        if read is None:
            raise HTTPException(404, "no controller here")
        try:
            return answer(CatalogAnswer(catalog=await read(revision)))
        except CatalogInvalid as error:
            return answer(CatalogAnswer(problems=problem_rows(error.problems)))

    @routes.post("/sync")
    async def sync(request: Request) -> Response:
        asked = await read_body(request, SyncRequest)
        if refresh is None:
            raise HTTPException(404, "no controller here")
        state, done = await refresh(min(max(asked.patience, 0.0), LONGEST), asked.weights)
        return answer(
            SyncOutput(
                done=done,
                source=state.source,
                attempted=state.attempted,
                applied=state.applied,
                error=state.error,
                problems=problem_rows(state.problems),
                held=hold(state.held),
            )
        )

    return routes
