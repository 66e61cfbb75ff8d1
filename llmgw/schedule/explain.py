"""Each model's story in short: one `ModelStatus`, for status and for the gateway's answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from llmgw.catalog.spec import Catalog, ModelSpec, ProfileSpec, spec_digest, specs_of
from llmgw.facts import Footprint, Level, Observed, Phase, RecoveryRecord, ReplicaFact
from llmgw.ids import ModelName, SpecDigest
from llmgw.memo import Kept
from llmgw.plan import Launch, Levels, ModelState, ModelStatus, Plan, Rejection, Unschedulable, Wish
from llmgw.units import Wall

NO_LEVELS: Final[Levels] = MappingProxyType({})

Surfaces = Mapping[ModelName, tuple[str, ...]]
NO_SURFACES: Final[Surfaces] = MappingProxyType({})


def statuses(
    plan: Plan,
    wishes: Sequence[Wish],
    catalog: Catalog,
    observed: Observed,
    *,
    stopped: bool,
    instead: Mapping[ModelName, ModelName] | None = None,
    levels: Levels = NO_LEVELS,
    surfaces: Surfaces = NO_SURFACES,
) -> tuple[ModelStatus, ...]:
    """One status for each model of the catalog, in name order. `instead`: the fallbacks that serve for others now."""
    return _Stories(plan, catalog, observed, stopped, instead or {}, levels, surfaces).tell(wishes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Story:
    """What there is of one model."""

    model: ModelSpec
    wish: Wish
    kept: Sequence[ReplicaFact] = ()  #: the best first
    newest: ReplicaFact | None = None  #: that holds memory, kept or not
    launches: Sequence[Launch] = ()
    refused: Unschedulable | None = None
    waiting: str | None = None
    record: RecoveryRecord | None = None  #: of the last failure
    fallback: ModelName | None = None
    gave_way: bool = False
    surfaces: tuple[str, ...] | None = None
    specs: Sequence[SpecDigest] = ()

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
        surfaces: Surfaces,
    ) -> None:
        self._plan = plan
        self._catalog = catalog
        self._observed = observed
        self._stopped = stopped
        self._instead = instead
        self._levels = levels
        self._surfaces = surfaces
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
        models, stirred = self._catalog.models, self._stirred()
        sizes, surfaces = _sizes.of("", self._catalog, self._observed.footprints), self._surfaces
        return tuple(
            self._status(self._story(models[wish.model], wish))
            if wish.model in stirred
            else _at_rest.of(
                wish.model, models[wish.model], wish, self._stopped, sizes.get(wish.model), surfaces.get(wish.model)
            )
            for wish in wishes
            if wish.model in models
        )

    def _stirred(self) -> set[ModelName]:
        """The models that there is more to tell of than what is wished."""
        plan, known = self._plan, specs_of(self._catalog) if self._records else {}
        return {known[spec][0].name for spec in self._records if spec in known}.union(
            plan.keep, plan.waiting, plan.gave_way, plan.against,
            self._newest, self._launches, self._refused, self._instead,
        )  # fmt: skip

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
            surfaces=self._surfaces.get(model.name),
            specs=specs,
        )

    def _status(self, story: _Story) -> ModelStatus:
        shown, record = story.shown, story.record
        return _told(
            story,
            stopped=self._stopped,
            size=shown.footprint if shown and shown.footprint else self._footprint(story),
            shrunk=self._shrunk(story) if shown is None and record else None,
            against=story.refused.rejections if story.refused else self._plan.against.get(story.model.name, ()),
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


def _told(
    story: _Story,
    *,
    stopped: bool,
    size: Footprint | None,
    shrunk: ProfileSpec | None = None,
    against: tuple[Rejection, ...] = (),
) -> ModelStatus:
    state, reason = _state(story, stopped=stopped)
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
        rejections=against,
        why=story.wish.why,
        footprint=size,
        replicas=tuple(fact.id for fact in story.kept),
        ready=story.ready,
        level=shown.level if shown else record.level if record else Level.FULL,
        shrunk=shrunk,
        action=record.action if record else None,
        fallback=story.fallback,
        asked=story.wish.asked,
        outdated=0 if story.wish.held else sum(fact.spec not in story.specs for fact in story.kept),
        surfaces=story.surfaces,
    )


def _status_at_rest(
    model: ModelSpec, wish: Wish, stopped: bool, size: Footprint | None, surfaces: tuple[str, ...] | None
) -> ModelStatus:
    """Of a model that nothing was planned for, that nothing runs of and that did not fail."""
    return _told(_Story(model=model, wish=wish, surfaces=surfaces), stopped=stopped, size=size)


_at_rest: Final[Kept[ModelName, ModelStatus]] = Kept(_status_at_rest)


def _first_sizes(
    catalog: Catalog, footprints: Mapping[tuple[SpecDigest, Level], Footprint]
) -> Mapping[ModelName, Footprint]:
    """Of each model the first profile's whose size is known."""
    found: dict[ModelName, Footprint] = {}
    for spec, (model, _) in specs_of(catalog).items():
        if model.name not in found and (size := footprints.get((spec, Level.FULL))) is not None:
            found[model.name] = size
    return found


_sizes: Final[Kept[str, Mapping[ModelName, Footprint]]] = Kept(_first_sizes, most=4)


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
