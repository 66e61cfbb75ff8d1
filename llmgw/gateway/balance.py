"""Which of the ready endpoints answers next. Pure."""

import math
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeVar

UNLIMITED: Final = 2**62
"""Slots of an endpoint that takes what comes."""


class Candidate(Protocol):
    """An endpoint as the balancer sees it: what it may carry, and what it carries now."""

    @property
    def tier(self) -> int: ...

    @property
    def weight(self) -> float: ...

    @property
    def outstanding(self) -> int: ...

    @property
    def turn(self) -> int:
        """Grows with each pick: the smaller was used longer ago."""
        ...


class Slotted(Candidate, Protocol):
    @property
    def slots(self) -> int:
        """Requests that it gets at once, at most."""
        ...


class Seeded(Slotted, Protocol):
    @property
    def seed(self) -> int:
        """64 bits that are its own."""
        ...


C = TypeVar("C", bound=Candidate)
S = TypeVar("S", bound=Slotted)
N = TypeVar("N", bound=Seeded)


def pick(candidates: Iterable[C]) -> C | None:
    """The lowest tier first; in it, the least outstanding for its weight; then the one used longest ago.

    None: there are no candidates. A weight of 0 is used only when nothing else in its tier is left.
    """
    # The request being placed counts too: otherwise all idle endpoints are equal whatever their weight.
    return min(candidates, key=_rank, default=None)


def _rank(candidate: Candidate) -> tuple[int, float, int]:
    weight = candidate.weight
    share = (candidate.outstanding + 1) / weight if weight > 0 else float("inf")
    return candidate.tier, share, candidate.turn


def in_charge(candidates: Sequence[S]) -> Sequence[S]:
    """Those whose turn it is by tier and weight, whether they have a free slot or not: that the lowest tier is busy is
    no reason to use another, nor one of weight 0."""
    lowest = min((one.tier for one in candidates), default=0)
    same = [one for one in candidates if one.tier == lowest]
    return [one for one in same if one.weight > 0] or same


def lightest(candidates: Iterable[S]) -> S | None:
    """Of those `in_charge` that have a free slot, the one that `pick` picks: in one go, since it is done for every
    request of a model with replicas. None: none has a free slot."""
    tier = math.inf
    best: S | None = None
    weighty = False
    least = 0.0
    for one in candidates:
        weight = one.weight
        if one.tier < tier:
            tier, best, weighty = one.tier, None, weight > 0
        elif one.tier > tier or (weighty and weight <= 0):
            continue
        elif weight > 0 and not weighty:
            best, weighty = None, True
        outstanding = one.outstanding
        if outstanding < one.slots:
            share = (outstanding + 1) / weight if weight > 0 else 0.0
            if best is None or share < least or (share == least and one.turn < best.turn):
                best, least = one, share
    return best


def near(key: int, candidates: Sequence[N], bound: float) -> tuple[N | None, bool]:
    """The one with a free slot that a key belongs to, unless it has more to do than `bound` times its share: then the
    one that comes next for that key. And whether it is the very first. None: none has a slot and room.

    Rendezvous hashing (Thaler and Ravishankar 1998), bounded as Mirrokni, Thorup and Zadimoghaddam (2016) bound a
    ring. Each key has an order of its own among the endpoints: when one comes or goes, the keys that move are its own
    and no others, and they spread over all that are left, as what is too much for one does. A ring needs a hundred
    points for each endpoint to come near that, and its gain, fewer steps, shows only from hundreds of endpoints on.
    """
    weights = sum(one.weight for one in candidates)
    total = 1 + sum(one.outstanding for one in candidates)
    best: N | None = None
    most, first = 0.0, 0.0
    for one in candidates:
        weight = one.weight if weights > 0 else 1.0
        score = weight / _distance(key, one.seed)
        first = max(first, score)
        if score > most and one.outstanding < one.slots:
            share = total * weight / (weights if weights > 0 else len(candidates))
            if one.outstanding < math.ceil(bound * share):
                best, most = one, score
    return best, best is not None and most >= first


_MASK: Final = 2**64 - 1


def _distance(key: int, seed: int) -> float:
    """Above 0, exponentially distributed over pairs: what makes shares follow weights. The mixer is SplitMix64's."""
    mixed = key ^ seed
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return -math.log((((mixed ^ (mixed >> 31)) >> 12) + 0.5) / 2**52)
