"""Keys that change while requests of theirs wait, are answered, or are on their way."""

from dataclasses import replace

import pytest
from gateway_rig import Answer, Rig, Wire, lazy, model, post, until
from test_gateway_queue import Slots, queued, serving

from llmgw.store import codec, keys
from llmgw.store.tokens import digest, new_token
from llmgw.store.values import ApiKey
from llmgw.units import Wall


async def make(rig: Rig, name: str = "ada", **more: object) -> tuple[ApiKey, str]:
    id, token = new_token()
    key = ApiKey(id=id, name=name, digest=digest(token.encode()), created=Wall(1.0), by="x", **more)  # type: ignore[arg-type]
    await put(rig, key)
    return key, token


async def put(rig: Rig, key: ApiKey) -> None:
    await rig.store.put(keys.api_key(key.name), codec.encode(key))
    await rig.settle()


def request(user: str, token: str = "", name: str = "m") -> bytes:
    return post({"model": name, "user": user}, headers=f"Authorization: Bearer {token}\r\n" if token else "")


async def one_in_the_engine_and_one_in_line(rig: Rig, engine: Slots, token: str) -> tuple[Wire, Wire]:
    first, second = await rig.wire(), await rig.wire()
    first.send(request("a", token))
    await until(lambda: engine.now == 1, "the first")
    second.send(request("b", token))
    await until(lambda: queued(rig) == 1, "waiting")
    return first, second


def told(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.code


async def test_what_waits_for_a_slot_when_its_key_is_revoked_is_refused_and_what_has_one_is_finished(rig: Rig) -> None:
    engine = await serving(rig, 1)
    key, token = await make(rig)
    first, second = await one_in_the_engine_and_one_in_line(rig, engine, token)
    await put(rig, replace(key, revoked=Wall(2.0)))
    assert told(await second.answer()) == (401, "key_revoked")
    engine.answer("a")
    assert (await first.answer()).json == {"said": "a"}
    assert (engine.order, queued(rig)) == (["a"], 0)


async def test_what_waits_when_its_key_is_forgotten_or_is_for_other_models_by_now_is_refused(rig: Rig) -> None:
    engine = await serving(rig, 1)
    key, token = await make(rig)
    first, second = await one_in_the_engine_and_one_in_line(rig, engine, token)
    await put(rig, replace(key, models=("n",)))
    assert told(await second.answer()) == (403, "model_not_allowed")
    await put(rig, key)
    third = await rig.wire()
    third.send(request("c", token))
    await until(lambda: queued(rig) == 1, "waiting")
    await rig.store.delete(keys.api_key("ada"))
    await rig.settle()
    assert told(await third.answer()) == (401, "invalid_api_key")
    engine.answer("a")
    assert (await first.answer()).json == {"said": "a"}


async def test_what_waits_for_a_model_when_its_key_is_revoked_is_refused_and_others_wait_on(rig: Rig) -> None:
    await rig.catalog(lazy())
    key, token = await make(rig)
    _, other = await make(rig, "bob")
    revoked, stays = await rig.wire(), await rig.wire()
    revoked.send(request("a", token))
    stays.send(request("b", other))
    await until(lambda: rig.metric("llmgw_gateway_held", model="m") == 2, "waiting")
    await put(rig, replace(key, revoked=Wall(2.0)))
    assert told(await revoked.answer()) == (401, "key_revoked")
    engine = Slots()
    engine.answer("b")
    await rig.endpoint("m", (await rig.engine(engine)).url)
    assert (await stays.answer()).json == {"said": "b"}


async def test_an_alias_that_moves_to_a_model_that_the_key_is_not_for_takes_nobody_along(rig: Rig) -> None:
    other = Slots()
    await rig.catalog(model("m", "x"), model("n"))
    await rig.endpoint("n", (await rig.engine(other)).url)
    _, token = await make(rig, models=("m",))
    wire = await rig.wire()
    wire.send(request("a", token, "x"))
    await until(lambda: rig.metric("llmgw_gateway_held", model="m") == 1, "waiting")
    await rig.catalog(model("m"), model("n", "x"))
    assert told(await wire.answer()) == (403, "model_not_allowed")
    assert other.order == []


async def test_requests_that_were_sent_ahead_are_not_begun_once_their_key_is_revoked(rig: Rig) -> None:
    engine = await serving(rig, None)
    key, token = await make(rig)
    wire = await rig.wire()
    wire.send(request("a", token) + request("b", token) + request("c", token))
    await until(lambda: engine.now == 1, "the first")
    await put(rig, replace(key, revoked=Wall(2.0)))
    for name in "abc":
        engine.answer(name)
    assert (await wire.answer()).json == {"said": "a"}
    assert told(await wire.answer()) == (401, "key_revoked")
    assert told(await wire.answer()) == (401, "key_revoked")
    assert engine.order == ["a"]


@pytest.mark.parametrize("first", [False, True])
async def test_a_body_that_is_complete_only_after_its_key_was_revoked_is_for_nothing(rig: Rig, first: bool) -> None:
    """`first`: nobody needed a key when the request began."""
    engine = await serving(rig, None)
    key, token = ApiKey(id="", name="", digest="", created=Wall(1.0), by="x"), ""
    if not first:
        key, token = await make(rig)
    wire = await rig.wire()
    data = request("a", token)
    wire.send(data[:-5])
    (client,) = rig.gateway._connections
    await until(lambda: client._parser._size > 0, "most of the body")
    if first:
        await make(rig)
    else:
        await put(rig, replace(key, revoked=Wall(2.0)))
    wire.send(data[-5:])
    assert told(await wire.answer()) == (401, "key_missing" if first else "key_revoked")
    assert engine.order == []


async def test_who_waits_when_the_first_key_is_made_came_in_time(rig: Rig) -> None:
    engine = await serving(rig, 1)
    first, second = await one_in_the_engine_and_one_in_line(rig, engine, "")
    await make(rig)
    engine.answer("a")
    engine.answer("b")
    assert [(await wire.answer()).status for wire in (first, second)] == [200, 200]
    assert (await rig.post({"model": "m"})).code == "key_missing"
