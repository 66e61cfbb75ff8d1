"""Where one replica goes in the place of others, and what only time keeps it from. Pure.

The node whose evictions cost least: by the highest priority evicted, their number, their bytes; then by `placement`'s
rank. Who gives way comes after it in the order of admission, and nothing forces it to stay.
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from llmgw.facts import Level
from llmgw.schedule import residency
from llmgw.schedule.filters import Filters
from llmgw.schedule.nodes import Claimant, Nodes, Place, Resident, pick_devices
from llmgw.schedule.placement import Fit, Placement, Spot, Timing, Want, Way
from llmgw.schedule.residency import HOST, Costs, together
from llmgw.schedule.room import Room, share


class Evictions:
    """Finds whom something may take the place of; changes nothing."""

    def __init__(self, nodes: Nodes, filters: Filters, placement: Placement) -> None:
        self._nodes = nodes
        self._filters = filters
        self._placement = placement

    def find(self, way: Way, want: Want) -> Spot | None:
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
            rank = (_cost_of(spot.evict), self._placement.rank(spot, want))
            if best is None or rank < best[0]:
                best = (rank, spot)
        return None if best is None else best[1]

    def _evicting(self, way: Way, want: Want, place: Place) -> Spot | None:
        movable = [one for one in place.staying if gives_way(one, want)]
        if not movable:
            return None
        fit = self._placement.fit(way, place.name)
        if fit is None or (fit.level is not Level.FULL and self._filters.unable(fit.profile, place.name) is not None):
            return None
        movable = [one for one in movable if one.fact.model != fit.profile.draft_model]  # it is to draft for it
        costs = self._costs_among(place, fit, want, movable)
        if costs is None or self._filters.no_disk(place.name, *fit.profiles) is not None:
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
            return _cost_of(here)
        going = []
        for one in sorted(here, key=lambda one: (-one.priority, one.yields, -one.last_used, one.fact.id)):
            if one.costs[uuid] <= left:
                left -= one.costs[uuid]
            else:
                going.append(one)
        return _cost_of(going)

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
        if spot.draft is not None and place.rivals(spot.draft.model, leaving=False) - gone:
            return None
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
            if name in way.shut or (fit := self._placement.fit(way, name)) is None:
                continue
            passing = [one for one in place.staying if self._passes(one, want, fit)]
            firm = [costs for costs, other in place.promised if not self._is_soft(other, want)]
            if not passing and len(firm) == len(place.promised):
                continue
            hard = [one for one in place.staying if one not in passing]
            others = {other.model.name for _, other in place.promised if self._is_soft(other, want)}
            others |= {one.model.name for one in passing}
            rivals = place.rivals(way.model, leaving=False) - (others - {one.model.name for one in hard})
            if rivals or self._filters.no_disk(name, *fit.profiles) is not None:
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


def _cost_of(evicted: Sequence[Resident]) -> tuple[int, int, int]:
    """Highest priority, count, bytes."""
    size = sum(sum(one.costs.values()) for one in evicted)
    return (max((one.priority for one in evicted), default=-(2**63)), len(evicted), size)


def gives_way(resident: Resident, want: Want) -> bool:
    """Whether it comes after what is wanted in the order of admission, and nothing forces it to stay."""
    if resident.forced or resident.companion:
        return False
    return want.pinned or (-resident.priority, resident.yields) > (-want.priority, want.yields)
