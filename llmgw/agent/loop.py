"""The agent: assignments in, reports out."""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from prometheus_client import Metric

from llmgw.agent import launch, meters, orphans, owned, records, rotation, scopes
from llmgw.agent.around import LOG_SIZE, Around, WeightsCache
from llmgw.agent.ending import GRACE, leader_of
from llmgw.agent.fingerprints import Fingerprints
from llmgw.agent.ports import DEFAULT_PORTS, Ports
from llmgw.agent.process import is_alive
from llmgw.agent.records import Record
from llmgw.agent.replica import Replica
from llmgw.agent.report import Reporter
from llmgw.agent.scopes import Scopes
from llmgw.agent.timing import Times, Timing
from llmgw.agent.traffic import Traffic
from llmgw.agent.upkeep import Orders
from llmgw.agent.wanted import Wanted
from llmgw.clock import Clock
from llmgw.engine.manager import Engines
from llmgw.errors import TerminalError
from llmgw.facts import Event, Failure, Phase, Usage
from llmgw.ids import NodeName, ReplicaId, is_name
from llmgw.plan import Assignment, Want
from llmgw.statedir import StateDir
from llmgw.store import codec, keys
from llmgw.store.api import Change, Store
from llmgw.store.events import EventLog
from llmgw.store.follow import follow, listed
from llmgw.tasks import Tasks
from llmgw.units import Bytes
from llmgw.weights.doubt import Doubt
from llmgw.weights.upkeep import Upkeep

ANSWERS: Final = 1.0
"""Seconds that adopted engines get to answer before the first report: in it one that nobody has asked yet would look as
if it was starting, and its model, which it served all along, as if it was not to be had."""
UNCLAIMED: Final = 30.0
"""Seconds that a failed replica without an assignment is reported: time for the controller to take note."""


