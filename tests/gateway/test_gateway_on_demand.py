"""Requests for on-demand models that are not ready: they ask for them, and wait."""

import asyncio
from collections.abc import Sequence

import pytest
from gateway_rig import (
    DONE,
    PATIENCE,
    STREAM_HEAD,
    Asked,
    Rig,
    ask_of,
    asked,
    chunked,
    event,
    get,
    lazy,
    model,
    post,
    until,
)

from llmgw.clock import SystemClock
from llmgw.errors import RetryableError
from llmgw.facts import Ask, Progress, Suspension
from llmgw.gateway import asking
from llmgw.gateway import usage as reporting
from llmgw.gateway.asking import Asking
from llmgw.ids import ModelName
from llmgw.plan import ModelState
from llmgw.store import codec, keys
from llmgw.store.api import Delete, Expect, Put
from llmgw.store.memory import MemoryStore
from llmgw.units import MIB, Bytes, Instant, Mono, Seconds, Wall

M = ModelName("m")


def held(rig: Rig, name: str = "m") -> float:
    return rig.metric("llmgw_gateway_held", model=name)


async def test_a_request_for_an_idle_model_asks_for_it_and_waits_until_it_is_ready(rig: Rig) -> None:
    engine = await rig.engine()
    await rig.catalog(lazy("m", "alias"))
    await rig.status("m", ModelState.INACTIVE, reason="on demand, and not asked for")
    task = asyncio.create_task(rig.post({"model": "alias"}))
    ask = await asked(rig)
    await rig.status("m", ModelState.LOADING, asked=ask.asked)
    assert not task.done()
    await rig.endpoint("m", engine.url)
    assert (await task).status == 200
    assert rig.metric("llmgw_gateway_asks_total", model="m") == 1


async def test_twenty_requests_for_an_idle_model_ask_once_and_are_all_answered(rig: Rig) -> None:
    engine = await rig.engine()
    await rig.catalog(lazy())
    await rig.status("m", ModelState.INACTIVE)
    tasks = [asyncio.create_task(rig.post({"model": "m"})) for _ in range(20)]
    await until(lambda: held(rig) == 20, "twenty waiting")
    ask = await asked(rig)
    for state in (ModelState.INACTIVE, ModelState.LOADING, ModelState.LOADING):  # each makes all of them decide again
        await rig.status("m", state, progress=Progress(done=Bytes(1)))
    assert await ask_of(rig.store) == ask
    assert rig.metric("llmgw_gateway_asks_total", model="m") == 1
    await rig.endpoint("m", engine.url)
    assert [(await task).status for task in tasks] == [200] * 20


async def test_a_model_is_not_loaded_for_what_its_engine_says_that_it_does_not_serve(rig: Rig) -> None:
    await rig.catalog(lazy())
    await rig.status("m", ModelState.INACTIVE, surfaces=("embeddings",))
    answer = await rig.post({"model": "m"})
    assert (answer.status, answer.code) == (404, "surface_not_served")
    said = "model 'm' does not serve /v1/chat/completions: its engine has /v1/embeddings"
    assert answer.json["error"]["message"] == said
    await rig.settle()
    assert await ask_of(rig.store) is None
    paths = ("/v1/embeddings", "/v1/audio/speech")  # of the second nothing is known
    tasks = [asyncio.create_task(rig.post({"model": "m"}, path=path)) for path in paths]
    await until(lambda: held(rig) == 2, "waiting")
    assert await asked(rig)
    await rig.endpoint("m", (await rig.engine()).url, surfaces=("embeddings",))
    assert [(await task).status for task in tasks] == [200, 200]


async def test_a_model_that_loads_anyway_is_not_waited_for_in_vain(rig: Rig) -> None:
    await rig.catalog(model("m"))
    await rig.status("m", ModelState.LOADING, surfaces=("embeddings",))
    assert (await rig.post({"model": "m"})).code == "surface_not_served"


async def test_what_stands_in_for_a_model_serves_what_that_model_would_not(rig: Rig) -> None:
    """Nor is that model asked for on behalf of what it would not serve."""
    engine = await rig.engine()
    await rig.catalog(lazy("a"), model("b"))
    await rig.endpoint("b", engine.url)
    await rig.status("a", ModelState.LOADING, fallback=ModelName("b"), surfaces=("embeddings",))
    answer = await rig.post({"model": "a"})
    assert (answer.status, answer.headers["x-llmgw-fallback"]) == (200, "b")
    await rig.settle()
    assert await ask_of(rig.store, "a") is None


