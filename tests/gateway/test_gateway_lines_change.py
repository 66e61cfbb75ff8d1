"""Who waits for a slot while what he waits in changes: slots, endpoints, names, and the room in the line."""

import asyncio
from collections.abc import Callable

from gateway_rig import Rig, Wire, model, post, until
from test_gateway_queue import Slots, asking, keyed, queued, serving

from llmgw.gateway.lines import Line
from llmgw.gateway.relay import Held
from llmgw.units import Seconds


async def test_a_slot_of_a_request_from_before_there_were_slots_is_given_on(rig: Rig) -> None:
    await one_after_the_other(rig, before=None, then=[1])


async def test_slots_that_were_no_limit_for_a_while_are_given_on(rig: Rig) -> None:
    await one_after_the_other(rig, before=1, then=[None, 1])


async def one_after_the_other(rig: Rig, *, before: int | None, then: list[int | None]) -> None:
    """A request is sent, the endpoint's slots change, and another waits for the slot that the first has."""
    engine = Slots()
    await rig.catalog(model("m"))
    url = (await rig.engine(engine)).url
    await rig.endpoint("m", url, slots=before)
    first = await asking(rig, "a")
    await until(lambda: engine.now == 1, "the first")
    for slots in then:
        await rig.endpoint("m", url, slots=slots)
    second = await asking(rig, "b")
    await until(lambda: queued(rig) == 1, "waiting")
    engine.answer("a")
    engine.answer("b")
    assert (await first.answer()).json == {"said": "a"}
    assert (await second.answer()).json == {"said": "b"}


async def test_fewer_slots_are_kept_to_once_what_is_too_many_has_ended(rig: Rig) -> None:
    engine = Slots()
    await rig.catalog(model("m"))
    url = (await rig.engine(engine)).url
    await rig.endpoint("m", url, slots=3)
    wires = {name: await asking(rig, name) for name in "abc"}
    await until(lambda: engine.now == 3, "all slots taken")
    await rig.endpoint("m", url, slots=1)
    wires["d"] = await asking(rig, "d")
    await until(lambda: queued(rig) == 1, "waiting")
    for left, name in ((2, "a"), (1, "b")):
        engine.answer(name)
        assert (await wires[name].answer()).status == 200
        assert (engine.now, queued(rig)) == (left, 1)
    engine.answer("c")
    engine.answer("d")
    assert (await wires["d"].answer()).json == {"said": "d"}


async def test_the_queue_timeout_is_for_all_waits_of_a_request_together(rig: Rig) -> None:
    engine = Slots()
    await rig.catalog(model("m"), queue_timeout=Seconds(0.4))
    url = (await rig.engine(engine)).url
    endpoint = await rig.endpoint("m", url, slots=1)
    await asking(rig, "a")
    await until(lambda: engine.now == 1, "the first")
    second = await asking(rig, "b")
    await until(lambda: queued(rig) == 1, "waiting")
    begun = asyncio.get_running_loop().time()
    answer = asyncio.ensure_future(second.answer())
    while not answer.done() and asyncio.get_running_loop().time() < begun + 20:  # each time it is in another line
        await rig.withdraw(endpoint)
        endpoint = await rig.endpoint("m", url, slots=1)
        await asyncio.sleep(0.05)
    assert answer.done()
    assert answer.result().code == "queue_full"
    assert engine.order == ["a"]


async def test_an_alias_that_moves_takes_those_along_who_wait_for_it(rig: Rig) -> None:
    engine, other = Slots(), Slots()
    await rig.catalog(model("m", "x"), model("n"))
    await rig.endpoint("m", (await rig.engine(engine)).url, slots=1)
    await rig.endpoint("n", (await rig.engine(other)).url, slots=1)
    first = await asking(rig, "a")
    await until(lambda: engine.now == 1, "the first")
    second = await rig.wire()
    second.send(post({"model": "x", "user": "b"}))
    await until(lambda: queued(rig) == 1, "waiting")
    other.answer("b")
    await rig.catalog(model("m"), model("n", "x"))
    assert (await second.answer()).json == {"said": "b"}
    assert (engine.order, other.order, queued(rig)) == (["a"], ["b"], 0)
    engine.answer("a")
    assert (await first.answer()).status == 200


