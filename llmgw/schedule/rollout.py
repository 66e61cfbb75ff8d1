"""A model's way from a spec that served to a new one, and back where the new one fails. Pure.

A rollout begins when a catalog comes into force in which a model that served is launched otherwise. It is over, and
forgotten, when the new spec has proved stable. It fails when the new spec's ladder has ended (fallback or quarantine)
and nothing else of it is there to be tried: then the model, and no other, is wanted as it was before, until a newer
revision launches it otherwise again, or its failures are forgotten (`llmgw reset`).
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from llmgw.catalog.spec import Catalog, ModelSpec, ProfileSpec, spec_digest
from llmgw.facts import Observed, Phase, RecoveryRecord
from llmgw.ids import ModelName, SpecDigest, short_hash
from llmgw.plan import Plan, Rollout
from llmgw.schedule.recovery import proved_stable
from llmgw.units import Instant

_COMING = frozenset((Phase.PLACING, Phase.FETCHING, Phase.STARTING, Phase.READY))

Rollouts = Mapping[ModelName, Rollout]


def digest_of(model: ModelName, profiles: Collection[ProfileSpec]) -> str:
    """Equal digests = launched alike, whichever profile it is."""
    return short_hash("\n".join(spec_digest(model, profile) for profile in profiles))


def begin(
    before: Catalog, after: Catalog, known: Rollouts, served: Collection[ModelName], now: Instant
) -> dict[ModelName, Rollout | None]:
    """What changes when `after` takes the place of `before`; None: to be forgotten.

    `served`: models that `before`'s spec was seen to serve. Of one whose last rollout is not over it is the spec before
    that which served, unless the newer was ready too.
    """
    changed: dict[ModelName, Rollout | None] = dict.fromkeys(known.keys() - after.models.keys())
    for name, model in after.models.items():
        old, rollout = before.models.get(name), known.get(name)
        if old is None or digest_of(name, old.profiles) == (wanted := digest_of(name, model.profiles)):
            continue
        if not (model.profiles and old.profiles):  # others run it, or did: there is nothing to launch
            changed[name] = None
            continue
        good, revision = old.profiles, before.revision
        if rollout is not None and not rollout.ready:
            good, revision = rollout.good, rollout.good_revision
        elif name not in served:
            continue
        if digest_of(name, good) == wanted:
            changed[name] = None
            continue
        changed[name] = Rollout(good=good, good_revision=revision, wanted=wanted, revision=after.revision, at=now.wall)
    return {name: rollout for name, rollout in changed.items() if rollout is not None or name in known}


def returned(catalog: Catalog, rollouts: Rollouts) -> dict[ModelName, Rollout]:
    """The models that are wanted as they were before."""
    return {
        name: rollout
        for name, rollout in rollouts.items()
        if rollout.failed is not None and _is_meant(rollout, catalog.models.get(name)) and _can_return(rollout, catalog)
    }


def effective(catalog: Catalog, rollouts: Rollouts) -> Catalog:
    """The catalog with those models as they were before. All but how they are launched is the catalog's own."""
    back = {name: replace(catalog.models[name], profiles=one.good) for name, one in returned(catalog, rollouts).items()}
    return replace(catalog, models={**catalog.models, **back}) if back else catalog


def step(
    catalog: Catalog, observed: Observed, rollouts: Rollouts, plan: Plan, now: Instant
) -> dict[ModelName, Rollout | None]:
    """What this pass learns of rollouts under way; None: over. `catalog`: the effective one."""
    changed: dict[ModelName, Rollout | None] = {}
    for name, rollout in rollouts.items():
        model = catalog.models.get(name)
        if rollout.failed is not None or model is None or not _is_meant(rollout, model):
            continue
        after = _stepped(rollout, model, observed, plan, now, catalog)
        if after != rollout:
            changed[name] = after
    return changed


def _stepped(
    rollout: Rollout, model: ModelSpec, observed: Observed, plan: Plan, now: Instant, catalog: Catalog
) -> Rollout | None:
    specs = {spec_digest(model.name, profile) for profile in model.profiles}
    facts = [fact for fact in observed.replicas.values() if fact.model == model.name and fact.spec in specs]
    records = [record for (spec, _), record in observed.recovery.items() if spec in specs]
    if not records and any(proved_stable(fact, catalog.cluster.recovery, now) for fact in facts):
        return None
    ready = not records and (rollout.ready or any(fact.phase is Phase.READY for fact in facts))
    ended = [record for record in records if record.exhausted]
    coming = any(fact.phase in _COMING for fact in facts) or any(each.model == model.name for each in plan.launches)
    if ended and not coming and model.name not in plan.waiting:
        last = max(ended, key=lambda record: record.last.at)
        return replace(rollout, failed=now.wall, why=_why(last), ready=False)
    return replace(rollout, ready=ready)


def _why(record: RecoveryRecord) -> str:
    times = "once" if record.attempts == 1 else f"{record.attempts} times in a row"
    return f"{record.last.reason} (failed {times})"


def _is_meant(rollout: Rollout, model: ModelSpec | None) -> bool:
    """Whether the model is still to be launched as the rollout has it."""
    return model is not None and digest_of(model.name, model.profiles) == rollout.wanted


def _can_return(rollout: Rollout, catalog: Catalog) -> bool:
    """A companion that left the catalog drafts for nobody any more."""
    drafts = {profile.draft_model for profile in rollout.good if profile.draft_model is not None}
    return drafts <= catalog.models.keys()


def specs_of(model: ModelName, rollout: Rollout) -> frozenset[SpecDigest]:
    """Of the spec that served."""
    return frozenset(spec_digest(model, profile) for profile in rollout.good)
