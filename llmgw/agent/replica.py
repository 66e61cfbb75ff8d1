"""One replica: feeds its lifecycle what happens, and does what follows from it, one thing at a time."""

import asyncio
import random
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import structlog

from llmgw.agent import launch, starting
from llmgw.agent import lifecycle as life
from llmgw.agent.around import Around
from llmgw.agent.doubting import doubted
from llmgw.agent.ending import Target
from llmgw.agent.fetching import Fetching
from llmgw.agent.held import Held
from llmgw.agent.inventory import Resident
from llmgw.agent.lifecycle import Do, Lifecycle, Tell
from llmgw.agent.offers import NOTHING_SAID, offer_of
from llmgw.agent.records import Record
from llmgw.agent.vigil import Vigil
from llmgw.engine.api import Engine
from llmgw.errors import LlmgwError, TerminalError
from llmgw.facts import EngineLoad, Exit, Failure, FailureKind, Phase, ReplicaFact
from llmgw.plan import Assignment, Want
from llmgw.tasks import Tasks
from llmgw.units import Bytes, Mono

log = structlog.get_logger("llmgw.agent")

_RECONSIDERED: Final = 3.0
"""Seconds that the controller has to decide afresh on an eviction that was given up. Where it decides on the same, the
assignment does not change: that its endpoint is still withdrawn tells."""


