"""Who waits for a free slot of a model's engines, and whose turn is next. Pure.

Fair among API keys: the key with the fewest requests in the engines comes next, of several the one whose turn is
longest ago; within a key, who came first. So one that sends a thousand requests, or very long ones, gets its share of
the slots and no more, while others wait.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

W = TypeVar("W")

_WEIGHT: Final = 0.1
"""Of the latest answer, in the mean of how long they take."""


@dataclass(slots=True)
class _Share(Generic[W]):
    """What one key has of a model."""

    running: int = 0
    turn: int = 0  #: of the line, when it was last served
    waiting: OrderedDict[W, None] = field(default_factory=OrderedDict)


class Line(Generic[W]):
    """The line of one model. `key`: whoever the turns are shared among."""

    __slots__ = ("_shares", "_turn", "pace", "size")

    def __init__(self) -> None:
        self._shares: dict[Hashable, _Share[W]] = {}
        self._turn = 0
        self.size = 0  #: how many wait
        self.pace: float | None = None  #: seconds that an engine takes for an answer, of late; None: there was none

    def _share(self, key: Hashable) -> _Share[W]:
        share = self._shares.get(key)
        if share is None:
            share = self._shares[key] = _Share()
        return share

    # requests in the engines; on the path of every request

    def took(self, key: Hashable) -> None:
        """A request of that key was sent: `gave` ends it."""
        share = self._share(key)
        share.running += 1
        self._turn += 1
        share.turn = self._turn

    def gave(self, key: Hashable) -> None:
        self._shares[key].running -= 1

    def answered(self, seconds: float) -> None:
        """An engine took so long for a whole answer."""
        self.pace = seconds if self.pace is None else self.pace + _WEIGHT * (seconds - self.pace)

    # requests that wait

    def join(self, key: Hashable, one: W, *, first: bool = False) -> None:
        """`first`: before the others of its key. It waited for its turn before, and lost what it got."""
        waiting = self._share(key).waiting
        waiting[one] = None
        if first:
            waiting.move_to_end(one, last=False)
        self.size += 1

    def leave(self, key: Hashable, one: W) -> None:
        """Once for each `join`: its turn has come, or it waits no longer."""
        del self._shares[key].waiting[one]
        self.size -= 1

    def next(self, passed: Callable[[W], bool] | None = None) -> W | None:
        """Whose turn it is, of those who are not `passed` over. None: nobody's."""
        best: tuple[int, int] | None = None
        found: W | None = None
        for share in self._shares.values():
            rank = (share.running, share.turn)
            if share.waiting and (best is None or rank < best):
                first = next((one for one in share.waiting if passed is None or not passed(one)), None)
                if first is not None:
                    best, found = rank, first
        return found

    def tidy(self) -> None:
        """Forget keys that have nothing here: they come and go."""
        for key in [key for key, share in self._shares.items() if not share.running and not share.waiting]:
            del self._shares[key]
