"""Routes by which the operator has the last word on the catalog: approve, apply, roll back, suspend, resume."""

import re
from collections.abc import Awaitable, Callable
from typing import Final

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from llmgw.admin import reading, views
from llmgw.admin.answers import NotNow, NotThere, answer
from llmgw.admin.bodies import read_body
from llmgw.admin.model_routes import find_model
from llmgw.admin.orders import HistoryOutput, HistoryRow, OrderOutput, RevisionRequest, SuspendRequest
from llmgw.admin.reading import Seen
from llmgw.catalog.holds import HoldReason
from llmgw.catalog.spec import Catalog
from llmgw.catalog.yamldoc import quoted
from llmgw.clock import Clock
from llmgw.errors import CatalogInvalid, StaleRevision
from llmgw.facts import Event, Suspension
from llmgw.ids import FEWEST_DIGITS, ModelName, Revision, is_named
from llmgw.store import keys
from llmgw.store.api import Store
from llmgw.store.codec import encode
from llmgw.store.events import EventLog
from llmgw.store.values import Approval, Pinned

_FEW_DIGITS: Final = re.compile(rf"[0-9a-fA-F]{{0,{FEWEST_DIGITS - 1}}}")
"""A beginning of too many revisions. What holds other letters is the name of a tag or a branch."""

Find = Callable[[str | None], Awaitable[Catalog]]
"""An earlier catalog by the beginning of its revision; None: the one before that in force. Raises NoSuchRevision, and
CatalogInvalid where it cannot be used any more."""


def order_routes(store: Store, events: EventLog, clock: Clock, find: Find | None) -> APIRouter:
    """`find` None: nobody here decides what runs."""
    orders = _Orders(store, events, clock)
    routes = APIRouter()

    @routes.post("/approve")
    async def approve(request: Request) -> Response:
        return answer(await orders.approve(await read_body(request, RevisionRequest), removal=True))

    @routes.post("/apply")
    async def apply(request: Request) -> Response:
        return answer(await orders.approve(await read_body(request, RevisionRequest), removal=False))

    @routes.post("/rollback")
    async def rollback(request: Request) -> Response:
        asked = await read_body(request, RevisionRequest)
        if find is None:
            raise HTTPException(404, "no controller here")
        if asked.revision is not None and _FEW_DIGITS.fullmatch(asked.revision):
            raise NotThere(
                f"{quoted(asked.revision)} is too short for a revision: write {FEWEST_DIGITS} digits at least; "
                "`llmgw history` lists them"
            )
        try:
            catalog = await find(asked.revision)
        except CatalogInvalid as error:
            raise NotNow(f"that revision cannot be served any more: {error}") from error
        return answer(await orders.pin(catalog, asked.by))

    @routes.post("/suspend")
    async def suspend(request: Request) -> Response:
        asked = await read_body(request, SuspendRequest)
        return answer(await orders.suspend(asked.model, asked.by))

    @routes.post("/resume")
    async def resume(request: Request) -> Response:
        asked = await read_body(request, SuspendRequest)
        return answer(await orders.resume(asked.model, asked.by))

    @routes.get("/history")
    async def history() -> Response:
        seen = await reading.look(store)
        entries = await reading.history(store)
        current = seen.applied.digest if seen.applied else None
        last = max((entry.number for entry in entries if entry.digest == current), default=None)
        rows = [
            HistoryRow(
                number=e.number, revision=e.revision, at=e.at, models=len(e.models), in_force=e.number == last
            )
            for e in entries
        ]  # fmt: skip
        return answer(HistoryOutput(entries=tuple(rows)))

    return routes


