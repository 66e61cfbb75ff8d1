"""What a webhook gets. Its JSON Schema is `schemas/output/notification.v1.schema.json`; it only gains fields."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from llmgw.notify.occasions import Finding
from llmgw.plan import ModelState, ModelStatus
from llmgw.store.values import CatalogStatus
from llmgw.units import Wall

Time = Annotated[float, msgspec.Meta(description="Seconds since the Unix epoch.")]

MODELS_TOLD: Final = 100
"""Of more models those come first that do not serve as they should; `models_total` says how many there are."""

_UNWELL: Final = frozenset({ModelState.FAILED, ModelState.UNSCHEDULABLE})


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldCondition:
    """`Ready`, `Reconciling` or `Stalled`."""

    type: str
    status: bool
    reason: str
    message: str
    since: Time


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldModel:
    name: str
    state: str
    reason: str
    wanted: int  #: replicas
    ready: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """How a revision fares. `event`: applied, invalid, held, ready, stalled or rollout_failed."""

    version: int
    at: Time
    cluster: str
    revision: str
    event: str
    reason: str
    message: str
    conditions: tuple[ToldCondition, ...]
    models: tuple[ToldModel, ...]
    models_total: int


NOTIFICATIONS: Final[dict[str, Any]] = {"notification": Notification}


def notification(
    finding: Finding, status: CatalogStatus, models: Iterable[ModelStatus], *, cluster: str, at: Wall
) -> Notification:
    ordered = sorted(models, key=lambda model: (not _is_unwell(model), model.model))
    return Notification(
        version=1,
        at=at,
        cluster=cluster,
        revision=finding.revision,
        event=finding.occasion,
        reason=finding.reason,
        message=finding.message,
        conditions=tuple(
            ToldCondition(
                type=each.type, status=each.status, reason=each.reason, message=each.message, since=each.since
            )
            for each in status.conditions
        ),
        models=tuple(
            ToldModel(name=each.model, state=each.state, reason=each.reason, wanted=each.wanted, ready=each.ready)
            for each in ordered[:MODELS_TOLD]
        ),
        models_total=len(ordered),
    )


def _is_unwell(model: ModelStatus) -> bool:
    return model.state in _UNWELL or bool(model.rollout_failed) or model.ready < model.wanted
