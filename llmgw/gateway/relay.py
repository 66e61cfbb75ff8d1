"""What all requests under way share: the table in force, the endpoints and what each has to do, who waits."""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from llmgw.clock import Clock
from llmgw.gateway.access import AccessLog
from llmgw.gateway.admission import Admission
from llmgw.gateway.balance import UNLIMITED, in_charge, lightest, near, pick
from llmgw.gateway.keys import Caller, Keyring
from llmgw.gateway.lines import Line
from llmgw.gateway.meters import Meters
from llmgw.gateway.openai import LONGEST_RETRY
from llmgw.gateway.request import Request
from llmgw.gateway.routes import RoutingTable
from llmgw.gateway.upstream import Target
from llmgw.gateway.warmup import Warmup
from llmgw.ids import ModelName, ReplicaId
from llmgw.store.values import ApiKey
from llmgw.tasks import Tasks
from llmgw.units import Seconds, Wall

log = structlog.get_logger("llmgw.gateway")

SUSPECT: Final = 2.0
"""Seconds for which an endpoint that was lost comes after the others: its withdrawal is on its way. Doubled with each
further loss, up to SUSPECT_MOST: its node may be well, and only not to be reached from here."""
SUSPECT_MOST: Final = 30.0
BUSY_RETRY: Final = 5
"""Seconds that a client is told to wait for a slot when nothing better is known."""
_NONE: Final[frozenset[ReplicaId]] = frozenset()


class Held(Protocol):
    """A request that waits for an endpoint."""

    def reconsider(self) -> None:
        """The table changed."""
        ...

    def turn_away(self) -> None:
        """The gateway closes."""
        ...

    def serve(self) -> bool:
        """Its turn has come: send it where there is a free slot. False: none of them will do, and it waits on."""
        ...

    @property
    def excluded(self) -> frozenset[ReplicaId]:
        """Endpoints of the model that it waits for to which it may not be sent."""
        ...

    def recheck(self) -> bool:
        """Keys changed. False: its key is good no more, and it was refused."""
        ...

    def yields(self, model: ModelName, caller: Caller) -> bool:
        """Whether it is one of that key that waits for that model, and never got its turn."""
        ...

    def give_way(self) -> None:
        """Leave its place to another key's."""
        ...


