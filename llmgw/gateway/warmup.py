"""A new endpoint among others gets its share little by little: its caches are empty, and the least outstanding is what
everybody would send it at once. Pure.

Its weight grows from a tenth to its own over the time that the cluster says.
"""

from typing import Final, Protocol

LEAST: Final = 0.1
"""Of its weight, that it begins with: enough to be used at all."""


class Growing(Protocol):
    weight: float
    full_weight: float


class Warmup:
    """Those whose weight grows."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: dict[Growing, float] = {}

    def __bool__(self) -> bool:
        return bool(self._since)

    def begin(self, one: Growing, now: float) -> None:
        self._since[one] = now

    def forget(self, one: Growing) -> None:
        self._since.pop(one, None)

    def grow(self, now: float, period: float) -> None:
        """Set the weights as they are `now`. `period`: seconds that it takes; 0: none."""
        for one, since in tuple(self._since.items()):
            share = (now - since) / period if period > 0 else 1.0
            one.weight = one.full_weight * min(1.0, max(LEAST, share))
            if share >= 1.0:
                del self._since[one]
