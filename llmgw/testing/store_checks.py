"""What every store must do. One suite for all of them, exported for whoever writes another:

@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
async def test_my_store(check):
    await check(StoreCase(open=my_empty_store, reopen=the_same_data_again))
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from llmgw.errors import LeaseLost, StaleRevision
from llmgw.store.api import LARGEST, MOST_WRITES, Change, Delete, Expect, Lease, Put, Store, ValueTooLarge
from llmgw.store.follow import follow
from llmgw.units import Seconds

WITHIN: Final = 5.0
"""Seconds in which a change reaches a watcher."""

DURABLE_KEY: Final = "settings/stopped"
REBUILT_KEY: Final = "endpoints/r1"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCase:
    """`open` gives a new, empty store; `reopen` another over the same data, once the first was closed.

    None: nothing outlives the store. `keeps_all`: whatever is not under a lease does, not the durable keys alone.
    `ttl`: of the shortest lease, in seconds; `grace`: how much later than that it may end.
    """

    open: Callable[[], Awaitable[Store]]
    reopen: Callable[[], Awaitable[Store]] | None = None
    keeps_all: bool = False
    ttl: Seconds = Seconds(0.2)
    grace: Seconds = Seconds(0.3)


@asynccontextmanager
async def opened(make: Callable[[], Awaitable[Store]]) -> AsyncIterator[Store]:
    store = await make()
    try:
        yield store
    finally:
        await store.close()


class Watch:
    """A watch as a list: `until(n)` gives the first n changes."""

    def __init__(self, store: Store, prefix: str, from_revision: int) -> None:
        self._iterator = store.watch(prefix, from_revision=from_revision)
        self.seen: list[Change] = []

    async def until(self, count: int) -> list[Change]:
        while len(self.seen) < count:
            async with asyncio.timeout(WITHIN):
                self.seen.extend(await anext(self._iterator))
        return self.seen

    async def aclose(self) -> None:
        await close_iterator(self._iterator)


async def close_iterator(iterator: AsyncIterator[Sequence[Change]]) -> None:
    """What the end of `async for` leaves to the garbage collector, done now."""
    if isinstance(iterator, AsyncGenerator):
        await iterator.aclose()


async def refused(attempt: Awaitable[object]) -> None:
    try:
        await attempt
    except StaleRevision:
        return
    raise AssertionError("a write whose condition does not hold was carried out")


async def check_what_is_put_is_got(case: StoreCase) -> None:
    async with opened(case.open) as store:
        assert await store.get("a/x") is None
        revision = await store.put("a/x", b"1")
        entry = await store.get("a/x")
        assert entry is not None
        assert (entry.key, entry.value, entry.revision) == ("a/x", b"1", revision)
        await store.delete("a/x")
        assert await store.get("a/x") is None


async def check_revisions_grow_over_all_keys(case: StoreCase) -> None:
    async with opened(case.open) as store:
        seen = [await store.put(key, value) for key, value in (("a", b"1"), ("b", b"1"), ("a", b"2"))]
        await store.delete("b")
        seen.append(await store.put("b", b"1"))
        assert seen == sorted(set(seen))
        assert seen[-1] > seen[-2] + 1, "a deletion has a revision of its own"


async def check_compare_and_set(case: StoreCase) -> None:
    async with opened(case.open) as store:
        first = await store.put("k", b"a", if_revision=0)
        await refused(store.put("k", b"b", if_revision=0))
        second = await store.put("k", b"b", if_revision=first)
        await refused(store.put("k", b"c", if_revision=first))
        await refused(store.put("absent", b"c", if_revision=second))
        entry = await store.get("k")
        assert entry is not None
        assert entry.value == b"b"
        await store.delete("k")
        await store.put("k", b"d", if_revision=0)


async def check_a_condition_holds_even_where_the_value_would_not_change(case: StoreCase) -> None:
    async with opened(case.open) as store:
        first = await store.put("k", b"a")
        await refused(store.put("k", b"a", if_revision=first + 1))


async def check_a_transaction_writes_all_or_nothing(case: StoreCase) -> None:
    async with opened(case.open) as store:
        held = await store.put("held", b"1")
        await store.put("gone", b"1")
        writes: list[Put | Delete] = [Put("one", b"1"), Put("two", b"2"), Delete("gone")]
        await refused(store.txn(writes, expect=[Expect("held", held), Expect("absent", held)]))
        assert await store.get("one") is None
        assert await store.get("gone") is not None
        revision = await store.txn(writes, expect=[Expect("held", held), Expect("absent", 0)])
        entries = (await store.list("")).entries
        assert [(e.key, e.revision) for e in entries] == [("held", held), ("one", revision), ("two", revision)]


async def check_a_transaction_that_writes_a_key_twice_is_an_error(case: StoreCase) -> None:
    async with opened(case.open) as store:
        try:
            await store.txn([Delete("k"), Put("k", b"1")])
        except ValueError:
            return
        raise AssertionError("which of two writes of one key counts is anybody's guess")


async def check_an_equal_value_is_no_event_and_no_revision(case: StoreCase) -> None:
    async with opened(case.open) as store:
        first = await store.put("k", b"a")
        async with aclosing(Watch(store, "", first)) as watch:
            assert await store.put("k", b"a") == first
            await store.delete("absent")
            await store.txn([Put("k", b"a"), Delete("absent")])
            assert await store.txn([Put("k", b"a")]) == await store.txn([]) == first
            assert await store.txn([Put("k", b"a")], expect=[Expect("k", first)]) == first
            last = await store.put("other", b"b")
            assert await watch.until(1) == [Change("other", b"b", last)]


async def check_a_list_is_in_key_order_and_by_prefix(case: StoreCase) -> None:
    async with opened(case.open) as store:
        for key in ("m/b", "n/a", "m/a", "m", "m/a/x"):
            await store.put(key, key.encode())
        snapshot = await store.list("m/")
        assert [entry.key for entry in snapshot.entries] == ["m/a", "m/a/x", "m/b"]
        assert (await store.list("nothing/")).entries == ()
        await store.put("m/c", b"later")
        assert len(snapshot.entries) == 3


async def check_a_watch_tells_changes_in_order(case: StoreCase) -> None:
    async with opened(case.open) as store, aclosing(Watch(store, "w/", 0)) as watch:
        first = await store.put("w/a", b"1")
        await watch.until(1)
        await store.put("elsewhere", b"1")
        second = await store.put("w/b", b"2")
        await watch.until(2)
        await store.delete("w/a")
        await watch.until(3)
        third = await store.put("w/b", b"3")
        changes = await watch.until(4)
        assert changes[:2] == [Change("w/a", b"1", first), Change("w/b", b"2", second)]
        assert (changes[2].key, changes[2].value) == ("w/a", None)
        assert changes[3] == Change("w/b", b"3", third)
        assert [change.revision for change in changes] == sorted(change.revision for change in changes)


async def check_a_watch_from_a_snapshot_misses_nothing(case: StoreCase) -> None:
    async with opened(case.open) as store:
        await store.put("w/kept", b"1")
        await store.put("w/deleted", b"1")
        snapshot = await store.list("w/")
        # All of this happens before the watch begins: deletions too must not be lost.
        await store.delete("w/deleted")
        await store.put("w/new", b"1")
        async with aclosing(Watch(store, "w/", snapshot.revision)) as watch:
            changes = await watch.until(2)
        assert [(change.key, change.value) for change in changes] == [("w/deleted", None), ("w/new", b"1")]


async def check_a_transaction_arrives_in_one_batch(case: StoreCase) -> None:
    async with opened(case.open) as store:
        iterator = store.watch("t/", from_revision=0)
        pending = asyncio.ensure_future(anext(iterator))
        await asyncio.sleep(0)
        revision = await store.txn([Put("t/a", b"1"), Put("t/b", b"2")])
        async with asyncio.timeout(WITHIN):
            batch = await pending
        assert sorted((change.key, change.revision) for change in batch) == [("t/a", revision), ("t/b", revision)]
        await close_iterator(iterator)


async def check_a_slow_watcher_ends_with_the_latest(case: StoreCase) -> None:
    async with opened(case.open) as store, aclosing(Watch(store, "s/", 0)) as watch:
        await store.put("s/begin", b"")
        await watch.until(1)
        for number in range(500):
            await store.put("s/a", str(number).encode())
            await store.put("s/b", str(number).encode())
        while watch.seen[-1].value != b"499" or watch.seen[-1].key != "s/b":
            await watch.until(len(watch.seen) + 1)
        latest = {change.key: change.value for change in watch.seen}
        assert latest == {"s/begin": b"", "s/a": b"499", "s/b": b"499"}
        revisions = [change.revision for change in watch.seen]
        assert revisions == sorted(revisions)


async def check_two_watchers_see_the_same(case: StoreCase) -> None:
    async with (
        opened(case.open) as store,
        aclosing(Watch(store, "", 0)) as one,
        aclosing(Watch(store, "", 0)) as other,
    ):
        await store.put("k", b"1")
        assert await one.until(1) == await other.until(1)


async def check_closing_ends_watches_and_is_idempotent(case: StoreCase) -> None:
    store = await case.open()

    async def consume() -> None:
        async for _ in store.watch("", from_revision=0):
            pass

    task = asyncio.ensure_future(consume())
    await asyncio.sleep(0)
    await store.close()
    async with asyncio.timeout(WITHIN):
        await task
    await store.close()


async def check_durable_keys_outlive_the_store(case: StoreCase) -> None:
    if case.reopen is None:
        return
    history = [f"catalog/history/{number:08d}" for number in range(12)]
    async with opened(case.open) as store:
        await store.put(DURABLE_KEY, b"thrown")
        await store.put("settings/deleted", b"1")
        await store.put(REBUILT_KEY, b"1")
        await store.txn([Put(key, key.encode()) for key in history])
        await store.txn([Delete("settings/deleted"), Put("settings/both", b"2")])
        await store.put("settings/" + "long" * 60, b"long")
        await store.put("settings/odd ~name\u00e9%2F..", b"odd\n\x00")
    async with opened(case.reopen) as store:
        kept = {entry.key: entry.value for entry in (await store.list("settings/")).entries}
        assert kept == {
            DURABLE_KEY: b"thrown",
            "settings/both": b"2",
            "settings/" + "long" * 60: b"long",
            "settings/odd ~name\u00e9%2F..": b"odd\n\x00",
        }
        assert [entry.key for entry in (await store.list("catalog/history/")).entries] == history
        assert (await store.get(REBUILT_KEY) is not None) is case.keeps_all
        revision = await store.put(DURABLE_KEY, b"again")
        assert revision > max(entry.revision for entry in (await store.list("catalog/")).entries)


async def check_a_large_value_is_taken_whole_or_refused(case: StoreCase) -> None:
    async with opened(case.open) as store:
        largest = bytes(range(250)) * ((LARGEST - len("large")) // 250)
        await store.put("large", largest)
        entry = await store.get("large")
        assert entry is not None
        assert entry.value == largest
        for writes in (
            [Put("larger", largest + b"x" * 500)],
            [Put("half", largest[: LARGEST // 2]), Put("more", largest)],
        ):
            try:
                await store.txn(writes)
            except ValueTooLarge:
                continue
            raise AssertionError(f"{writes[0].key} is larger than a store takes")
        assert len((await store.list("")).entries) == 1


async def check_a_large_equal_value_is_no_event_either(case: StoreCase) -> None:
    async with opened(case.open) as store:
        value = b"v" * (LARGEST - 10_000)
        first = await store.put("k", value)
        other = await store.put("other", b"1")
        assert await store.put("k", value) == first
        assert await store.txn([Put("k", value), Put("new", b"1")], expect=[Expect("other", other)]) > other
        entry = await store.get("k")
        assert entry is not None
        assert entry.revision == first
        await refused(store.put("k", value, if_revision=other))
        await refused(store.put("k", value[1:], expect=[Expect("absent", 7)]))
        assert await store.put("k", value[1:], if_revision=first) > other


async def check_a_transaction_takes_so_many_writes_and_no_more(case: StoreCase) -> None:
    async with opened(case.open) as store:
        writes = [Put(f"k/{number:03}", b"1") for number in range(MOST_WRITES)]
        await store.txn(writes, expect=[Expect(write.key, 0) for write in writes])
        try:
            await store.txn([*writes, Delete("one/more")])
        except ValueError:
            return
        raise AssertionError("more writes than a transaction takes")


async def check_a_put_may_be_conditional_on_other_keys(case: StoreCase) -> None:
    async with opened(case.open) as store:
        held = await store.put("held", b"1")
        first = await store.put("k", b"1", expect=[Expect("held", held)])
        assert await store.put("k", b"1", expect=[Expect("held", held)]) == first
        await store.put("held", b"2")
        await refused(store.put("k", b"2", expect=[Expect("held", held)]))
        await refused(store.put("k", b"1", if_revision=first, expect=[Expect("held", held)]))


async def ended(case: StoreCase, lease: Lease, store: Store, key: str) -> None:
    """Until the key is gone, which is not long after its lease's time."""
    async with asyncio.timeout(lease.ttl + case.grace):
        there = await store.list(key)
        if not there.entries:
            return
        async with aclosing(Watch(store, key, there.revision)) as watch:
            (change,) = await watch.until(1)
    assert change.value is None


