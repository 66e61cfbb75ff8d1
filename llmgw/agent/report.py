"""The node's report: written when something changed, and as a heartbeat."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

import structlog

from llmgw.agent import inventory
from llmgw.agent.around import Around
from llmgw.agent.devices import Devices, attribute, in_pid_namespace, used_by
from llmgw.agent.fingerprints import Fingerprints
from llmgw.agent.inventory import Resident, Sample
from llmgw.agent.replica import Replica
from llmgw.agent.wanted import Wanted
from llmgw.catalog.spec import WeightsSpec
from llmgw.errors import RetryableError
from llmgw.facts import DeviceFact, NodeReport
from llmgw.ids import Digest, ReplicaId
from llmgw.store import codec, keys
from llmgw.store.api import Store
from llmgw.weights.lookup import WantedSources
from llmgw.weights.naming import canonical

log = structlog.get_logger("llmgw.agent")

HEARTBEAT: Final = 5.0  #: seconds between samples of memory and disk, each reported
_AWAY: Final = 0.5  #: seconds until a report that the store could not take is tried again
_GAP: Final = 0.05  #: seconds between two reports at least: a burst of changes is one


class Reporter:
    """Builds and writes `nodes/<node>/report`."""

    def __init__(self, store: Store, replicas: Mapping[ReplicaId, Replica], wanted: Wanted) -> None:
        self._store = store
        self._replicas = replicas
        self._wanted = wanted
        self._changed = asyncio.Event()
        self.told = asyncio.Event()  #: a first report is in the store
        self._devices = Devices()
        self._last_look: tuple[DeviceFact, ...] = ()
        self._marked_for: Digest | None = None  #: the catalog whose weights were last marked as wanted

    def changed(self) -> None:
        """Have a report written soon."""
        self._changed.set()

    def devices(self) -> tuple[DeviceFact, ...]:
        """As they were when last looked at."""
        return self._last_look

    async def run(self, around: Around, engines: Fingerprints) -> None:
        """Until cancelled."""
        clock = around.clock
        (sample, devices), due = await self._sample(around), clock.now().mono + HEARTBEAT
        untold = False
        while True:
            self._changed.clear()
            try:
                await self._write(around, engines, sample, devices)
                self.told.set()
                untold = False
            except RetryableError as error:  # the store is away: engines serve on
                if not untold:
                    log.error("report_not_written", error=str(error))
                untold = True
                self._changed.set()
                await clock.sleep(_AWAY)
            await clock.sleep(_GAP)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due - clock.now().mono)):  # wait_for may swallow a cancellation
                    await self._changed.wait()
            if clock.now().mono >= due:
                try:
                    sample, devices = await self._sample(around)
                except OSError as error:  # the cache's disk does not answer, say: the last look has to do
                    log.warning("node_not_sampled", error=str(error))
                due = clock.now().mono + HEARTBEAT

    async def _sample(self, around: Around) -> tuple[Sample, tuple[DeviceFact, ...]]:
        targets = {id: target for id, replica in self._replicas.items() if (target := replica.target) is not None}
        sample = await asyncio.to_thread(inventory.sample, around.cache.root, targets)
        devices = await self._look_at_devices(around, sample.resident)
        for id, resident in sample.resident.items():
            if (replica := self._replicas.get(id)) is not None:
                replica.sampled(resident, used_by(devices, resident.pids))
        await self._mark(around)
        return sample, devices

    async def _mark(self, around: Around) -> None:
        self._marked_for = self._wanted.applied
        specs = (*self._wanted.specs(), *self._in_use())
        await asyncio.to_thread(around.cache.mark_wanted, specs, around.clock.now().wall)

    async def _look_at_devices(self, around: Around, resident: Mapping[ReplicaId, Resident]) -> tuple[DeviceFact, ...]:
        found = self._last_look = await self._devices.look(around.clock.now().mono)
        engaged = any(
            replica.assignment.profile.devices > 0 for replica in self._replicas.values() if replica.target is not None
        )
        pids = {id: one.pids for id, one in resident.items()}
        return attribute(found, pids, engaged=engaged, own_pids=in_pid_namespace())

    def sources_in_use(self) -> frozenset[str]:
        """Canonical: of all that the engines were started with."""
        return frozenset(canonical(spec.source) for spec in self._in_use())

    def _in_use(self) -> tuple[WeightsSpec, ...]:
        held = [replica.assignment.profile for replica in self._replicas.values() if not replica.done.is_set()]
        return tuple(spec for profile in held for spec in profile.roles.values())

    async def _write(
        self, around: Around, engines: Fingerprints, sample: Sample, devices: tuple[DeviceFact, ...]
    ) -> None:
        in_use, catalog = self._in_use(), self._wanted.applied
        if catalog != self._marked_for:  # what it wants no more was wanted until now
            await self._mark(around)
        weights = await asyncio.to_thread(around.cache.facts, (*self._wanted.specs(), *in_use))
        used = WantedSources(canonical(spec.source) for spec in in_use)
        report = NodeReport(
            node=around.node,
            at=around.clock.now().wall,
            memory=sample.memory,
            disk=sample.disk,
            engines=engines.facts,
            devices=devices,
            replicas=tuple(replica.fact() for _, replica in sorted(self._replicas.items())),
            catalog=catalog,
            unlisted=around.cache.unlisted,
            weights=tuple(replace(fact, in_use=fact.in_use or fact.source in used) for fact in weights),
        )
        await self._store.put(keys.report(around.node), codec.encode(report))
