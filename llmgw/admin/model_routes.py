"""Routes about one model, named by name or alias: its story, its engine's log, and forgetting its failures."""

from dataclasses import replace

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from llmgw import enginelogs
from llmgw.admin import logs, reading
from llmgw.admin.answers import NotThere, answer
from llmgw.admin.bodies import read_body
from llmgw.admin.explaining import explain
from llmgw.admin.reading import Seen
from llmgw.admin.resetting import forget_failures
from llmgw.admin.shapes import ResetRequest, ResetRow
from llmgw.catalog.schemas import did_you_mean
from llmgw.catalog.spec import ModelSpec
from llmgw.catalog.yamldoc import quoted
from llmgw.clock import Clock
from llmgw.enginelogs import LogFile
from llmgw.ids import ModelName
from llmgw.plan import ModelState
from llmgw.statedir import StateDir
from llmgw.store.api import Store
from llmgw.store.events import EventLog

Asked = Query(min_length=1, max_length=200)


def model_routes(store: Store, events: EventLog, clock: Clock, state: StateDir | None = None) -> APIRouter:
    """`state`: where engines' logs are; None: on no machine that can be read from here."""
    routes = APIRouter()

    @routes.get("/explain")
    async def explaining(model: str = Asked) -> Response:
        seen = await reading.look(store)
        spec = find_model(seen, model)
        replicas = {each.id for report in seen.reports.values() for each in report.replicas if each.model == spec.name}
        asked = await reading.asked(store, spec, replicas)
        recoveries = await reading.recoveries(store, spec.name)
        ended = state is None or any(enginelogs.ended(state, spec.name))
        told = explain(seen, spec, model, asked, recoveries, events.numbered(), clock.now().wall, ended=ended)
        return answer(told)

    @routes.post("/reset")
    async def reset(request: Request) -> Response:
        asked = await read_body(request, ResetRequest)
        seen = await reading.look(store)
        models = set(seen.models) if asked.model is None else {find_model(seen, asked.model).name}
        by = asked.by.strip()[:200] or "someone"
        forgotten = await forget_failures(store, events, models, by=by, at=clock.now().wall)
        return answer(replace(forgotten, models=tuple(_serving(seen, row) for row in forgotten.models)))

    return routes


def log_routes(store: Store, state: StateDir | None, clock: Clock) -> APIRouter:
    """`state`: where engines' logs are; None: on no machine that can be read from here."""
    routes = APIRouter()

    @routes.get("/logs")
    async def log(
        model: str = Asked,
        lines: int = Query(default=100, ge=0, le=enginelogs.MAX_LINES),
        previous: bool = False,
        follow: bool = False,
    ) -> Response:
        seen = await reading.look(store)
        if state is None:
            told = _no_log(seen, find_model(seen, model).name, previous=previous)
            raise NotThere(f"{told}; or the agent that has the log cannot be asked")
        name = _name_with_logs(seen, state, model)

        async def find() -> LogFile | None:
            return logs.find_log(state, await reading.look(store), name)

        if follow:
            stream = logs.follow(name, lines, find, clock)
            return StreamingResponse(stream, media_type="application/x-ndjson")
        past = enginelogs.ended(state, name)
        found = next(iter(past), None) if previous else logs.find_log(state, seen, name)
        if found is None:
            raise NotThere(_no_log(seen, name, previous=previous))
        try:
            return answer(logs.output(found, lines))
        except OSError as error:
            raise NotThere(f"the log of replica {found.replica} is gone: {error.strerror}") from error

    return routes


def _serving(seen: Seen, row: ResetRow) -> ResetRow:
    """With whether it serves meanwhile."""
    told = seen.explained.get(ModelName(row.model))
    if told is None or told.state is not ModelState.READY:
        return row
    return replace(row, ready=True, level=told.level)


def find_model(seen: Seen, asked: str) -> ModelSpec:
    """By name or alias. Raises NotThere, with what may have been meant."""
    for spec in seen.models.values():
        if asked in spec.names:
            return spec
    names = [name for spec in seen.models.values() for name in spec.names]
    if seen.applied is None:
        raise NotThere("no catalog is in force yet; `llmgw status` tells why")
    hint = did_you_mean(asked, names) or "; `llmgw models` lists what there is"
    raise NotThere(f"no model {quoted(asked)} in the catalog{hint}")


def _name_with_logs(seen: Seen, state: StateDir, asked: str) -> ModelName:
    """A model of the catalog, or one that has left it and whose last logs are kept."""
    try:
        return find_model(seen, asked).name
    except NotThere:
        left = enginelogs.models_with_logs(state) | {
            fact.model for report in seen.reports.values() for fact in report.replicas
        }
        if asked not in left:
            raise
        return ModelName(asked)


def _no_log(seen: Seen, name: ModelName, *, previous: bool) -> str:
    if previous:
        return f"no engine of {name} has ended yet, so there is no previous log"
    told = seen.explained.get(name)
    why = f" ({told.state}: {told.reason})" if told is not None and told.reason else ""
    return f"no engine of {name} was started yet{why}; `llmgw explain {name}` tells more"
