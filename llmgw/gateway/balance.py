"""Which of the ready endpoints answers next. Pure."""

from collections.abc import Iterable
from typing import Protocol, TypeVar


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


C = TypeVar("C", bound=Candidate)


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
