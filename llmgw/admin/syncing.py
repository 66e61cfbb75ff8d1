"""`llmgw sync`: its JSON object, and the route that has the catalog's source looked at now. It only gains fields."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from llmgw.admin.answers import answer
from llmgw.admin.bodies import read_body
from llmgw.admin.shapes import VERSION, ProblemRow
from llmgw.admin.views import problem_rows
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncOutput:
    """`llmgw sync`. `done`: the source was looked at, and what was found there is in force or refused: `error` (it
    cannot be read) or `problems` (it is invalid) say why then. `attempted`: the newest revision; `applied`: that in
    force."""

    version: int = VERSION
    done: bool
    source: str
    attempted: str | None = None
    applied: str | None = None
    error: str | None = None
    problems: tuple[ProblemRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """The body of `POST /api/v1/sync`. `patience`: seconds to wait for; 0: not at all. `weights`: also ask what the
    branches and tags of weights are at now."""

    patience: float = 60.0
    weights: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogAnswer:
    """For `llmgw plan` and `llmgw diff`, where the repository is not on their machine. `catalog` null: `problems` say
    why."""

    catalog: Catalog | None = None
    problems: tuple[ProblemRow, ...] = ()


SYNCS: Final = {"sync": SyncOutput}
"""By schema's name, as `shapes.OUTPUTS`."""


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
            )
        )

    return routes
