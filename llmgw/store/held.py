"""Values that are true only while their writer lives: kept under its lease, and put anew where the lease was lost."""

import asyncio
from contextlib import suppress
from typing import Final, Protocol

import structlog

from llmgw.errors import LeaseLost, RetryableError, StaleRevision
from llmgw.store.api import Lease, Store
from llmgw.units import Seconds

log = structlog.get_logger("llmgw.store")

TTL: Final = Seconds(10.0)
"""Until a process that died is known to be gone."""

RETRY: Final = 0.5
"""Seconds until a store that was away is asked for a new lease again."""


class Writer(Protocol):
    """As much of a store as a part needs that only tells of itself."""

    async def put(self, key: str, value: bytes) -> object: ...

    async def delete(self, key: str) -> None: ...


class Held:
    """A Writer whose keys vanish `ttl` seconds after its process died."""

    def __init__(self, store: Store, ttl: Seconds = TTL) -> None:
        self._store = store
        self._ttl = ttl
        self._values: dict[str, bytes] = {}
        self._lease: Lease | None = None
        self._turn = asyncio.Lock()

    async def put(self, key: str, value: bytes) -> None:
        """Raises RetryableError when the store is away; the value is put with the next lease all the same."""
        async with self._turn:
            self._values[key] = value
            if self._lease is not None and not self._lease.lost.is_set():
                with suppress(LeaseLost):
                    await self._store.put(key, value, lease=self._lease)
                    return
            await self._renew()

    async def take(self, key: str, value: bytes) -> bool:
        """Put it where there is none; False: there is one. Raises RetryableError when the store is away."""
        async with self._turn:
            if self._lease is None or self._lease.lost.is_set():
                await self._renew()
            try:
                await self._store.put(key, value, if_revision=0, lease=self._lease)
            except StaleRevision:
                return False
            self._values[key] = value
            return True

    async def delete(self, key: str) -> None:
        """Raises RetryableError when the store is away: the key then goes with the lease."""
        async with self._turn:
            self._values.pop(key, None)
            await self._store.delete(key)

    async def run(self) -> None:
        """Keep the lease, and get another where it was lost, until cancelled."""
        while True:
            try:
                if self._lease is None or self._lease.lost.is_set():
                    async with self._turn:
                        await self._renew()
            except RetryableError as error:
                log.warning("presence_not_told", error=str(error))
                await asyncio.sleep(RETRY)
                continue
            lease = self._lease
            assert lease is not None, "renewed above"
            await lease.keep()
            log.warning("lease_lost")

    async def withdraw(self) -> None:
        """Remove everything now. A store that is away forgets it by itself."""
        async with self._turn:
            self._values.clear()
            if self._lease is not None:
                with suppress(RetryableError):
                    await self._lease.revoke()
                self._lease = None

    async def _renew(self) -> None:
        if self._lease is None or self._lease.lost.is_set():
            self._lease = await self._store.lease(self._ttl)
        for key, value in tuple(self._values.items()):
            await self._store.put(key, value, lease=self._lease)
