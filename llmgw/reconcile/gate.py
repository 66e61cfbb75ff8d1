"""Whether a valid catalog may come into force, or is held until a person has looked at it. Pure.

In this order: what the operator went back to stays; a suspended catalog stays; what takes much or protected models
away waits for a confirmation; with `sync: manual` each revision waits for the operator. Content that is in force
already needs nobody's leave. What is compared with is the catalog in force, also across a restart: its own `protect`
and `sync` count, not those of the revision that is judged.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from llmgw.catalog.holds import Held, HoldReason
from llmgw.catalog.spec import Catalog, ClusterSpec, Sync
from llmgw.facts import Suspension
from llmgw.ids import ModelName, shortened
from llmgw.store.values import Approval, Pinned

MOST_REMOVED: Final = 0.5
"""Part of the models in force that a revision may remove unasked, where there are at least MANY."""

MANY: Final = 4

_NAMED: Final = 8  #: models named in a line


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """The operator's words, as the store has them. `suspensions`: of single models."""

    pinned: Pinned | None = None
    suspended: Suspension | None = None
    approval: Approval | None = None
    suspensions: Mapping[ModelName, Suspension] = field(default_factory=dict)


def judge(catalog: Catalog, before: Catalog | None, orders: Orders, *, removal_approved: bool = False) -> Held | None:
    """Why `catalog` is not to take the place of `before` (None: nothing was ever in force) now; None: it may.

    `removal_approved`: its commit says that what it removes is meant.
    """
    if before is not None and _is_same(catalog, before):
        return None
    if orders.pinned is not None and orders.pinned.digest != catalog.digest:
        told = f"rolled back to {shortened(orders.pinned.revision)} by {orders.pinned.by}"
        return Held(reason=HoldReason.ROLLED_BACK, message=f"{told}; `llmgw resume` follows the catalog again")
    if orders.suspended is not None and before is not None:
        told = f"the catalog is suspended by {orders.suspended.by}"
        return Held(reason=HoldReason.SUSPENDED, message=f"{told}; `llmgw resume` follows it again")
    approval = orders.approval if orders.approval and orders.approval.revision == catalog.revision else None
    if before is not None and not removal_approved and not (approval and approval.removal):
        held = _removal(catalog, before, orders.suspensions)
        if held is not None:
            return held
    if (before or catalog).cluster.sync is Sync.MANUAL and approval is None:
        told = f"`sync: manual`: `llmgw apply {shortened(catalog.revision)}` puts it in force"
        return Held(reason=HoldReason.MANUAL, message=told)
    return None


def _is_same(catalog: Catalog, before: Catalog) -> bool:
    """By content: a digest that an earlier version of llmgw made may be another."""
    return before.digest == catalog.digest or (
        before.models == catalog.models and before.cluster == catalog.cluster
    )  # fmt: skip


def _removal(catalog: Catalog, before: Catalog, suspensions: Collection[ModelName]) -> Held | None:
    removed = sorted(before.models.keys() - catalog.models.keys())
    approve = f"if that is meant, `llmgw approve {shortened(catalog.revision)}` puts it in force"
    kept = [name for name in removed if before.cluster.protect or before.models[name].protect]
    if kept:
        told = f"removes {_names(kept)}, which `protect: true` keeps; {approve}"
        return Held(reason=HoldReason.PROTECTED, message=told, models=tuple(kept))
    if before.cluster.protect and catalog.cluster == ClusterSpec():
        told = f"removes the Cluster document, which `protect: true` keeps; {approve}"
        return Held(reason=HoldReason.PROTECTED, message=told)
    kept = [name for name in removed if name in suspensions]
    if kept:
        told = f"removes {_names(kept)}, suspended by an operator; {approve}"
        return Held(reason=HoldReason.PROTECTED, message=told, models=tuple(kept))
    count = len(before.models)
    if removed and (not catalog.models or (count >= MANY and len(removed) > count * MOST_REMOVED)):
        which = "the only model" if count == 1 else f"{len(removed)} of {count} models"
        told = f"removes {which} in force: {_names(removed)}; {approve}"
        return Held(reason=HoldReason.REMOVAL, message=told, models=tuple(removed))
    return None


def _names(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_NAMED])
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown
