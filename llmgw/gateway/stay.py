"""A request's stay at the gateway: until its model has an endpoint, or an endpoint of it a free slot."""

import asyncio
from collections.abc import Callable
from typing import Final

from llmgw.gateway.early import wants_stream
from llmgw.gateway.keys import Caller
from llmgw.gateway.lines import Line
from llmgw.gateway.openai import ApiError
from llmgw.gateway.relay import Held, Relay
from llmgw.gateway.request import Request
from llmgw.gateway.routes import Refusal, Resolution, Route, queue_full, still_busy, waiting_text
from llmgw.ids import ModelName
from llmgw.units import Seconds

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
        relay, last = self._relay, None
        if not relay.admission.enter(self.model, self._size, self._caller):
            last = relay.giving_way(self.model, self._caller, self._size)
            if last is None:
                return False
            relay.admission.take(self.model, self._size, self._caller)
        self._since = relay.loop.time()
        relay.held[self._who] = None
        if self.line is None:
            self._meter.held += 1
            self._caller.held += 1
            relay.waits(self.model)
        else:
            self._meter.queued += 1
            self._caller.queued += 1
            self.line.join(self._caller, self._who, first=first)
            relay.used()
            relay.loop.call_soon(relay.pump, self.model)  # those before it may not want the slot that is free
        self.extend(until, waited)
        if last is not None:  # only now: what its client sends next must not take the place
            last.give_way()
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

    def overdue(self, line: Line[Held], before: float) -> ApiError:
        """The answer where no slot became free in time. `before`: seconds for which it waited in lines earlier."""
        relay = self._relay
        waited = Seconds(before + relay.loop.time() - self._since)
        return still_busy(self.model, waited, line.size, relay.busy_for(self.model))

    def end(self) -> float:
        """Returns for how many seconds it was in a line."""
        relay, meter, caller = self._relay, self._meter, self._caller
        for timer in (self._timer, self._teller):
            if timer is not None:
                timer.cancel()
        seconds = relay.loop.time() - self._since
        if self.line is None:
            meter.held -= 1
            meter.hold.add(seconds)
            caller.held -= 1
            caller.hold.add(seconds)
        else:
            meter.queued -= 1
            meter.queue.add(seconds)
            caller.queued -= 1
            caller.queue.add(seconds)
            self.line.leave(caller, self._who)
        relay.admission.leave(self.model, self._size, caller)
        del relay.held[self._who]
        relay.used()
        return 0.0 if self.line is None else seconds

    def goes_on(self, resolution: Resolution) -> bool:
        """Whether what its request comes to now is what it waits for already."""
        if isinstance(resolution, Refusal) or (resolution.model, resolution.named) != (self.model, self.named):
            return False
        if self.line is None:  # for an endpoint: also where there are some again, or still, and this request lost each
            return True
        # A line ends when no endpoint of the model has slots any more: then nobody has to wait.
        return isinstance(resolution, Route) and self._relay.lines.get(self.model) is self.line


def too_many(relay: Relay, model: ModelName, line: Line[Held] | None = None) -> ApiError:
    """The answer where no more may wait; in `line`, where they wait for a slot."""
    waiting = relay.admission.waiting(model)
    return queue_full(model, waiting) if line is None else queue_full(model, waiting, after=relay.busy_for(model))


def wants_comments(relay: Relay, request: Request, model: ModelName | None) -> bool:
    """Whether its client is to be told that it waits."""
    wanted = request.head.fields.comments
    if wanted is None:
        spec = None if model is None else relay.table.models.get(model)
        wanted = spec is not None and spec.stream_comments
    return wanted and wants_stream(request.body)
