"""JSON objects of the operator's words on the catalog and on models. As in `shapes`: they only gain fields."""

from dataclasses import dataclass
from typing import Final

from llmgw.admin.shapes import VERSION, CatalogRow, Time


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderOutput:
    """`llmgw approve`, `apply`, `rollback`, `suspend` and `resume`. `changed`: false when it was so already.

    `model`: that was suspended or resumed; null: the catalog was. `revision`: that the order is about, where it is
    about one. `catalog`: as it was when the order was given, or once it had been carried out.
    """

    version: int = VERSION
    changed: bool
    model: str | None
    revision: str | None
    catalog: CatalogRow


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRow:
    """A catalog that came into force. `in_force`: it is so now."""

    number: int
    revision: str
    at: Time
    models: int
    in_force: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOutput:
    """`llmgw history`: oldest first."""

    version: int = VERSION
    entries: tuple[HistoryRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionRequest:
    """The body of `POST /api/v1/approve`, `apply` and `rollback`. `revision`: all of it or its beginning; null: the one
    that waits, or the one before that in force."""

    revision: str | None = None
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendRequest:
    """The body of `POST /api/v1/suspend` and `resume`. `model`: a name or an alias; null: the catalog."""

    model: str | None = None
    by: str = ""


ORDERS: Final = {"order": OrderOutput, "history": HistoryOutput}
"""By schema's name, as `shapes.OUTPUTS`."""
