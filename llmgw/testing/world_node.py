"""A simulated machine: its memory, devices and disk, and the engine processes on it.

What becomes of a replica is `agent.lifecycle`'s word: this carries its effects out in simulated time.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Protocol

from llmgw.agent import lifecycle as life
from llmgw.agent.lifecycle import Do, Lifecycle, Tell
from llmgw.catalog.spec import WeightsSpec
from llmgw.facts import (
    DeviceFact,
    DiskFact,
    EngineLoad,
    Failure,
    FailureKind,
    Footprint,
    MemoryFact,
    NodeReport,
    Phase,
    ReplicaFact,
    WeightsFact,
)
from llmgw.ids import Digest, ModelName, NodeName, ReplicaId
from llmgw.plan import Assignment, Want
from llmgw.testing.world_clock import Agenda
from llmgw.testing.world_values import Behaviour, Rules
from llmgw.units import Bytes, Instant, Wall
from llmgw.weights.lookup import on_node
from llmgw.weights.naming import canonical, entry_name, is_local

SERVING = frozenset({Phase.READY, Phase.DRAINING})


class Surroundings(Protocol):
    """What a machine asks of the world around it."""

    agenda: Agenda
    rules: Rules
    random: Random

    def behaviour(self, model: ModelName) -> Behaviour: ...

    def truth(self, assignment: Assignment) -> Footprint:
        """What its engine really takes."""
        ...

    def doomed(self, model: ModelName) -> FailureKind | None:
        """How its next start fails, if it does. Asked once for each start."""
        ...

    @property
    def network(self) -> bool: ...

    def reported(self, node: "SimNode") -> None:
        """Something worth a pass changed."""
        ...

    def answered(self, request: "Request") -> None: ...

    def cut(self, request: "Request") -> None:
        """It was on an engine that ended."""
        ...

    def tell(self, text: str) -> None: ...


@dataclass(slots=True, eq=False)
class Request:
    """One client's. `routed`: when it was sent to a replica; `held`: it had to wait for one, of `awaited` at last.

    `asks`: when on-demand models were asked for on its behalf.
    """

    model: ModelName
    name: str  #: that it asked for
    length: float
    arrived: float
    routed: float | None = None
    replica: ReplicaId | None = None
    held: bool = False
    awaited: ModelName | None = None
    asks: dict[ModelName, Wall] = field(default_factory=dict)
    decoding: bool = False
    done: bool = False


class SimReplica:
    """One replica on its node: agent's slot and engine process in one."""

    def __init__(self, assignment: Assignment, node: "SimNode", around: Surroundings) -> None:
        self.assignment = assignment
        self.assigned = True
        self.want = Want.RUN
        self.born = False
        self.served = False
        self.taken: Footprint | None = None  #: memory of its process; None: there is none
        self.peak: Footprint | None = None
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self._node = node
        self._around = around
        self._life = Lifecycle(around.agenda.now)
        self._doing = 0  #: what was planned for an earlier doing is void

    @property
    def id(self) -> ReplicaId:
        return self.assignment.replica

    @property
    def model(self) -> ModelName:
        return self.assignment.model

    @property
    def phase(self) -> Phase:
        return self._life.phase

    @property
    def finished(self) -> bool:
        return self._life.finished

    @property
    def in_flight(self) -> int:
        return len(self.running) + len(self.waiting)

    def fact(self) -> ReplicaFact:
        phase, peak, taken = self._life.phase, self.peak, self.taken
        devices = bool(self.assignment.devices)
        return replace(
            self.assignment.placing(self._life.since),
            phase=phase,
            url=f"http://{self.assignment.node}/{self.id}" if taken else None,
            resident=taken.host if taken else None,
            resident_peak=peak.host if peak else None,
            device_resident=taken.device if taken and devices else None,
            device_peak=peak.device if peak and devices else None,
            served=self.served,
            load=EngineLoad(running=len(self.running), waiting=len(self.waiting)) if phase in SERVING else None,
            failure=self._life.failure,
            adopted=self._life.adopted,
            kept_serving=self._life.kept_serving,
        )

    # -- what it is told

    def assign(self, assignment: Assignment) -> None:
        self.assigned, self.want = True, assignment.want
        self.assignment = replace(
            self.assignment, want=assignment.want, eviction=assignment.eviction, drain_timeout=assignment.drain_timeout
        )
        if assignment.want is Want.STOP:
            self.born = True
            self.post(life.StopWanted(assignment.eviction))
        elif self.born:
            self.post(life.RunWanted())
        else:
            self.born = True
            self.post(life.Assigned(needs_weights=bool(assignment.profile.roles)))

    def adopt(self) -> None:
        """The agent is new, the process is not."""
        self.assigned, self.want, self.born = False, Want.RUN, True
        self._life = Lifecycle(self._around.agenda.now)
        self.post(life.Adopted())

    def lose(self) -> None:
        """The machine went down under it. Found out when the agent is back."""
        self._doing += 1
        self._life = Lifecycle(self._around.agenda.now)
        self.assigned, self.want, self.born, self.taken = False, Want.RUN, True, None
        self._cut()

    def found_lost(self) -> None:
        self.post(life.Lost(self._failure(FailureKind.NODE, "the machine was restarted")))

    def crash(self, kind: FailureKind = FailureKind.CRASH) -> None:
        self.post(life.Exited(self._failure(kind, "it ended by itself")))

    def post(self, event: life.Event) -> None:
        before = self._life.phase
        for effect in self._life.step(event, self._around.agenda.now):
            if isinstance(effect, Tell):
                self._around.tell(f"{self.model} {self.id}: {effect.reason} {effect.message}".rstrip())
            else:
                self._doing += 1
                self._perform(effect)
        if self._life.phase is not before:
            self._node.changed()

    # -- what it does

    def _perform(self, effect: Do) -> None:
        match effect:
            case Do.FETCH:
                self._fetch()
            case Do.LAUNCH:
                self._launch()
            case Do.PROBE:
                self._later(0.5, life.ProbesPassed()) if self._life.adopted else None
            case Do.SERVE:
                self._serve()
            case Do.DRAIN:
                self._later(self.assignment.drain_timeout, life.DrainTimedOut())
                self._if_drained()
            case Do.END:
                self._cut()
                self._later(self._around.behaviour(self.model).stop, life.Gone())
            case Do.FINISH:
                self.taken = None

    def _later(self, seconds: float, event: life.Event) -> None:
        doing = self._doing
        self._around.agenda.after(seconds, lambda: self.post(event) if doing == self._doing else None)

    def _fetch(self) -> None:
        around, node = self._around, self._node
        wanted = [spec for spec in self.assignment.profile.roles.values() if not is_local(canonical(spec.source))]
        missing = [spec for spec in wanted if not node.has(spec.source, spec.sha256)]  # local files are there
        if missing and not around.network:
            self._later(5, life.FetchFailed(self._failure(FailureKind.FETCH, "the network is unreachable")))
            return
        size = sum(spec.size or 0 for spec in missing)
        if size > node.disk_free - self.assignment.disk_reserve:
            self._later(0.1, life.FetchFailed(self._failure(FailureKind.FETCH, "the disk is full")))
            return
        doing = self._doing

        def fetched() -> None:
            if doing != self._doing:
                return
            if sum(spec.size or 0 for spec in missing) > node.disk_free - self.assignment.disk_reserve:
                self.post(life.FetchFailed(self._failure(FailureKind.FETCH, "the disk is full")))
                return
            for spec in missing:
                node.keep(spec.source, spec.sha256, spec.size or Bytes(0))
            self.post(life.WeightsReady())

        around.agenda.after(size / around.rules.fetch_rate, fetched)

    def _launch(self) -> None:
        around, ways = self._around, self._around.behaviour(self.model)
        self.taken = self.peak = around.truth(self.assignment)
        self.post(life.Launched())
        start = ways.start * around.random.uniform(1 - around.rules.spread, 1 + around.rules.spread)
        timeout = self.assignment.start_timeout
        doomed = around.doomed(self.model)
        if self._node.exhausted(self):
            around.tell(f"{self.model} {self.id}: no memory is left for it on {self._node.name}")
            self._later(min(start, timeout) / 2, life.Exited(self._failure(FailureKind.OOM, "out of memory")))
        elif doomed is FailureKind.HANG or (doomed is None and start > timeout):
            self._later(timeout, life.ProbesFailed(self._failure(FailureKind.HANG, "not ready in time")))
        elif doomed is not None:
            self._later(min(start, timeout) / 2, life.Exited(self._failure(doomed, "it could not start")))
        else:
            self._later(start, life.ProbesPassed())

    def _serve(self) -> None:
        mean = self._around.behaviour(self.model).crashes
        if mean is not None:
            failure = self._failure(FailureKind.CRASH, "it ended by itself")
            self._later(self._around.random.expovariate(1 / mean), life.Exited(failure))

    def _failure(self, kind: FailureKind, reason: str) -> Failure:
        return Failure(kind=kind, reason=reason, at=self._around.agenda.now.wall)

    # -- requests

    def take(self, request: Request) -> None:
        """A gateway sends it here."""
        request.replica = self.id
        if len(self.running) < self.assignment.profile.parallel:
            self._decode(request)
        else:
            self.waiting.append(request)

    def _decode(self, request: Request) -> None:
        self.running.append(request)
        request.decoding = True
        self._around.agenda.after(request.length, lambda: self._answered(request))

    def _answered(self, request: Request) -> None:
        if request not in self.running:
            return  # it was cut before
        self.running.remove(request)
        self.served = request.done = True
        if self.waiting:
            self._decode(self.waiting.popleft())
        self._around.answered(request)
        self._if_drained()

    def _if_drained(self) -> None:
        if self._life.phase is Phase.DRAINING and not self.in_flight:
            self._later(0, life.Drained())

    def _cut(self) -> None:
        cut = [*self.running, *self.waiting]
        self.running.clear()
        self.waiting.clear()
        for request in cut:
            self._around.cut(request)


