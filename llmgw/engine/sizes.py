"""What profiles take at each level, asked of their engines; which levels there are; and what models serve.

A level is what the profile's own block says, else what its engine shrinks the profile to. It exists where it is known
to take less than the level above, of host memory or of devices. Answers are kept between passes for as long as the
model, and the weights that nodes have for it, are the same: a pass over thousands of models asks of those that changed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, TypeVar

import structlog

from llmgw.catalog.spec import Catalog, ModelSpec, ProfileSpec, spec_digest
from llmgw.engine.api import Engine, declared_surfaces
from llmgw.engine.manager import Engines
from llmgw.facts import Footprint, Level, NodeReport, WeightsFact
from llmgw.ids import EngineName, ModelName, SpecDigest
from llmgw.plan import Levels
from llmgw.units import Bytes
from llmgw.weights.footprint import guess_of
from llmgw.weights.lookup import on_node
from llmgw.weights.naming import canonical, stem

log = structlog.get_logger("llmgw.engine")

T = TypeVar("T")

SHRUNK: Final = (Level.DEGRADED, Level.MINIMAL)

_Index = Mapping[str, tuple[WeightsFact, ...]]
"""By canonical source without its revision: what nodes have of it, each content once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """`footprints`: absent where unknown, never 0. `levels`: the smaller ones that exist. `surfaces`: paths under /v1/
    that any profile's engine serves; absent where one of them does not say."""

    footprints: Mapping[tuple[SpecDigest, Level], Footprint] = field(default_factory=dict)
    levels: Levels = field(default_factory=dict)
    surfaces: Mapping[ModelName, tuple[str, ...]] = field(default_factory=dict)


class Sizes:
    """Remembers what it asked for the catalog before."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines.by_name
        self._catalog: Catalog | None = None
        self._cases: dict[ModelName, tuple[ModelSpec, tuple[_Case, ...]]] = {}
        self._sources: frozenset[str] = frozenset()
        self._seen: dict[str, object] = {}  #: by source, what nodes had of it
        self._surfaces: dict[ModelName, tuple[str, ...]] = {}
        self._sized = Sized()

    def of(self, catalog: Catalog, reports: Iterable[NodeReport]) -> Sized:
        """Of every profile of the catalog, by the weights found on any of the nodes. The same object as before, as long
        as nothing differs."""
        asked: list[_Case] = []
        gone: set[SpecDigest] = set()
        if catalog is not self._catalog:
            asked, gone = self._take(catalog)
        index = _indexed(reports, self._sources)
        before, self._seen = self._seen, {source: _content(facts) for source, facts in index.items()}
        if before != self._seen:
            moved = {name for name in before.keys() | self._seen.keys() if before.get(name) != self._seen.get(name)}
            every = (case for _, cases in self._cases.values() for case in cases)
            asked += [case for case in every if not moved.isdisjoint(case.sources)]
        for case in asked:
            case.refresh(index, self._engines)
        if asked or gone:
            self._sized = self._with(asked, gone)
        return self._sized

    def _with(self, asked: Iterable["_Case"], gone: Iterable[SpecDigest]) -> Sized:
        """What is known, with what was asked anew and without what went."""
        footprints, levels = dict(self._sized.footprints), dict(self._sized.levels)
        for spec in (*gone, *(case.spec for case in asked)):
            for level in Level:
                footprints.pop((spec, level), None)
                levels.pop((spec, level), None)
        for case in asked:
            footprints.update(case.footprints)
            levels.update(case.levels)
        return Sized(footprints=footprints, levels=levels, surfaces=self._surfaces)

    def _take(self, catalog: Catalog) -> tuple[list["_Case"], set[SpecDigest]]:
        """The cases that are new, and the specs of those that went."""
        before, self._cases = self._cases, {}
        fresh: list[_Case] = []
        changed: list[ModelSpec] = []
        for name, model in catalog.models.items():
            known, cases = before.get(name, (None, ()))
            if known != model:
                cases = tuple(self._case(model, profile) for profile in model.profiles)
                fresh += cases
                changed.append(model)
            else:
                before.pop(name)
            self._cases[name] = (model, cases)
        if fresh or before:
            self._sources = frozenset(s for _, cases in self._cases.values() for case in cases for s in case.sources)
        if changed or before:
            kept = {name: each for name, each in self._surfaces.items() if name not in before}
            asked = ((model.name, self._served_by(model)) for model in changed)
            self._surfaces = kept | {name: each for name, each in asked if each is not None}
        self._catalog = catalog
        return fresh, {case.spec for _, cases in before.values() for case in cases}

    def _served_by(self, model: ModelSpec) -> tuple[str, ...] | None:
        """Whichever of its profiles runs. None: an engine does not say, or is not here to be asked."""
        found: set[str] = set()
        for profile in model.profiles:
            engine = self._engines.get(profile.engine)
            declared = None if engine is None else _surfaces(engine, profile)
            if declared is None:
                return None
            found.update(declared)
        return tuple(sorted(found)) if model.profiles else None

    def _case(self, model: ModelSpec, profile: ProfileSpec) -> "_Case":
        engine = self._engines.get(profile.engine)
        found = [(level, _shrunk(profile, level, engine)) for level in SHRUNK]
        return _Case(
            spec_digest(model.name, profile), profile, tuple((level, one) for level, one in found if one is not None)
        )


class _Case:
    """One profile and what it may be shrunk to, with the answers for the weights that were there last time."""

    def __init__(self, spec: SpecDigest, full: ProfileSpec, shrunk: tuple[tuple[Level, ProfileSpec], ...]) -> None:
        self.spec = spec
        self._full = full
        self._shrunk = shrunk
        everything = (full, *(profile for _, profile in shrunk))
        self.sources = tuple(
            sorted({stem(canonical(spec.source)) for profile in everything for spec in profile.roles.values()})
        )
        self._seen: object = None  #: nothing yet, which no weights are equal to
        self.footprints: dict[tuple[SpecDigest, Level], Footprint] = {}
        self.levels: dict[tuple[SpecDigest, Level], ProfileSpec] = {}

    def refresh(self, index: _Index, engines: Mapping[EngineName, Engine]) -> None:
        seen = [_content(index.get(source, ())) for source in self.sources]
        if seen == self._seen:
            return
        self._seen, self.footprints, self.levels = seen, {}, {}
        above = _footprint(self._full, Level.FULL, index, engines)
        if above is None:
            return
        self.footprints[self.spec, Level.FULL] = above
        for level, profile in self._shrunk:
            size = self._size(profile, level, index, engines)
            if size is not None and (size.host < above.host or size.device < above.device):
                self.footprints[self.spec, level], self.levels[self.spec, level] = size, profile
                above = size

    def _size(
        self, profile: ProfileSpec, level: Level, index: _Index, engines: Mapping[EngineName, Engine]
    ) -> Footprint | None:
        """A `memory` that the block inherits was declared for the full profile: the estimate counts if it is less."""
        declared = _footprint(profile, level, index, engines)
        full = self._full
        if profile.memory is None or (profile.memory, profile.host_memory) != (full.memory, full.host_memory):
            return declared
        estimate = _footprint(replace(profile, memory=None, host_memory=None), level, index, engines)
        if estimate is None or declared is None or (profile.devices > 0) != (full.devices > 0):
            return estimate or declared
        host, device = min(estimate.host, declared.host), min(estimate.device, declared.device)
        return replace(estimate, host=Bytes(host), device=Bytes(device))


def _shrunk(profile: ProfileSpec, level: Level, engine: Engine | None) -> ProfileSpec | None:
    """What the level's own block says, else what the engine makes of the profile; None: it cannot be shrunk so far."""
    found = profile.degraded if level is Level.DEGRADED else profile.minimal
    if found is None and engine is not None:
        found = _asked(engine, "shrink_failed", lambda: engine.shrink(profile, level), ProfileSpec)
    return None if found is None else replace(found, name=profile.name, degraded=None, minimal=None)