async def test_a_ready_model_is_not_asked_for(rig: Rig) -> None:
    engine = await rig.engine()
    await rig.catalog(lazy())
    await rig.endpoint("m", engine.url)
    assert (await rig.post({"model": "m"})).status == 200
    await rig.settle()
    assert await ask_of(rig.store) is None


async def test_a_model_that_is_not_on_demand_is_not_asked_for(rig: Rig) -> None:
    await rig.catalog(model("m"), model("off"), cold_start_timeout=Seconds(0.05))
    await rig.status("off", ModelState.INACTIVE, reason="window mon-fri 08:00-19:00: none")
    assert (await rig.post({"model": "m"})).code == "model_loading"
    off = await rig.post({"model": "off"})
    assert (off.status, off.code) == (503, "model_inactive")
    assert "window mon-fri" in off.json["error"]["message"]
    assert (await rig.store.list(keys.ASKS)).entries == ()


async def test_a_suspended_model_with_none_running_is_refused_and_not_asked_for(rig: Rig) -> None:
    await rig.catalog(lazy(suspend=True))
    await rig.status("m", ModelState.INACTIVE, reason="suspended: as it is, with 0")
    answer = await rig.post({"model": "m"})
    assert (answer.status, answer.code) == (503, "model_inactive")
    assert await ask_of(rig.store) is None


async def test_one_that_an_operator_suspends_is_not_asked_for_until_it_is_resumed(rig: Rig) -> None:
    await rig.catalog(lazy())
    await rig.store.put(keys.suspension(M), codec.encode(Suspension(at=Wall(1.0), by="ann")))
    await rig.status("m", ModelState.INACTIVE, reason="suspended: as it is, with 0")
    answer = await rig.post({"model": "m"})
    assert (answer.status, answer.code) == (503, "model_inactive")
    assert await ask_of(rig.store) is None
    await rig.store.delete(keys.suspension(M))
    await rig.status("m", ModelState.INACTIVE, reason="on demand, and not asked for")
    task = asyncio.create_task(rig.post({"model": "m"}))
    await asked(rig)
    await rig.status("m", ModelState.FAILED, reason="oom")
    assert (await task).code == "model_failed"


async def test_that_it_cannot_be_placed_counts_only_when_it_was_decided_after_the_ask(rig: Rig) -> None:
    await rig.catalog(lazy())
    await rig.status("m", ModelState.UNSCHEDULABLE, reason="an old story", asked=Wall(1.0))
    task = asyncio.create_task(rig.post({"model": "m"}))
    ask = await asked(rig)
    await rig.status("m", ModelState.UNSCHEDULABLE, reason="still the old one", asked=Wall(ask.asked - 0.5))
    await asyncio.sleep(0.02)
    assert not task.done()
    await rig.status("m", ModelState.UNSCHEDULABLE, reason="device memory on gpu-1", asked=ask.asked)
    answer = await task
    assert (answer.status, answer.code) == (503, "model_unschedulable")
    assert "device memory on gpu-1" in answer.json["error"]["message"]
    assert held(rig) == 0


async def test_a_model_in_quarantine_is_refused_at_once(rig: Rig) -> None:
    await rig.catalog(lazy())
    await rig.status("m", ModelState.FAILED, reason="oom")
    assert (await rig.post({"model": "m"})).code == "model_failed"
    assert await ask_of(rig.store) is None


async def test_the_wait_ends_with_the_cold_start_timeout_and_tells_how_far_it_is(rig: Rig) -> None:
    await rig.catalog(lazy(), cold_start_timeout=Seconds(0.3))
    await rig.status("m", ModelState.INACTIVE)
    task = asyncio.create_task(rig.post({"model": "m"}))
    ask = await asked(rig)
    progress = Progress(done=Bytes(12 * MIB), total=Bytes(48 * MIB))
    await rig.status("m", ModelState.LOADING, reason="fetching weights", progress=progress, asked=ask.asked)
    answer = await task
    assert (answer.status, answer.code) == (503, "model_loading")
    assert "fetching weights (12.0 MiB of 48.0 MiB fetched, 25 %)" in answer.json["error"]["message"]
    assert answer.headers["retry-after"]