async def fill(rig: Rig, engine: Slots, token: str, waiting: int) -> dict[str, Wire]:
    """One of that key in the engine, and so many in the line."""
    wires = {}
    for number in range(waiting + 1):
        wires[f"g{number}"] = await asking(rig, f"g{number}", key=token)
        await until(lambda n=number: engine.now + queued(rig) == n + 1, "arrival")
    return wires


async def test_a_key_that_fills_the_line_makes_room_for_the_others(rig: Rig) -> None:
    engine = await serving(rig, 1, max_waiting=4)
    tokens = await keyed(rig, "greedy", "modest")
    wires = await fill(rig, engine, tokens["greedy"], 4)
    assert (await (await asking(rig, "g5", key=tokens["greedy"])).answer()).code == "queue_full"
    for number, gone in ((0, "g4"), (1, "g3")):  # who came last
        wires[f"m{number}"] = await asking(rig, f"m{number}", key=tokens["modest"])
        answer = await wires.pop(gone).answer()
        assert (answer.status, answer.code) == (429, "queue_full")
        assert int(answer.headers["retry-after"]) > 0
        assert queued(rig) == 4
    full = await (await asking(rig, "m2", key=tokens["modest"])).answer()  # each has two
    assert full.code == "queue_full"
    for name in ("g0", "m0", "g1", "m1", "g2"):
        await until(lambda n=name: n in engine.order, name)
        engine.answer(name)
        assert (await wires[name].answer()).status == 200
    assert engine.order == ["g0", "m0", "g1", "m1", "g2"]


async def test_a_key_that_fills_the_wait_for_a_model_makes_room_for_the_others(rig: Rig) -> None:
    await rig.catalog(model("m"), model("n"), max_waiting=2)
    tokens = await keyed(rig, "greedy", "modest")
    wires = []
    for number in range(2):
        wires.append(await asking(rig, f"g{number}", key=tokens["greedy"]))
        await until(lambda n=number: rig.metric("llmgw_gateway_held", model="m") == n + 1, "waiting")
    modest = await asking(rig, "m0", key=tokens["modest"])
    assert (await wires.pop().answer()).code == "queue_full"
    engine = Slots()
    engine.answer("g0")
    engine.answer("m0")
    await rig.endpoint("m", (await rig.engine(engine)).url)
    assert (await wires[0].answer()).status == 200
    assert (await modest.answer()).status == 200


async def test_those_whom_no_free_slot_will_do_are_not_tried_one_by_one(rig: Rig) -> None:
    chats, embeds = Slots(), Slots()
    await rig.catalog(model("m"))
    await rig.endpoint("m", (await rig.engine(chats)).url, id="c", slots=2, surfaces=("chat/completions",))
    await rig.endpoint("m", (await rig.engine(embeds)).url, id="e", slots=1, surfaces=("embeddings",))
    wires = {"e0": await asking(rig, "e0", "/v1/embeddings")}
    await until(lambda: embeds.now == 1, "the first")
    for number in range(1, 5):
        wires[f"e{number}"] = await asking(rig, f"e{number}", "/v1/embeddings")
        await until(lambda n=number: queued(rig) == n, "waiting")
    tried = 0

    class Counting(Line[Held]):
        __slots__ = ()

        def next(self, passed: Callable[[Held], bool] | None = None) -> Held | None:
            nonlocal tried
            tried += 1
            return super().next(passed)

    rig.gateway._relay.lines["m"].__class__ = Counting  # type: ignore[union-attr,index]
    chats.answer("c0")
    assert (await (await asking(rig, "c0")).answer()).json == {"said": "c0"}
    assert 0 < tried <= 9, "of two kinds, when it comes, when it goes and between"
    for number in range(5):
        embeds.answer(f"e{number}")
        assert (await wires[f"e{number}"].answer()).status == 200
    assert embeds.order == [f"e{number}" for number in range(5)]