def _surfaces(engine: Engine, profile: ProfileSpec) -> tuple[str, ...] | None:
    return _asked(engine, "surfaces_failed", lambda: declared_surfaces(engine, profile), tuple)


def _footprint(
    profile: ProfileSpec, level: Level, index: _Index, engines: Mapping[EngineName, Engine]
) -> Footprint | None:
    """Declared, else estimated by the engine from the weights on any node, else guessed from the size that is expected.

    `memory` is of devices where the profile uses some; what the host holds besides is `host_memory`, else estimated.
    None: unknown, which is never taken for 0.
    """
    memory, beside = profile.memory, profile.host_memory
    if memory is not None and not profile.devices:
        return Footprint(host=Bytes(memory + (beside or 0)), source="declared")
    if memory is not None and beside is not None:
        return Footprint(host=beside, device=memory, source="declared")
    found = _estimate(profile, level, index, engines)
    if memory is not None:
        return Footprint(host=found.host if found else Bytes(0), device=memory, source="declared")
    if found is None or beside is None:
        return found
    return replace(found, host=beside if profile.devices else Bytes(found.host + beside))


def _estimate(
    profile: ProfileSpec, level: Level, index: _Index, engines: Mapping[EngineName, Engine]
) -> Footprint | None:
    here: dict[str, WeightsFact] = {}
    for role, spec in profile.roles.items():
        if (fact := on_node(index.get(stem(canonical(spec.source)), ()), spec)) is not None:
            here[role] = fact
    engine = engines.get(profile.engine)
    if engine is not None:
        estimate = _asked(engine, "footprint_failed", lambda: engine.footprint(profile, here, level), Footprint)
        if estimate is not None:
            return estimate
    sizes = [here[role].size if role in here else spec.expected for role, spec in profile.roles.items()]
    known = [size for size in sizes if size is not None]
    if not known or len(known) < len(sizes):
        return None
    return guess_of(sum(known), devices=profile.devices)


def _content(facts: Iterable[WeightsFact]) -> list[object]:
    """What answers depend on."""
    return [(fact.entry, fact.size, fact.sha256, fact.metadata) for fact in facts]


def _indexed(reports: Iterable[NodeReport], sources: frozenset[str]) -> dict[str, tuple[WeightsFact, ...]]:
    found: dict[str, dict[tuple[object, ...], WeightsFact]] = {}
    for report in sorted(reports, key=lambda report: report.node):
        for fact in report.weights:
            if fact.complete and (name := stem(fact.source)) in sources:
                found.setdefault(name, {}).setdefault((fact.entry, fact.size, fact.sha256), fact)
    return {source: tuple(facts.values()) for source, facts in found.items()}


def _asked(engine: Engine, event: str, ask: Callable[[], T | None], kind: type[T]) -> T | None:
    """The engine's word, or None where its plugin fails: that must not cost the other models their pass."""
    try:
        found = ask()
        if found is not None and not isinstance(found, kind):
            raise TypeError(f"it returned {found!r:.80}")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin's failure, whatever it is, stays its own
        _complain(event, engine.name, f"{type(error).__name__}: {error}")
        return None
    return found


@lru_cache(maxsize=256)
def _complain(event: str, engine: str, why: str) -> None:
    """Once for each failure: it comes again whenever it is asked."""
    log.warning(event, engine=engine, error=why)
