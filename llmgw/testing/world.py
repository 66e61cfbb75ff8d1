"""A simulated world for llmgw's own core: machines, engines, traffic, faults and two clocks. Deterministic by its seed.

`schedule.think` decides, as it does for the daemon; the world carries out what it says. Time leaps from one thing that
happens to the next, so that days with little traffic take milliseconds.

    world = World(reports, catalog, seed=7, traffic=[Traffic(model="qwen", per_hour=60, length=Seconds(8))])
    world.run(until=3600)
    assert world.ready("qwen") == 1
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import Any, Final

from llmgw.catalog.spec import Catalog
from llmgw.facts import Cordon, FailureKind, Footprint, NodeReport, Phase
from llmgw.ids import ModelName, NodeName, ReplicaId
from llmgw.plan import Assignment, Stopped
from llmgw.schedule.decider import Decider
from llmgw.schedule.think import Known, Thought, think
from llmgw.testing.world_clock import Agenda
from llmgw.testing.world_controller import Mind, SimController, Sizing, Watcher
from llmgw.testing.world_gateway import SimGateway
from llmgw.testing.world_node import Request, SimNode, SimReplica
from llmgw.testing.world_sizes import sizing
from llmgw.testing.world_tally import HOST, Tally
from llmgw.testing.world_values import HOUR, Behaviour, Fault, FaultKind, Push, Rules, Traffic
from llmgw.units import Bytes, Instant, format_bytes, format_seconds

_STORY = 400  #: lines


def _thinker() -> Mind:
    """As the daemon thinks: with its last decision in mind."""
    return partial(think, decider=Decider())


class _Nobody:
    """Watches nothing."""

    def decided(self, known: Known, thought: Thought, now: Instant) -> None:
        return


class World:
    """`mind` decides, by default as the daemon does; `watcher` hears of each decision before it is carried out;
    `sizes` tells what profiles take."""

    def __init__(
        self,
        fleet: Iterable[NodeReport],
        catalog: Catalog,
        *,
        mind: Mind | None = None,
        seed: int = 0,
        rules: Rules | None = None,
        behaviours: Callable[[ModelName], Behaviour] | None = None,
        traffic: Iterable[Traffic] = (),
        faults: Iterable[Fault] = (),
        pushes: Iterable[Push] = (),
        sizes: Sizing | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self.rules = rules or Rules()
        self.random = Random(seed)
        self.agenda = Agenda(self.rules.began)
        self.tally = Tally()
        self.story: deque[str] = deque(maxlen=_STORY)
        self.network = True
        self._behaviours = behaviours or (lambda _: Behaviour())
        self._doomed: dict[ModelName, list[FailureKind]] = {}
        self._sizes = sizes or sizing()
        self._busy: set[ModelName] = set()
        self._quiet = False
        self.nodes = {report.node: SimNode(report, self) for report in sorted(fleet, key=lambda report: report.node)}
        self.gateway = SimGateway(self.agenda, self.tally, send=self._send, asked=lambda _: self.controller.trigger())
        self.controller = SimController(
            agenda=self.agenda,
            rules=self.rules,
            random=self.random,
            minds=_thinker if mind is None else lambda: mind,
            sizes=self._sizes,
            catalog=catalog,
            nodes=self.nodes,
            gateway=self.gateway,
            tally=self.tally,
            watcher=watcher or _Nobody(),
            tell=self.tell,
        )
        self.push(catalog)
        for one in traffic:
            self._next_request(one, self.agenda.true_wall)
        for fault in faults:
            self.agenda.after(fault.at, partial(self.happen, fault))
        for push in pushes:
            self.agenda.after(push.at, partial(self.push, push.catalog))

    # -- running

    def run(self, *, until: float) -> None:
        """All that happens until then, in seconds since the world began."""
        self.agenda.run(until)

    def cure(self) -> None:
        """No more requests come, and nothing fails any more that was bound to; what lasts goes on to its end."""
        self._quiet = True
        self._doomed.clear()

    def tell(self, text: str) -> None:
        self.story.append(f"{self.agenda.time:10.1f} {text}")

    # -- looking

    @property
    def replicas(self) -> list[SimReplica]:
        """Every one that agents know, in order of node and id."""
        return [node.replicas[id] for node in self.nodes.values() for id in sorted(node.replicas)]

    def ready(self, model: str) -> int:
        """Replicas of it that serve."""
        return sum(one.model == model and one.phase is Phase.READY for one in self.replicas if one.taken)

    def picture(self) -> list[str]:
        """What runs where, in lines."""
        lines = []
        for node in self.nodes.values():
            power = "" if node.up and not node.silent else " (down)" if not node.up else " (silent)"
            host = f"{format_bytes(node.host_taken())} + {format_bytes(node.foreign_host)} foreign"
            lines.append(f"{node.name}{power}: {host} of {format_bytes(node.total)}")
            for uuid, device in node.devices.items():
                used = f"{format_bytes(node.device_taken(uuid))} + {format_bytes(node.foreign_device[uuid])} foreign"
                lines.append(f"  {uuid}: {used} of {format_bytes(device.total)}")
            lines.extend(f"  {_described(replica)}" for replica in node.replicas.values())
        return lines

    # -- what its parts ask

    def behaviour(self, model: ModelName) -> Behaviour:
        return self._behaviours(model)

    def truth(self, assignment: Assignment) -> Footprint:
        reports = {name: node.report(self.agenda.now) for name, node in self.nodes.items()}
        _, footprints = self._sizes(self.controller.catalog, reports)
        counted = footprints.get((assignment.spec, assignment.level), assignment.footprint)
        takes = self.behaviour(assignment.model).takes
        return Footprint(host=Bytes(int(counted.host * takes)), device=Bytes(int(counted.device * takes)))

    def doomed(self, model: ModelName) -> FailureKind | None:
        waiting = self._doomed.get(model)
        return waiting.pop(0) if waiting else None

    def reported(self, node: SimNode) -> None:
        self.note_memory(node)
        if node.up and not node.silent:
            self.controller.trigger()

    def note_memory(self, node: SimNode) -> None:
        now = self.agenda.time
        self.tally.memory_is(now, node.name, HOST, node.host_taken() + node.foreign_host)
        for uuid in node.devices:
            self.tally.memory_is(now, node.name, uuid, node.device_taken(uuid) + node.foreign_device[uuid])

    def answered(self, request: Request) -> None:
        self.gateway.answered(request)
        self._look(request.model)

    def cut(self, request: Request) -> None:
        # Not at once: what it ran on is in the middle of ending.
        self.agenda.after(0, partial(self.gateway.cut, request))

    def _send(self, id: ReplicaId, request: Request) -> bool:
        for node in self.nodes.values():
            replica = node.replicas.get(id)
            if replica is not None:
                if not node.up or replica.taken is None or replica.phase not in (Phase.READY, Phase.DRAINING):
                    return False
                replica.take(request)
                self._look(request.model)
                return True
        return False

    def _look(self, model: ModelName) -> None:
        """Loads are read now and then: a pass soon where a model got busy or quiet, else a while later."""
        flying = [r for node in self.nodes.values() for r in node.replicas.values() if r.model == model and r.in_flight]
        busy = any(replica.waiting for replica in flying)
        changed = (model in self._busy) != busy
        (self._busy.add if busy else self._busy.discard)(model)
        self.controller.trigger(1.0 if changed else self.rules.looks_every)

    # -- traffic

    def _next_request(self, traffic: Traffic, at: float) -> None:
        """Plan the next arrival after `at` (true wall time): exponential gaps at the rate of the hour."""
        for _ in range(24 * 8):
            local = datetime.fromtimestamp(at, self.rules.zone)
            rate, change = traffic.rate_at(local), at + _until_change(traffic, local)
            if rate > 0:
                arrives = at + self.random.expovariate(rate)
                if arrives < change:
                    self.agenda.after(arrives - self.agenda.true_wall, partial(self._arrive, traffic))
                    return
            at = change

    def _arrive(self, traffic: Traffic) -> None:
        if self._quiet:
            return
        self.gateway.arrive(traffic.model, self.random.expovariate(1 / traffic.length))
        self._next_request(traffic, self.agenda.true_wall)

    def request(self, name: str, length: float) -> None:
        """One request, now."""
        self.gateway.arrive(name, length)

    # -- what happens

    def push(self, catalog: Catalog) -> None:
        """A catalog comes into force; agents look up its files a little later."""
        self.controller.catalog = catalog
        self.tell(f"catalog {catalog.revision}")
        self.controller.republish()
        self.controller.trigger()
        self.agenda.after(0.5, self._look_up)

    def _look_up(self) -> None:
        for node in self.nodes.values():
            if node.up:
                node.catalog = self.controller.catalog.digest
                self.reported(node)

    def happen(self, fault: Fault) -> None:
        """Something goes wrong, and comes right again where it lasts only so long."""
        self.tell(f"fault: {describe(fault)}")
        if (undo := self._begin(fault)) is not None:
            self.agenda.after(fault.lasts, partial(self._over, fault, undo))

    def _over(self, fault: Fault, undo: Callable[[], None]) -> None:
        self.tell(f"over: {describe(fault)}")
        undo()

    def _begin(self, fault: Fault) -> Callable[[], None] | None:
        match fault.kind:
            case FaultKind.CLOCK:
                self.agenda.jump(fault.seconds)
                self.controller.trigger()
            case FaultKind.CONTROLLER:
                self.controller.restart(everything=False)
            case FaultKind.DAEMON:
                self._restart_all()
            case FaultKind.CRASH:
                for replica in self.replicas:
                    if replica.model == fault.model and replica.phase is Phase.READY:
                        replica.crash(fault.failure)
                        break
            case FaultKind.FAIL_STARTS if fault.model is not None:
                self._doomed.setdefault(fault.model, []).extend([fault.failure] * fault.count)
            case FaultKind.NETWORK:
                self.network = False
                return partial(setattr, self, "network", True)
            case FaultKind.STOP:
                return self._stop()
            case _ if fault.node in self.nodes:
                return self._at_node(fault, self.nodes[fault.node])
        return None

    def _stop(self) -> Callable[[], None]:
        def undo() -> None:
            self.controller.stopped = None
            self.controller.trigger()

        self.controller.stopped = Stopped(at=self.agenda.now.wall, by="operator")
        self.controller.republish()
        self.controller.trigger()
        return undo

    def _at_node(self, fault: Fault, node: SimNode) -> Callable[[], None] | None:
        match fault.kind:
            case FaultKind.NODE_DOWN if node.up:
                self.controller.fall_silent(node.name)
                node.go_down()
                self.note_memory(node)
                return partial(self._come_up, node)
            case FaultKind.SILENT if not node.silent:
                self.controller.fall_silent(node.name)
                node.silent = True
                return partial(self._heard_again, node)
            case FaultKind.FOREIGN:
                self._grow(node, fault, 1)
                return partial(self._grow, node, fault, -1)
            case FaultKind.DISK:
                node.disk_foreign = Bytes(node.disk_foreign + fault.size)
                return partial(self._empty, node, fault.size)
            case FaultKind.CORDON | FaultKind.DRAIN:
                drain = fault.kind is FaultKind.DRAIN
                self.controller.cordons[node.name] = Cordon(at=self.agenda.now.wall, by="operator", drain=drain)
                self.controller.trigger()
                return partial(self._uncordon, node.name)
            case _:
                return None

    def _come_up(self, node: SimNode) -> None:
        node.come_up()
        node.catalog = self.controller.catalog.digest
        self.controller.tell_agents(anew=node.name)
        self.reported(node)

    def _heard_again(self, node: SimNode) -> None:
        node.silent = False
        self.controller.tell_agents(anew=node.name)
        self.reported(node)

    def _grow(self, node: SimNode, fault: Fault, sign: int) -> None:
        node.grew = True
        if fault.on_devices:
            for uuid in node.foreign_device:
                node.foreign_device[uuid] += sign * fault.size
        else:
            node.foreign_host += sign * fault.size
        self.reported(node)

    def _empty(self, node: SimNode, size: int) -> None:
        node.disk_foreign = Bytes(node.disk_foreign - size)
        self.reported(node)

    def _uncordon(self, name: NodeName) -> None:
        self.controller.cordons.pop(name, None)
        self.controller.trigger()

    def _restart_all(self) -> None:
        """`llmgw up` is killed and started again: clients' connections break, engines run on."""
        self.gateway.drop_all()
        for node in self.nodes.values():
            if node.up:
                node.restart_agent()
        self.controller.restart(everything=True)


