"""Following a prefix through everything a store may do, and writing more than one transaction takes."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.errors import Resync, RetryableError
from llmgw.store import backlog
from llmgw.store import follow as following
from llmgw.store.api import LARGEST, MOST_WRITES, Change, Delete, Put, Snapshot, size
from llmgw.store.batches import batches, write_all
from llmgw.store.follow import follow, listed
from llmgw.store.memory import MemoryStore


class Forgetful(MemoryStore):
    """Ends each watch with Resync after one batch, having forgotten what came next; lists only now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.away = 0
        self.meanwhile: list[Put | Delete] = []

    async def list(self, prefix: str) -> Snapshot:
        if self.away:
            self.away -= 1
            raise RetryableError("away")
        return await super().list(prefix)

    async def watch(self, prefix: str, *, from_revision: int) -> AsyncIterator[Sequence[Change]]:
        async for changes in super().watch(prefix, from_revision=from_revision):
            yield changes
            await write_all(self, self.meanwhile)
            raise Resync("forgotten")


async def test_after_a_resync_the_difference_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "RETRY", 0.01)
    store = Forgetful()
    for key in ("f/kept", "f/gone", "f/changed", "elsewhere"):
        await store.put(key, b"1")
    async with aclosing(follow(store, "f/", await store.list("f/"))) as changes:  # type: ignore[type-var]
        await store.put("f/first", b"1")
        assert [change.key for change in await anext(changes)] == ["f/first"]
        store.meanwhile = [Delete("f/gone"), Put("f/changed", b"2"), Put("f/new", b"1"), Delete("f/first")]
        store.away = 3
        told = await anext(changes)
        store.meanwhile = []
        assert {(change.key, change.value) for change in told} == {
            ("f/changed", b"2"), ("f/new", b"1"), ("f/gone", None), ("f/first", None)
        }  # fmt: skip
        await store.put("f/gone", b"again")
        assert [(change.key, change.value) for change in await anext(changes)] == [("f/gone", b"again")]


async def test_a_resync_that_finds_nothing_new_tells_nothing() -> None:
    store = Forgetful()
    async with aclosing(follow(store, "f/", await store.list("f/"))) as changes:  # type: ignore[type-var]
        await store.put("f/a", b"1")
        await anext(changes)
        waiting = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        await store.put("f/b", b"1")
        assert [change.key for change in await waiting] == ["f/b"]


async def test_following_ends_when_the_store_is_closed() -> None:
    store = MemoryStore()
    ended = asyncio.ensure_future(_drain(store))
    await asyncio.sleep(0)
    await store.close()
    async with asyncio.timeout(30):
        await ended


async def _drain(store: MemoryStore) -> None:
    async for _ in follow(store, "", await store.list("")):
        pass


async def test_a_watcher_behind_by_more_keys_than_are_kept_for_it_is_told_to_list_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlog, "BACKLOG", 10)
    store = MemoryStore()
    watch = store.watch("s/", from_revision=0)
    await store.put("s/first", b"1")
    await anext(watch)
    for number in range(11):
        await store.put(f"s/{number}", b"1")
    with pytest.raises(Resync, match="more than 10 keys"):
        await anext(watch)
    again = store.watch("s/", from_revision=(await store.list("s/")).revision)
    await store.put("s/last", b"1")
    assert [change.key for change in await anext(again)] == ["s/last"]


WRITES = st.lists(st.sampled_from([0, 1, 10_000, 700_000, 1_400_000]), max_size=220)


@settings(deadline=None)
@given(WRITES)
def test_batches_keep_the_order_and_the_limits_and_are_few(sizes: list[int]) -> None:
    writes = [Put(f"k/{number}", bytes(length)) for number, length in enumerate(sizes)]
    found = list(batches(writes))
    assert [write for batch in found for write in batch] == writes
    for batch in found:
        assert len(batch) <= MOST_WRITES
        assert sum(map(size, batch)) <= LARGEST
    for batch, after in itertools.pairwise(found):
        assert len(batch) == MOST_WRITES or sum(map(size, (*batch, after[0]))) > LARGEST


async def test_many_writes_are_all_written() -> None:
    store = MemoryStore()
    await write_all(store, [])
    await write_all(store, [Put(f"k/{number:04}", b"1") for number in range(1234)])
    assert len((await store.list("k/")).entries) == 1234


async def test_a_list_waits_for_a_store_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "RETRY", 0.01)
    store = Forgetful()
    await store.put("f/a", b"1")
    store.away = 3
    assert [entry.key for entry in (await listed(store, "f/")).entries] == ["f/a"]
    assert store.away == 0
