"""Whether an engine that answers nothing hangs. Pure: looks go in, with what its processes did since the last one.

An engine that works on a long prompt may be too busy to answer. It takes processor time, reads from a disk, or sends
tokens to clients, and is left alone however long that lasts. One that does none of these for long hangs.
"""

from dataclasses import dataclass
from typing import Final

from llmgw.units import Mono, Wall

LOOKS: Final = 3  #: that must have been in vain: one alone proves little
GAP: Final = 60.0
"""Seconds between two looks after which we were not running ourselves (stopped, or starved): what was not seen proves
nothing."""
WORKING: Final = 0.01
"""Share of one core below which processor time is no progress: threads that wake up to look at a clock take less."""
_NEWS: Final = 0.5  #: seconds; a gateway's word on when it heard of an engine moves by less when it did not


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What an engine's processes have done so far."""

    cpu: float = 0.0  #: seconds of processor time, of all that live
    faults: int = 0  #: pages that had to be read from a disk
    heard: Wall | None = None  #: when bytes of an answer came from it last


class Pulse:
    """`limit`: seconds without an answer or progress that make a hang."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._mark: tuple[Mono, Signs] | None = None  # since when nothing has moved, and how it stood then
        self._last: Mono | None = None
        self._looks = 0

    @property
    def silent(self) -> bool:
        """The last look was in vain."""
        return self._mark is not None

    def answered(self) -> None:
        """It lives."""
        self._mark = None

    def unanswered(self, now: Mono, signs: Signs) -> bool:
        """A look in vain. True: it hangs."""
        last, self._last = self._last, now
        if self._mark is None or last is None or now - last > GAP or self._moved(now, signs):
            self._mark, self._looks = (now, signs), 0
            return False
        since, then = self._mark
        if signs.cpu < then.cpu:  # a process ended, and its time with it
            self._mark = (since, Signs(cpu=signs.cpu, faults=signs.faults, heard=then.heard))
        self._looks += 1
        return self._looks >= LOOKS and now - since >= self.limit

    def _moved(self, now: Mono, signs: Signs) -> bool:
        assert self._mark is not None
        since, then = self._mark
        if signs.cpu - then.cpu >= WORKING * max(1.0, now - since) or signs.faults > then.faults:
            return True
        return signs.heard is not None and (then.heard is None or signs.heard - then.heard >= _NEWS)
