"""Routes about weights on disk: what could go, removing it, and what is done with single entries."""

from collections.abc import Iterable, Iterator
from typing import Final

from fastapi import APIRouter, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from llmgw.admin import reading
from llmgw.admin.answers import NotThere, answer, failure
from llmgw.admin.asking import PATIENCE, Asking
from llmgw.admin.bodies import read_body
from llmgw.admin.collecting import Limits, collect_listing, collected, wanted_sources
from llmgw.admin.diffs import Compare
from llmgw.admin.node_routes import find_node
from llmgw.admin.reading import Seen
from llmgw.admin.shapes import (
    CollectOutput,
    CollectRequest,
    HeldRow,
    UpkeepOutput,
    UpkeepRequest,
    UpkeepRow,
    WeightsOutput,
)
from llmgw.catalog.yamldoc import quoted
from llmgw.clock import Clock
from llmgw.errors import CatalogInvalid, LlmgwError
from llmgw.facts import NodeReport, WeightsFact
from llmgw.ids import NodeName
from llmgw.store.api import Store
from llmgw.store.values import UpkeepAction, UpkeepOrder
from llmgw.units import Seconds
from llmgw.weights.naming import entry_name, is_local

ACTIONS: Final = frozenset({UpkeepAction.VERIFY, UpkeepAction.PIN, UpkeepAction.UNPIN})
"""What may be asked for by name. Removing goes by the list that `collect` makes alone."""

STALE_PLAN: Final = "stale_plan"
"""`error.code` where the list is not the one that was agreed to."""


def upkeep_routes(store: Store, clock: Clock, compare: Compare | None, *, patience: float = PATIENCE) -> APIRouter:
    routes = APIRouter()
    asking = Asking(store=store, clock=clock, patience=patience)

    async def listing(limits: Limits, *, dry_run: bool) -> tuple[Seen, CollectOutput]:
        seen, kept = await reading.look(store), await reading.history(store)
        if limits.node is not None:
            find_node(seen, limits.node)
        stale = await unsettled(seen, compare)
        return seen, collect_listing(seen, kept, clock.now(), dry_run=dry_run, limits=limits, stale=stale)

    @routes.get("/collect")
    async def look(
        dry_run: bool = False,
        older_than: float | None = Query(default=None, ge=0),
        keep_revisions: int | None = Query(default=None, ge=0),
        node: str | None = None,
        model: str | None = None,
    ) -> Response:
        limits = _limits(older_than, keep_revisions, node, model)
        return answer((await listing(limits, dry_run=dry_run))[1])

    @routes.post("/collect")
    async def collect(request: Request) -> Response:
        asked = await read_body(request, CollectRequest)
        limits = _limits(asked.older_than, asked.keep_revisions, asked.node, asked.model)
        seen, listed = await listing(limits, dry_run=True)
        if asked.plan_id is not None and asked.plan_id != listed.plan_id:
            told = f"the list is another now ({listed.plan_id}, not {asked.plan_id}), so nothing was removed"
            return failure(409, STALE_PLAN, f"{told}; look at `llmgw collect --dry-run` again")
        by = asked.by.strip()[:200] or "someone"
        return answer(await remove(asking, seen, listed, limits, by))

    @routes.get("/weights")
    async def weights(node: str | None = None) -> Response:
        seen = await reading.look(store)
        rows = tuple(_held(seen, None if node is None else find_node(seen, node)))
        return answer(WeightsOutput(entries=rows))

    @routes.post("/weights")
    async def upkeep(request: Request) -> Response:
        asked = await read_body(request, UpkeepRequest)
        if asked.action not in ACTIONS:
            raise HTTPException(400, f"no action {asked.action!r}: {', '.join(sorted(ACTIONS))}")
        seen = await reading.look(store)
        found = _named(seen, asked)
        order = UpkeepOrder(
            action=UpkeepAction(asked.action), entries=(), at=clock.now().wall, by=asked.by.strip()[:200] or "someone"
        )
        entries: dict[NodeName, list[str]] = {}
        for on, fact in found:
            entries.setdefault(on, []).append(str(fact.entry))
        told = await asking.ask(entries, order)
        rows = []
        for on, fact in found:
            outcome = told.outcomes.get(on, {}).get(str(fact.entry))
            row = UpkeepRow(
                node=on,
                entry=str(fact.entry),
                source=fact.source,
                size=fact.size,
                done=outcome is not None and outcome.done,
                text=outcome.text if outcome is not None else told.unreached.get(on, "the node did not answer"),
            )
            rows.append(row)
        unreached = {str(on): why for on, why in told.unreached.items()}
        return answer(UpkeepOutput(action=asked.action, entries=tuple(rows), unreached=unreached))

    return routes


