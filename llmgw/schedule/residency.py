"""Who stays in memory: greedy by priority, with skip."""

from collections.abc import Iterable
from dataclasses import dataclass

from llmgw.units import Bytes, Wall


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Something that takes memory. `cost` in bytes: the estimate where wanted, the observed size where not."""

    id: str
    cost: Bytes
    priority: int = 0
    pinned: bool = False
    active: bool = False  #: decoding now: never evicted
    last_used: Wall = Wall(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """What should change, each sorted by id. `room`: what was free when an unschedulable item was refused."""

    launch: tuple[str, ...]
    evict: tuple[str, ...]
    unschedulable: tuple[str, ...]
    room: dict[str, Bytes]


def schedule(desired: Iterable[Item], resident: Iterable[Item], budget: Bytes) -> Residency:
    """Fit what is desired into the budget, in this order:

    1. keep, whatever the budget: pinned desired, pinned resident and active resident;
    2. admit the rest of the desired by priority, then already resident, then most recently used, then id, each
       where it still fits (one that does not is skipped, not waited for);
    3. evict residents that were not kept; report desired ones that did not fit.

    A desired item costs its desired figure also where resident; a resident-only one its own. A negative cost
    counts as 0. Of a duplicate id the pinned one counts, then the one of higher priority. The result does not
    depend on the order of the input, and applying it and asking again changes nothing.
    """
    wanted, present = _unique(desired), _unique(resident)
    forced = {id for id, item in wanted.items() if item.pinned}
    forced |= {id for id, item in present.items() if item.pinned or item.active}
    used = sum(_cost(wanted.get(id) or present[id]) for id in forced)
    kept = set(forced)
    room: dict[str, Bytes] = {}
    for item in sorted(wanted.values(), key=lambda item: _admission(item, present)):
        if item.id in forced:
            continue
        if used + _cost(item) <= budget:
            used += _cost(item)
            kept.add(item.id)
        else:
            room[item.id] = Bytes(max(0, budget - used))
    return Residency(
        launch=tuple(sorted((kept & wanted.keys()) - present.keys())),
        evict=tuple(sorted(present.keys() - kept)),
        unschedulable=tuple(sorted(wanted.keys() - kept)),
        room=room,
    )


def _admission(item: Item, present: dict[str, Item]) -> tuple[int, bool, float, str]:
    here = present.get(item.id)
    used = max(item.last_used, here.last_used if here else 0)
    return (-item.priority, here is None, -used, item.id)


def _cost(item: Item) -> int:
    return max(0, item.cost)


def _unique(items: Iterable[Item]) -> dict[str, Item]:
    best: dict[str, Item] = {}
    for item in sorted(items, key=lambda i: (not i.pinned, -i.priority, -i.cost, not i.active, -i.last_used, i.id)):
        best.setdefault(item.id, item)
    return best