class Agent:
    """One node's. Starting it adopts what runs; cancelling `run` leaves the engines running."""

    def __init__(
        self,
        *,
        node: NodeName,
        store: Store,
        state: StateDir,
        cache: WeightsCache,
        engines: Engines,
        clock: Clock,
        events: EventLog,
        secret: bytes,
        host: str = "127.0.0.1",
        ports: range = DEFAULT_PORTS,
        grace: float = GRACE,
        timing: Timing = Timing(),  # noqa: B008 - a frozen value
        upkeep: Upkeep | None = None,
        log_size: Bytes = LOG_SIZE,
        scopes: Callable[[], Scopes] = scopes.look,
    ) -> None:
        """`grace`: seconds that an engine has between SIGTERM and SIGKILL. `upkeep`: of the cache, on request."""
        self._node = node
        self._store = store
        self._state = state
        self._cache = cache
        self._engines = engines
        self._clock = clock
        self._events = events
        self._secret = secret
        self._host = host
        self._ports = ports
        self._grace = grace
        self._times = Times(timing)
        self._upkeep = upkeep
        self._log_size = log_size
        self._scopes = scopes
        self._traffic = Traffic()
        self._wanted = Wanted()
        self._fingerprints = Fingerprints(engines)
        self._replicas: dict[ReplicaId, Replica] = {}
        self._reporter = Reporter(store, self._replicas, self._wanted)
        self._tasks = Tasks()
        self._running = False
        self._adopted = False
        self._leaving = False  #: the engines are to be stopped for good: nothing is started any more

    async def run(self) -> None:
        """Until cancelled, or until a part of it fails, which is raised. Closes all but the engines."""
        ports = Ports(self._ports, start=random.randrange(len(self._ports)))
        around = Around(
            node=self._node,
            state=self._state,
            cache=self._cache,
            engines=self._engines,
            clock=self._clock,
            events=self._events,
            secret=self._secret,
            host=self._host,
            grace=self._grace,
            ports=ports,
            traffic=self._traffic,
            times=self._times,
            log_size=self._log_size,
            scopes=await asyncio.to_thread(self._scopes),
            changed=self._reporter.changed,
            devices=self._reporter.devices,
            doubt=None if self._upkeep is None else Doubt(self._upkeep, self._clock),
        )
        self._running = True
        try:
            await self._run(around)
        finally:
            self._running = False
            await self._tasks.close()

    async def _run(self, around: Around) -> None:
        await self._adopt(around)
        adopted = tuple(self._replicas.values())
        # Before the first report: an engine that nobody asked yet would look unavailable.
        await self._fingerprints.look()
        assignments = keys.assignments(self._node)
        self._follow(keys.endpoints(self._node), self._endpoint_changed)
        self._follow(keys.USAGE, self._usage_changed)
        self._follow(keys.CATALOG, self._catalog_changed)
        self._follow(assignments, lambda change: self._assignment_changed(change, around))
        self._tasks.start(self._fingerprints.run(self._clock, self._reporter.changed), "agent: fingerprints")
        if orphans.come_to_us():
            self._tasks.start(orphans.run(self._clock, self._times.now.bury_every), "agent: orphans")
        if self._upkeep is not None:
            self._tasks.start(self._orders(self._upkeep).run(), "agent: upkeep", essential=True)
        self._tasks.start(rotation.run(around, self._logs), "agent: logs", essential=True)
        await self._heard(adopted)
        self._tasks.start(self._reporter.run(around, self._fingerprints), "agent: report", essential=True)
        await self._tasks.wait()

    def _orders(self, upkeep: Upkeep) -> Orders:
        return Orders(
            node=self._node,
            store=self._store,
            upkeep=upkeep,
            in_use=self._reporter.sources_in_use,
            clock=self._clock,
            record=self._events.record,
            changed=self._reporter.changed,
        )

    # -- at start

    async def _adopt(self, around: Around) -> None:
        found, unreadable = await asyncio.to_thread(_survey, self._state)
        for other in unreadable:
            self._tell("state unreadable", f"{other.directory} is left alone: {other.why}")
        for one in found:
            replica = Replica(one.record.assignment, around)
            if one.alive:
                replica.adopt(one.record)
            else:
                replica.lose(one.record, await _why_lost(one.record, around))
            self._admit(replica)
        self._adopted = True

    async def _heard(self, adopted: Iterable[Replica]) -> None:
        until = self._clock.now().mono + ANSWERS
        for replica in adopted:
            while replica.alive and replica.phase in (Phase.PLACING, Phase.STARTING):
                if self._clock.now().mono >= until:
                    return
                await self._clock.sleep(0.02)

    # -- what the store tells

    def _follow(self, prefix: str, changed: Callable[[Change], None]) -> None:
        self._tasks.start(self._watch(prefix, changed), f"agent: watch {prefix}", essential=True)

    async def _watch(self, prefix: str, changed: Callable[[Change], None]) -> None:
        snapshot = await listed(self._store, prefix)
        changes: Sequence[Change] = [Change(entry.key, entry.value, entry.revision) for entry in snapshot.entries]
        self._apply(changes, changed)
        async for changes in follow(self._store, prefix, snapshot):
            self._apply(changes, changed)

    def _apply(self, changes: Sequence[Change], changed: Callable[[Change], None]) -> None:
        for change in changes:
            try:
                changed(change)
            except TerminalError as error:  # a value of a newer version, say: the other keys still count
                self._tell("value refused", str(error))

    def _assignment_changed(self, change: Change, around: Around) -> None:
        id = ReplicaId(keys.last(change.key))
        replica = self._replicas.get(id)
        if change.value is None:
            if replica is not None:
                replica.assigned = False
                if replica.done.is_set():
                    self._tasks.start(self._forget(replica), f"agent: forget {id}")
            return
        assignment = codec.decode(change.value, Assignment, where=change.key)
        records.directory(self._state, id)  # refuses an id that is no file name
        if assignment.replica != id or assignment.node != self._node:
            raise TerminalError(f"{change.key} is about {assignment.replica} on {assignment.node}")
        if not is_name(assignment.model):  # a directory is named after it
            raise TerminalError(f"{change.key}: not a model's name: {assignment.model!r}")
        if replica is not None:
            replica.assign(assignment, change.revision)
        elif not (self._leaving and assignment.want is Want.RUN):
            replica = Replica(assignment, around)
            replica.assign(assignment, change.revision)
            self._admit(replica)

    def _endpoint_changed(self, change: Change) -> None:
        id = ReplicaId(keys.last(change.key))
        if id not in self._replicas:  # another node's
            return
        if change.value is None:
            self._traffic.withdrawn(id, change.revision)
        else:
            self._traffic.published(id)

    def _usage_changed(self, change: Change) -> None:
        usage = None if change.value is None else codec.decode(change.value, Usage, where=change.key)
        self._traffic.set_usage(keys.last(change.key), usage)
        for id, use in usage.replicas.items() if usage is not None else ():
            if (replica := self._replicas.get(id)) is not None:
                replica.used(now=use.outstanding > 0)

    def _catalog_changed(self, change: Change) -> None:
        part = change.key.startswith(keys.PARTS)  # the last may make whole what `catalog/applied` named before
        before = self._wanted.applied if part else None
        self._wanted.changed(change.key, change.value)
        if part and self._wanted.applied != before:
            self._reporter.changed()
        if change.key == keys.APPLIED:
            self._times.follow(self._wanted.supervision)
            if self._wanted.limits is not None:  # for the downloads under way too
                self._cache.limit(self._wanted.limits)
            self._reporter.changed()

    # -- replicas

    def _admit(self, replica: Replica) -> None:
        self._replicas[replica.id] = replica
        self._tasks.start(self._live(replica), f"agent: replica {replica.id}")
        self._reporter.changed()

    async def _live(self, replica: Replica) -> None:
        await replica.run()
        self._reporter.changed()
        if replica.phase is Phase.FAILED:
            self._fingerprints.doubt()
        if not replica.known and replica.phase is Phase.FAILED:
            await self._clock.sleep(UNCLAIMED)
        if not replica.assigned:
            await self._forget(replica)

    def _logs(self) -> dict[Path, ReplicaId]:
        return {replica.log: replica.id for replica in self._replicas.values() if not replica.done.is_set()}

    async def _forget(self, replica: Replica) -> None:
        if self._replicas.get(replica.id) is not replica:
            return
        await replica.forget()
        self._replicas.pop(replica.id, None)
        self._traffic.forget(replica.id)
        self._reporter.changed()

    @property
    def reported(self) -> asyncio.Event:
        """Set once the store has a report of this run: with what was taken over from an earlier one."""
        return self._reporter.told

    def collect(self) -> Iterable[Metric]:
        """Its metrics, for /metrics of a process of its own."""
        return meters.collect(replica.phase for replica in self._replicas.values())

    def serving(self) -> int:
        """Engine processes alive now; right after `run` has ended too."""
        return sum(replica.alive for replica in self._replicas.values())

    async def stop_engines(self, *, at_once: bool = False) -> int:
        """Drain each (for its drain time-out at most), end it, and start no other; how many ran.

        `at_once`: no drain and no grace; a later call with it hastens one under way. Call it while `run` runs: without,
        there is nobody to drain for and all are ended as `llmgw down` would.
        """
        self._leaving = True
        if not self._running:
            return await asyncio.to_thread(owned.end_replicas, self._state, lambda text: self._tell("stopping", text))
        while self._running and not self._adopted:
            await self._clock.sleep(0.05)
        left = [replica for replica in self._replicas.values() if not replica.done.is_set()]
        count = sum(replica.alive for replica in left)
        for replica in left:
            replica.stop()
            if at_once:
                replica.hasten()
        while self._running and not all(replica.done.is_set() for replica in left):
            await self._clock.sleep(0.05)
        return count

    def _tell(self, reason: str, message: str) -> None:
        now = self._clock.now().wall
        self._events.record(Event(at=now, subject=f"node/{self._node}", reason=reason, message=message))


@dataclass(frozen=True, slots=True)
class _Found:
    record: Record
    alive: bool


def _survey(state: StateDir) -> tuple[list[_Found], list[records.Unreadable]]:
    """What earlier agents left. An intent without a process was never carried out: it is removed."""
    read, unreadable = records.read_all(state)
    found: list[_Found] = []
    for record in read:
        if record.identity is None and record.failure is None:
            leader = leader_of(record.mark)
            if leader is None:
                records.remove(state, record.assignment.replica)
                continue
            record = replace(record, identity=leader)
            records.write(state, record)
        alive = record.failure is None and record.identity is not None and is_alive(record.identity)
        found.append(_Found(record, alive))
    return found, unreadable


async def _why_lost(record: Record, around: Around) -> Failure:
    if record.failure is not None:
        return record.failure
    return await asyncio.to_thread(launch.lost, record, around)
