"""The route that tells how a revision stands to the newest one: `llmgw status --wait` asks it."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import Response

from llmgw.admin import reading
from llmgw.admin.answers import answer
from llmgw.admin.syncing import Refresh
from llmgw.admin.syncs import RevisionOutput, Standing
from llmgw.admin.views import problem_rows
from llmgw.catalog.commits import Lineage
from llmgw.facts import Event
from llmgw.ids import is_named
from llmgw.store.api import Store
from llmgw.store.events import EventLog

LineageOf = Callable[[str], Awaitable[Lineage | None]]
"""What git knows of a commit, where the catalog is followed."""

IN_FORCE: Final = "it is in force still"

_SAID: Final = {
    "catalog applied": "it was in force",
    "catalog held": "it was held",
    "catalog invalid": "it was invalid",
}
"""What events say came of a revision, which their messages begin with."""


PATIENCE: Final = 5.0
"""Seconds for a look at the source, before a revision that came before is said to be superseded: it may come again."""


def revision_routes(store: Store, events: EventLog, refresh: Refresh | None, lineage: LineageOf | None) -> APIRouter:
    """None: nobody here follows a catalog."""
    routes = APIRouter()

    @routes.get("/revision")
    async def revision(revision: str) -> Response:
        if refresh is None or lineage is None:
            raise HTTPException(404, "no controller here")
        status = (await reading.look(store)).status
        told = _unknown(revision, status.attempted if status is not None else None)
        if (await _superseded(told)).standing is Standing.SUPERSEDED:
            state, done = await refresh(PATIENCE, False)
            told = _unknown(revision, state.attempted)
            told = await _superseded(told) if done and state.error is None else told
        return answer(told)

    async def _superseded(told: RevisionOutput) -> RevisionOutput:
        if told.standing is Standing.NEWEST or told.newest is None:
            return told
        history = [entry.revision for entry in await reading.history(store)]
        known = _remembered(events.recent(), history, told.asked)
        if known is not None:
            applied = (await reading.look(store)).applied
            said = IN_FORCE if applied is not None and applied.revision == known[0] else known[1]
            told = replace(told, standing=Standing.SUPERSEDED, revision=known[0], said=said)
        found = await lineage(told.asked) if lineage is not None else None
        if found is not None and found.earlier:
            rows = problem_rows(found.problems)
            told = replace(told, standing=Standing.SUPERSEDED, revision=found.commit, problems=rows)
        return told

    return routes


def _unknown(asked: str, newest: str | None) -> RevisionOutput:
    if newest is not None and is_named(newest, asked):
        return RevisionOutput(asked=asked, standing=Standing.NEWEST, revision=newest, newest=newest)
    return RevisionOutput(asked=asked, standing=Standing.UNKNOWN, newest=newest)


def _remembered(events: Sequence[Event], history: Sequence[str], asked: str) -> tuple[str, str] | None:
    """A revision that came, and what came of it. Pure."""
    for event in reversed(events):
        revision = event.message.partition(": ")[0]
        if event.subject == "catalog" and event.reason in _SAID and is_named(revision, asked):
            return revision, _SAID[event.reason]
    return next(((each, _SAID["catalog applied"]) for each in reversed(history) if is_named(each, asked)), None)
