"""What the gateway has in flight and what waits, told to the store: agents drain by it, the controller knows by it what
is in use and what is waited for."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import structlog

from llmgw.clock import Clock
from llmgw.errors import RetryableError
from llmgw.facts import ReplicaUse, Usage
from llmgw.gateway.upstream import Target
from llmgw.ids import ModelName, ReplicaId
from llmgw.store import codec, keys
from llmgw.store.held import Writer
from llmgw.units import Wall

log = structlog.get_logger("llmgw.gateway")

PACE: Final = 1.0
"""Seconds between two writes, unless one is urgent."""


class UsageReport:
    """Writes `usage/<name>`: within a second of a change, at once when told to, never while nothing is new."""

    def __init__(
        self,
        store: Writer,
        clock: Clock,
        name: str,
        targets: Callable[[], Iterable[Target]],
        held: Callable[[], Mapping[ModelName, int]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._key = keys.usage(name)
        self._targets = targets
        self._held = held
        self._seen = 0
        self._told: tuple[int, tuple[tuple[ReplicaId, ReplicaUse], ...], Mapping[ModelName, int]] | None = None
        self._wake = asyncio.Event()
        self._urgent = asyncio.Event()

    def used(self) -> None:
        """Something is in flight that was not, or the reverse. On the request path: cheap."""
        if not self._wake.is_set():
            self._wake.set()

    def waits(self, model: ModelName) -> None:
        """A request waits for the model. The first of a model is told at once: nobody knows of it yet."""
        if self._told is None or model not in self._told[2]:
            self.hurry()
        else:
            self.used()

    def seen(self, revision: int, *, urgent: bool) -> None:
        """Endpoints are acted on as of this store revision. `urgent`: an agent waits to hear it."""
        self._seen = max(self._seen, revision)
        if urgent:
            self.hurry()

    def hurry(self) -> None:
        """Write at once: somebody waits for what is new."""
        self._urgent.set()
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._urgent.clear()
            try:
                busy = await self.publish()
            except RetryableError:
                busy = True
            if busy:  # what is in flight is in use now, also when nothing begins or ends
                self._wake.set()
            try:
                async with asyncio.timeout(PACE):
                    await self._urgent.wait()
            except TimeoutError:
                pass

    async def publish(self) -> bool:
        """Write the counts as they are now, if they are new. True: something is in flight."""
        now = self._clock.now().wall
        epoch = now - asyncio.get_running_loop().time()  # targets keep the loop's time: it is cheaper to read
        uses: dict[ReplicaId, ReplicaUse] = {}
        for target in self._targets():
            if target.outstanding or target.last_used is not None:
                last = now if target.outstanding else Wall(epoch + (target.last_used or 0.0))
                heard = None if target.heard is None else Wall(epoch + target.heard)
                uses[target.id] = ReplicaUse(
                    outstanding=target.outstanding, last_used=last, heard=heard, failures=target.failures
                )
        told = (self._seen, tuple(uses.items()), dict(self._held()))
        if told != self._told:
            usage = Usage(at=now, seen=self._seen, replicas=uses, held=told[2])
            await self._store.put(self._key, codec.encode(usage))
            self._told = told
        return any(use.outstanding for use in uses.values())

    async def withdraw(self) -> None:
        """This gateway is gone: nobody shall wait for its word."""
        try:
            await self._store.delete(self._key)
        except RetryableError as error:  # it goes with its lease, where it has one
            log.warning("usage_not_withdrawn", error=str(error))
