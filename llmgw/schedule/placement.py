"""Where one replica goes: at once, or once something that is going is gone. Pure.

Rank of nodes: fewest failures there, where it spreads fewest of its own kind, its companion there, weights there,
tightest fit, name. `eviction` says where it goes in the place of others.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from llmgw.catalog.spec import Catalog, ModelSpec, ProfileSpec, spec_digest
from llmgw.facts import Footprint, Level, Observed, RecoveryRecord
from llmgw.ids import ModelName, NodeName, SpecDigest
from llmgw.plan import Levels
from llmgw.schedule import recovery
from llmgw.schedule.filters import Eligible, Filters
from llmgw.schedule.nodes import Nodes, Place, Resident, launch_costs
from llmgw.schedule.residency import HOST, Costs, Item, together
from llmgw.units import Instant, Wall

_FEW: Final = 12
"""Nodes that are worth asking one by one; of more, the index finds the tightest."""


class Timing(Enum):
    NOW = auto()
    SOON = auto()  #: when what is going is gone
    EVICTING = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One profile of a model, as something to be placed."""

    model: ModelSpec
    profile: ProfileSpec
    spec: SpecDigest
    records: Mapping[NodeName, RecoveryRecord]  #: of its failures
    shut: frozenset[NodeName]  #: nodes where it is in quarantine


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What is asked for, and how it ranks."""

    model: ModelSpec
    priority: int
    last_used: Wall
    yields: bool  #: nobody waits for it: it takes what is free and drives nothing out
    on_demand: bool = False

    @property
    def pinned(self) -> bool:
        return self.model.pinned

    def item(self, costs: Costs) -> Item:
        return Item(
            id="",
            costs=costs,
            priority=self.priority,
            pinned=self.pinned,
            yields=self.yields,
            last_used=self.last_used,
            model=self.model.name,
            groups=frozenset(self.model.groups),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The companion that a replica needs beside it, where it is not there yet."""

    model: ModelSpec
    profile: ProfileSpec
    spec: SpecDigest
    footprint: Footprint
    level: Level
    costs: Costs

    @property
    def devices(self) -> tuple[str, ...]:
        return devices_of(self.costs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A place found. `profile`: as shrunk to the level."""

    place: Place
    way: Way
    profile: ProfileSpec
    level: Level
    footprint: Footprint
    costs: Costs  #: of the replica alone
    timing: Timing
    draft: Draft | None = None
    evict: tuple[Resident, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        return devices_of(self.costs)

    @property
    def all_costs(self) -> Costs:
        return self.costs if self.draft is None else together(self.costs, self.draft.costs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a replica would be on one node: its level there, what it is counted for, and what it needs beside it."""

    profile: ProfileSpec
    level: Level
    footprint: Footprint
    draft: Draft | None

    @property
    def profiles(self) -> tuple[ProfileSpec, ...]:
        """All that it fetches weights for."""
        return (self.profile,) if self.draft is None else (self.profile, self.draft.profile)


class Placement:
    """Finds spots on the nodes as they stand; changes nothing."""

    def __init__(
        self, catalog: Catalog, observed: Observed, now: Instant, levels: Levels, nodes: Nodes, filters: Filters
    ) -> None:
        self._now = now
        self._catalog = catalog
        self._observed = observed
        self._levels = levels
        self._nodes = nodes
        self._filters = filters
        self._measured: dict[SpecDigest, set[NodeName]] = {}
        for spec, node in observed.measured:
            self._measured.setdefault(spec, set()).add(node)
        self.draft_for: dict[
            tuple[str, NodeName], bool
        ] = {}  #: companions that stay or are promised, by model and node

    def was_measured(self, spec: SpecDigest) -> bool:
        """On some node."""
        return spec in self._measured

    # -- what it would be

    def fit(self, way: Way, node: NodeName) -> Fit | None:
        """None: its size, or its draft's, is not known or not to be had there."""
        level, profile = self.level(way.spec, way.profile, way.records.get(node))
        footprint = self._observed.footprint(way.spec, node, level)
        if footprint is None:
            return None
        draft = None
        if profile.draft_model is not None and not self.draft_for.get((profile.draft_model, node)):
            draft = self.draft(profile.draft_model, node)
            if draft is None:
                return None
        return Fit(profile=profile, level=level, footprint=footprint, draft=draft)

    def level(self, spec: SpecDigest, profile: ProfileSpec, record: RecoveryRecord | None) -> tuple[Level, ProfileSpec]:
        """The level that its failures lead to. Where that is no more, a block was edited, say: the next smaller one
        that there is, else the smallest."""
        if record is None or record.level is Level.FULL:
            return Level.FULL, profile
        there = [each for each in Level if (spec, each) in self._levels]
        small = [each for each in there if each.depth >= record.level.depth]
        level = (small or there[-1:] or [Level.FULL])[0]
        return level, self._levels.get((spec, level), profile)

    def draft(self, name: ModelName, node: NodeName) -> Draft | None:
        """A companion on a node: the first of its profiles that every filter lets run there."""
        model = self._catalog.models.get(name)
        if model is None or model.suspend or self._nodes.places[node].rivals(model, leaving=True):
            return None
        for one in model.profiles:
            if (draft := self._draft_of(model, one, node)) is not None:
                return draft
        return None

    def _draft_of(self, model: ModelSpec, profile: ProfileSpec, node: NodeName) -> Draft | None:
        spec = spec_digest(model.name, profile)
        record = self._observed.recovery.get((spec, node))
        level, shrunk = self.level(spec, profile, record)
        footprint = self._observed.footprint(spec, node, level)
        if footprint is None or not recovery.may_try(record, self._now):
            return None
        if self._filters.refusal(model, shrunk, node) is not None or self._filters.no_disk(node, shrunk) is not None:
            return None
        costs: Costs | None = launch_costs(self._nodes.places[node].room, shrunk, footprint, pinned=False, soon=True)
        if costs is None and shrunk.devices:
            return None
        costs = costs or {HOST: max(0, footprint.host)}  # evictions may yet make room for it
        return Draft(model=model, profile=shrunk, spec=spec, footprint=footprint, level=level, costs=costs)

    # -- where

    def find(self, way: Way, want: Want, timing: Timing) -> Spot | None:
        """The best spot where it can go now, or soon. None: there is none."""
        eligible = self._filters.eligible(way.model, way.profile)
        if timing is Timing.SOON:
            names = [name for name in sorted(self._nodes.moved) if name in eligible.set]
            return self._best(way, want, names, timing)
        special = self._special(way, eligible)
        best = self._best(way, want, special, timing)
        passed = set(special)
        found = self._first_by_tightness(way, want, eligible, passed)
        spots = [spot for spot in (best, found) if spot is not None]
        return min(spots, key=lambda spot: self.rank(spot, want), default=None)

    def _special(self, way: Way, eligible: Eligible) -> list[NodeName]:
        """Nodes that differ from the crowd: those with the weights, failures, measurements, its own kind or draft."""
        if len(eligible.names) <= _FEW:
            return list(eligible.names)
        names = set(way.records) | self._measured.get(way.spec, set()) | set(self._nodes.holding(way.model.name))
        if way.profile.draft_model is not None:
            names |= {node for model, node in self.draft_for if model == way.profile.draft_model}
        holders = self._filters.holders(way.profile)
        if holders is not None and len(holders) <= _FEW:
            names |= holders
        return sorted(names & eligible.set)

    def _best(self, way: Way, want: Want, names: Iterable[NodeName], timing: Timing) -> Spot | None:
        spots = [spot for name in names if (spot := self._spot(way, want, name, timing)) is not None]
        return min(spots, key=lambda spot: self.rank(spot, want), default=None)

    def _first_by_tightness(self, way: Way, want: Want, eligible: Eligible, passed: set[NodeName]) -> Spot | None:
        """Among the crowd, which are alike but for their room. Where all hold the weights that is no distinction."""
        if len(passed) == len(eligible.names):
            return None
        footprint = self._observed.footprints.get((way.spec, Level.FULL))
        if footprint is None:
            return None
        if want.pinned:  # the index is of budgets, which do not bind it
            return self._best(way, want, (name for name in eligible.names if name not in passed), Timing.NOW)
        for name in self._nodes.by_tightness(way.profile, footprint):
            if name in passed or name not in eligible.set:
                continue
            passed.add(name)
            if (spot := self._spot(way, want, name, Timing.NOW)) is not None:
                return spot
        return None

    def _spot(self, way: Way, want: Want, name: NodeName, timing: Timing) -> Spot | None:
        if name in way.shut:
            return None
        fit = self.fit(way, name)
        if fit is None or (fit.level is not Level.FULL and self._filters.unable(fit.profile, name) is not None):
            return None
        place = self._nodes.places[name]
        soon = timing is Timing.SOON
        if place.rivals(way.model, leaving=not soon):
            return None
        costs = launch_costs(place.room, fit.profile, fit.footprint, pinned=want.pinned, soon=soon)
        if costs is None or self._filters.no_disk(name, *fit.profiles) is not None:
            return None
        spot = Spot(
            place=place, way=way, profile=fit.profile, level=fit.level, footprint=fit.footprint, costs=costs,
            timing=timing, draft=fit.draft,
        )  # fmt: skip
        if fit.draft is not None:
            if place.rivals(fit.draft.model, leaving=not soon) or set(fit.draft.model.groups) & set(way.model.groups):
                return None
            fits = place.room.fits_soon if soon else place.room.fits
            if not fits(spot.all_costs, pinned=want.pinned):
                return None
        return spot

    def rank(self, spot: Spot, want: Want) -> tuple[object, ...]:
        name, room = spot.place.name, spot.place.room
        record = spot.way.records.get(name)
        holders = self._filters.holders(spot.way.profile)
        same = self._nodes.holding(spot.way.model.name).get(name, 0) if spot.way.model.placement.spread else 0
        tight = tuple(spot.devices) or (HOST,)
        left = sum(room.free_soon(each, pinned=want.pinned) - spot.costs[each] for each in tight)
        has_draft = spot.draft is None
        return (
            record.attempts if record else 0,
            same,
            not has_draft,
            holders is not None and name not in holders,
            left,
            name,
        )


def devices_of(costs: Costs) -> tuple[str, ...]:
    return tuple(sorted(dimension for dimension in costs if dimension != HOST))
