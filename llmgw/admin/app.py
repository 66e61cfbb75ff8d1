"""The admin API as an ASGI application; `llmgw.app` serves it with uvicorn on a loopback port."""

from collections.abc import Callable, Collection, Sequence

from fastapi import APIRouter, FastAPI, Query, Request
from starlette.responses import Response

from llmgw.admin import metrics, reading, views
from llmgw.admin.answers import add_handlers, answer, failure
from llmgw.admin.asking import PATIENCE
from llmgw.admin.bodies import read_body
from llmgw.admin.capacity_routes import capacity_records, capacity_routes, capacity_rows
from llmgw.admin.diffs import Compare, diff_routes
from llmgw.admin.elsewhere import Elsewhere, tell_leader
from llmgw.admin.guard import Guard
from llmgw.admin.key_routes import key_routes
from llmgw.admin.members import member_routes
from llmgw.admin.model_routes import log_routes, model_routes
from llmgw.admin.node_routes import node_routes
from llmgw.admin.openapi import openapi_routes
from llmgw.admin.order_routes import Find, order_routes
from llmgw.admin.plan_routes import Foresee, Verdict, plan_routes
from llmgw.admin.revisions import LineageOf, revision_routes
from llmgw.admin.shapes import StopRequest, SwitchOutput
from llmgw.admin.syncing import Read, Refresh, sync_routes
from llmgw.admin.syncs import SyncRequest
from llmgw.admin.upkeep_routes import upkeep_routes
from llmgw.admin.webhook import webhook_routes
from llmgw.clock import Clock, SystemClock
from llmgw.errors import StaleRevision
from llmgw.ids import NodeName
from llmgw.plan import Stopped
from llmgw.statedir import StateDir
from llmgw.store import keys
from llmgw.store.api import Store
from llmgw.store.codec import decode, encode
from llmgw.store.events import KEPT, EventLog