async def test_a_model_that_is_no_longer_on_demand_is_judged_by_its_status_again(rig: Rig) -> None:
    await rig.catalog(lazy())
    await rig.status("m", ModelState.INACTIVE, reason="outside its windows")
    task = asyncio.create_task(rig.post({"model": "m"}))
    await asked(rig)
    await rig.catalog(model("m"))
    assert (await task).code == "model_inactive"


async def test_a_later_request_asks_again_after_a_second_and_not_before(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "PACE", 0.2)
    await rig.catalog(lazy(), cold_start_timeout=Seconds(0.01))
    for _ in range(3):
        assert (await rig.post({"model": "m"})).code == "model_loading"
    first = await asked(rig)
    assert rig.metric("llmgw_gateway_asks_total", model="m") == 1
    await asyncio.sleep(0.25)
    assert (await rig.post({"model": "m"})).code == "model_loading"
    assert (await asked(rig, after=first.asked)).asked > first.asked
    assert rig.metric("llmgw_gateway_asks_total", model="m") == 2


# what is held, told to the store


async def test_the_first_request_that_waits_for_a_model_is_told_at_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "PACE", 3600.0)  # a report that is not hurried comes in no test's time
    await rig.catalog(lazy(), model("other"))
    for name in ("m", "other"):
        (await rig.wire()).send(post({"model": name}))
        async with asyncio.timeout(PATIENCE):
            while (usage := await rig.usage()) is None or name not in usage.held:
                await asyncio.sleep(0.002)


async def test_how_many_wait_for_a_model_is_told_until_the_last_has_left(rig: Rig) -> None:
    await rig.catalog(lazy(), model("other"))
    wires = [await rig.wire() for _ in range(3)]
    for wire, name in zip(wires, ("m", "m", "other"), strict=True):
        wire.send(post({"model": name}))
    async with asyncio.timeout(PATIENCE):
        while (usage := await rig.usage()) is None or usage.held != {"m": 2, "other": 1}:
            await asyncio.sleep(0.01)
    for wire in wires:
        await wire.close()
    async with asyncio.timeout(PATIENCE):
        while (usage := await rig.usage()) is None or usage.held:
            await asyncio.sleep(0.01)


async def test_news_of_the_model_do_not_make_the_queue_look_new(rig: Rig) -> None:
    await rig.catalog(lazy())
    task = asyncio.create_task(rig.post({"model": "m"}))
    await until(lambda: held(rig) == 1, "waiting")
    await asyncio.sleep(1.1)  # the report has it
    before = await rig.usage()
    for number in range(5):
        await rig.store.put(keys.explain(M), b'{"v": 1, "model": "m", "state": "loading", "attempts": %d}' % number)
        await asyncio.sleep(0.01)
    assert await rig.usage() == before
    task.cancel()


# the store's troubles


class Moody(MemoryStore):
    """Refuses to write asks while `bad`."""

    bad = False

    async def txn(self, writes: Sequence[Put | Delete], *, expect: Sequence[Expect] = ()) -> int:
        if self.bad and any(write.key.startswith(keys.ASKS) for write in writes):
            raise RetryableError("the disk is full")
        return await super().txn(writes, expect=expect)


async def test_an_ask_that_could_not_be_written_is_tried_again_while_its_request_waits(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "PACE", 0.05)
    rig.store.__class__ = Moody
    assert isinstance(rig.store, Moody)
    rig.store.bad = True
    await rig.catalog(lazy())
    task = asyncio.create_task(rig.post({"model": "m"}))
    await until(lambda: held(rig) == 1, "waiting")
    await asyncio.sleep(0.1)
    assert await ask_of(rig.store) is None
    assert not task.done()
    rig.store.bad = False
    await asked(rig)
    task.cancel()


async def test_an_ask_that_could_not_be_written_is_not_repeated_for_nobody(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "PACE", 0.05)
    rig.store.__class__ = Moody
    assert isinstance(rig.store, Moody)
    rig.store.bad = True
    await rig.catalog(lazy(), cold_start_timeout=Seconds(0.02))
    assert (await rig.post({"model": "m"})).code == "model_loading"
    await asyncio.sleep(0.2)
    rig.store.bad = False
    await asyncio.sleep(0.2)
    assert await ask_of(rig.store) is None
    assert (await rig.post({"model": "m"})).code == "model_loading"  # the next request asks anew
    await asked(rig)


