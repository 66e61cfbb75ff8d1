"""The small API of an agent or a gateway of a fleet: its health, its metrics, and where there are some, engines' logs.

Everything else is asked of a controller.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from fastapi import APIRouter, FastAPI, Request
from prometheus_client import Metric
from starlette.exceptions import HTTPException
from starlette.responses import Response

from llmgw.admin import metrics
from llmgw.admin.answers import add_handlers, answer, failure
from llmgw.admin.guard import Guard
from llmgw.admin.model_routes import log_routes
from llmgw.clock import Clock
from llmgw.statedir import StateDir
from llmgw.store.api import Store


def create_own_app(
    *,
    what: str,
    store: Store,
    token: str,
    clock: Clock,
    unready: Callable[[], str | None],
    collect: Sequence[Callable[[], Iterable[Metric]]] = (),
    state: StateDir | None = None,
    hosts: Collection[str] = (),
    more: Sequence[APIRouter] = (),
) -> FastAPI:
    """`what`: it is; `unready`: why it cannot do its work yet; `state`: where engines' logs are; `more`: routes that
    need the token too."""
    app = FastAPI(title="llmgw", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.include_router(_open_routes(unready, collect))
    if state is not None:
        app.include_router(log_routes(store, state, clock), prefix="/api/v1")
    for routes in more:
        app.include_router(routes)
    app.add_middleware(Guard, token=token, hosts=hosts)
    add_handlers(app)

    async def not_here(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        told = f"no {request.scope['path']} here: this is {what}; ask a controller (--state of its, or --admin URL)"
        return failure(error.status_code, "not_found", told if error.status_code == 404 else str(error.detail))

    app.add_exception_handler(HTTPException, not_here)
    return app


def _open_routes(unready: Callable[[], str | None], collect: Sequence[Callable[[], Iterable[Metric]]]) -> APIRouter:
    routes = APIRouter()

    @routes.get("/healthz")
    async def healthz() -> Response:
        return answer({"ok": True})

    @routes.get("/readyz")
    async def readyz() -> Response:
        reason = unready()
        return answer({"ready": True}) if reason is None else failure(503, "not_ready", reason)

    @routes.get("/metrics")
    async def scrape(request: Request) -> Response:
        body, content_type = metrics.render(None, collect, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    return routes
