"""The world's time: two clocks, and what is to happen when. Nothing ticks: time leaps to the next thing."""

import heapq
from collections.abc import Callable
from itertools import count

from llmgw.units import Instant, Mono, Wall

Deed = Callable[[], None]


class Agenda:
    """What is to happen, in order of time; at equal times in the order it was planned."""

    def __init__(self, began: Wall) -> None:
        self._began = began
        self._mono = 0.0
        self._jumped = 0.0
        self._heap: list[tuple[float, int, Deed]] = []
        self._numbers = count()

    @property
    def time(self) -> float:
        """Seconds since the world began."""
        return self._mono

    @property
    def now(self) -> Instant:
        return Instant(Mono(self._mono), Wall(self._began + self._mono + self._jumped))

    @property
    def true_wall(self) -> Wall:
        """What the wall clock would show had it never jumped: people live by it."""
        return Wall(self._began + self._mono)

    def after(self, seconds: float, deed: Deed) -> None:
        heapq.heappush(self._heap, (self._mono + max(0.0, seconds), next(self._numbers), deed))

    def jump(self, seconds: float) -> None:
        """The wall clock is set."""
        self._jumped += seconds

    def run(self, until: float) -> None:
        """All that happens until then; afterwards it is then."""
        while self._heap and self._heap[0][0] <= until:
            at, _, deed = heapq.heappop(self._heap)
            self._mono = max(self._mono, at)
            deed()
        self._mono = max(self._mono, until)