class Wound(SystemClock):
    """A clock whose wall is where it was set; its mono runs a second further with each look."""

    def __init__(self, wall: float) -> None:
        self.wall = wall
        self.looks = 0

    def now(self) -> Instant:
        self.looks += 1
        return Instant(Mono(self.looks), Wall(self.wall))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, Ask(asked=Wall(1000))),
        (Ask(asked=Wall(900), used=Wall(950)), Ask(asked=Wall(1000), used=Wall(950))),
        (Ask(asked=Wall(1030), used=Wall(950)), Ask(asked=Wall(1030), used=Wall(950))),  # another gateway's clock
        (Ask(asked=Wall(99_000)), Ask(asked=Wall(1000))),  # a clock that was wrong
    ],
)
async def test_asks_only_move_forward_but_for_stamps_of_a_clock_that_was_wrong(before: Ask | None, after: Ask) -> None:
    store = MemoryStore()
    if before is not None:
        await store.put(keys.ask(M), codec.encode(before))
    writer = Asking(store, Wound(1000), lambda model: True)
    running = asyncio.create_task(writer.run())
    assert writer.want(M) == (1000, True)
    for _ in range(100):
        await asyncio.sleep(0)
    assert await ask_of(store) == after
    running.cancel()


async def test_what_others_write_meanwhile_is_kept() -> None:
    class Busy(MemoryStore):
        """Between our reading and our writing, the controller notes a use."""

        met = False

        async def put(self, key: str, value: bytes, *, if_revision: int | None = None) -> int:
            if not self.met:
                self.met = True
                await super().put(key, codec.encode(Ask(asked=Wall(900), used=Wall(990))))
            return await super().put(key, value, if_revision=if_revision)

    store = Busy()
    writer = Asking(store, Wound(1000), lambda model: True)
    running = asyncio.create_task(writer.run())
    writer.want(M)
    for _ in range(100):
        await asyncio.sleep(0)
    assert await ask_of(store) == Ask(asked=Wall(1000), used=Wall(990))
    running.cancel()


@pytest.mark.parametrize(("stored", "kept"), [(b'{"v": 99}', True), (b"?", False)])
async def test_a_damaged_ask_is_replaced_and_a_newer_llmgws_is_not(stored: bytes, kept: bool) -> None:
    store = MemoryStore()
    await store.put(keys.ask(M), stored)
    writer = Asking(store, Wound(1000), lambda model: True)
    running = asyncio.create_task(writer.run())
    writer.want(M)
    for _ in range(100):
        await asyncio.sleep(0)
    entry = await store.get(keys.ask(M))
    assert entry is not None
    assert (entry.value == stored) == kept
    running.cancel()


async def test_models_are_listed_with_what_they_are_now(rig: Rig) -> None:
    await rig.catalog(lazy())
    await rig.status("m", ModelState.INACTIVE)
    (listed,) = (await rig.ask(get("/v1/models"))).json["data"]
    assert (listed["state"], listed["fallback"]) == ("inactive", None)


async def test_an_engine_lost_between_two_answers_is_asked_for_anew(rig: Rig) -> None:
    async def die(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    dying, next_one = await rig.engine(die), await rig.engine()
    await rig.catalog(lazy())
    endpoint = await rig.endpoint("m", dying.url, "old")
    task = asyncio.create_task(rig.post({"model": "m"}))
    await until(lambda: held(rig) == 1, "waiting for word of its engine")
    assert await ask_of(rig.store) is None
    await rig.withdraw(endpoint)
    await asked(rig)
    await rig.endpoint("m", next_one.url, "new")
    assert (await task).status == 200


async def test_streams_of_a_model_that_was_asked_for_are_relayed_as_any(rig: Rig) -> None:
    async def stream(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunked(event("one")) + DONE)

    engine = await rig.engine(stream)
    await rig.catalog(lazy())
    task = asyncio.create_task(rig.post({"model": "m", "stream": True}))
    await asked(rig)
    await rig.endpoint("m", engine.url)
    answer = await task
    assert b"[DONE]" in answer.body