def create_app(
    *,
    store: Store,
    events: EventLog,
    token: str,
    node: NodeName,
    collect: Sequence[metrics.Collect] = (),
    clock: Clock | None = None,
    hosts: Collection[str] = (),
    state: StateDir | None = None,
    foresee: Foresee | None = None,
    compare: Compare | None = None,
    refresh: Refresh | None = None,
    read: Read | None = None,
    lineage: LineageOf | None = None,
    webhook: Callable[[], str] | None = None,
    find: Find | None = None,
    verdict: Verdict | None = None,
    controller: str | None = None,
    leads: Callable[[], bool] = lambda: True,
    patience: float = PATIENCE,
) -> FastAPI:
    """The application.

    `collect`: called at each scrape, for metrics of other parts. `state`: where engines' logs are read. `hosts`:
    names besides loopback's and the address that it listens on under which it may be asked. `foresee`: what plans
    are made by. `compare`: what gives the catalogs that are compared. `find`: what gives an earlier one. `verdict`:
    what says whether one would be held. `refresh`: what has the catalog's source looked at. `read`: what gives the
    followed one as it stands there, or at a revision. `lineage`: what git knows of one. `webhook`: what gives the
    secret of who else may have it looked at. `controller`: the name of a fleet's: what other processes know is then
    asked of them. `leads`: whether metrics of models and nodes are told here. `patience`: seconds without a sign of
    life after which a node counts as one that could not be asked about its weights.
    """
    # No OpenAPI page: FastAPI's loads its scripts from a network that a server may not have.
    app = FastAPI(title="llmgw", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.include_router(_open_routes(store, collect, leads))
    app.include_router(_looking_routes(store, events, node, clock or SystemClock()), prefix="/api/v1")
    app.include_router(upkeep_routes(store, clock or SystemClock(), compare, patience=patience), prefix="/api/v1")
    here = state if controller is None else None  # a fleet's logs are on its nodes
    app.include_router(model_routes(store, events, clock or SystemClock(), here), prefix="/api/v1")
    app.include_router(log_routes(store, state, clock or SystemClock()), prefix="/api/v1")
    app.include_router(_switch_routes(store, clock or SystemClock()), prefix="/api/v1")
    app.include_router(plan_routes(store, foresee, verdict), prefix="/api/v1")
    app.include_router(order_routes(store, events, clock or SystemClock(), find), prefix="/api/v1")
    app.include_router(diff_routes(compare), prefix="/api/v1")
    app.include_router(sync_routes(refresh, read), prefix="/api/v1")
    app.include_router(revision_routes(store, events, refresh, lineage), prefix="/api/v1")

    async def call() -> None:
        if leads() and refresh is not None:
            await refresh(0, False)
        elif controller is not None:
            await tell_leader(store, token, "/api/v1/sync", SyncRequest(patience=0))

    app.include_router(webhook_routes(webhook, call))
    app.include_router(node_routes(store, events, clock or SystemClock()), prefix="/api/v1")
    app.include_router(capacity_routes(store, events, clock or SystemClock()), prefix="/api/v1")
    app.include_router(key_routes(store, events, clock or SystemClock()), prefix="/api/v1")
    app.include_router(member_routes(store, clock or SystemClock()), prefix="/api/v1")
    app.include_router(openapi_routes(app), prefix="/api/v1")
    if controller is not None:
        app.add_middleware(Elsewhere, store=store, name=controller)
    app.add_middleware(Guard, token=token, hosts=hosts)
    add_handlers(app)
    return app


def _open_routes(store: Store, collect: Sequence[metrics.Collect], leads: Callable[[], bool]) -> APIRouter:
    routes = APIRouter()

    @routes.get("/healthz")
    async def healthz() -> Response:
        return answer({"ok": True})

    @routes.get("/readyz")
    async def readyz() -> Response:
        reason = views.not_ready(await reading.look(store))
        return answer({"ready": True}) if reason is None else failure(503, "not_ready", reason)

    @routes.get("/metrics")
    async def scrape(request: Request) -> Response:
        accept = request.headers.get("accept", "")
        if leads():
            seen = await reading.look(store)
            capacities = capacity_rows(seen, await capacity_records(store))
            body, content_type = metrics.render(seen, collect, accept, capacities=capacities)
        else:
            body, content_type = metrics.render(None, collect, accept)
        return Response(body, headers={"content-type": content_type})

    return routes


def _looking_routes(store: Store, log: EventLog, node: NodeName, clock: Clock) -> APIRouter:
    routes = APIRouter()

    @routes.get("/status")
    async def status() -> Response:
        return answer(views.status(await reading.look(store), node, clock.now().wall))

    @routes.get("/models")
    async def models() -> Response:
        return answer(views.models(await reading.look(store), clock.now().wall))

    @routes.get("/replicas")
    async def replicas() -> Response:
        return answer(views.replicas(await reading.look(store)))

    @routes.get("/nodes")
    async def nodes() -> Response:
        return answer(views.nodes(await reading.look(store)))

    @routes.get("/events")
    async def events(limit: int = Query(default=100, ge=1, le=KEPT), after: int = Query(default=0, ge=0)) -> Response:
        return answer(views.events(log.numbered(limit, after=after)))

    return routes


def _switch_routes(store: Store, clock: Clock) -> APIRouter:
    routes = APIRouter()

    @routes.post("/stop")
    async def stop(request: Request) -> Response:
        asked = await read_body(request, StopRequest)
        wanted = Stopped(at=clock.now().wall, by=asked.by.strip()[:200] or "someone")
        try:
            await store.put(keys.STOPPED, encode(wanted), if_revision=0)
        except StaleRevision:  # stopped already: since when and by whom stays as it was
            entry = await store.get(keys.STOPPED)
            found = decode(entry.value, Stopped, where=entry.key) if entry else wanted
            return answer(SwitchOutput(changed=False, stopped=views.stopped(found)))
        return answer(SwitchOutput(changed=True, stopped=views.stopped(wanted)))

    @routes.post("/start")
    async def start() -> Response:
        was = await store.get(keys.STOPPED)
        await store.delete(keys.STOPPED)
        return answer(SwitchOutput(changed=was is not None, stopped=None))

    return routes