async def check_a_lease_that_nobody_keeps_ends_with_its_keys(case: StoreCase) -> None:
    async with opened(case.open) as store:
        lease = await store.lease(case.ttl)
        assert lease.ttl >= case.ttl
        kept = await store.put("l/kept", b"1")
        first = await store.put("l/a", b"1", lease=lease)
        await store.txn([Put("l/b", b"1", lease)])
        async with aclosing(Watch(store, "l/", first - 1)) as watch:
            await watch.until(2)
            await asyncio.sleep(lease.ttl / 2)
            assert await store.get("l/a") is not None
            await ended(case, lease, store, "l/b")
            assert {(change.key, change.value) for change in (await watch.until(4))[2:]} == {
                ("l/a", None),
                ("l/b", None),
            }
        assert [(e.key, e.revision) for e in (await store.list("l/")).entries] == [("l/kept", kept)]
        async with asyncio.timeout(WITHIN):
            await lease.keep()
        assert lease.lost.is_set()


async def check_a_lease_that_is_kept_outlives_its_time(case: StoreCase) -> None:
    async with opened(case.open) as store:
        lease = await store.lease(case.ttl)
        await store.put("l", b"1", lease=lease)
        keeping = asyncio.ensure_future(lease.keep())
        await asyncio.sleep(lease.ttl + case.grace + 0.1)
        assert await store.get("l") is not None
        assert not lease.lost.is_set()
        keeping.cancel()
        await asyncio.wait([keeping])
        await ended(case, lease, store, "l")