class SimNode:
    """One machine. `up`: it has power; `silent`: nobody hears its reports."""

    def __init__(self, report: NodeReport, around: Surroundings) -> None:
        self.name: NodeName = report.node
        self.total = report.memory.total
        self.foreign_host: int = report.memory.foreign
        self.devices = {device.uuid: device for device in report.devices}
        self.foreign_device = {device.uuid: int(device.foreign or 0) for device in report.devices}
        self.disk_total = report.disk.total
        self.disk_foreign = report.disk.total - report.disk.free
        self.engines = report.engines
        self.weights: list[WeightsFact] = []
        self._given = report.weights  #: their space is among what is not free already
        self.replicas: dict[ReplicaId, SimReplica] = {}
        self.up = True
        self.silent = False
        self.catalog: Digest | None = None
        self.grew = False  #: other programs took more since the world began
        self._around = around

    # -- what it has

    @property
    def disk_free(self) -> int:
        return max(0, self.disk_total - self.disk_foreign - sum(fact.size for fact in self.weights))

    def has(self, source: str, sha256: str | None) -> bool:
        return on_node((*self._given, *self.weights), WeightsSpec(source=source, sha256=sha256)) is not None

    def keep(self, source: str, sha256: str | None, size: Bytes) -> None:
        if not self.has(source, sha256):
            name = canonical(source)
            now = self._around.agenda.now.wall
            entry = entry_name(name, sha256)
            self.weights.append(WeightsFact(source=name, entry=entry, size=size, last_wanted=now, sha256=sha256))

    def host_taken(self) -> int:
        return sum(r.taken.host for r in self.replicas.values() if r.taken)

    def device_taken(self, uuid: str) -> int:
        return sum(share(r.taken, r.assignment.devices, uuid) for r in self.replicas.values() if r.taken)

    def exhausted(self, newest: SimReplica) -> bool:
        """Whether what runs, the newest included, is more than there is."""
        if self.host_taken() + self.foreign_host > self.total:
            return True
        return any(
            self.device_taken(uuid) + self.foreign_device[uuid] > self.devices[uuid].total
            for uuid in newest.assignment.devices
        )

    # -- what it says

    def report(self, now: Instant) -> NodeReport:
        taken = self.host_taken()
        return NodeReport(
            node=self.name,
            at=now.wall,
            memory=MemoryFact(
                total=self.total,
                available=Bytes(max(0, self.total - taken - self.foreign_host)),
                foreign=Bytes(self.foreign_host),
            ),
            disk=DiskFact(total=self.disk_total, free=Bytes(self.disk_free)),
            engines=self.engines,
            replicas=tuple(replica.fact() for replica in self.replicas.values()),
            weights=(*self._given, *self.weights),
            catalog=self.catalog,
            devices=tuple(self._device(device) for device in self.devices.values()),
        )

    def _device(self, device: DeviceFact) -> DeviceFact:
        foreign = self.foreign_device[device.uuid]
        used = self.device_taken(device.uuid) + foreign
        return replace(
            device, used=Bytes(used), free=Bytes(max(0, device.total - used)), foreign=Bytes(foreign), processes=()
        )

    def changed(self) -> None:
        self._around.reported(self)

    # -- what happens to it

    def hear(self, assignments: Mapping[ReplicaId, Assignment]) -> None:
        """The agent acts on the assignments addressed to it, as they stand."""
        if not self.up:
            return
        for id, assignment in sorted(assignments.items()):
            known = self.replicas.get(id)
            if known is None:
                known = self.replicas[id] = SimReplica(assignment, self, self._around)
                known.assign(assignment)
            elif not known.assigned or _differs(known.assignment, assignment):
                known.assign(assignment)

    def forget(self, ids: Iterable[ReplicaId]) -> None:
        """What has ended, and was seen to have."""
        for id in ids:
            self.replicas.pop(id, None)

    def restart_agent(self) -> None:
        """Processes run on and are adopted; what had none yet is forgotten."""
        for id, known in tuple(self.replicas.items()):
            if known.finished or known.phase is Phase.STOPPING:
                continue  # the record of a failure is kept; what is being ended has gone by then
            if known.taken is None:
                del self.replicas[id]
            else:
                known.adopt()

    def go_down(self) -> None:
        self.up = False
        for id, known in tuple(self.replicas.items()):
            had_process = known.taken is not None
            known.lose()
            if not had_process:
                del self.replicas[id]

    def come_up(self) -> None:
        self.up = True
        for known in tuple(self.replicas.values()):
            known.found_lost()


def share(taken: Footprint, devices: Iterable[str], uuid: str) -> int:
    """What of a footprint falls on one device: all of them carry the same."""
    used = tuple(devices)
    return -(-taken.device // len(used)) if uuid in used else 0


def _differs(known: Assignment, now: Assignment) -> bool:
    return (known.want, known.eviction) != (now.want, now.eviction)
