"""A request's stay at the gateway: until its model has an endpoint, or an endpoint of it a free slot."""

import asyncio
from collections.abc import Callable
from typing import Final

from llmgw.gateway.keys import Caller
from llmgw.gateway.lines import Line
from llmgw.gateway.relay import Held, Relay
from llmgw.gateway.routes import Hold, Refusal, Resolution, Route, waiting_text
from llmgw.ids import ModelName

FIRST: Final = 5.0
"""Seconds until a client that wants to be told that it waits is told so first."""
EVERY: Final = 10.0
"""Seconds between two comments after that: proxies give up after thirty or sixty without a byte."""


class Stay:
    """One stay of one request. `begin` it, and `end` it once, if it was begun.

    `line`: where it waits for a slot; None: it waits for an endpoint. `named`: the model that was asked for, by name
    or alias; `model`: the one that it waits for, the same or what stands in for it.
    """

    __slots__ = (
        "_caller",
        "_meter",
        "_relay",
        "_since",
        "_size",
        "_teller",
        "_timer",
        "_who",
        "line",
        "model",
        "named",
    )

    def __init__(
        self, relay: Relay, who: Held, caller: Caller, model: ModelName, named: ModelName | None, size: int,
        line: Line[Held] | None = None,
    ) -> None:  # fmt: skip
        self._relay = relay
        self._who = who
        self._caller = caller
        self._size = size
        self._meter = relay.meters.of(named or model)
        self._timer: asyncio.TimerHandle | None = None
        self._teller: asyncio.TimerHandle | None = None
        self._since = 0.0
        self.model = model
        self.named = named
        self.line = line

    def begin(self, until: float, waited: Callable[[], None], *, first: bool = False) -> bool:
        """`waited` is called at `until`, of the loop's time. False: too many wait already, and nothing was begun."""
        relay = self._relay
        if not relay.admission.enter(self.model, self._size):
            return False
        self._since = relay.loop.time()
        relay.held[self._who] = None
        if self.line is None:
            self._meter.held += 1
            relay.waits(self.model)
        else:
            self._meter.queued += 1
            self.line.join(self._caller, self._who, first=first)
            relay.used()
            relay.loop.call_soon(relay.pump, self.model)  # those before it may not want the slot that is free
        self.extend(until, waited)
        return True

    def extend(self, until: float, waited: Callable[[], None]) -> None:
        """Until then, and no longer or shorter."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._relay.loop.call_at(until, waited)

    def tell(self, comment: Callable[[str], None], after: float | None = None) -> None:
        """Have the client told now and then why it waits; not at once, since most waits are short, and a refusal is
        better told by its status."""
        self._teller = self._relay.loop.call_later(FIRST if after is None else after, self._tell, comment)

    def _tell(self, comment: Callable[[str], None]) -> None:
        self.tell(comment, EVERY)
        comment(waiting_text(self._relay.table.statuses.get(self.model), slot=self.line is not None))

    def seconds(self, now: float) -> float:
        """How long it has been."""
        return now - self._since

    def end(self) -> None:
        relay, meter = self._relay, self._meter
        for timer in (self._timer, self._teller):
            if timer is not None:
                timer.cancel()
        seconds = self.seconds(relay.loop.time())
        if self.line is None:
            meter.held -= 1
            meter.hold.add(seconds)
        else:
            meter.queued -= 1
            meter.queue.add(seconds)
            self.line.leave(self._caller, self._who)
        relay.admission.leave(self.model, self._size)
        del relay.held[self._who]
        relay.used()

    def goes_on(self, resolution: Resolution) -> bool:
        """Whether what its request comes to now is what it waits for already."""
        if isinstance(resolution, Refusal) or (resolution.model, resolution.named) != (self.model, self.named):
            return False
        if self.line is None:
            return isinstance(resolution, Hold)
        # A line ends when no endpoint of the model has slots any more: then nobody has to wait.
        return isinstance(resolution, Route) and self._relay.lines.get(self.model) is self.line
