"""Values that are true only while their writer lives, and events of several writers in one log."""

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager, suppress

from llmgw.facts import Event
from llmgw.store import keys
from llmgw.store.codec import decode
from llmgw.store.held import Held
from llmgw.store.memory import MemoryStore
from llmgw.store.shared_events import TOLD, SharedEvents
from llmgw.store.values import Role, ToldEvents
from llmgw.units import Seconds, Wall


@asynccontextmanager
async def running(*works):
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def until(ask: Callable[[], object], within: float = 30) -> None:
    async with asyncio.timeout(within):
        while True:
            answer = ask()
            if asyncio.iscoroutine(answer):
                answer = await answer
            if answer:
                return
            await asyncio.sleep(0.01)


async def value(store: MemoryStore, key: str) -> bytes | None:
    entry = await store.get(key)
    return entry.value if entry else None


async def test_what_is_held_stays_while_its_writer_lives_and_goes_when_it_dies() -> None:
    store = MemoryStore()
    held = Held(store, Seconds(0.3))
    async with running(held.run()):
        await held.put("members/a", b"1")
        await asyncio.sleep(0.7)
        assert await value(store, "members/a") == b"1"
    await until(lambda: _gone(store, "members/a"))


async def _gone(store: MemoryStore, key: str) -> bool:
    return await store.get(key) is None


async def test_all_that_is_held_is_put_anew_when_the_lease_was_lost() -> None:
    store = MemoryStore()
    held = Held(store, Seconds(0.3))
    await held.put("members/a", b"1")
    await held.put("members/b", b"2")
    await until(lambda: _gone(store, "members/b"))
    async with running(held.run()):
        await until(lambda: value(store, "members/a"))
        await until(lambda: value(store, "members/b"))


async def test_a_write_after_the_lease_was_lost_brings_all_back() -> None:
    store = MemoryStore()
    held = Held(store, Seconds(0.3))
    await held.put("members/a", b"1")
    await until(lambda: _gone(store, "members/a"))
    await held.put("members/b", b"2")
    assert await value(store, "members/a") == b"1"
    assert await value(store, "members/b") == b"2"


async def test_withdrawing_removes_everything_at_once() -> None:
    store = MemoryStore()
    held = Held(store)
    await held.put("members/a", b"1")
    await held.withdraw()
    assert await store.get("members/a") is None


async def test_a_key_is_taken_only_where_there_is_none_and_goes_with_its_lease() -> None:
    store = MemoryStore()
    first, second = Held(store, Seconds(0.3)), Held(store, Seconds(0.3))
    assert await first.take("fetches/e", b"first")
    assert not await second.take("fetches/e", b"second")
    assert await value(store, "fetches/e") == b"first"
    async with running(second.run()):
        await until(lambda: _gone(store, "fetches/e"))  # nobody keeps the first one's lease
        assert await second.take("fetches/e", b"second")
        await asyncio.sleep(0.7)
        assert await value(store, "fetches/e") == b"second"


def event(number: int, at: float | None = None) -> Event:
    return Event(at=Wall(number if at is None else at), subject="node/n", reason="r", message=str(number))


def told(log: SharedEvents) -> list[str]:
    return [each.message for _, each in log.numbered()]


async def test_events_of_all_writers_are_read_by_time_and_each_once() -> None:
    store = MemoryStore()
    reader = SharedEvents(store, Role.CONTROLLER, "c", read=True)
    writer = SharedEvents(store, Role.AGENT, "a", read=False)
    writer.record(event(1))
    async with running(reader.run(), writer.run()):
        await until(lambda: told(reader) == ["1"])
        reader.record(event(3))
        writer.record(event(2))
        await until(lambda: told(reader) == ["1", "2", "3"])
        assert told(writer) == ["1", "2"], "who only writes keeps its own"


async def test_events_of_an_earlier_life_stay_and_later_ones_are_added() -> None:
    store = MemoryStore()
    first = SharedEvents(store, Role.AGENT, "a", read=False)
    first.record(event(1))
    await first.flush()
    second = SharedEvents(store, Role.AGENT, "a", read=False)
    reader = SharedEvents(store, Role.CONTROLLER, "c", read=True)
    second.record(event(2))
    async with running(second.run(), reader.run()):
        await until(lambda: told(reader) == ["1", "2"])
    again = SharedEvents(store, Role.CONTROLLER, "c", read=True)
    async with running(again.run()):
        await until(lambda: told(again) == ["1", "2"])


async def test_the_store_keeps_but_the_last_events_of_a_writer() -> None:
    store = MemoryStore()
    writer = SharedEvents(store, Role.AGENT, "a", read=False)
    for number in range(TOLD + 50):
        writer.record(event(number))
    await writer.flush()
    entry = await store.get(keys.events(Role.AGENT, "a"))
    assert entry is not None
    kept = decode(entry.value, ToldEvents).events
    assert len(kept) == TOLD
    assert kept[-1].event == event(TOLD + 49)
