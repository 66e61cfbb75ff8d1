"""Who stays in the memory of one node: greedy by priority, with skip."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from llmgw.units import Bytes, Wall

HOST: Final = "host"
"""The dimension of host memory. Every other one is a device, by its UUID."""

Costs = Mapping[str, int]
"""Bytes in each dimension. What a budget leaves out is not there: nothing fits it."""


def together(*parts: Costs) -> dict[str, int]:
    """The sum, dimension by dimension."""
    found: dict[str, int] = {}
    for costs in parts:
        for dimension, cost in costs.items():
            found[dimension] = found.get(dimension, 0) + cost
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Something that takes memory. `costs`: the estimate where wanted, the observed size where not."""

    id: str
    costs: Costs
    priority: int = 0
    pinned: bool = False
    active: bool = False  #: decoding now, or what it was loaded for still waits: never evicted
    yields: bool = False  #: idle, and wanted only on demand: an equal that is not comes first
    last_used: Wall = Wall(0)
    model: str = ""  #: items of one model may share a group
    groups: frozenset[str] = frozenset()
    draft: str | None = None  #: the id of its companion: admitted with it or neither
    companion: bool = False  #: here for others only: kept while one of them is


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """What should change, each sorted by id. `room`: what was free, by dimension, when an unschedulable item was
    refused; `grouped`: those refused for a group."""

    launch: tuple[str, ...]
    evict: tuple[str, ...]
    unschedulable: tuple[str, ...]
    room: Mapping[str, Mapping[str, Bytes]] = field(default_factory=dict)
    grouped: frozenset[str] = frozenset()


def schedule(desired: Iterable[Item], resident: Iterable[Item], budget: Costs) -> Residency:
    """Fit what is desired into the budget, in this order:

    1. keep, whatever the budget: pinned desired, pinned resident and active resident;
    2. admit the rest of the desired by priority, then those that yield to nobody, then already resident, then most
       recently used, then id, each where it still fits (one that does not is skipped, not waited for) and shares no
       group with another model that is kept;
    3. evict residents that were not kept; report desired ones that did not fit.

    A companion is admitted with its primary or neither, and kept as long as one of its primaries, or for its own sake.
    A desired item costs its desired figure also where resident; a resident-only one its own. A negative cost
    counts as 0. Of a duplicate id the pinned one counts, then the one of higher priority. The result does not
    depend on the order of the input, and applying it and asking again changes nothing.
    """
    return _Scheduling(_unique(desired), _unique(resident), budget).run()


class _Scheduling:
    def __init__(self, wanted: dict[str, Item], present: dict[str, Item], budget: Costs) -> None:
        self._wanted = wanted
        self._present = present
        self._budget = budget
        self._kept: set[str] = set()
        self._used: dict[str, int] = {}
        self._groups: dict[str, set[str]] = {}

    def run(self) -> Residency:
        wanted, present = self._wanted, self._present
        forced = {id for id, item in wanted.items() if item.pinned and not item.companion}
        forced |= {id for id, item in present.items() if item.pinned or item.active}
        for id in sorted(forced):
            self._keep(id)
        room: dict[str, Mapping[str, Bytes]] = {}
        grouped: set[str] = set()
        for item in sorted(wanted.values(), key=lambda item: _admission(item, present)):
            if item.id in self._kept or item.companion:
                continue
            if self._shares_a_group(item):
                grouped.add(item.id)
            elif self._fits(item):
                self._keep(item.id)
                continue
            room[item.id] = {dimension: Bytes(max(0, self._left(dimension))) for dimension in self._costs(item)}
        refused = {id for id in wanted.keys() - self._kept if not wanted[id].companion}
        return Residency(
            launch=tuple(sorted((self._kept & wanted.keys()) - present.keys())),
            evict=tuple(sorted(present.keys() - self._kept)),
            unschedulable=tuple(sorted(refused)),
            room=room,
            grouped=frozenset(grouped),
        )

    def _keep(self, id: str) -> None:
        if id in self._kept:
            return
        item = self._item(id)
        self._kept.add(id)
        for dimension, cost in item.costs.items():
            self._used[dimension] = self._used.get(dimension, 0) + max(0, cost)
        for group in item.groups:
            self._groups.setdefault(group, set()).add(item.model or item.id)
        if item.draft is not None and (item.draft in self._wanted or item.draft in self._present):
            self._keep(item.draft)

    def _item(self, id: str) -> Item:
        return self._wanted.get(id) or self._present[id]

    def _costs(self, item: Item) -> Costs:
        """With those of its companion, where that is not kept already."""
        draft = item.draft
        if draft is None or draft in self._kept or not (draft in self._wanted or draft in self._present):
            return item.costs
        beside = self._item(draft).costs
        return {each: max(0, item.costs.get(each, 0)) + max(0, beside.get(each, 0)) for each in (*item.costs, *beside)}

    def _fits(self, item: Item) -> bool:
        return all(max(0, cost) <= self._left(dimension) for dimension, cost in self._costs(item).items())

    def _left(self, dimension: str) -> int:
        return self._budget.get(dimension, -1) - self._used.get(dimension, 0)

    def _shares_a_group(self, item: Item) -> bool:
        return any(self._groups.get(group, set()) - {item.model or item.id} for group in item.groups)


def _admission(item: Item, present: Mapping[str, Item]) -> tuple[int, bool, bool, float, str]:
    here = present.get(item.id)
    used = max(item.last_used, here.last_used if here else 0)
    return (-item.priority, item.yields, here is None, -used, item.id)


def _unique(items: Iterable[Item]) -> dict[str, Item]:
    best: dict[str, Item] = {}
    for item in sorted(items, key=_precedence):
        best.setdefault(item.id, item)
    return best


def _precedence(item: Item) -> tuple[object, ...]:
    costs = tuple(sorted((dimension, -cost) for dimension, cost in item.costs.items()))
    return (not item.pinned, -item.priority, costs, not item.active, item.yields, -item.last_used, item.id)
