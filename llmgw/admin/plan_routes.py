"""The route that plans: what a catalog would change here, and nothing is changed."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from llmgw.admin import reading
from llmgw.admin.answers import NotThere, answer
from llmgw.admin.bodies import read_body
from llmgw.admin.planning import plan_output, route_rows
from llmgw.admin.plans import PlanOutput, PlanRequest
from llmgw.admin.views import hold, problem_rows
from llmgw.catalog.commits import Pushed
from llmgw.catalog.holds import Held
from llmgw.catalog.load import Loaded
from llmgw.catalog.spec import Catalog
from llmgw.errors import CatalogInvalid
from llmgw.schedule.forecast import Forecast
from llmgw.store.api import Store
from llmgw.units import MIB

MAX_CATALOG = 64 * MIB
"""Bytes of a catalog in JSON: more than any that can be loaded comes to."""

Foresee = Callable[[Catalog | None, Sequence[str]], Awaitable[tuple[Forecast, Loaded, Catalog | None]]]
"""Of a catalog, or of the followed one as it stands on disk, and as if these models had been asked for; with what
loading it had to say, and what is in force. Raises CatalogInvalid, CatalogUnreadable, ValueError for a model that is
not in it."""


Verdict = Callable[[Catalog, Pushed], Awaitable[Held | None]]
"""Why a catalog would be held, were it the newest revision, with what is told of its commits."""


def plan_routes(store: Store, foresee: Foresee | None, verdict: Verdict | None = None) -> APIRouter:
    """`foresee` None: nobody here decides what runs."""
    routes = APIRouter()

    @routes.post("/plan")
    async def plan(request: Request) -> Response:
        asked = await read_body(request, PlanRequest, limit=MAX_CATALOG)
        if foresee is None:
            raise HTTPException(404, "no controller here")
        seen = await reading.look(store)
        followed = seen.status.source if seen.status is not None else None
        source = asked.source if asked.catalog is not None else followed
        try:
            forecast, loaded, before = await foresee(asked.catalog, asked.asked)
        except CatalogInvalid as error:
            return answer(PlanOutput(valid=False, source=source, problems=problem_rows(error.problems)))
        except ValueError as error:
            raise NotThere(str(error)) from error
        routes = route_rows(before, loaded.catalog) if before is not None else ()
        told = plan_output(forecast, in_force=before.revision if before is not None else None, routes=routes)
        pushed = Pushed(approved=asked.approved, raw=asked.commit)
        held = hold(await verdict(loaded.catalog, pushed)) if verdict is not None else None
        return answer(replace(told, source=source, warnings=problem_rows(loaded.warnings), held=held))

    return routes
