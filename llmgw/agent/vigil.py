"""Watching over one engine that is ready: does it answer, and does it still do its work?"""

import asyncio
import random
from collections.abc import Collection
from typing import Final

from llmgw.agent import process
from llmgw.agent.around import Around
from llmgw.agent.held import Held
from llmgw.agent.pulse import Pulse, Signs
from llmgw.agent.timing import Timing
from llmgw.catalog.spec import ProfileSpec
from llmgw.engine.api import Engine, HttpRequest, Readiness
from llmgw.facts import EngineLoad, Failure, FailureKind
from llmgw.ids import ReplicaId
from llmgw.units import Mono, format_seconds

TRIES: Final = 3  #: probes that fail in a row and make a failure
_GLANCE: Final = 0.25  #: seconds between looks whether a client's request came while a probe is under way


class Vigil:
    """Made when the engine has become ready, or is to be drained; `look` is called again and again while it is ready.

    A hang: it answers nothing (`engine.load`, else the first of `engine.probes`) and makes no progress. Else now and
    then, soon after requests went wrong, and never while a request is in flight, all of `engine.probes` are sent again:
    health may be fine where decoding is not.
    """

    def __init__(self, replica: ReplicaId, engine: Engine, profile: ProfileSpec, held: Held, around: Around) -> None:
        self._replica = replica
        self._engine = engine
        self._probes = tuple(engine.probes(profile))
        self._held = held
        self._around = around
        self._pulse = Pulse(self._timing.hang_after)
        self._health_due = Mono(0.0)
        self._failed = 0  # probes in a row
        self._failures = around.traffic.failures(replica)
        self._heard = around.traffic.heard(replica)
        self._probed = self._now()  # it has just become ready
        # Engines adopted at once shall not all be probed at once.
        self._every = self._timing.probe_every
        self._due = Mono(self._probed + self._every * random.uniform(0.5, 1.0))

    async def look(self, load: EngineLoad | None, pids: Collection[int]) -> Failure | None:
        """`load`: as just read; None: unreadable, or it has none to tell. `pids`: its processes, as far as known.

        What it fails with, or None while all is well.
        """
        if (hang := await self.hang(load, pids)) is not None:
            return hang
        self._hear()
        if self._pulse.silent or self._now() < self._due or not self._is_idle(load):
            return None
        return await self._probe(load, pids)

    async def hang(self, load: EngineLoad | None, pids: Collection[int]) -> Failure | None:
        """As `look`, for hangs alone: while it is drained."""
        self._retime()
        if load is not None or await self._is_healthy() or self._works_unseen():
            self._pulse.answered()
        elif self._pulse.unanswered(self._now(), await self._signs(pids)):
            text = f"it has answered nothing for {format_seconds(self._timing.hang_after)} and made no progress"
            return self._held.failure(FailureKind.HANG, text, quote=True)
        return None

    @property
    def _timing(self) -> Timing:
        return self._around.timing

    def _retime(self) -> None:
        """The catalog's word may have changed."""
        self._pulse.limit = self._timing.hang_after
        if self._timing.probe_every != self._every:
            self._every = self._timing.probe_every
            self._due = Mono(self._now() + self._every * random.uniform(0.5, 1.0))

    def _now(self) -> Mono:
        return self._around.clock.now().mono

    # -- does it answer

    async def _is_healthy(self) -> bool:
        """Whether it answers at all, whatever it says. Asked in its load's place, and not as often."""
        if not self._probes or (not self._pulse.silent and self._now() < self._health_due):
            return True
        self._health_due = Mono(self._now() + self._timing.look_idle)
        answer = await self._held.asker().ask(self._probes[0], at_most=self._timing.look_timeout)
        return answer is not None

    def _works_unseen(self) -> bool:
        """Where another service runs it (a container's, say), what its own processes do cannot be seen from here."""
        elsewhere = self._held.record is not None and self._held.record.stop_argv is not None
        return elsewhere and self._around.traffic.outstanding(self._replica) > 0

    async def _signs(self, pids: Collection[int]) -> Signs:
        record = self._held.record
        leader = () if record is None or record.identity is None else (record.identity.pid,)
        spent = await asyncio.to_thread(lambda: [process.spent(pid) for pid in {*pids, *leader}])
        heard = self._around.traffic.heard(self._replica)
        return Signs(cpu=sum(one.cpu for one in spent), faults=sum(one.faults for one in spent), heard=heard)

    # -- does it work

    def _hear(self) -> None:
        """What gateways saw of it: bytes that came are as good as a probe; requests that went wrong call for one."""
        failures, heard = self._around.traffic.failures(self._replica), self._around.traffic.heard(self._replica)
        if failures > self._failures:
            self._due = min(self._due, Mono(self._probed + self._timing.probe_again))
        elif heard != self._heard and not self._failed:
            self._due = Mono(self._now() + self._timing.probe_every)
        self._failures, self._heard = failures, heard

    def _is_idle(self, load: EngineLoad | None) -> bool:
        running = load is not None and load.running + load.waiting > 0
        return not running and self._around.traffic.outstanding(self._replica) == 0

    async def _probe(self, load: EngineLoad | None, pids: Collection[int]) -> Failure | None:
        before = await self._signs(pids)
        for request in self._probes:
            answer = await self._undisturbing(request)
            self._probed = self._now()
            if answer is None:  # a client came: that is no time to look
                self._due = Mono(self._probed + self._timing.probe_again)
                return None
            readiness, said = answer
            if readiness is not Readiness.READY:
                return await self._not_well(readiness, said, load, before, pids)
        self._failed = 0
        self._due = Mono(self._probed + self._timing.probe_every)
        return None

    async def _undisturbing(self, request: HttpRequest) -> tuple[Readiness | None, str] | None:
        """What it says (no readiness: nothing). None: given up, for a request came that it is in the way of."""
        asker = self._held.asker()
        asking = asyncio.create_task(asker.check(self._engine, request))
        try:
            while not asking.done():
                await asyncio.wait([asking], timeout=_GLANCE)
                if self._around.traffic.outstanding(self._replica) > 0 and not asking.done():
                    return None
            return await asking
        finally:
            asking.cancel()
            await asyncio.wait([asking])

    async def _not_well(
        self, readiness: Readiness | None, said: str, load: EngineLoad | None, before: Signs, pids: Collection[int]
    ) -> Failure | None:
        self._due = Mono(self._probed + self._timing.probe_again)
        # Nobody can say that it had nothing else to do: it may be at the prompt of a client that has left.
        if readiness is None and load is None and (await self._signs(pids)).cpu > before.cpu:
            return None
        self._failed += 1
        text = f"it runs and does not do its work ({said})"
        if self._failed >= TRIES:
            kind = FailureKind.HANG if readiness is None else await self._held.ailment()
            return self._held.failure(kind, text, quote=True)
        self._around.tell(self._replica, "probe failed", f"{text}; {self._failed} of {TRIES}")
        return None
