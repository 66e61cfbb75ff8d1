"""Where one replica goes: at once, once something that is going is gone, or in the place of others. Pure.

For each profile in order: the best node with room; else the best where room is on its way; else the node whose
evictions cost least: by the highest priority evicted, their number, their bytes. Rank of nodes: fewest failures there,
where it spreads fewest of its own kind, weights already there, tightest fit, name.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from llmgw.catalog.spec import Catalog, ModelSpec, ProfileSpec, spec_digest
from llmgw.facts import Footprint, Level, Observed, RecoveryRecord
from llmgw.ids import ModelName, NodeName, SpecDigest
from llmgw.plan import Levels
from llmgw.schedule import recovery, residency
from llmgw.schedule.filters import Eligible, Filters
from llmgw.schedule.nodes import Claimant, Nodes, Place, Resident, launch_costs, pick_devices
from llmgw.schedule.residency import HOST, Costs, Item
from llmgw.schedule.room import Room, share
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
        return tuple(sorted(dimension for dimension in self.costs if dimension != HOST))

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
        if self._filters.refusal(model, shrunk, node) is not None or self._filters.no_disk(shrunk, node) is not None:
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
        return min(spots, key=lambda spot: self._rank(spot, want), default=None)

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
        return min(spots, key=lambda spot: self._rank(spot, want), default=None)

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
        if costs is None or self._filters.no_disk(fit.profile, name) is not None:
            return None
        spot = Spot(
            place=place, way=way, profile=fit.profile, level=fit.level, footprint=fit.footprint, costs=costs,
            timing=timing, draft=fit.draft,
        )  # fmt: skip
        if fit.draft is not None:
            if place.rivals(fit.draft.model, leaving=not soon):
                return None
            fits = place.room.fits_soon if soon else place.room.fits
            if not fits(spot.all_costs, pinned=want.pinned):
                return None
        return spot

    def _rank(self, spot: Spot, want: Want) -> tuple[object, ...]:
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

    # -- in the place of others

    def find_by_eviction(self, way: Way, want: Want) -> Spot | None:
        """The node whose evictions cost least. Nothing is evicted for what yields."""
        if want.yields:
            return None
        best: tuple[tuple[object, ...], Spot] | None = None
        rank_of = (-want.priority, want.yields)
        for name in self._filters.eligible(way.model, way.profile).names:
            place = self._nodes.places[name]
            softest, _ = place.softest()
            if softest is None or not (want.pinned or softest > rank_of) or name in way.shut:
                continue
            spot = self._evicting(way, want, place)
            if spot is None:
                continue
            rank = (self.eviction_cost(spot.evict), self._rank(spot, want))
            if best is None or rank < best[0]:
                best = (rank, spot)
        return None if best is None else best[1]

    @staticmethod
    def eviction_cost(evicted: Sequence[Resident]) -> tuple[int, int, int]:
        """Highest priority, count, bytes."""
        size = sum(sum(one.costs.values()) for one in evicted)
        return (max((one.priority for one in evicted), default=-(2**63)), len(evicted), size)

    def gives_way(self, resident: Resident, want: Want) -> bool:
        """Whether it comes after what is wanted in the order of admission, and nothing forces it to stay."""
        if resident.forced or resident.companion:
            return False
        return want.pinned or (-resident.priority, resident.yields) > (-want.priority, want.yields)

    def _evicting(self, way: Way, want: Want, place: Place) -> Spot | None:
        movable = [one for one in place.staying if self.gives_way(one, want)]
        if not movable:
            return None
        fit = self.fit(way, place.name)
        if fit is None or (fit.level is not Level.FULL and self._filters.unable(fit.profile, place.name) is not None):
            return None
        movable = [one for one in movable if one.fact.model != fit.profile.draft_model]  # it is to draft for it
        costs = self._costs_among(place, fit, want, movable)
        if costs is None or self._filters.no_disk(fit.profile, place.name) is not None:
            return None
        spot = Spot(
            place=place, way=way, profile=fit.profile, level=fit.level, footprint=fit.footprint, costs=costs,
            timing=Timing.EVICTING, draft=fit.draft,
        )  # fmt: skip
        evicted = self._evicted(place, want, spot, {one.fact.id for one in movable})
        return None if evicted is None else replace(spot, evict=evicted)

    def _costs_among(self, place: Place, fit: Fit, want: Want, movable: Sequence[Resident]) -> Costs | None:
        """What it would take, with the devices chosen on which the least would have to go."""
        room, bounds = place.room, place.room.bounds(pinned=want.pinned)
        freeable: dict[str, int] = {}
        for one in movable:
            for dimension, cost in one.costs.items():
                freeable[dimension] = freeable.get(dimension, 0) + cost
        host = max(0, fit.footprint.host)
        if host > bounds[HOST] - room.soon[HOST] + freeable.get(HOST, 0):
            return None
        if not fit.profile.devices:
            return {HOST: host}
        each = share(fit.footprint, fit.profile)
        penalties: list[tuple[tuple[int, int, int], str]] = []
        shut = room.sole.difference(*(one.costs for one in movable if one.exclusive))
        for uuid in room.devices:
            hard = room.soon[uuid] - freeable.get(uuid, 0)
            if uuid in shut:
                continue
            if each > bounds[uuid] - hard or (fit.profile.exclusive and hard > 0):
                continue
            left = bounds[uuid] - hard - each
            penalties.append((self._penalty(uuid, left, movable, alone=fit.profile.exclusive), uuid))
        ranked: dict[str, list[tuple[int, str]]] = {}
        for rank, (_, uuid) in enumerate(sorted(penalties)):
            ranked.setdefault(room.names[uuid], []).append((rank, uuid))
        chosen = pick_devices(ranked.values(), fit.profile.devices)
        if chosen is None:
            return None
        if fit.profile.exclusive:
            return {HOST: host, **{uuid: room.exclusive_costs(uuid, each, pinned=want.pinned) for uuid in chosen}}
        return {HOST: host, **dict.fromkeys(chosen, each)}

    @staticmethod
    def _penalty(uuid: str, left: int, movable: Sequence[Resident], *, alone: bool) -> tuple[int, int, int]:
        """What would have to go from one device: highest priority, count, bytes."""
        here = [one for one in movable if one.costs.get(uuid, 0) > 0]
        if alone:
            return Placement.eviction_cost(here)
        going = []
        for one in sorted(here, key=lambda one: (-one.priority, one.yields, -one.last_used, one.fact.id)):
            if one.costs[uuid] <= left:
                left -= one.costs[uuid]
            else:
                going.append(one)
        return Placement.eviction_cost(going)

    def _evicted(self, place: Place, want: Want, spot: Spot, movable: Set[str]) -> tuple[Resident, ...] | None:
        """Whom `residency.schedule` drives out for it; None: it is not admitted all the same."""
        room = place.room
        items = []
        for one in place.staying:
            item = one.item()
            bound = one.fact.id not in movable and not one.companion  # whoever comes before it keeps its place
            needed = one.fact.model == spot.profile.draft_model
            items.append(replace(item, active=True) if bound or needed else item)
        fixed = {each: soon - sum(item.costs.get(each, 0) for item in items) for each, soon in room.soon.items()}
        budget = {each: room.limit[each] - fixed[each] for each in fixed}
        newcomer = want.item(spot.all_costs)
        chosen = residency.schedule([*items, newcomer], items, budget)
        if newcomer.id not in chosen.launch:
            return None
        evicted = tuple(one for one in place.staying if one.fact.id in chosen.evict)
        gone = {one.model.name for one in evicted} - {one.model.name for one in place.staying if one not in evicted}
        if place.rivals(want.model, leaving=False) - gone:
            return None  # one of its group stays, or was promised its place: pinned overrides budgets, not groups
        if want.pinned and not self._within_capacity(room, spot.all_costs, evicted):
            return None
        return evicted

    @staticmethod
    def _within_capacity(room: Room, costs: Costs, evicted: Iterable[Resident]) -> bool:
        left = together(*(one.costs for one in evicted))
        return all(room.soon[each] - left.get(each, 0) + cost <= room.capacity[each] for each, cost in costs.items())

    # -- what only time keeps it from

    def in_the_way(self, way: Way, want: Want) -> list[Resident] | None:
        """Those that it waits for, on the node where they are fewest: in use, fresh, or themselves waited for, and no
        more than its equals. None: it would not fit though all of them left."""
        best: list[Resident] | None = None
        if want.yields:
            return None
        for name in self._filters.eligible(way.model, way.profile).names:
            place = self._nodes.places[name]
            _, softest = place.softest()
            if softest is None or not (want.pinned or softest > (-want.priority, False)):
                continue
            if name in way.shut or (fit := self.fit(way, name)) is None:
                continue
            passing = [one for one in place.staying if self._passes(one, want, fit)]
            firm = [costs for costs, other in place.promised if not self._is_soft(other, want)]
            if not passing and len(firm) == len(place.promised):
                continue
            hard = [one for one in place.staying if one not in passing]
            others = {other.model.name for _, other in place.promised if self._is_soft(other, want)}
            others |= {one.model.name for one in passing}
            rivals = place.rivals(way.model, leaving=False) - (others - {one.model.name for one in hard})
            if rivals or self._filters.no_disk(fit.profile, name) is not None:
                continue
            if not self._fits_beside(place, fit, want, [*(one.costs for one in hard), *firm]):
                continue
            if best is None or len(passing) < len(best):
                best = passing
        return best

    def _passes(self, one: Resident, want: Want, fit: Fit) -> bool:
        if one.pinned or one.wish.held or one.companion or one.fact.model == fit.profile.draft_model:
            return False
        return one.priority < want.priority or (one.priority == want.priority and one.wish.on_demand) or want.pinned

    @staticmethod
    def _is_soft(other: Claimant, want: Want) -> bool:
        """Whether what was promised room will leave it again for an equal."""
        return other.priority < want.priority or (other.priority == want.priority and other.on_demand)

    @staticmethod
    def _fits_beside(place: Place, fit: Fit, want: Want, firm: Sequence[Costs]) -> bool:
        """Whether it would fit beside these."""
        bounds = place.room.bounds(pinned=want.pinned)
        held = together(*firm)
        beside = fit.draft.costs if fit.draft is not None else {}
        host = max(0, fit.footprint.host) + beside.get(HOST, 0)
        if host > bounds[HOST] - held.get(HOST, 0):
            return False
        if not fit.profile.devices:
            return True
        each = share(fit.footprint, fit.profile)
        kinds: dict[str, int] = {}
        for uuid, kind in place.room.names.items():
            there = held.get(uuid, 0)
            if each <= bounds[uuid] - there - beside.get(uuid, 0) and not (there and fit.profile.exclusive):
                kinds[kind] = kinds.get(kind, 0) + 1
        return max(kinds.values(), default=0) >= fit.profile.devices


def together(*parts: Costs) -> dict[str, int]:
    found: dict[str, int] = {}
    for costs in parts:
        for dimension, cost in costs.items():
            found[dimension] = found.get(dimension, 0) + cost
    return found
