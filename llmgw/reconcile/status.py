"""How the catalog's source fares, and the three conditions, written to the store."""

from collections.abc import Sequence
from dataclasses import replace

from llmgw.catalog.live import CatalogState
from llmgw.ids import shortened
from llmgw.plan import ModelState, ModelStatus
from llmgw.store import keys
from llmgw.store.api import Store
from llmgw.store.codec import decode, encode
from llmgw.store.values import CatalogStatus, Condition, ConditionType
from llmgw.units import Instant

STUCK = frozenset({ModelState.FAILED, ModelState.UNSCHEDULABLE})

PASS_TOLD = 10.0
"""Seconds between two stamps of a pass: passes that change nothing must not wake whoever watches."""


async def write(
    store: Store, state: CatalogState, models: Sequence[ModelStatus], now: Instant, *, stopped: bool = False
) -> None:
    """Replace `status/catalog`. A condition keeps its `since` while its status stays."""
    entry = await store.get(keys.CATALOG_STATUS)
    before = CatalogStatus(source="") if entry is None else decode(entry.value, CatalogStatus, where=entry.key)
    told = before.passed_at
    value = CatalogStatus(
        source=state.source,
        attempted=state.attempted,
        applied=state.applied,
        applied_at=state.applied_at,
        problems=state.problems,
        error=state.error,
        watcher=state.watcher,
        held=state.held,
        conditions=conditions(state, models, before.conditions, now, stopped=stopped),
        passed_at=told if told is not None and now.since(told) < PASS_TOLD else now.wall,
    )
    if value != before or entry is None:
        await store.put(keys.CATALOG_STATUS, encode(value))


def conditions(
    state: CatalogState,
    models: Sequence[ModelStatus],
    before: Sequence[Condition],
    now: Instant,
    *,
    stopped: bool = False,
) -> tuple[Condition, ...]:
    """Ready: the newest revision is in force and every model of it serves. Reconciling: some are on their way.
    Stalled: something will not come right by itself. `stopped`: by the operator's switch. Pure."""
    wanted = [model for model in models if model.wanted > 0 and model.state is not ModelState.INACTIVE]
    moving = [model for model in wanted if model.state is ModelState.READY and model.outdated]
    loading = [model for model in wanted if model.state is ModelState.LOADING]
    loading += [model for model in moving if not model.rejections]
    stuck = [model for model in wanted if model.state in STUCK]
    stuck += [model for model in moving if model.rejections]
    returned = [model for model in models if model.rollout_failed]
    failed = [f"{m.model}: {m.rollout_failed}; as of {shortened(m.spec_revision or '')} again" for m in returned]
    reason, message = _stalled(state, stuck, failed)
    current = [
        _ready(state, wanted, failed, stopped=stopped),
        Condition(
            type=ConditionType.RECONCILING,
            status=bool(loading),
            message=", ".join(f"{model.model}: {model.reason}" for model in loading),
        ),
        Condition(type=ConditionType.STALLED, status=bool(reason), reason=reason, message=message),
    ]
    return tuple(replace(_since(condition, before, now), observed=state.attempted) for condition in current)


def _ready(state: CatalogState, wanted: Sequence[ModelStatus], failed: Sequence[str], *, stopped: bool) -> Condition:
    """Where it does not hold its reason and message say why, what still serves included."""
    count = sum(model.state is ModelState.READY and not model.outdated for model in wanted)
    serving = f"{count} of {len(wanted)} models ready" if wanted else "no model is wanted"
    if state.applied is None:
        reason, message = "NoCatalog", "no catalog is in force"
    elif stopped:
        reason, message = "SystemStopped", "stopped by the operator"
    elif state.error is not None:
        reason, message = "SourceUnavailable", f"the catalog cannot be read; of the one in force {serving}"
    elif state.problems:
        reason, message = "CatalogInvalid", f"the newest catalog is invalid; of the one in force {serving}"
    elif state.held is not None:
        reason, message = state.held.reason, f"the newest revision is held; of the one in force {serving}"
    elif failed:
        reason, message = "RolloutFailed", f"{serving}, some as of an earlier revision"
    else:
        reason, message = "" if count == len(wanted) else "ModelsNotReady", serving
    return Condition(type=ConditionType.READY, status=not reason, reason=reason, message=message)


def _stalled(state: CatalogState, stuck: Sequence[ModelStatus], failed: Sequence[str]) -> tuple[str, str]:
    if state.error is not None:
        return "SourceUnavailable", state.error
    if state.problems:
        return "CatalogInvalid", str(state.problems[0])
    if state.held is not None and not state.held.reason.is_expected:
        return state.held.reason, state.held.message
    if failed:
        return "RolloutFailed", "; ".join(failed)
    if stuck:
        return "ModelsNotServed", "; ".join(f"{model.model}: {model.explanation}" for model in stuck)
    return "", ""


def _since(condition: Condition, before: Sequence[Condition], now: Instant) -> Condition:
    same = [old for old in before if old.type is condition.type and old.status is condition.status]
    return replace(condition, since=same[0].since if same else now.wall)