class Replica:
    """Lives as long as `run` does; cancelling that leaves the process running.

    `assigned`: whether an assignment names it now; `known`: whether one ever did, since we run. `done`: no process is
    left, nothing more will happen.
    """

    def __init__(self, assignment: Assignment, around: Around) -> None:
        self.id = assignment.replica
        self.assignment = assignment
        self.assigned = self.known = False
        self.done = asyncio.Event()
        self._resident: Bytes | None = None
        self._resident_peak: Bytes | None = None
        self._device_resident: Bytes | None = None
        self._device_peak: Bytes | None = None
        self._served = False
        self._vigil: Vigil | None = None
        self._pids: Collection[int] = ()  #: its processes when last looked at
        self._around = around
        self._held = Held(assignment, around)
        self._life = Lifecycle(around.clock.now())
        self._inbox: asyncio.Queue[tuple[asyncio.Task[Any] | None, life.Event]] = asyncio.Queue()
        self._tasks = Tasks()
        self._doing: asyncio.Task[Any] | None = None
        self._working: set[asyncio.Task[Any]] = set()
        self._born = False
        self._files: Mapping[str, Path] = {}
        self._ready_by: Mono | None = None
        self._offer = NOTHING_SAID
        self._want = Want.RUN
        self._drain_timeout = assignment.drain_timeout
        self._asked: int | None = None  #: the store revision of the stop; None: not asked through the store
        self._hasty = False
        self._fetching = Fetching(assignment, around, self._tell)
        self._load: EngineLoad | None = None
        self._used = asyncio.Event()
        self._hurried = asyncio.Event()  #: somebody waits for its end
        self._judging = False  #: its process has ended, and why is about to be told

    # -- what it is told

    def assign(self, assignment: Assignment, revision: int) -> None:
        """The assignment as it stands at that store revision."""
        self.assigned = self.known = True
        self._drain_timeout = assignment.drain_timeout
        self._want = assignment.want
        if assignment.want is Want.STOP:
            self._asked = revision
            self._hurried.set()
            self._post(life.StopWanted(assignment.eviction))
        elif self._born:
            self._post(life.RunWanted())
        else:
            self._post(life.Assigned(needs_weights=bool(assignment.profile.roles)))
        self._born = True

    def adopt(self, record: Record) -> None:
        """Its process runs already. From the event loop."""
        self._born = True
        self._held.take_over(record)
        self._held.observe(self._ended)
        self._post(life.Adopted())

    def lose(self, record: Record, failure: Failure) -> None:
        """It ended while nobody watched."""
        self._born = True
        self._held.take_over(record)
        self._post(life.Lost(failure))

    def stop(self) -> None:
        """Because llmgw itself ends."""
        self._asked = None
        self._hurried.set()
        self._post(life.StopWanted())

    def hasten(self) -> None:
        """Wait for nothing: no drain, no grace."""
        self._hasty = True
        self._hurried.set()
        self._held.hasten()
        self._post(life.Hastened())

    def used(self, *, now: bool) -> None:
        """A gateway sent requests here; `now`: some are in flight, and its load is worth reading."""
        self._served = True
        if now:
            self._used.set()

    def sampled(self, resident: Resident, device: Bytes | None) -> None:
        """Its memory, as the inventory saw it. `device`: on accelerators; None: unknown."""
        self._pids = resident.pids
        self._held.look_at_groups(resident.pids)
        if not resident.pids:
            return
        self._resident, self._device_resident = resident.total, device
        self._resident_peak = max(self._resident_peak or Bytes(0), resident.total, resident.peak)
        if device is not None:
            self._device_peak = max(self._device_peak or Bytes(0), device)

    # -- what it tells

    @property
    def phase(self) -> Phase:
        return self._life.phase

    @property
    def target(self) -> Target | None:
        """What proves a process this replica's; None while there can be none."""
        return None if self._life.finished else self._held.target

    @property
    def log(self) -> Path:
        return self._held.log

    @property
    def alive(self) -> bool:
        """Whether its engine's process runs now."""
        return self._held.alive

    def fact(self) -> ReplicaFact:
        phase, record, assignment = self._life.phase, self._held.record, self.assignment
        running = record if record is not None and phase.occupies_memory else None
        return ReplicaFact(
            id=self.id,
            model=assignment.model,
            profile=assignment.profile.name,
            engine=assignment.profile.engine,
            node=self._around.node,
            spec=assignment.spec,
            revision=assignment.revision,
            phase=phase,
            since=self._life.since,
            level=assignment.level,
            launched=assignment.launched,
            devices=assignment.devices,
            exclusive=assignment.profile.exclusive,
            parallel=assignment.profile.parallel,
            slots=self._offer.slots,
            surfaces=self._offer.surfaces,
            draft=assignment.profile.draft_model,
            pid=running.identity.pid if running and running.identity else None,
            url=running.url if running else None,
            footprint=assignment.footprint,
            resident=self._resident if running else None,
            resident_peak=self._resident_peak,
            device_resident=self._device_resident if running else None,
            device_peak=self._device_peak,
            served=self._served,
            load=self._load if phase in (Phase.READY, Phase.DRAINING) else None,
            failure=self._life.failure,
            progress=self._fetching.progress if phase is Phase.FETCHING else None,
            coming=self._fetching.files if phase is Phase.FETCHING else (),
            adopted=self._life.adopted,
            kept_serving=self._life.kept_serving,
        )

    # -- its life

    async def run(self) -> None:
        """Until it is stopped or failed and nothing is left of it. Cancelled: its process stays as it is."""
        try:
            while not self._life.finished:
                source, event = await self._inbox.get()
                if source is None or source is self._doing:  # else: news from what it no longer does
                    self._step(event)
            if self._doing is not None:
                await asyncio.wait([self._doing])
        finally:
            self._held.let_go()
            await self._tasks.close()
        self.done.set()

    async def forget(self) -> None:
        """Remove what is left of a replica that is done."""
        await self._held.forget()

    def _step(self, event: life.Event) -> None:
        try:
            effects = self._life.step(event, self._around.clock.now())
        except life.IllegalTransition:  # our own fault; whatever the replica is doing goes on
            log.exception("illegal_transition", replica=self.id)
            return
        for effect in effects:
            self._perform(effect)
        self._around.changed()

    def _post(self, event: life.Event, source: asyncio.Task[Any] | None = None) -> None:
        self._inbox.put_nowait((source, event))

    def _tell(self, reason: str, message: str) -> None:
        said = f"{self.assignment.model}: {message}" if message else str(self.assignment.model)
        self._around.tell(self.id, reason, said)

    def _perform(self, effect: life.Effect) -> None:
        if isinstance(effect, Tell):
            self._tell(effect.reason, effect.message)
            return
        if self._doing is not None:
            self._doing.cancel()
        before = tuple(self._working)
        task = self._tasks.start(self._do(effect, before), f"replica {self.id}: {effect.name.lower()}")
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        self._doing = task

    async def _do(self, what: Do, before: tuple[asyncio.Task[Any], ...]) -> None:
        if before:  # cancelled already, but a fetch, say, has a child to end
            await asyncio.wait(before)
        handler = {
            Do.FETCH: self._fetch,
            Do.LAUNCH: self._launch,
            Do.PROBE: self._probe,
            Do.SERVE: self._serve,
            Do.DRAIN: self._drain,
            Do.END: self._end,
            Do.FINISH: self._finish,
        }[what]
        try:
            event = await handler()
        except Exception as error:
            log.exception("replica_step_failed", replica=self.id, step=what.name)
            if what is Do.END:
                await self._around.clock.sleep(1.0)
            event = life.Broke(self._held.failure(FailureKind.TERMINAL, f"{what.name.lower()}: {error!r}"))
        if event is not None:
            self._post(event, asyncio.current_task())

    # -- what it does, each ending in an event

    async def _fetch(self) -> life.Event | None:
        try:
            self._files = await self._fetching.run()
        except TerminalError as error:
            return life.FetchFailed(self._held.failure(FailureKind.TERMINAL, str(error)))
        except (LlmgwError, OSError) as error:
            return life.FetchFailed(self._held.failure(FailureKind.FETCH, str(error)))
        return life.WeightsReady()

    async def _launch(self) -> life.Event | None:
        try:
            record = await self._held.start(self._files)
        except TerminalError as error:
            return life.LaunchFailed(self._held.failure(FailureKind.TERMINAL, str(error)))
        except (LlmgwError, OSError) as error:
            return life.LaunchFailed(self._held.failure(FailureKind.NODE, f"cannot be started now: {error}"))
        # Posted before the process can be heard to have ended, so that the two arrive in this order.
        self._post(life.Launched(), asyncio.current_task())
        self._held.observe(self._ended)
        self._tell("launched", f"pid {record.identity.pid if record.identity else '?'}, port {record.port}")
        return None

    async def _probe(self) -> life.Event | None:
        clock, held = self._around.clock, self._held
        if self._ready_by is None:  # one deadline for all ports tried
            self._ready_by = Mono(clock.now().mono + self.assignment.start_timeout)
        try:
            engine = self._engine()
            self._offer = offer_of(engine, self.assignment.profile)
        except TerminalError as error:  # adopted, and its plugin is gone
            return life.ProbesFailed(held.failure(FailureKind.TERMINAL, str(error)))
        failure = await starting.until_ready(engine, self.assignment, held, clock, self._ready_by)
        if failure is not None:
            return None if self._judging else life.ProbesFailed(failure)
        return life.ProbesPassed() if held.alive else None

    async def _serve(self) -> life.Event | None:
        clock, began, timing = self._around.clock, self._around.clock.now().mono, self._around.timing
        vigil = self._watched()
        while True:
            self._used.clear()
            load = await self._read_load()
            self._served |= load is not None and load.running > 0
            if load != self._load:
                self._load = load
                self._around.changed()
            if (failure := await vigil.look(load, self._pids)) is not None:
                return life.Unwell(failure)
            if self._is_evicted_again() and clock.now().mono - began >= _RECONSIDERED:
                return life.StopWanted(eviction=True)
            used = (load is not None and load.running > 0) or self._around.traffic.outstanding(self.id) > 0
            if used or self._is_evicted_again():
                await clock.sleep(timing.look_used)
                continue
            with suppress(TimeoutError):  # not in step with the others that became ready when it did
                async with asyncio.timeout(timing.look_idle * random.uniform(0.8, 1.2)):
                    await self._used.wait()

    def _is_evicted_again(self) -> bool:
        wants_stop = self._life.kept_serving and self._want is Want.STOP
        return wants_stop and not self._around.traffic.is_published(self.id)

    def _watched(self) -> Vigil:
        """One for all its life: evictions that are given up must not begin the wait for a hang anew."""
        if self._vigil is None:
            self._vigil = Vigil(self.id, self._engine(), self.assignment.profile, self._held, self._around)
        return self._vigil

    def _engine(self) -> Engine:
        return launch.engine_of(self.assignment, self._around)

    async def _read_load(self) -> EngineLoad | None:
        engine = self._around.engines.by_name.get(self.assignment.profile.engine)
        if engine is None:
            return None
        at_most = self._around.timing.look_timeout
        return await self._held.asker().load(engine, self.assignment.profile, at_most=at_most)

    async def _drain(self) -> life.Event | None:
        clock, traffic = self._around.clock, self._around.traffic
        if self._hasty:
            return life.Hastened()
        deadline, wait = clock.now().mono + self._drain_timeout, 0.02
        vigil, look_at = self._watched(), Mono(clock.now().mono + self._around.timing.look_idle)
        while True:
            asked = self._asked
            quiet = traffic.outstanding(self.id) == 0 if asked is None else traffic.drained(self.id, asked)
            if quiet and await self._is_idle():
                return life.Drained()
            if clock.now().mono >= deadline:
                return life.DrainTimedOut()
            if clock.now().mono >= look_at:  # it may never finish what it has
                if (hang := await vigil.hang(await self._read_load(), self._pids)) is not None:
                    return life.Unwell(hang)
                look_at = Mono(clock.now().mono + self._around.timing.look_idle)
            await clock.sleep(wait)
            wait = min(0.25, wait * 1.5)

    async def _is_idle(self) -> bool:
        self._load = await self._read_load()
        return self._load is None or self._load.running + self._load.waiting == 0

    async def _end(self) -> life.Event | None:
        await self._held.end()
        return life.Gone()

    async def _finish(self) -> life.Event | None:
        await self._held.put_away(self._life.failure)
        return None

    def _ended(self, exit: Exit) -> None:
        if self._life.phase is not Phase.STOPPING:  # there, nobody asks why
            self._tasks.start(self._judge(exit), f"replica {self.id}: judge")

    async def _judge(self, exit: Exit) -> None:
        self._judging = True
        try:
            judged = await self._held.judge(exit)
            failure = judged.failure
            if judged.damaged:
                failure = await doubted(judged, self._life.phase, self.assignment, self._around, self._hurried)
        except Exception as error:
            log.exception("exit_not_judged", replica=self.id)
            failure = self._held.failure(FailureKind.CRASH, f"ended with {exit}; {error!r}")
            judged = launch.Judged(failure)
        self._post(life.Exited(failure, port_clash=judged.port_clash))
        self._judging = False