@dataclass(slots=True)
class Relay:
    """What all exchanges share: the table in force, the endpoints, who waits."""

    clock: Clock
    loop: asyncio.AbstractEventLoop
    tasks: Tasks
    used: Callable[[], None]  #: called whenever outstanding counts change
    drained: Callable[[], None]  #: called when a withdrawn endpoint has nothing left to do
    waits: Callable[[ModelName], None]  #: called when a request begins to wait for a model
    want: Callable[[ModelName], tuple[Wall, bool]]  #: ask for an on-demand model: the ask, and whether it is a new one
    meters: Meters = field(default_factory=Meters)
    admission: Admission = field(default_factory=Admission)
    table: RoutingTable = field(default_factory=RoutingTable)
    keyring: Keyring = field(default_factory=Keyring)
    access: AccessLog | None = None
    targets: dict[ReplicaId, Target] = field(default_factory=dict)  #: withdrawn ones too while requests are in them
    by_model: Mapping[ModelName, tuple[Target, ...]] = field(default_factory=dict)
    held: dict[Held, None] = field(default_factory=dict)  #: in order of arrival
    lines: dict[ModelName, Line[Held]] = field(default_factory=dict)  #: of models that have slots, who waits for one
    warmup: Warmup = field(default_factory=Warmup)
    turn: int = 0

    def apply(self, table: RoutingTable, secret: bytes) -> bool:
        """Act on a new table from here on. True: an endpoint was withdrawn."""
        before, self.table = self.targets, table
        if table.applied is not None:
            self.admission.max_waiting = table.applied.gateway.max_waiting
        by_model: dict[ModelName, tuple[Target, ...]] = {}
        self.targets = {}
        for model, endpoints in table.endpoints.items():
            for endpoint in endpoints:
                target = before.get(endpoint.id)
                if target is None or (target.url, target.external) != (endpoint.url, endpoint.external):
                    target = Target(endpoint, secret)
                target.tier, target.weight, target.withdrawn = endpoint.tier, endpoint.weight, False
                target.full_weight = endpoint.weight
                target.slots = endpoint.slots or UNLIMITED
                self.targets[endpoint.id] = target
                by_model[model] = (*by_model.get(model, ()), target)
        self.by_model = by_model
        self._warm_up(before)
        self._set_lines()
        self.meters.forget(table.models)
        gone = [target for id, target in before.items() if self.targets.get(id) is not target]
        news = any(not target.withdrawn for target in gone)
        for target in gone:
            target.withdrawn = True
            target.close_idle()
            if target.outstanding:
                self.targets.setdefault(target.id, target)
        for exchange in tuple(self.held):
            exchange.reconsider()
        for model in tuple(self.lines):
            self.pump(model)
        return news

    def _warm_up(self, before: Mapping[ReplicaId, Target]) -> None:
        """What joins others begins slowly. Those that are there when the gateway starts are new to it alone."""
        now = self.loop.time()
        for target in before.values():
            if self.targets.get(target.id) is not target:
                self.warmup.forget(target)
        for targets in self.by_model.values() if self.slow_start and before else ():
            if any(before.get(target.id) is target for target in targets):
                for target in targets:
                    if before.get(target.id) is not target:
                        self.warmup.begin(target, now)
        self.warmup.grow(now, self.slow_start)

    @property
    def slow_start(self) -> Seconds:
        applied = self.table.applied
        return applied.gateway.slow_start if applied else Seconds(0)

    def _set_lines(self) -> None:
        """One for each model of which any endpoint has slots. Whoever waits in one that is gone is reconsidered."""
        lines: dict[ModelName, Line[Held]] = {}
        for model, targets in self.by_model.items():
            limited = any(target.slots != UNLIMITED for target in targets)
            line = (self.lines.get(model) or Line()) if limited else None
            if line is not None:
                line.tidy()
                lines[model] = line
            for target in targets:
                target.line = line
        self.lines = lines

    def choose(
        self, model: ModelName, tried: frozenset[ReplicaId], key: int | None = None, *, turn: bool = False
    ) -> Target | None:
        """The endpoint to ask next, of those not tried. None: none is left, or none has a free slot. `key`: what the
        request has in common with others. `turn`: it has waited for its turn; one that has not goes behind those that
        wait."""
        targets = self.by_model.get(model)
        if targets is None:
            return None
        line = targets[0].line
        if line is not None and line.size and not turn:
            return None
        if len(targets) == 1 and not tried:
            target = targets[0]
            return target if target.outstanding < target.slots else None
        sound = self._sound(targets, tried)
        if key is not None and (affinity := self.table.affinity.get(model)) is not None:
            return self._near(model, in_charge(sound), key, affinity.bound)
        return lightest(sound)

    def _near(self, model: ModelName, charged: Sequence[Target], key: int, bound: float) -> Target | None:
        found, first = near(key, charged, bound)
        found = found or lightest(charged)
        if found is not None:
            meter = self.meters.of(model)
            if first:
                meter.affinity_kept += 1
            else:
                meter.affinity_moved += 1
        return found

    def _sound(self, targets: Sequence[Target], tried: frozenset[ReplicaId]) -> Sequence[Target]:
        """Those of which nothing bad is known; all, where something is known of each."""
        now = self.loop.time()
        if self.warmup:
            self.warmup.grow(now, self.slow_start)
        left = [target for target in targets if target.id not in tried] if tried else targets
        return [target for target in left if target.suspect_until <= now and not target.trial] or left

    def common(self, model: ModelName, request: Request) -> int | None:
        """What it has in common with others of the model; None: nothing that is of interest."""
        affinity = self.table.affinity.get(model)
        several = affinity is not None and len(self.by_model.get(model, ())) > 1
        return affinity.key(request.head.fields.forward, request.body) if affinity is not None and several else None

    def any_of(self, model: ModelName, tried: frozenset[ReplicaId]) -> Target | None:
        """The endpoint to ask next, of those not tried, whether it has a free slot or not."""
        return pick(in_charge(self._sound(self.by_model.get(model, ()), tried)))

    def pump(self, model: ModelName) -> None:
        """Let those have the free slots whose turn it is."""
        line = self.lines.get(model)
        # What no free slot will do for it will do for none of its like: to try a thousand takes long.
        unfit: set[frozenset[ReplicaId]] = set()
        while line is not None and line.size and self.choose(model, _NONE, turn=True) is not None:
            one = line.next((lambda each: each.excluded in unfit) if unfit else None)
            if one is None:
                return
            excluded = one.excluded
            if not one.serve():
                unfit.add(excluded)

    def giving_way(self, model: ModelName, caller: Caller, size: int) -> Held | None:
        """Who leaves its place to a request of that key, where no more may wait: of the key that has the most waiting
        who came last. None: nobody, since that key has no more than its share."""
        key = self.admission.greediest(model, size, caller)
        return None if key is None else next((one for one in reversed(self.held) if one.yields(model, key)), None)

    def keys_changed(self, keys: Iterable[ApiKey], *, required: bool) -> None:
        """Act on them from here on: what engines have is finished, what waits for one is looked at again."""
        self.keyring.change(keys, required=required)
        for exchange in tuple(self.held):
            exchange.recheck()

    def busy_for(self, model: ModelName) -> int:
        """Seconds until who waits last can hope for a slot, as answers go now: for Retry-After."""
        line = self.lines.get(model)
        if line is None or line.pace is None:
            return BUSY_RETRY
        slots = sum(target.slots for target in self.by_model.get(model, ()))
        return min(LONGEST_RETRY, max(1, math.ceil(line.pace * (line.size + 1) / max(1, slots))))

    def ask(self, models: Iterable[ModelName]) -> Mapping[ModelName, Wall]:
        """Ask for on-demand models that are not ready, once for a request."""
        asks: dict[ModelName, Wall] = {}
        for model in models:
            asks[model], new = self.want(model)
            self.meters.of(model).asks += new
        return asks

    def suspect(self, target: Target, why: str) -> None:
        target.failures += 1
        target.trial = False
        now = self.loop.time()
        if target.suspect_until <= now:  # said and counted once, not for every request that meets it
            log.warning("engine_lost", replica=target.id, model=target.model, reason=why)
            target.losses += 1
        target.suspect_until = now + min(SUSPECT_MOST, SUSPECT * 2 ** (min(target.losses, 9) - 1))
        if target.line is not None:
            self.loop.call_at(target.suspect_until, self.pump, target.model)

    def answers(self, target: Target) -> None:
        """It answers again after it was lost."""
        target.losses, target.trial = 0, False
        if target.line is not None:
            self.loop.call_soon(self.pump, target.model)

    def taken(self, target: Target, caller: Caller) -> None:
        self.turn += 1
        target.turn = self.turn
        target.outstanding += 1
        if target.losses:  # one finds out for all
            target.trial = True
        if target.line is not None:
            target.line.took(caller)
        self.used()

    def released(self, target: Target, line: Line[Held] | None, caller: Caller) -> None:
        """`line`: the target's when it was taken. Who waits may wait in another by now."""
        target.outstanding -= 1
        target.trial = False
        if line is not None:
            line.gave(caller)
        if target.line is not None and target.line.size:  # not now: an answer is being brought to its end
            self.loop.call_soon(self.pump, target.model)
        target.last_used = self.loop.time()
        if target.withdrawn and not target.outstanding:
            if self.targets.get(target.id) is target:
                del self.targets[target.id]
            self.drained()
        self.used()
