"""A simulated gateway: routes, holds or refuses each request, and asks for on-demand models. Its rules are DESIGN's
table of answers; which endpoints there are, and how models fare, is the controller's word."""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from llmgw.catalog.spec import Catalog
from llmgw.facts import Ask
from llmgw.gateway.balance import pick
from llmgw.ids import ModelName, ReplicaId
from llmgw.plan import ModelState, ModelStatus
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What the gateway knows: replaced whole."""

    catalog: Catalog
    targets: Mapping[ModelName, Sequence[Target]] = field(default_factory=dict)
    statuses: Mapping[ModelName, ModelStatus] = field(default_factory=dict)
    stopped: bool = False


class SimGateway:
    """`send` hands a request to a replica: False where nothing answers there."""

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
        self._table: Table | None = None
        self._names: dict[str, ModelName] = {}
        self._held: dict[ModelName, deque[Request]] = {}
        self._asked_at: dict[ModelName, float] = {}
        self._turn = 0
        self.asks: dict[ModelName, Ask] = {}  #: as stored
        self.outstanding: Counter[ReplicaId] = Counter()
        self.last_used: dict[ReplicaId, Wall] = {}

    @property
    def held(self) -> dict[ModelName, int]:
        return {model: len(queue) for model, queue in sorted(self._held.items()) if queue}

    def update(self, table: Table) -> None:
        """Everything changed, perhaps: who waits is decided anew."""
        self._table = table
        self._names = {name: model.name for model in table.catalog.models.values() for name in model.names}
        for targets in table.targets.values():
            for target in targets:
                target.outstanding = self.outstanding[target.id]
        for model in [model for model, queue in self._held.items() if queue]:
            queue, self._held[model] = self._held[model], deque()
            for request in queue:
                self._resolve(request, new=False)

    def arrive(self, name: str, length: float) -> None:
        model = self._names.get(name)
        if model is None:
            self._tally.refused(ModelName(name), "model_not_found")
            return
        self._tally.arrived(model)
        self._resolve(Request(model=model, length=length, arrived=self._agenda.time), new=True)

    def answered(self, request: Request) -> None:
        self._ended(request)
        self._tally.served(request)

    def cut(self, request: Request) -> None:
        """Its engine ended. One that had no byte of its answer yet tries another replica."""
        self._ended(request)
        if request.decoding:
            self._tally.failed(request.model, "engine_lost")
            return
        self._resolve(request, new=False)

    def drop_all(self) -> None:
        """The gateway itself is restarted: its clients' connections break."""
        for model, queue in self._held.items():
            for request in queue:
                request.done = True
                self._tally.failed(model, "gateway_restarted")
        self._held.clear()
        self.outstanding.clear()
        self.last_used.clear()
        self._asked_at.clear()

    def _ended(self, request: Request) -> None:
        if request.replica is not None:
            self.outstanding[request.replica] = max(0, self.outstanding[request.replica] - 1)
            self.last_used[request.replica] = self._agenda.now.wall
            for target in self._targets(request.model, fallback=True):
                if target.id == request.replica:
                    target.outstanding = max(0, target.outstanding - 1)
        request.replica = None

    # -- deciding

    def _targets(self, model: ModelName, *, fallback: bool) -> Sequence[Target]:
        assert self._table is not None, "before the first table nothing arrives"
        own = self._table.targets.get(model, ())
        status = self._table.statuses.get(model)
        if own or not fallback or status is None or status.fallback is None:
            return own
        return self._table.targets.get(status.fallback, ())

    def _resolve(self, request: Request, *, new: bool) -> None:
        table, model = self._table, request.model
        assert table is not None
        spec = table.catalog.models.get(model)
        if spec is None:
            self._tally.refused(model, "model_not_found")
            return
        if table.stopped:
            self._tally.refused(model, "system_stopped")
            return
        if self._route(request):
            return
        if new and spec.scaling.on_demand:
            self._want(model)
        refusal = self._refusal(model, on_demand=spec.scaling.on_demand)
        if refusal:
            self._tally.refused(model, refusal)
            return
        self._hold(request, table.catalog.cluster.gateway.cold_start_timeout)

    def _route(self, request: Request) -> bool:
        left = list(self._targets(request.model, fallback=True))
        while left:
            target = pick(left)
            assert target is not None
            self._turn += 1
            target.turn = self._turn
            self.outstanding[target.id] += 1
            target.outstanding += 1
            self.last_used[target.id] = self._agenda.now.wall
            request.routed = self._agenda.time
            if self._send(target.id, request):
                return True
            self.outstanding[target.id] -= 1  # nothing answers there: another is tried
            target.outstanding -= 1
            left.remove(target)
        if self._targets(request.model, fallback=True):
            self._tally.failed(request.model, "engine_lost")
            return True
        return False

    def _refusal(self, model: ModelName, *, on_demand: bool) -> str | None:
        """Where waiting would not help."""
        assert self._table is not None
        status = self._table.statuses.get(model)
        match status.state if status else None:
            case ModelState.FAILED:
                fallback = status.fallback if status else None
                return "model_failed" if fallback is None else None
            case ModelState.INACTIVE:
                return None if on_demand else "model_inactive"
            case ModelState.UNSCHEDULABLE:
                ask = self.asks.get(model)
                heard = status is not None and ask is not None and (status.asked or Wall(0)) >= ask.asked
                return "model_unschedulable" if heard or not on_demand else None
            case ModelState.STOPPED:
                return "system_stopped"
            case _:
                return None

    def _want(self, model: ModelName) -> None:
        now = self._agenda.now
        if now.mono - self._asked_at.get(model, -ASKS_EVERY) < ASKS_EVERY:
            return
        self._asked_at[model] = now.mono
        before = self.asks.get(model)
        used = before.used if before else None
        stamp = now.wall if before is None else Wall(max(before.asked, now.wall))
        self.asks[model] = Ask(asked=stamp, used=used)
        self._asked(model)

    def _hold(self, request: Request, at_most: float) -> None:
        queue = self._held.setdefault(request.model, deque())
        queue.append(request)
        if request.held:
            return
        request.held = True
        if len(queue) == 1:
            self._asked(request.model)
        self._tally.held(request.model)
        self._agenda.after(at_most, lambda: self._give_up(request))

    def _give_up(self, request: Request) -> None:
        queue = self._held.get(request.model, deque())
        if request in queue:
            queue.remove(request)
            self._tally.refused(request.model, "model_loading")
