"""The store of several processes and machines: etcd 3.4 or newer.

What compares and writes is one etcd transaction; equal values are told apart inside it, so that they are no events.
Backlogs of slow watchers lie with etcd, which reads them from its history: nothing is queued here.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Final

import structlog
from aetcd import rpc

from llmgw.errors import LeaseLost, Resync, RetryableError, StaleRevision
from llmgw.store.address import Address
from llmgw.store.api import LARGEST, Change, Delete, Entry, Expect, Lease, Put, Snapshot, check_writes, size
from llmgw.store.etcd_calls import Calls
from llmgw.store.etcd_lease import EtcdLease
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
        # The comparison repeats the value: what is large is read first instead.
        once = sum(map(size, writes)) * 2 <= LARGEST
        try:
            return await (self._compare_inside(writes, expect) if once else self._compare_before(writes, expect))
        except LeaseLost:
            leases = [write.lease for write in writes if isinstance(write, Put) and write.lease is not None]
            if len(leases) == 1:
                leases[0].lost.set()
            raise

    async def _compare_inside(
        self, writes: Sequence[Put | Delete], expect: Sequence[Expect]
    ) -> tuple[int, dict[str, int]]:
        answer = await self._transact(
            [self._unless_equal(write) for write in writes], list(map(self._holds, expect)), expect
        )
        if answer is None:
            raise StaleRevision("what the write is conditional on changed meanwhile")
        parts = zip(writes, answer.responses, strict=True)
        equal = [(write.key, part.response_txn) for write, part in parts if isinstance(write, Put)]
        unchanged = {key: part.responses[0].response_range.kvs[0].mod_revision for key, part in equal if part.succeeded}
        return answer.header.revision, unchanged

    async def _compare_before(
        self, writes: Sequence[Put | Delete], expect: Sequence[Expect]
    ) -> tuple[int, dict[str, int]]:
        while True:
            unchanged = {write.key: found for write in writes if (found := await self._equal(write))}
            if len(unchanged) + len(expect) > MOST_COMPARES:
                unchanged = {}
            guards = [self._holds(Expect(key, revision)) for key, revision in unchanged.items()]
            requests = [self._plain(write) for write in writes if write.key not in unchanged]
            answer = await self._transact(requests, [*guards, *map(self._holds, expect)], expect)
            if answer is not None:
                return answer.header.revision, unchanged

    async def _transact(self, requests: Sequence[Any], compare: Sequence[Any], expect: Sequence[Expect]) -> Any:
        """Raises StaleRevision where `expect` does not hold; None: something else that was compared did not."""
        looks = [
            rpc.RequestOp(request_range=rpc.RangeRequest(key=self._key(condition.key), keys_only=True))
            for condition in expect
        ]
        request = rpc.TxnRequest(compare=compare, success=requests, failure=looks)
        answer = await self._calls.call("kv", "Txn", request, again=not expect)
        if answer.succeeded:
            return answer
        for condition, found in zip(expect, answer.responses, strict=True):
            kvs = found.response_range.kvs
            if (kvs[0].mod_revision if kvs else 0) != condition.revision:
                raise StaleRevision(f"{condition.key} changed meanwhile")
        return None

    async def _equal(self, write: Put | Delete) -> int:
        """The revision of the key where it is already as it is to be put, else 0."""
        if isinstance(write, Delete):
            return 0
        answer = await self._calls.call("kv", "Range", rpc.RangeRequest(key=self._key(write.key)), again=True)
        same = [kv for kv in answer.kvs if (kv.value, kv.lease) == (write.value, _id(write.lease))]
        return int(same[0].mod_revision) if same else 0

    def _unless_equal(self, write: Put | Delete) -> Any:
        if isinstance(write, Delete):  # of an absent key: no event anyway
            return self._plain(write)
        key = self._key(write.key)
        compare = [
            rpc.Compare(result=rpc.Compare.EQUAL, target=rpc.Compare.VALUE, key=key, value=write.value),
            rpc.Compare(result=rpc.Compare.EQUAL, target=rpc.Compare.LEASE, key=key, lease=_id(write.lease)),
        ]
        look = rpc.RequestOp(request_range=rpc.RangeRequest(key=key, keys_only=True))
        nested = rpc.TxnRequest(compare=compare, success=[look], failure=[self._plain(write)])
        return rpc.RequestOp(request_txn=nested)

    def _plain(self, write: Put | Delete) -> Any:
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