async def check_a_revoked_lease_takes_its_keys_at_once(case: StoreCase) -> None:
    async with opened(case.open) as store:
        lease = await store.lease(Seconds(60))
        await store.put("l", b"1", lease=lease)
        keeping = asyncio.ensure_future(lease.keep())
        await asyncio.sleep(0)
        await lease.revoke()
        assert await store.get("l") is None
        assert lease.lost.is_set()
        async with asyncio.timeout(WITHIN):
            await keeping
        await lease.revoke()


async def check_a_lease_that_ended_takes_no_more_keys(case: StoreCase) -> None:
    async with opened(case.open) as store:
        lease = await store.lease(Seconds(60))
        await lease.revoke()
        for attempt in (store.put("l", b"1", lease=lease), store.txn([Put("other", b"1"), Put("l", b"1", lease)])):
            try:
                await attempt
            except LeaseLost:
                continue
            raise AssertionError("a key was put under a lease that ended")
        assert (await store.list("")).entries == ()


async def check_an_equal_value_under_another_lease_is_a_write(case: StoreCase) -> None:
    async with opened(case.open) as store:
        before, after = await store.lease(Seconds(60)), await store.lease(Seconds(60))
        first = await store.put("l", b"1", lease=before)
        assert await store.put("l", b"1", lease=before) == first
        assert await store.put("l", b"1", lease=after) > first
        await before.revoke()
        assert await store.get("l") is not None
        await after.revoke()
        assert await store.get("l") is None


