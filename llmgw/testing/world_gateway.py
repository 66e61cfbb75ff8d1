"""A simulated gateway: what becomes of each request is `gateway.routes`' word; this holds, sends, counts and asks."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from llmgw.catalog.spec import ModelSpec
from llmgw.facts import Ask
from llmgw.gateway.balance import pick
from llmgw.gateway.openai import Code
from llmgw.gateway.routes import Hold, Refusal, Route, RoutingTable
from llmgw.ids import ModelName, ReplicaId
from llmgw.testing.world_clock import Agenda
from llmgw.testing.world_node import Request
from llmgw.testing.world_tally import Tally
from llmgw.units import Wall

ASKS_EVERY: Final = 1.0  #: seconds between two asks for one model, at least


@dataclass(slots=True)
class Target:
    """An endpoint as the balancer sees it."""

    id: ReplicaId
    tier: int
    weight: float
    outstanding: int = 0
    turn: int = 0


class SimGateway:
    """`send` hands a request to a replica: False where nothing answers there. `asked`: news for the controller."""

    def __init__(
        self,
        agenda: Agenda,
        tally: Tally,
        *,
        send: Callable[[ReplicaId, Request], bool],
        asked: Callable[[ModelName], None],
    ) -> None:
        self._agenda = agenda
        self._tally = tally
        self._send = send
        self._asked = asked
        self._table = RoutingTable()
        self._targets: dict[ModelName, list[Target]] = {}
        self._held: dict[int, Request] = {}  #: those that wait, the first first
        self._asked_at: dict[ModelName, tuple[float, Wall]] = {}
        self._turn = 0
        self.asks: dict[ModelName, Ask] = {}  #: as stored
        self.outstanding: Counter[ReplicaId] = Counter()
        self.last_used: dict[ReplicaId, Wall] = {}

    @property
    def held(self) -> dict[ModelName, int]:
        """Requests that wait, by the model that they wait for."""
        return dict(sorted(Counter(one.awaited for one in self._held.values() if one.awaited is not None).items()))

    def update(self, table: RoutingTable) -> None:
        """Everything changed, perhaps: who waits is decided anew."""
        if table != self._table:
            self._table = table
            self._targets = {
                model: [
                    Target(id=one.id, tier=one.tier, weight=one.weight, outstanding=self.outstanding[one.id])
                    for one in endpoints
                ]
                for model, endpoints in table.endpoints.items()
            }
        for request in tuple(self._held.values()):
            self._route(request)

    def arrive(self, name: str, length: float) -> None:
        found = self._table.find(name)
        model = found.name if isinstance(found, ModelSpec) else ModelName(name)
        self._tally.arrived(model)
        self._route(Request(model=model, name=name, length=length, arrived=self._agenda.time))

    def answered(self, request: Request) -> None:
        self._ended(request)
        self._tally.served(request)

    def cut(self, request: Request) -> None:
        """Its engine ended. One that had no byte of its answer yet tries another replica."""
        self._ended(request)
        if request.decoding:
            self._tally.failed(request.model, str(Code.ENGINE_LOST))
            return
        request.asks = {}
        self._route(request)

    def drop_all(self) -> None:
        """The gateway itself is restarted: its clients' connections break."""
        for request in self._held.values():
            self._tally.failed(request.model, "gateway_restarted")
        self._held.clear()
        self.outstanding.clear()
        self.last_used.clear()
        self._asked_at.clear()

    def _ended(self, request: Request) -> None:
        if request.replica is not None:
            self._count(request.replica, -1)
        request.replica = None

    def _count(self, replica: ReplicaId, change: int) -> None:
        self.outstanding[replica] = max(0, self.outstanding[replica] + change)
        self.last_used[replica] = self._agenda.now.wall
        for targets in self._targets.values():
            for target in targets:
                if target.id == replica:
                    target.outstanding = self.outstanding[replica]

    # -- what becomes of a request

    def _route(self, request: Request) -> None:
        resolution = self._table.resolve(request.name)
        if isinstance(resolution, Refusal):
            self._refuse(request, resolution)
            return
        for model in resolution.wants:
            if model not in request.asks:
                request.asks[model] = self._want(model)
        if isinstance(resolution, Route):
            self._forward(request, resolution)
        elif (verdict := resolution.settled(request.asks.get(resolution.model))) is not None:
            self._refuse(request, verdict)
        else:
            self._hold(request, resolution)

    def _refuse(self, request: Request, refusal: Refusal) -> None:
        self._held.pop(id(request), None)
        self._tally.refused(request.model, str(refusal.code))

    def _forward(self, request: Request, route: Route) -> None:
        self._held.pop(id(request), None)
        left = deque(self._targets.get(route.model, ()))
        while (target := pick(left)) is not None:
            self._turn += 1
            target.turn = self._turn
            request.routed = self._agenda.time
            self._count(target.id, 1)
            if self._send(target.id, request):
                return
            self._count(target.id, -1)  # nothing answers there: another is tried
            left.remove(target)
        self._tally.failed(request.model, str(Code.ENGINE_LOST))

    def _want(self, model: ModelName) -> Wall:
        now = self._agenda.now
        at, stamp = self._asked_at.get(model, (-ASKS_EVERY, Wall(0)))
        if now.mono - at < ASKS_EVERY:
            return stamp
        self._asked_at[model] = (now.mono, now.wall)
        before = self.asks.get(model)
        asked = now.wall if before is None else Wall(max(before.asked, now.wall))
        self.asks[model] = Ask(asked=asked, used=before.used if before else None)
        self._asked(model)
        return now.wall

    def _hold(self, request: Request, hold: Hold) -> None:
        request.awaited = hold.model
        if id(request) in self._held:
            return
        self._held[id(request)] = request
        if not request.held:
            request.held = True
            self._tally.held(request.model)
            self._asked(hold.model)
            limit = self._table.applied.gateway.cold_start_timeout if self._table.applied else 0.0
            self._agenda.after(limit, lambda: self._give_up(request))

    def _give_up(self, request: Request) -> None:
        if self._held.pop(id(request), None) is not None:
            self._tally.refused(request.model, str(Code.MODEL_LOADING))