def _described(replica: SimReplica) -> str:
    given = replica.assignment
    parts = [replica.model, replica.id, given.profile.name, given.level, replica.phase, f"want {given.want}"]
    takes = f"{format_bytes(given.footprint.host)} host, {format_bytes(given.footprint.device)} device"
    return " ".join([*map(str, parts), takes, *given.devices])


_SHOWN: Final[Mapping[str, Callable[[Any], str]]] = {
    "lasts": format_seconds,
    "seconds": format_seconds,
    "size": format_bytes,
}


def describe(fault: Fault) -> str:
    """In one line, with what was set."""
    plain = Fault(at=fault.at, kind=fault.kind)
    parts = [
        f"{name}={_SHOWN.get(name, str)(getattr(fault, name))}"
        for name in ("node", "model", "lasts", "size", "on_devices", "seconds", "count", "failure")
        if getattr(fault, name) != getattr(plain, name)
    ]
    return " ".join([str(fault.kind), *parts])


def _until_change(traffic: Traffic, local: datetime) -> float:
    """Seconds until its rate may be another: at most an hour, so that a night with a changed clock sorts itself out."""
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    into = (local - midnight) / timedelta(seconds=1)
    edges = [60 * minute for minute in (traffic.start, traffic.end, 1440) if 60 * minute > into]
    return max(0.001, min([*edges, into + HOUR]) - into)