async def remove(asking: Asking, seen: Seen, listed: CollectOutput, limits: Limits, by: str) -> CollectOutput:
    """Have each node remove what of its entries is listed as removable."""
    entries: dict[NodeName, list[str]] = {}
    for row in listed.entries:
        if row.removable:
            entries.setdefault(NodeName(row.node), []).append(row.entry)
    if seen.applied is None or not entries:
        return collected(listed, {}, {})
    order = UpkeepOrder(
        action=UpkeepAction.REMOVE,
        entries=(),
        at=asking.clock.now().wall,
        by=by,
        catalog=seen.applied.digest,
        revision=seen.applied.revision,
        min_age=limits.settings(seen.applied.weights).min_age,
    )
    told = await asking.ask(entries, order)
    return collected(listed, told.outcomes, told.unreached)


async def unsettled(seen: Seen, compare: Compare | None) -> str | None:
    """Why the catalog as it stands on disk now is not the one in force; None where it is, or nobody can tell."""
    if compare is None or seen.applied is None:
        return None
    try:
        _, newest = await compare(None)
    except CatalogInvalid:
        return "the newest catalog is invalid"
    except (LlmgwError, OSError):
        return "the catalog's source cannot be read"
    return None if newest.digest == seen.applied.digest else "the newest catalog is not applied"


def _limits(older_than: float | None, keep: int | None, node: str | None, model: str | None) -> Limits:
    if keep is not None and keep < 0:
        raise HTTPException(400, "keep_revisions is 0 or more")
    if older_than is not None and not older_than >= 0:
        raise HTTPException(400, "older_than is 0 or more")
    return Limits(
        older_than=None if older_than is None else Seconds(older_than),
        keep_revisions=keep,
        node=None if node is None else NodeName(node),
        model=model,
    )


def _held(seen: Seen, node: NodeName | None) -> Iterator[HeldRow]:
    wanted = wanted_sources(seen)
    for name in sorted(seen.reports):
        for fact in seen.reports[name].weights if node in (None, name) else ():
            yield HeldRow(
                node=name,
                entry=fact.entry,
                source=fact.source,
                size=fact.size,
                state=_state(fact),
                wanted=fact.source in wanted and not fact.corrupt,
                in_use=fact.in_use and not fact.corrupt,
                pinned=fact.pinned,
                last_wanted=fact.last_wanted,
            )
        if node in (None, name):
            yield from _under_way(seen, seen.reports[name]).values()


def _under_way(seen: Seen, report: NodeReport) -> dict[str, HeldRow]:
    """Downloads, by their entry's name."""
    found: dict[str, HeldRow] = {}
    for fact in report.replicas:
        assigned = seen.assignments.get(fact.id)
        coming = {one.source: one.progress for one in fact.coming if not one.progress.waiting}
        for spec in assigned.profile.roles.values() if assigned is not None else ():
            if is_local(spec.source) or (progress := coming.get(spec.source)) is None:
                continue
            entry = entry_name(spec.source, spec.sha256)
            found[entry] = HeldRow(
                node=report.node,
                entry=entry,
                source=spec.source,
                size=progress.done,
                state="being fetched",
                wanted=True,
                in_use=False,
                pinned=None,
                last_wanted=report.at,
            )
    return found


def _state(fact: WeightsFact) -> str:
    if fact.corrupt or fact.unfinished:
        return "corrupt" if fact.corrupt else "unfinished"
    return "complete" if fact.complete else "incomplete"


def _named(seen: Seen, asked: UpkeepRequest) -> list[tuple[NodeName, WeightsFact]]:
    """What `asked.what` names, or all. Raises NotThere where one of them is nothing: then nothing is done."""
    held = list(_within(seen, asked))
    if not asked.what:
        return held
    named = {what: _of(seen, what, held) for what in asked.what}
    if lacking := [what for what, entries in named.items() if not entries]:
        told = quoted(", ".join(lacking))
        raise NotThere(f"no cache entry is {told}, so nothing was done; `llmgw weights list` lists all")
    chosen = set().union(*named.values())
    return [(node, fact) for node, fact in held if fact.entry in chosen]


def _within(seen: Seen, asked: UpkeepRequest) -> Iterator[tuple[NodeName, WeightsFact]]:
    """The entries that `asked` may be about, by node."""
    node = None if asked.node is None else find_node(seen, asked.node)
    for name in sorted(seen.reports):
        for fact in seen.reports[name].weights if node in (None, name) else ():
            if fact.entry is None or fact.unfinished or (fact.corrupt and asked.action == UpkeepAction.VERIFY):
                continue
            yield name, fact


def _of(seen: Seen, what: str, held: Iterable[tuple[NodeName, WeightsFact]]) -> set[str]:
    """The entries among `held` that `what` means: a model, a source, or an entry."""
    models = [spec for spec in seen.models.values() if what in spec.names]
    sources = {what, *wanted_sources(seen, models)}
    facts = (fact for _, fact in held)
    return {fact.entry for fact in facts if fact.entry and (fact.source in sources or _is_entry(fact.entry, what))}


def _is_entry(entry: str, asked: str) -> bool:
    """Whole, or as tables cut it."""
    return entry == asked or (len(asked) >= len("v1-sha256-") + 6 and entry.startswith(asked))
