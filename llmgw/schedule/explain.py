"""Each model's story in short: one `ModelStatus`, for status and for the gateway's answer."""

from collections.abc import Sequence

from llmgw.catalog.spec import Catalog, ModelSpec, spec_digest
from llmgw.facts import Footprint, Observed, Phase, RecoveryRecord, ReplicaFact
from llmgw.ids import ModelName, SpecDigest
from llmgw.plan import ModelState, ModelStatus, Plan, Unschedulable, Wish
from llmgw.units import Wall


def statuses(
    plan: Plan, wishes: Sequence[Wish], catalog: Catalog, observed: Observed, *, stopped: bool
) -> tuple[ModelStatus, ...]:
    """One status for each model of the catalog, in name order."""
    refused = {item.model: item for item in plan.unschedulable}
    return tuple(
        _status(catalog.models[wish.model], wish, plan, refused.get(wish.model), observed, stopped)
        for wish in wishes
        if wish.model in catalog.models
    )


def _status(
    model: ModelSpec,
    wish: Wish,
    plan: Plan,
    refused: Unschedulable | None,
    observed: Observed,
    stopped: bool,
) -> ModelStatus:
    replica = _replica_of(model.name, plan, observed)
    spec = spec_digest(model.name, model.profiles[0])
    record = _record_of(spec, observed)
    state, reason = _state(model.name, wish, plan, refused, replica, record, stopped)
    return ModelStatus(
        model=model.name,
        state=state,
        reason=reason,
        wanted=wish.count,
        replica=replica.id if replica else None,
        profile=replica.profile if replica else None,
        since=replica.since if replica else record.last.at if record else Wall(0),
        progress=replica.progress if replica else None,
        retry_at=record.retry_at if record and not _under_way(model.name, plan) else None,
        attempts=record.attempts if record else 0,
        revision=replica.revision if replica else None,
        rejections=refused.rejections if refused else (),
        why=wish.why,
        footprint=(replica.footprint if replica else None) or _footprint_of(spec, observed),
    )


def _state(
    model: ModelName,
    wish: Wish,
    plan: Plan,
    refused: Unschedulable | None,
    replica: ReplicaFact | None,
    record: RecoveryRecord | None,
    stopped: bool,
) -> tuple[ModelState, str]:
    """In this order: switched off, serving, coming up, quarantined, refused, waiting."""
    if stopped:
        return ModelState.STOPPED, wish.why
    if wish.count == 0:
        return ModelState.INACTIVE, wish.why
    if replica is not None and replica.phase is Phase.READY and replica.id in plan.keep.get(model, ()):
        return ModelState.READY, f"{refused}; the previous version serves" if refused else ""
    if replica is not None and replica.id in plan.keep.get(model, ()):
        return ModelState.LOADING, str(replica.phase)
    if refused is not None:
        return ModelState.UNSCHEDULABLE, str(refused)
    if _under_way(model, plan):
        return ModelState.LOADING, _after_failure("being placed", record)
    if record is not None and record.quarantined:
        return ModelState.FAILED, f"{record.last.reason} ({_times(record.attempts)})"
    return ModelState.LOADING, _after_failure(plan.waiting.get(model, "being placed"), record)


def _under_way(model: ModelName, plan: Plan) -> bool:
    return model in plan.keep or any(launch.model == model for launch in plan.launches)


def _after_failure(text: str, record: RecoveryRecord | None) -> str:
    return text if record is None else f"{text}: {record.last.reason} ({_times(record.attempts)})"


def _times(attempts: int) -> str:
    return "failed once" if attempts == 1 else f"failed {attempts} times in a row"


def _replica_of(model: ModelName, plan: Plan, observed: Observed) -> ReplicaFact | None:
    """The replica that stands for the model: the kept one, else the newest that still holds memory."""
    if kept := plan.keep.get(model):
        return observed.replicas[kept[0]]
    present = [r for r in observed.replicas.values() if r.model == model and r.phase.occupies_memory]
    return max(present, key=lambda r: (r.since, r.id), default=None)


def _footprint_of(spec: SpecDigest, observed: Observed) -> Footprint | None:
    known = (observed.footprint(spec, node) for node in sorted(observed.nodes))
    return next((footprint for footprint in known if footprint is not None), None)


def _record_of(spec: SpecDigest, observed: Observed) -> RecoveryRecord | None:
    return next((record for (digest, _), record in sorted(observed.recovery.items()) if digest == spec), None)
