"""One leads, another takes over when it is gone, and who led before cannot write any more."""

import asyncio

import pytest

from llmgw.clock import SystemClock
from llmgw.errors import StaleRevision
from llmgw.store import keys
from llmgw.store.api import Delete, Expect, Put
from llmgw.store.election import Fenced, Leader, Leadership, NotLeader, current_leader, elected
from llmgw.store.memory import MemoryStore
from llmgw.units import Seconds

CLOCK = SystemClock()


def name_of(leader: Leader | None) -> str | None:
    return leader.name if leader else None


async def within(seconds: float, waiting: "asyncio.Future[Leadership]") -> Leadership:
    async with asyncio.timeout(seconds):
        return await waiting


async def test_one_of_two_leads_and_the_other_when_it_resigns() -> None:
    store = MemoryStore()
    assert await current_leader(store) is None
    first = await elected(store, "a", CLOCK)
    waiting = asyncio.ensure_future(elected(store, "b", CLOCK))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    assert name_of(await current_leader(store)) == "a"
    await first.resign()
    second = await within(1, waiting)
    assert first.leader.at + 0.2 <= second.leader.at, "since it was elected, not since it waited"
    assert first.lost.is_set()
    assert not second.lost.is_set()
    assert name_of(await current_leader(store)) == "b"
    await first.resign()
    assert name_of(await current_leader(store)) == "b"
    await second.resign()


async def test_a_candidate_that_stops_waiting_leaves_nothing_behind() -> None:
    store = MemoryStore()
    first = await elected(store, "a", CLOCK)
    waiting = asyncio.ensure_future(elected(store, "b", CLOCK))
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.wait([waiting])
    await first.resign()
    await asyncio.sleep(0.05)
    assert await current_leader(store) is None


async def test_a_leader_whose_lease_ended_while_it_was_held_up_cannot_write() -> None:
    store = MemoryStore()
    first = await elected(store, "a", CLOCK, ttl=Seconds(0.2))
    fenced = Fenced(store, first)
    await fenced.put("k", b"a")
    first._keeping.cancel()  # nobody keeps its lease: it is paused, as far as the store can tell
    second = await within(1, asyncio.ensure_future(elected(store, "b", CLOCK, ttl=Seconds(0.2))))
    first.lost.clear()  # and has not heard of it yet
    for attempt in (
        fenced.put("k", b"late"),
        fenced.put("k", b"a"),
        fenced.delete("k"),
        fenced.txn([Put("other", b"late"), Delete("k")]),
        fenced.put("new", b"late", if_revision=0),
    ):
        with pytest.raises(NotLeader):
            await attempt
    assert first.lost.is_set()
    assert [(e.key, e.value) for e in (await store.list("")).entries if e.key != keys.LEADER] == [("k", b"a")]
    await Fenced(store, second).put("k", b"b")
    await second.resign()


async def test_a_leaders_own_condition_that_does_not_hold_is_not_taken_for_the_end_of_its_leadership() -> None:
    store = MemoryStore()
    leadership = await elected(store, "a", CLOCK)
    fenced = Fenced(store, leadership)
    revision = await fenced.put("k", b"1")
    with pytest.raises(StaleRevision):
        await fenced.put("k", b"2", if_revision=revision + 9)
    with pytest.raises(StaleRevision):
        await fenced.txn([Put("k", b"2")], expect=[Expect("other", 3)])
    assert not leadership.lost.is_set()
    await leadership.resign()


async def test_a_leader_key_that_somebody_removed_ends_the_leadership_at_the_next_write() -> None:
    store = MemoryStore()
    leadership = await elected(store, "a", CLOCK)
    await store.delete(keys.LEADER)
    with pytest.raises(NotLeader):
        await Fenced(store, leadership).put("k", b"1")
    assert leadership.lost.is_set()
    await leadership.resign()