async def check_a_put_without_a_lease_takes_the_key_out_of_it(case: StoreCase) -> None:
    async with opened(case.open) as store:
        lease = await store.lease(Seconds(60))
        await store.put("l", b"1", lease=lease)
        await store.put("l", b"1")
        await lease.revoke()
        assert await store.get("l") is not None


async def check_following_goes_on_through_changes(case: StoreCase) -> None:
    async with opened(case.open) as store:
        await store.put("f/a", b"1")
        following = follow(store, "f/", await store.list("f/"))
        await store.put("f/b", b"1")
        await store.delete("f/a")
        seen: list[tuple[str, bytes | None]] = []
        async with asyncio.timeout(WITHIN):
            while len(seen) < 2:
                seen += [(change.key, change.value) for change in await anext(following)]
        assert seen == [("f/b", b"1"), ("f/a", None)]
        await close_iterator(following)


STORE_CHECKS: Final[tuple[Callable[[StoreCase], Awaitable[None]], ...]] = (
    check_what_is_put_is_got,
    check_revisions_grow_over_all_keys,
    check_compare_and_set,
    check_a_condition_holds_even_where_the_value_would_not_change,
    check_a_transaction_writes_all_or_nothing,
    check_a_transaction_that_writes_a_key_twice_is_an_error,
    check_an_equal_value_is_no_event_and_no_revision,
    check_a_list_is_in_key_order_and_by_prefix,
    check_a_watch_tells_changes_in_order,
    check_a_watch_from_a_snapshot_misses_nothing,
    check_a_transaction_arrives_in_one_batch,
    check_a_slow_watcher_ends_with_the_latest,
    check_two_watchers_see_the_same,
    check_closing_ends_watches_and_is_idempotent,
    check_durable_keys_outlive_the_store,
    check_a_large_value_is_taken_whole_or_refused,
    check_a_large_equal_value_is_no_event_either,
    check_a_transaction_takes_so_many_writes_and_no_more,
    check_a_put_may_be_conditional_on_other_keys,
    check_a_lease_that_nobody_keeps_ends_with_its_keys,
    check_a_lease_that_is_kept_outlives_its_time,
    check_a_revoked_lease_takes_its_keys_at_once,
    check_a_lease_that_ended_takes_no_more_keys,
    check_an_equal_value_under_another_lease_is_a_write,
    check_a_put_without_a_lease_takes_the_key_out_of_it,
    check_following_goes_on_through_changes,
)
