"""A lease of etcd's."""

import asyncio
import math

import structlog

from llmgw.errors import LeaseLost, RetryableError
from llmgw.store.etcd_calls import Calls, NoAnswer
from llmgw.store.etcd_rpc import grpc, rpc
from llmgw.units import Seconds

log = structlog.get_logger("llmgw.store")


class EtcdLease:
    """etcd counts in whole seconds, and grants no less than one and a half election timeouts (2 s as delivered).

    While etcd has no leader no lease expires, and a new leader gives each its whole time again.
    """

    def __init__(self, calls: Calls, id: int, ttl: Seconds) -> None:
        self._calls = calls
        self.id = id
        self.ttl = ttl
        self.lost = asyncio.Event()

    @classmethod
    async def grant(cls, calls: Calls, ttl: Seconds) -> "EtcdLease":
        request = rpc.LeaseGrantRequest(TTL=math.ceil(ttl))
        # One that was granted without our hearing of it expires by itself.
        answer = await calls.call("lease", "LeaseGrant", request, again=True)
        return cls(calls, answer.ID, Seconds(float(answer.TTL)))

    async def keep(self) -> None:
        away = False
        while not self.lost.is_set():
            try:
                async with self._calls.stream("lease", "LeaseKeepAlive") as stream:
                    while await self._refresh(stream):
                        away = False
                        await self._rest(self.ttl / 3)
            except RetryableError as error:
                if not away:
                    log.warning("lease_not_kept", error=str(error))
                away = True
                await self._rest(min(0.5, self.ttl / 6))

    async def revoke(self) -> None:
        self.lost.set()
        try:
            await self._calls.call("lease", "LeaseRevoke", rpc.LeaseRevokeRequest(ID=self.id), again=True)
        except LeaseLost:
            pass

    async def _refresh(self, stream: "grpc.aio.StreamStreamCall") -> bool:
        if self.lost.is_set():
            return False
        async with self._calls.exchange():
            await stream.write(rpc.LeaseKeepAliveRequest(ID=self.id))
            answer = await stream.read()
        if answer is grpc.aio.EOF:
            raise NoAnswer("etcd ended the stream that keeps leases")
        if answer.TTL <= 0:
            self.lost.set()
        return not self.lost.is_set()

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.lost.wait()
        except TimeoutError:
            pass
