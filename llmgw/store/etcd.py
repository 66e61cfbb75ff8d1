"""The store of several processes and machines: etcd 3.4 or newer.

What is written is compared first, in the same transaction or as a condition of it, so that equal values are no events.
Backlogs of slow watchers lie with etcd, which reads them from its history: nothing is queued here.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Final

import structlog

from llmgw.errors import LeaseLost, Resync, RetryableError, StaleRevision
from llmgw.store.address import Address
from llmgw.store.api import LARGEST, Change, Delete, Entry, Expect, Lease, Put, Snapshot, check_writes, size
from llmgw.store.etcd_calls import Calls
from llmgw.store.etcd_lease import EtcdLease
from llmgw.store.etcd_rpc import rpc
from llmgw.store.etcd_watch import changes, end_of
from llmgw.units import Seconds

log = structlog.get_logger("llmgw.store")

RETRY: Final = 0.5
"""Seconds until a watch that broke off is tried again."""

MOST_COMPARES: Final = 128
"""Of one transaction, as etcd is delivered."""


class EtcdStore:
    """Keys under one prefix of an etcd cluster. Connects when first needed; `close` ends it for good."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._prefix = address.prefix
        self._calls = Calls(address)
        self._closed = asyncio.Event()

    async def get(self, key: str) -> Entry | None:
        answer = await self._calls.call("kv", "Range", rpc.RangeRequest(key=self._key(key)), again=True)
        return self._entry(answer.kvs[0]) if answer.kvs else None

    async def list(self, prefix: str) -> Snapshot:
        begin = self._key(prefix)
        request = rpc.RangeRequest(key=begin, range_end=end_of(begin))
        answer = await self._calls.call("kv", "Range", request, again=True)
        return Snapshot(tuple(map(self._entry, answer.kvs)), answer.header.revision)

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        if_revision: int | None = None,
        lease: Lease | None = None,
        expect: Sequence[Expect] = (),
    ) -> int:
        own = () if if_revision is None else (Expect(key, if_revision),)
        revision, unchanged = await self._write([Put(key, value, lease)], (*own, *expect))
        return unchanged.get(key, revision)

    async def delete(self, key: str) -> None:
        await self.txn([Delete(key)])

    async def txn(self, writes: Sequence[Put | Delete], *, expect: Sequence[Expect] = ()) -> int:
        revision, _ = await self._write(writes, expect)
        return revision

    async def watch(self, prefix: str, *, from_revision: int) -> AsyncIterator[Sequence[Change]]:
        position, cluster, away = from_revision, 0, False
        while not self._closed.is_set():
            try:
                async with aclosing(changes(self._calls, self._key(prefix), position)) as batches:
                    async for batch in batches:
                        if cluster not in (0, batch.cluster):
                            raise Resync("this is another etcd cluster than before")
                        position, cluster, away = batch.revision, batch.cluster, False
                        if batch.events:
                            yield [self._change(event) for event in batch.events]
            except Resync:
                raise
            except RetryableError as error:
                if not away and not self._closed.is_set():
                    log.warning("watch_broken", prefix=prefix, error=str(error))
                away = True
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not self._closed.is_set() or task is None or task.cancelling():
                    raise
                return  # `close` ended the call: gRPC tells it like this
            await _wait(self._closed, RETRY)

    async def lease(self, ttl: Seconds) -> EtcdLease:
        return await EtcdLease.grant(self._calls, ttl)

    async def close(self) -> None:
        self._closed.set()
        await self._calls.close()

    async def _write(self, writes: Sequence[Put | Delete], expect: Sequence[Expect]) -> tuple[int, dict[str, int]]:
        """The store's revision, and that of each key that had its value already."""
        check_writes(writes, expect)
        try:
            if not expect and len(writes) == 1 and isinstance(writes[0], Put) and 2 * size(writes[0]) <= LARGEST:
                return await self._put_unless_equal(writes[0])
            return await self._write_what_differs(writes, expect)
        except LeaseLost:
            leases = [write.lease for write in writes if isinstance(write, Put) and write.lease is not None]
            if len(leases) == 1:
                leases[0].lost.set()
            raise

    async def _put_unless_equal(self, write: Put) -> tuple[int, dict[str, int]]:
        """The most frequent write, at one go. The request has the value twice."""
        key = self._key(write.key)
        compare = [
            rpc.Compare(result=rpc.Compare.EQUAL, target=rpc.Compare.VALUE, key=key, value=write.value),
            rpc.Compare(result=rpc.Compare.EQUAL, target=rpc.Compare.LEASE, key=key, lease=_id(write.lease)),
        ]
        request = rpc.TxnRequest(compare=compare, success=[self._look(write.key, keys_only=True)])
        request.failure.append(self._request(write))
        answer = await self._calls.call("kv", "Txn", request, again=True)
        if not answer.succeeded:
            return answer.header.revision, {}
        (found,) = answer.responses[0].response_range.kvs
        return answer.header.revision, {write.key: found.mod_revision}

    async def _write_what_differs(
        self, writes: Sequence[Put | Delete], expect: Sequence[Expect]
    ) -> tuple[int, dict[str, int]]:
        """Read, then write what is not as it is to be, on condition that the rest still is.

        A transaction nested in another could compare and write each key at one go. But what such ones write etcd
        neither counts towards its quota nor checks the permission for.
        """
        while True:
            revision, unchanged = await self._equal(writes)
            if len(unchanged) + len(expect) > MOST_COMPARES:
                unchanged = {}
            requests = [self._request(write) for write in writes if write.key not in unchanged]
            if not requests and not expect:
                return revision, unchanged
            guards = [self._holds(Expect(key, revision)) for key, revision in unchanged.items()]
            answer = await self._transact(requests, [*guards, *map(self._holds, expect)], expect)
            if answer is not None:
                return answer.header.revision, unchanged

    async def _transact(self, requests: Sequence[Any], compare: Sequence[Any], expect: Sequence[Expect]) -> Any:
        """Raises StaleRevision where `expect` does not hold; None: something else that was compared did not."""
        looks = [self._look(condition.key, keys_only=True) for condition in expect]
        request = rpc.TxnRequest(compare=compare, success=requests, failure=looks)
        answer = await self._calls.call("kv", "Txn", request, again=not expect)
        if answer.succeeded:
            return answer
        for condition, found in zip(expect, answer.responses, strict=True):
            kvs = found.response_range.kvs
            if (kvs[0].mod_revision if kvs else 0) != condition.revision:
                raise StaleRevision(f"{condition.key} changed meanwhile")
        return None

    async def _equal(self, writes: Sequence[Put | Delete]) -> tuple[int, dict[str, int]]:
        """The store's revision, and that of each key that is already as it is to be put."""
        puts = [write for write in writes if isinstance(write, Put)]
        if writes and not puts:  # nothing is looked for, and the write tells the revision
            return 0, {}
        request = rpc.TxnRequest(success=[self._look(write.key) for write in puts])
        answer = await self._calls.call("kv", "Txn", request, again=True)
        unchanged: dict[str, int] = {}
        for write, response in zip(puts, answer.responses, strict=True):
            for kv in response.response_range.kvs:
                if (kv.value, kv.lease) == (write.value, _id(write.lease)):
                    unchanged[write.key] = kv.mod_revision
        return answer.header.revision, unchanged

    def _look(self, key: str, *, keys_only: bool = False) -> Any:
        return rpc.RequestOp(request_range=rpc.RangeRequest(key=self._key(key), keys_only=keys_only))

    def _request(self, write: Put | Delete) -> Any:
        key = self._key(write.key)
        if isinstance(write, Delete):
            return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))
        return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=write.value, lease=_id(write.lease)))

    def _holds(self, condition: Expect) -> Any:
        """Of an absent key etcd compares 0."""
        return rpc.Compare(
            result=rpc.Compare.EQUAL,
            target=rpc.Compare.MOD,
            key=self._key(condition.key),
            mod_revision=condition.revision,
        )

    def _key(self, key: str) -> bytes:
        return (self._prefix + key).encode()

    def _name(self, key: bytes) -> str:
        return key.decode(errors="replace")[len(self._prefix) :]

    def _entry(self, found: Any) -> Entry:
        return Entry(self._name(found.key), found.value, found.mod_revision)

    def _change(self, event: Any) -> Change:
        value = None if event.type == rpc.Event.DELETE else event.kv.value
        return Change(self._name(event.kv.key), value, event.kv.mod_revision)


def _id(lease: Lease | None) -> int:
    if lease is None:
        return 0
    assert isinstance(lease, EtcdLease), "a lease of another store"
    return lease.id


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
