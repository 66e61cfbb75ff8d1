"""`llmgw diff`: its JSON object, and the route that compares with the catalog in force. As in `shapes`: it only gains
fields."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from llmgw.admin.answers import NotThere, answer
from llmgw.admin.bodies import read_body
from llmgw.admin.shapes import VERSION, ProblemRow
from llmgw.admin.views import problem_rows
from llmgw.catalog.diff import Change, diff
from llmgw.catalog.leaves import Effect
from llmgw.catalog.spec import Catalog
from llmgw.errors import CatalogInvalid
from llmgw.units import MIB

MAX_CATALOG: Final = 64 * MIB
"""Bytes of a catalog in JSON: more than any that can be loaded comes to."""

Compare = Callable[[Catalog | None], Awaitable[tuple[Catalog | None, Catalog]]]
"""The catalog in force, and the one given, else the followed one as it stands on disk. Raises CatalogInvalid,
CatalogUnreadable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRow:
    """One difference. `model` null: of the Cluster document; `path` empty: the model as a whole.

    `change`: added, removed or changed. `old` and `new`: as a document would say it, null where there is none; what
    may be a secret is hidden. `effect`: what it does to what runs: restart, stop, level, placement, routing, later or
    nothing.
    """

    model: str | None
    path: str
    change: str
    old: str | None
    new: str | None
    effect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffOutput:
    """`llmgw diff`. `valid` false: `problems` of the side `invalid` say why, and there is nothing else.

    `old` and `new`: the revisions. `restarts`: models whose engines are replaced or ended.
    """

    version: int = VERSION
    valid: bool
    invalid: str | None = None
    problems: tuple[ProblemRow, ...] = ()
    old: str | None = None
    new: str | None = None
    differs: bool = False
    restarts: tuple[str, ...] = ()
    changes: tuple[ChangeRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffRequest:
    """The body of `POST /api/v1/diff`: the catalog in force is the old side, and `catalog` the new one; null: the
    daemon's own, as it stands on disk. `reverse`: the other way round."""

    catalog: Catalog | None = None
    reverse: bool = False


DIFFS: Final = {"diff": DiffOutput}
"""By schema's name, as `shapes.OUTPUTS`."""


def diff_output(old: Catalog, new: Catalog) -> DiffOutput:
    changes = diff(old, new)
    return DiffOutput(
        valid=True,
        old=old.revision,
        new=new.revision,
        differs=bool(changes),
        restarts=_restarts(changes),
        changes=tuple(map(_row, changes)),
    )


def invalid_output(side: str, error: CatalogInvalid) -> DiffOutput:
    return DiffOutput(valid=False, invalid=side, problems=problem_rows(error.problems))


def diff_routes(compare: Compare | None) -> APIRouter:
    """`compare` None: no catalog is followed here."""
    routes = APIRouter()

    @routes.post("/diff")
    async def compared(request: Request) -> Response:
        asked = await read_body(request, DiffRequest, limit=MAX_CATALOG)
        if compare is None:
            raise NotThere("no catalog is followed here")
        try:
            in_force, other = await compare(asked.catalog)
        except CatalogInvalid as error:
            return answer(invalid_output("on disk", error))
        if in_force is None:
            raise NotThere("no catalog is in force yet: there was no good one so far (`llmgw status` says why)")
        old, new = (other, in_force) if asked.reverse else (in_force, other)
        return answer(diff_output(old, new))

    return routes


def _restarts(changes: Iterable[Change]) -> tuple[str, ...]:
    hard = (change for change in changes if change.effect in (Effect.RESTART, Effect.STOP))
    return tuple(dict.fromkeys(change.model for change in hard if change.model is not None))


def _row(change: Change) -> ChangeRow:
    return ChangeRow(
        model=change.model,
        path=change.path,
        change=change.kind,
        old=change.old,
        new=change.new,
        effect=change.effect,
    )
