"""Bodies that come so slowly that they give way to others, once there is no room for those. Does no I/O.

A least rate for all (Apache's MinRate) would turn away who has a slow line while nobody else wants the room. So it is
looked at only while much of the room is taken, and acted on only where it does not suffice: the largest goes first.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from llmgw.gateway.admission import Buffers
from llmgw.gateway.request import Request
from llmgw.units import Bytes, Seconds


class Coming(NamedTuple):
    """A body of which more is awaited: whose it is, and its bytes so far."""

    request: Request
    size: int


class Sender(Protocol):
    """A client's connection."""

    @property
    def coming(self) -> Coming | None: ...

    def give_way(self, request: Request, asker: object) -> None:
        """Drop the body of that request, if it still comes and is not the one that `asker` is at."""
        ...


class _Mark(NamedTuple):
    coming: Coming
    at: float
    slow: bool


@dataclass(frozen=True, slots=True)
class _Slow:
    sender: Sender
    request: Request

    def give_way(self, asker: object) -> None:
        self.sender.give_way(self.request, asker)


@dataclass(slots=True)
class Watch:
    """Finds them. `rate`: bytes a second; `span`: seconds over which it is measured."""

    buffers: Buffers
    rate: Bytes
    span: Seconds
    _marks: dict[int, _Mark] = field(default_factory=dict)

    def look(self, senders: Iterable[Sender], now: float) -> None:
        """Now and then. As long as half of the room is free nobody is looked at."""
        before, self._marks = self._marks, {}
        if self.buffers.used * 2 <= self.buffers.limit:
            self.buffers.slow = []
            return
        slow: list[tuple[int, _Slow]] = []
        for sender in senders:
            if (coming := sender.coming) is None:
                continue
            mark = before.get(id(coming.request))
            if mark is None or mark.coming.request is not coming.request:
                mark = _Mark(coming, now, False)
            elif (passed := now - mark.at) >= self.span:
                mark = _Mark(coming, now, coming.size - mark.coming.size < self.rate * passed)
            self._marks[id(coming.request)] = mark
            if mark.slow:
                slow.append((coming.size, _Slow(sender, coming.request)))
        slow.sort(key=lambda each: each[0])
        self.buffers.slow = [each for _, each in slow]
