"""Each model's story in short: one `ModelStatus`, for status and for the gateway's answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from llmgw.catalog.spec import Catalog, ModelSpec, ProfileSpec, spec_digest
from llmgw.facts import Footprint, Level, Observed, Phase, RecoveryRecord, ReplicaFact
from llmgw.ids import ModelName, SpecDigest
from llmgw.plan import Launch, Levels, ModelState, ModelStatus, Plan, Unschedulable, Wish
from llmgw.units import Wall

NO_LEVELS: Final[Levels] = MappingProxyType({})


def statuses(
    plan: Plan,
    wishes: Sequence[Wish],
    catalog: Catalog,
    observed: Observed,
    *,
    stopped: bool,
    instead: Mapping[ModelName, ModelName] | None = None,
    levels: Levels = NO_LEVELS,
) -> tuple[ModelStatus, ...]:
    """One status for each model of the catalog, in name order. `instead`: the fallbacks that serve for others now."""
    return _Stories(plan, catalog, observed, stopped, instead or {}, levels).tell(wishes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Story:
    """What there is of one model."""

    model: ModelSpec
    wish: Wish
    kept: Sequence[ReplicaFact]  #: the best first
    newest: ReplicaFact | None  #: that holds memory, kept or not
    launches: Sequence[Launch]
    refused: Unschedulable | None
    waiting: str | None
    record: RecoveryRecord | None  #: of the last failure
    fallback: ModelName | None
    gave_way: bool = False
    specs: Sequence[SpecDigest] = field(default=())

    @property
    def ready(self) -> int:
        return sum(fact.phase is Phase.READY for fact in self.kept)

    @property
    def shown(self) -> ReplicaFact | None:
        """The replica that stands for the model."""
        return self.kept[0] if self.kept else self.newest


class _Stories:
    def __init__(
        self,
        plan: Plan,
        catalog: Catalog,
        observed: Observed,
        stopped: bool,
        instead: Mapping[ModelName, ModelName],
        levels: Levels,
    ) -> None:
        self._plan = plan
        self._catalog = catalog
        self._observed = observed
        self._stopped = stopped
        self._instead = instead
        self._levels = levels
        self._refused = {item.model: item for item in plan.unschedulable}
        self._launches: dict[ModelName, list[Launch]] = {}
        for launch in plan.launches:
            self._launches.setdefault(launch.model, []).append(launch)
        self._newest: dict[ModelName, ReplicaFact] = {}
        for fact in observed.replicas.values():
            before = self._newest.get(fact.model)
            if fact.phase.occupies_memory and (before is None or (before.since, before.id) < (fact.since, fact.id)):
                self._newest[fact.model] = fact
        self._records: dict[SpecDigest, RecoveryRecord] = {}
        for (spec, _), record in sorted(observed.recovery.items()):
            known = self._records.get(spec)
            if known is None or known.last.at < record.last.at:
                self._records[spec] = record

    def tell(self, wishes: Sequence[Wish]) -> tuple[ModelStatus, ...]:
        return tuple(
            self._status(self._story(self._catalog.models[wish.model], wish))
            for wish in wishes
            if wish.model in self._catalog.models
        )

    def _story(self, model: ModelSpec, wish: Wish) -> _Story:
        specs = [spec_digest(model.name, profile) for profile in model.profiles]
        records = [record for spec in specs if (record := self._records.get(spec)) is not None]
        return _Story(
            model=model,
            wish=wish,
            kept=[self._observed.replicas[id] for id in self._plan.keep.get(model.name, ())],
            newest=self._newest.get(model.name),
            launches=self._launches.get(model.name, ()),
            refused=self._refused.get(model.name),
            waiting=self._plan.waiting.get(model.name),
            record=max(records, key=lambda record: record.last.at, default=None),
            fallback=self._instead.get(model.name),
            gave_way=model.name in self._plan.gave_way,
            specs=specs,
        )

    def _status(self, story: _Story) -> ModelStatus:
        state, reason = _state(story, stopped=self._stopped)
        shown, record = story.shown, story.record
        return ModelStatus(
            model=story.model.name,
            state=state,
            reason=reason,
            wanted=story.wish.count,
            replica=shown.id if shown else None,
            profile=shown.profile if shown else None,
            since=shown.since if shown else record.last.at if record else Wall(0),
            progress=shown.progress if shown else None,
            retry_at=record.retry_at if record and not (story.kept or story.launches) else None,
            attempts=record.attempts + record.delays if record else 0,
            revision=shown.revision if shown else None,
            rejections=story.refused.rejections if story.refused else self._plan.against.get(story.model.name, ()),
            why=story.wish.why,
            footprint=shown.footprint if shown and shown.footprint else self._footprint(story),
            replicas=tuple(fact.id for fact in story.kept),
            ready=story.ready,
            level=shown.level if shown else record.level if record else Level.FULL,
            shrunk=self._shrunk(story) if shown is None and record else None,
            action=record.action if record else None,
            fallback=story.fallback,
            asked=story.wish.asked,
            outdated=0 if story.wish.held else sum(fact.spec not in story.specs for fact in story.kept),
        )

    def _shrunk(self, story: _Story) -> ProfileSpec | None:
        """As the profile that failed last is tried next, where that is not at full size."""
        record = story.record
        specs = [spec for spec in story.specs if self._records.get(spec) is record]
        return self._levels.get((specs[0], record.level)) if record is not None and specs else None

    def _footprint(self, story: _Story) -> Footprint | None:
        """Of what is tried next, else of the first profile whose size is known."""
        record = story.record
        tried = [
            (spec, record.level) for spec in story.specs if record is not None and self._records.get(spec) is record
        ]
        for spec, level in [*tried, *((spec, Level.FULL) for spec in story.specs)]:
            if (known := self._observed.footprints.get((spec, level))) is not None:
                return known
        return None


def _state(story: _Story, *, stopped: bool) -> tuple[ModelState, str]:
    """In this order: switched off, serving, coming up, refused, waiting, quarantined."""
    wish, refused = story.wish, story.refused
    if stopped:
        return ModelState.STOPPED, wish.why
    if story.model.external is not None:
        return ModelState.READY, wish.why
    if story.ready:
        return ModelState.READY, _while_serving(story)
    if wish.count == 0 and not story.kept:
        return ModelState.INACTIVE, wish.why
    if story.gave_way and not story.kept:
        return ModelState.INACTIVE, story.waiting or ""
    if story.kept:
        return ModelState.LOADING, _after_failure(str(story.kept[0].phase), story)
    if refused is not None and not story.launches:
        return ModelState.UNSCHEDULABLE, str(refused)
    if story.launches:
        return ModelState.LOADING, _after_failure("being placed", story)
    if story.waiting is None and story.record is not None:
        return ModelState.FAILED, f"{story.record.last.reason} ({_times(story.record)})"
    return ModelState.LOADING, _after_failure(story.waiting or "being placed", story)


def _while_serving(story: _Story) -> str:
    """What is not as wished, though it serves."""
    why = str(story.refused) if story.refused else story.waiting or ""
    if story.ready >= story.wish.count:
        if why and story.refused:
            return f"{why}; the previous version serves"
        return why
    count = f"{story.ready} of {story.wish.count} ready"
    return f"{count}: {why}" if why else count


def _after_failure(text: str, story: _Story) -> str:
    record = story.record
    if record is None:
        return text
    level = "" if record.level is Level.FULL else f", now {record.level}"
    return f"{text}: {record.last.reason} ({_times(record)}{level})"


def _times(record: RecoveryRecord) -> str:
    times = record.attempts + record.delays
    return "failed once" if times == 1 else f"failed {times} times in a row"