class _Orders:
    def __init__(self, store: Store, events: EventLog, clock: Clock) -> None:
        self._store = store
        self._events = events
        self._clock = clock

    async def approve(self, asked: RevisionRequest, *, removal: bool) -> OrderOutput:
        seen = await reading.look(self._store)
        revision = _newest(seen, asked.revision)
        if seen.applied is not None and seen.applied.revision == revision:
            return self._output(seen, changed=False, revision=revision)
        _check(seen, removal=removal)
        now, by = self._clock.now().wall, _who(asked.by)
        await self._store.put(keys.APPROVED, encode(Approval(revision=revision, at=now, by=by, removal=removal)))
        self._tell("catalog", "approved" if removal else "applied by hand", f"{revision}, by {by}")
        return self._output(seen, changed=True, revision=revision)

    async def pin(self, catalog: Catalog, by: str) -> OrderOutput:
        seen = await reading.look(self._store)
        if seen.pinned is not None and seen.pinned.digest == catalog.digest:
            return self._output(seen, changed=False, revision=catalog.revision)
        pinned = Pinned(revision=catalog.revision, digest=catalog.digest, at=self._clock.now().wall, by=_who(by))
        await self._store.put(keys.PINNED, encode(pinned))
        self._tell("catalog", "rolled back", f"to {catalog.revision}, by {pinned.by}")
        return self._output(await reading.look(self._store), changed=True, revision=catalog.revision)

    async def suspend(self, model: str | None, by: str) -> OrderOutput:
        seen = await reading.look(self._store)
        name = find_model(seen, model).name if model is not None else None
        key = keys.SUSPENDED if name is None else keys.suspension(name)
        word = Suspension(at=self._clock.now().wall, by=_who(by))
        try:
            await self._store.put(key, encode(word), if_revision=0)
        except StaleRevision:  # suspended already: since when and by whom stays as it was
            return self._output(seen, changed=False, model=name)
        self._tell("catalog" if name is None else f"model/{name}", "suspended", f"by {word.by}")
        return self._output(await reading.look(self._store), changed=True, model=name)

    async def resume(self, model: str | None, by: str) -> OrderOutput:
        seen = await reading.look(self._store)
        if model is None:
            changed = seen.suspended is not None or seen.pinned is not None
            await self._store.delete(keys.PINNED)
            await self._store.delete(keys.SUSPENDED)
            name, subject = None, "catalog"
        else:
            name = ModelName(model) if model in seen.suspensions else find_model(seen, model).name
            changed, subject = name in seen.suspensions, f"model/{name}"
            await self._store.delete(keys.suspension(name))
        if changed:
            self._tell(subject, "resumed", f"by {_who(by)}")
        return self._output(await reading.look(self._store), changed=changed, model=name)

    def _tell(self, subject: str, reason: str, message: str) -> None:
        self._events.record(Event(at=self._clock.now().wall, subject=subject, reason=reason, message=message))

    def _output(
        self, seen: Seen, *, changed: bool, model: ModelName | None = None, revision: Revision | None = None
    ) -> OrderOutput:
        return OrderOutput(changed=changed, model=model, revision=revision, catalog=views.catalog(seen))


def _newest(seen: Seen, asked: str | None) -> Revision:
    """The newest revision, which is the only one that can be approved. Raises NotThere."""
    newest = seen.status.attempted if seen.status is not None else None
    if newest is None:
        raise NotThere("no revision has been read yet; `llmgw status` tells why")
    if asked is not None and not is_named(newest, asked):
        raise NotThere(f"{quoted(asked)} is not the newest revision, which is {newest}; `llmgw status` shows it")
    return newest


def _check(seen: Seen, *, removal: bool) -> None:
    """Whether saying yes would do anything. Raises NotNow."""
    status = seen.status
    assert status is not None, "a revision was attempted"
    if status.problems or status.error:
        raise NotNow("the newest revision is invalid or cannot be read; `llmgw status` says why")
    match status.held.reason if status.held is not None else None:
        case HoldReason.UNSIGNED:
            raise NotNow(
                f"{status.held.message if status.held else ''}: sign the commit; nobody can approve it instead"
            )
        case HoldReason.SUSPENDED | HoldReason.ROLLED_BACK:
            raise NotNow(f"{status.held.message if status.held else ''} first")
        case HoldReason.REMOVAL | HoldReason.PROTECTED if not removal:
            raise NotNow(f"the newest revision {status.held.message if status.held else ''}")


def _who(by: str) -> str:
    return by.strip()[:200] or "someone"
