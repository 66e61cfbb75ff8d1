"""`llmgw sync`: its JSON object, and what it asks for. As in `shapes`: it only gains fields."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from llmgw.admin.shapes import VERSION, HoldRow, ProblemRow
from llmgw.catalog.spec import Catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncOutput:
    """`llmgw sync`. `done`: the source was looked at, and what was found there is in force or refused: `error` (it
    cannot be read), `problems` (it is invalid) or `held` (it waits for a person) say why then. `attempted`: the newest
    revision; `applied`: that in force."""

    version: int = VERSION
    done: bool
    source: str
    attempted: str | None = None
    applied: str | None = None
    error: str | None = None
    problems: tuple[ProblemRow, ...] = ()
    held: HoldRow | None = None


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


class Standing(StrEnum):
    """Of a revision: what is newest, one that a newer one took the place of, or one that has not come (yet)."""

    NEWEST = "newest"
    SUPERSEDED = "superseded"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionOutput:
    """`GET /api/v1/revision`. `revision`: the whole of what was `asked` for, where that is known; `newest`: the newest
    revision. `said`: what came of one that is superseded, where that is remembered; `problems`: of it."""

    version: int = VERSION
    asked: str
    standing: Standing
    revision: str | None = None
    newest: str | None = None
    said: str | None = None
    problems: tuple[ProblemRow, ...] = ()


SYNCS: Final = {"sync": SyncOutput, "revision": RevisionOutput}
"""By schema's name, as `shapes.OUTPUTS`."""
