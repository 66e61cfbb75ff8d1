"""What all requests under way share: the table in force, the endpoints and what each has to do, who waits."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from llmgw.clock import Clock
from llmgw.gateway.access import AccessLog
from llmgw.gateway.admission import Admission
from llmgw.gateway.balance import pick
from llmgw.gateway.keys import Keyring
from llmgw.gateway.meters import Meters
from llmgw.gateway.routes import RoutingTable
from llmgw.gateway.upstream import Target
from llmgw.ids import ModelName, ReplicaId
from llmgw.tasks import Tasks
from llmgw.units import Wall

log = structlog.get_logger("llmgw.gateway")

SUSPECT: Final = 2.0
"""Seconds for which an endpoint that was lost comes after the others: its withdrawal is on its way."""


class Held(Protocol):
    """A request that waits for an endpoint."""

    def reconsider(self) -> None:
        """The table changed."""
        ...

    def turn_away(self) -> None:
        """The gateway closes."""
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
    turn: int = 0

    def apply(self, table: RoutingTable, secret: bytes) -> bool:
        """Act on a new table from here on. True: an endpoint was withdrawn."""
        before, self.table = self.targets, table
        by_model: dict[ModelName, tuple[Target, ...]] = {}
        self.targets = {}
        for model, endpoints in table.endpoints.items():
            for endpoint in endpoints:
                target = before.get(endpoint.id)
                if target is None or (target.url, target.external) != (endpoint.url, endpoint.external):
                    target = Target(endpoint, secret)
                target.tier, target.weight, target.withdrawn = endpoint.tier, endpoint.weight, False
                self.targets[endpoint.id] = target
                by_model[model] = (*by_model.get(model, ()), target)
        self.by_model = by_model
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
        return news

    def choose(self, model: ModelName, tried: frozenset[ReplicaId]) -> Target | None:
        """The endpoint to ask next, of those not tried."""
        targets = self.by_model.get(model, ())
        if len(targets) == 1 and not tried:
            return targets[0]
        left = [target for target in targets if target.id not in tried]
        now = self.loop.time()
        return pick(target for target in left if target.suspect_until <= now) or pick(left)

    def ask(self, models: Iterable[ModelName]) -> Mapping[ModelName, Wall]:
        """Ask for on-demand models that are not ready, once for a request."""
        asks: dict[ModelName, Wall] = {}
        for model in models:
            asks[model], new = self.want(model)
            self.meters.of(model).asks += new
        return asks

    def suspect(self, target: Target, why: str) -> None:
        target.failures += 1
        now = self.loop.time()
        if target.suspect_until <= now:  # said once, not for every request that meets it
            log.warning("engine_lost", replica=target.id, model=target.model, reason=why)
        target.suspect_until = now + SUSPECT

    def taken(self, target: Target) -> None:
        self.turn += 1
        target.turn = self.turn
        target.outstanding += 1
        self.used()

    def released(self, target: Target) -> None:
        target.outstanding -= 1
        target.last_used = self.loop.time()
        if target.withdrawn and not target.outstanding:
            if self.targets.get(target.id) is target:
                del self.targets[target.id]
            self.drained()
        self.used()
