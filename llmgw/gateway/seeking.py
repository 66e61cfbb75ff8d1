"""One request's way to an endpoint: by the table in force it is sent, or waits, or is refused."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Final

from llmgw.gateway.keys import Caller
from llmgw.gateway.lines import Line
from llmgw.gateway.openai import ApiError
from llmgw.gateway.relay import Held, Relay
from llmgw.gateway.request import Request
from llmgw.gateway.routes import Hold, Refusal, Resolution, Route, still_loading
from llmgw.gateway.stay import Stay, too_many, wants_comments
from llmgw.gateway.surface import SLOTLESS
from llmgw.gateway.upstream import Target
from llmgw.gateway.verdicts import denied, lost, not_served
from llmgw.ids import ModelName, ReplicaId
from llmgw.units import Seconds, Wall

REPLACED: Final = 10.0
"""Seconds to wait for word that a model whose every endpoint was lost is being restarted, or runs elsewhere by now. It
is on its way; where the leader died as well, another leads first, which takes some 5 s."""
NOTHING: Final[Mapping[ModelName, Wall]] = {}
_NONE: Final[frozenset[ReplicaId]] = frozenset()


class Seeking(ABC):
    """A request until its endpoint is found, and again when that is lost."""

    __slots__ = (
        "_asked", "_fresh_only", "_lost_at", "_meter", "_model", "_name", "_near", "_queued", "_relay", "_request",
        "_size", "_started", "_stay", "_tried",
    )  # fmt: skip

    def __init__(self, relay: Relay, request: Request, name: str) -> None:
        self._relay = relay
        self._request = request
        self._name = name
        self._size = len(request.body)
        self._started = relay.loop.time()
        self._model: ModelName | None = None  #: that was asked for, by name or alias
        self._asked: Mapping[ModelName, Wall] = NOTHING  #: when on-demand models were asked for on its behalf
        self._near: int | None = None  #: what it has in common with others, where that is of interest
        self._meter = relay.meters.of("")
        self._tried: frozenset[ReplicaId] = frozenset()
        self._lost_at = 0.0
        self._queued = 0.0  #: seconds that it was in lines
        self._fresh_only = False  #: a kept connection turned out to be closed
        self._stay: Stay | None = None  #: while it waits, for an endpoint or for a slot

    @abstractmethod
    def _send(self, route: Route, target: Target) -> None:
        """Its endpoint is found."""

    @abstractmethod
    def _answer_error(self, error: ApiError) -> None:
        """It is refused."""

    @abstractmethod
    def _comment(self, text: str) -> None:
        """Tell its client why it waits."""

    @abstractmethod
    def turn_away(self) -> None:
        """The gateway closes, and waits no longer for this request."""

    def route(self) -> None:
        """Send, hold, or refuse, by the table in force."""
        self._go(self._resolved())

    def _resolved(self) -> Resolution:
        head = self._request.head
        return self._relay.table.resolve(self._name, fallback=head.fields.fallback, path=head.path)

    def _go(self, resolution: Resolution) -> None:
        if self._stay is not None and not self._stay.goes_on(resolution):
            self._stop_waiting()
        if isinstance(resolution, Refusal):
            self._is_for(resolution.model)
            self._answer_error(resolution.answer(self._relay.clock.now().wall))
            return
        self._is_for(resolution.named)
        table, path = self._relay.table, self._request.path
        if isinstance(resolution, Hold) and not table.serves(resolution.model, path):  # not loaded for nothing
            declared = table.statuses[resolution.model].surfaces
            self._answer_error(not_served(resolution.model, path, declared or ()))
            return
        if resolution.wants:
            self._ask(model for model in resolution.wants if table.serves(model, path))
        if isinstance(resolution, Route):
            if not self._in_line:  # one that waits for a slot is called when its turn comes
                self._seek(resolution)
        elif (verdict := resolution.settled(self._asked.get(resolution.model))) is not None:
            self._answer_error(verdict.answer(self._relay.clock.now().wall))
        else:  # counted from the request's arrival, however often an engine is lost
            self._hold(resolution.model, self._started + self._limit())

    def _is_for(self, model: ModelName | None) -> None:
        if model is not None and model != self._model:
            self._model = model
            self._meter = self._relay.meters.of(model)

    def _ask(self, models: Iterable[ModelName]) -> None:
        """Ask for on-demand models that are not ready; for each once, however long the request waits."""
        if new := [model for model in models if model not in self._asked]:
            self._asked = {**self._asked, **self._relay.ask(new)}

    def _seek(self, route: Route) -> None:
        """Send it, or have it wait, or go on waiting."""
        relay, model, path = self._relay, route.model, self._request.path
        if relay.table.affinity and self._near is None and not self._tried:
            self._near = relay.common(model, self._request)
        excluded = self._tried
        if (lacking := relay.table.lacking.get(model)) is not None and (those := lacking.get(path)) is not None:
            if len(those) == len(route.endpoints):
                surfaces = sorted({each for one in route.endpoints for each in one.surfaces or ()})
                self._answer_error(not_served(model, path, surfaces))
                return
            excluded |= those
        # Whoever lost what it got has had its turn already.
        turn = self._in_line or self._fresh_only or bool(self._tried)
        target = relay.choose(model, excluded, self._near, turn=turn) or self._without_slot(model, excluded)
        if target is None:
            return
        if self._stay is not None:
            self._stop_waiting()
        self._send(route, target)

    def _without_slot(self, model: ModelName, excluded: frozenset[ReplicaId]) -> Target | None:
        """No endpoint may be asked now: wait for a slot, or for an endpoint, unless it goes without a slot."""
        relay = self._relay
        left = relay.any_of(model, excluded)
        if left is not None and self._request.path in SLOTLESS:
            return left
        if left is None:  # all were lost just now, and the controller will say what comes of it
            if self._in_line:
                self._stop_waiting()
            self._hold(model, self._lost_at + REPLACED)
        elif not self._in_line and left.line is not None:
            self._stop_waiting()
            self._queue(model, left.line)
        return None

    # waiting

    @property
    def _in_line(self) -> bool:
        """It waits for a slot."""
        return self._stay is not None and self._stay.line is not None

    def _hold(self, model: ModelName, until: float) -> None:
        """Wait for an endpoint."""
        if self._stay is not None:
            self._stay.extend(until, self._waited)
        elif not self._stays(model, None, until):
            self._turn_away(too_many(self._relay, model))

    def _queue(self, model: ModelName, line: Line[Held]) -> None:
        """Wait for a slot. What it waited before counts: lines come and go with endpoints."""
        relay = self._relay
        applied = relay.table.applied
        until = relay.loop.time() - self._queued + (applied.gateway.queue_timeout if applied else 0)
        if not self._stays(model, line, until):
            self._turn_away(too_many(relay, model, line))

    def _stays(self, model: ModelName, line: Line[Held] | None, until: float) -> bool:
        stay = Stay(self._relay, self, self._request.caller, model, self._model, self._size, line)
        if stay.begin(until, self._waited, first=bool(self._tried) or self._fresh_only):
            self._stay = stay
            if wants_comments(self._relay, self._request, self._model):
                stay.tell(self._comment)
        return self._stay is not None

    def _turn_away(self, error: ApiError) -> None:
        self._meter.turned_away += 1
        self._answer_error(error)

    def _limit(self) -> Seconds:
        applied = self._relay.table.applied
        return applied.gateway.cold_start_timeout if applied else Seconds(0)

    def reconsider(self) -> None:
        """The table changed while this request waits, or lost its engine."""
        if self.recheck():
            self.route()

    def recheck(self) -> bool:
        """False: its key may not ask for it any more, be it that the key changed, or whose the name is."""
        caller = self._request.caller
        error = self._relay.keyring.barred(caller) or denied(self._relay.table, caller, self._name)
        if error is not None:
            self._answer_error(error)
        return error is None

    def yields(self, model: ModelName, caller: Caller) -> bool:
        mine = caller is self._request.caller and self._stay is not None and self._stay.model == model
        return mine and not self._tried and not self._fresh_only

    def give_way(self) -> None:
        if (stay := self._stay) is not None:
            self._turn_away(too_many(self._relay, stay.model, stay.line))

    def serve(self) -> bool:
        """Its turn has come: send it where there is a free slot. False: none of them will do, and it waits on."""
        resolution = self._resolved()
        if self._stay is None or not self._stay.goes_on(resolution) or not isinstance(resolution, Route):
            self._go(resolution)
            return True
        self._seek(resolution)
        return not self._in_line

    @property
    def excluded(self) -> frozenset[ReplicaId]:
        lacking = None if self._stay is None else self._relay.table.lacking.get(self._stay.model)
        those = lacking.get(self._request.path, _NONE) if lacking is not None else _NONE
        return those | self._tried if self._tried else those

    def _stop_waiting(self) -> None:
        if self._stay is not None:
            self._queued += self._stay.end()
            self._stay = None

    def _waited(self) -> None:
        """For as long as the cluster allows: say how far the model is. Or for news of a lost engine that never came."""
        relay, stay = self._relay, self._stay
        if stay is not None and stay.line is not None:
            self._turn_away(stay.overdue(stay.line, self._queued))
            return
        resolution = self._resolved()
        if isinstance(resolution, Hold):
            waited = Seconds(relay.loop.time() - self._started)
            self._answer_error(still_loading(resolution, waited, relay.clock.now().wall))
        else:
            self._answer_error(lost(self._model, "no other replica could be asked"))
