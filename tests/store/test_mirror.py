"""A store of which a part is at hand: it is a store like any other, sees what it wrote, and never goes back."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from etcds import Etcd

from llmgw.errors import RetryableError, StaleRevision
from llmgw.store.address import Address
from llmgw.store.api import Change, Delete, Put, Snapshot, Store
from llmgw.store.etcd import EtcdStore
from llmgw.store.follow import follow
from llmgw.store.memory import MemoryStore
from llmgw.store.mirror import Mirror
from llmgw.testing.store_checks import STORE_CHECKS, StoreCase


class Owning(Mirror):
    """One that closes the store with itself, as the suite expects."""

    def __init__(self, store: Store, prefixes: Sequence[str]) -> None:
        super().__init__(store, prefixes)
        self.own = store
        self.running = asyncio.get_running_loop().create_task(self.run())

    async def close(self) -> None:
        self.running.cancel()
        await asyncio.wait([self.running])
        await self.own.close()


@pytest.mark.parametrize("prefixes", [["a"], ["p/", "k"]], ids=["little", "much"])
@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
async def test_a_mirror_is_a_store(check, prefixes: list[str]) -> None:
    async def make() -> Store:
        return Owning(MemoryStore(), prefixes)

    await check(StoreCase(open=make))


class Late(MemoryStore):
    """Tells of changes only while `told` is set, and counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.told = asyncio.Event()
        self.told.set()
        self.lists = 0

    async def list(self, prefix: str) -> Snapshot:
        self.lists += 1
        return await super().list(prefix)

    async def watch(self, prefix: str, *, from_revision: int) -> AsyncIterator[Sequence[Change]]:
        async for changes in super().watch(prefix, from_revision=from_revision):
            await self.told.wait()
            yield changes


@asynccontextmanager
async def mirrored(store: Store, *prefixes: str, relist: float = 60.0) -> AsyncIterator[Mirror]:
    mirror = Mirror(store, prefixes, relist=relist)
    running = asyncio.create_task(mirror.run())
    try:
        await mirror.ready.wait()
        await asyncio.sleep(0)  # its watches begin
        yield mirror
    finally:
        running.cancel()
        await asyncio.wait([running])


async def at_hand(mirror: Mirror, prefix: str) -> dict[str, bytes]:
    return {entry.key: entry.value for entry in (await mirror.list(prefix)).entries}


async def becomes(mirror: Mirror, prefix: str, expected: dict[str, bytes]) -> None:
    async with asyncio.timeout(30):
        while await at_hand(mirror, prefix) != expected:
            await asyncio.sleep(0.001)


async def test_what_is_at_hand_is_not_asked_for_and_follows_the_store() -> None:
    store = Late()
    await store.put("p/a", b"1")
    async with mirrored(store, "p/") as mirror:
        lists = store.lists
        await store.txn([Put("p/b", b"2"), Put("q/c", b"3")])
        await becomes(mirror, "p/", {"p/a": b"1", "p/b": b"2"})
        await store.delete("p/a")
        await becomes(mirror, "p/", {"p/b": b"2"})
        assert await mirror.get("p/a") is None
        assert store.lists == lists
        assert await at_hand(mirror, "q/") == {"q/c": b"3"}
        assert store.lists == lists + 1, "of another prefix"


async def test_what_was_written_through_it_is_seen_at_once_and_late_news_does_not_undo_it() -> None:
    store = Late()
    await store.put("p/kept", b"0")
    async with mirrored(store, "p/") as mirror:
        store.told.clear()
        await store.put("p/a", b"old")  # by somebody else, and heard late
        await store.put("p/b", b"old")
        await mirror.put("p/a", b"new")
        await mirror.txn([Delete("p/b"), Put("p/c", b"new")])
        expected = {"p/a": b"new", "p/c": b"new", "p/kept": b"0"}
        assert await at_hand(mirror, "p/") == expected
        seen: set[tuple[tuple[str, bytes], ...]] = set()
        store.told.set()
        for _ in range(50):
            await asyncio.sleep(0)
            seen.add(tuple((await at_hand(mirror, "p/")).items()))
        assert seen == {tuple(expected.items())}


async def test_a_condition_that_failed_on_what_was_at_hand_holds_at_the_next_try() -> None:
    store = Late()
    await store.put("p/a", b"1")
    async with mirrored(store, "p/") as mirror:
        store.told.clear()
        await store.put("p/a", b"2")
        entry = await mirror.get("p/a")
        assert entry is not None
        assert entry.value == b"1"
        with pytest.raises(StaleRevision):
            await mirror.put("p/a", b"3", if_revision=entry.revision)
        entry = await mirror.get("p/a")
        assert entry is not None
        assert entry.value == b"2"
        await mirror.put("p/a", b"3", if_revision=entry.revision)


async def test_what_was_written_as_it_was_already_has_its_true_revision_after_a_failed_condition() -> None:
    store = Late()
    async with mirrored(store, "p/") as mirror:
        store.told.clear()
        await store.put("p/a", b"1")
        await mirror.txn([Put("p/a", b"1"), Put("p/b", b"1")])  # p/a is there already, which nobody at hand knows
        for _ in range(2):
            entry = await mirror.get("p/a")
            assert entry is not None
            try:
                await mirror.put("p/a", b"2", if_revision=entry.revision)
                break
            except StaleRevision:
                continue
        else:
            raise AssertionError("its revision at hand stayed wrong")


async def test_what_no_change_told_is_found_by_the_next_list() -> None:
    store = Late()
    await store.put("p/a", b"1")
    async with mirrored(store, "p/", relist=0.02) as mirror:
        store.told.clear()
        await store.txn([Put("p/b", b"2"), Delete("p/a")])
        await becomes(mirror, "p/", {"p/b": b"2"})


async def test_watchers_hear_of_a_change_once_it_is_at_hand() -> None:
    store = MemoryStore()
    async with mirrored(store, "p/") as mirror:
        found: list[dict[str, bytes]] = []

        async def watch() -> None:
            async for _ in follow(mirror, "p/", await mirror.list("p/")):
                found.append(await at_hand(mirror, "p/"))

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0)
        await store.put("p/a", b"1")
        await becomes(mirror, "p/", {"p/a": b"1"})
        async with asyncio.timeout(30):
            while not found:
                await asyncio.sleep(0)
        assert found[0] == {"p/a": b"1"}
        watching.cancel()
        await asyncio.wait([watching])


async def test_it_catches_up_when_etcd_was_away(etcd: Etcd) -> None:
    where = Address(targets=(etcd.target,), prefix="/mirror/")
    store, other = EtcdStore(where), EtcdStore(where)
    try:
        await other.put("p/gone", b"1")
        async with mirrored(store, "p/") as mirror:
            assert await at_hand(mirror, "p/") == {"p/gone": b"1"}
            etcd.kill()
            assert await at_hand(mirror, "p/") == {"p/gone": b"1"}, "what was known is still there"
            with pytest.raises(RetryableError):
                await mirror.put("p/a", b"1", if_revision=0)
            await asyncio.to_thread(etcd.start)
            await other.txn([Put("p/b", b"2"), Delete("p/gone")])
            await becomes(mirror, "p/", {"p/b": b"2"})
            await mirror.put("p/a", b"3")
            assert await at_hand(mirror, "p/") == {"p/a": b"3", "p/b": b"2"}
    finally:
        await store.close()
        await other.close()
