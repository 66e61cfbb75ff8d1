"""What an endpoint gets of the traffic: new ones little at first, lost ones nothing until they answer again."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from gateway_rig import FakeEngine, Rig, model, post, say, until
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.gateway import relay
from llmgw.gateway.balance import UNLIMITED, in_charge, lightest, pick
from llmgw.gateway.warmup import Warmup
from llmgw.units import Seconds


@dataclass(eq=False)
class One:
    full_weight: float = 2.0
    weight: float = 2.0


@dataclass(frozen=True, eq=False)
class Two:
    """An endpoint as the balancer sees it."""

    tier: int
    weight: float
    outstanding: int
    slots: int
    turn: int


def test_a_weight_grows_from_a_tenth_to_the_whole_in_the_time_that_is_given() -> None:
    warmup, one = Warmup(), One()
    warmup.begin(one, 100.0)
    seen = []
    for now in (100, 101, 105, 109, 110, 111):
        warmup.grow(now, 10)
        seen.append(one.weight)
    assert seen == pytest.approx([0.2, 0.2, 1.0, 1.8, 2.0, 2.0])
    assert not warmup


def test_without_a_time_it_has_its_whole_weight_at_once_and_one_that_went_is_forgotten() -> None:
    warmup, one, gone = Warmup(), One(), One(weight=0.5)
    warmup.begin(one, 100.0)
    warmup.begin(gone, 100.0)
    warmup.forget(gone)
    warmup.grow(100, 0)
    assert (one.weight, gone.weight) == (2.0, 0.5)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_quick_choice_is_the_one_that_the_rules_make(data: st.DataObject) -> None:
    some = [
        Two(
            tier=data.draw(st.integers(0, 2)),
            weight=data.draw(st.sampled_from([0.0, 0.5, 1.0, 2.0])),
            outstanding=data.draw(st.integers(0, 4)),
            slots=data.draw(st.sampled_from([1, 2, 4, UNLIMITED])),
            turn=turn,
        )
        for turn in data.draw(st.permutations(range(5)))
    ]
    assert lightest(some) is pick(one for one in in_charge(some) if one.outstanding < one.slots)


async def shares(rig: Rig, requests: int) -> Counter[str]:
    """Who gets so many requests at once, each of which stays."""
    wires = [await rig.wire() for _ in range(requests)]
    for wire in wires:
        wire.send(post({"model": "m"}))
    await until(lambda: rig.metric("llmgw_gateway_in_flight", model="m") == requests, "all in engines")
    targets = rig.gateway._relay.targets.values()  # type: ignore[union-attr]
    found = Counter({str(target.id): target.outstanding for target in targets})
    for wire in wires:
        await wire.close()
    await until(lambda: rig.metric("llmgw_gateway_in_flight", model="m") == 0, "none in engines")
    return found


async def silent(*_: Any) -> None:
    await asyncio.sleep(60)


async def test_an_endpoint_that_joins_others_gets_little_at_first(rig: Rig) -> None:
    await rig.catalog(model("m"), slow_start=Seconds(3600))
    await rig.endpoint("m", (await rig.engine(silent)).url, id="old")
    await rig.endpoint("m", (await rig.engine(silent)).url, id="new")
    assert await shares(rig, 22) == {"old": 20, "new": 2}
    await rig.catalog(slow_start=Seconds(0))
    assert await shares(rig, 22) == {"old": 11, "new": 11}


async def test_endpoints_that_come_together_or_without_the_setting_share_evenly(rig: Rig) -> None:
    await rig.catalog(model("m"))
    await rig.endpoint("m", (await rig.engine(silent)).url, id="a")
    await rig.endpoint("m", (await rig.engine(silent)).url, id="b")
    assert await shares(rig, 22) == {"a": 11, "b": 11}


async def lossy(rig: Rig, *ids: str, **more: Any) -> dict[str, FakeEngine]:
    await rig.catalog(model("m"))
    engines = {id: await rig.engine(say({"by": id})) for id in ids}
    for id, engine in engines.items():
        await rig.endpoint("m", engine.url, id=id, **more)
    return engines


async def by(rig: Rig) -> str:
    return str((await rig.post({"model": "m"})).json["by"])


async def again(engine: FakeEngine, url: str) -> None:
    """Listen where it did."""
    engine._server = await asyncio.start_server(engine._serve, "127.0.0.1", int(url.rpartition(":")[2]))


async def test_an_endpoint_that_is_lost_gets_nothing_until_its_time_is_over_and_then_returns(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "SUSPECT", 0.3)
    engines = await lossy(rig, "a", "b")
    url = engines["a"].url
    assert {await by(rig) for _ in range(4)} == {"a", "b"}
    await engines["a"].stop()
    assert {await by(rig) for _ in range(8)} == {"b"}
    assert rig.metric("llmgw_gateway_engine_lost_total", model="m") == 1
    await again(engines["a"], url)
    target = rig.gateway._relay.targets["a"]  # type: ignore[union-attr,index]
    assert target.losses == 1
    await until(lambda: asyncio.get_running_loop().time() > target.suspect_until, "the end of its time")
    assert {await by(rig) for _ in range(4)} == {"a", "b"}
    assert (target.losses, target.trial) == (0, False)


async def test_each_further_loss_takes_it_out_for_twice_as_long(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "SUSPECT", 0.05)
    monkeypatch.setattr(relay, "SUSPECT_MOST", 0.15)
    engines = await lossy(rig, "a", "b")
    await engines["a"].stop()
    target = rig.gateway._relay.targets["a"]  # type: ignore[union-attr,index]
    loop, times = asyncio.get_running_loop(), []
    for number in range(1, 4):
        await until(lambda: loop.time() > target.suspect_until, "the end of its time")
        while target.losses < number:
            before = loop.time()
            assert await by(rig) == "b"
            after = loop.time()
        times.append((target.suspect_until - after, target.suspect_until - before))
    for expected, (least, most) in zip((0.05, 0.1, 0.15), times, strict=True):
        assert least - 0.01 <= expected <= most + 0.01  # uvloop counts in milliseconds


async def test_after_its_time_one_request_finds_out_for_all(rig: Rig) -> None:
    engines = await lossy(rig, "a", "b")
    target = rig.gateway._relay.targets["a"]  # type: ignore[union-attr,index]
    door = asyncio.Event()

    async def slow(*args: Any) -> None:
        await door.wait()
        await say({"by": "a"})(*args)

    engines["a"].behaviour = slow
    target.losses, target.suspect_until = 1, 0.0
    first = asyncio.create_task(by(rig))
    await until(lambda: target.trial or first.done(), "its turn")
    if not target.trial:  # it was the other's turn
        first = asyncio.create_task(by(rig))
        await until(lambda: target.trial, "its turn")
    assert {await by(rig) for _ in range(6)} == {"b"}
    assert len(engines["a"].asked) == 1
    door.set()
    assert await first == "a"
    assert {await by(rig) for _ in range(4)} == {"a", "b"}


async def test_where_every_endpoint_was_lost_the_least_bad_is_asked_all_the_same(rig: Rig) -> None:
    await lossy(rig, "a", "b")
    for target in rig.gateway._relay.targets.values():  # type: ignore[union-attr]
        target.losses, target.suspect_until = 3, asyncio.get_running_loop().time() + 3600
    assert await by(rig) in ("a", "b")


async def test_who_waits_in_line_gets_the_slot_of_one_that_has_returned(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "SUSPECT", 0.2)
    engines = await lossy(rig, "a", "b", slots=1)
    url = engines["a"].url
    engines["b"].behaviour = silent
    await engines["a"].stop()
    first = await rig.wire()
    first.send(post({"model": "m"}))
    await until(lambda: engines["b"].asked, "the first")
    rig.gateway._relay.suspect(rig.gateway._relay.targets["a"], "a test says so")  # type: ignore[union-attr,index]
    second = await rig.wire()
    second.send(post({"model": "m"}))
    await until(lambda: rig.metric("llmgw_gateway_queued", model="m") == 1, "waiting")
    await again(engines["a"], url)
    assert (await second.answer()).json == {"by": "a"}


# what engines say that they serve


async def test_what_no_engine_of_a_model_serves_is_refused_before_one_sees_it(rig: Rig) -> None:
    engine = await rig.engine()
    await rig.catalog(model("m"))
    await rig.endpoint("m", engine.url, surfaces=("chat/completions", "completions"))
    answer = await rig.post({"model": "m", "input": "x"}, path="/v1/embeddings")
    assert (answer.status, answer.code) == (404, "surface_not_served")
    said = "model 'm' does not serve /v1/embeddings: its engine has /v1/chat/completions, /v1/completions"
    assert answer.json["error"]["message"] == said
    assert rig.metric("llmgw_gateway_requests_total", model="m", status="4xx") == 1
    assert engine.asked == []
    assert (await rig.post({"model": "m"})).status == 200


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/tokenize", "/v1/messages/count_tokens", "/v1/something/new"])
async def test_of_what_engines_do_not_declare_nothing_is_known(rig: Rig, path: str) -> None:
    await rig.catalog(model("m"))
    await rig.endpoint("m", (await rig.engine()).url, surfaces=("embeddings",))
    assert (await rig.post({"model": "m"}, path=path)).status == 200


async def test_an_engine_that_says_nothing_may_serve_anything(rig: Rig) -> None:
    await rig.serving()
    assert (await rig.post({"model": "m"}, path="/v1/rerank")).status == 200


async def test_of_several_engines_those_are_asked_that_serve_it(rig: Rig) -> None:
    await rig.catalog(model("m"))
    for id, surfaces in (("chat", ("chat/completions",)), ("both", ("chat/completions", "embeddings")), ("any", None)):
        await rig.endpoint("m", (await rig.engine(say({"by": id}))).url, id=id, surfaces=surfaces)
    paths = ("/v1/chat/completions", "/v1/embeddings", "/v1/score")
    found = {path: {(await rig.post({"model": "m"}, path=path)).json["by"] for _ in range(6)} for path in paths}
    assert found == {paths[0]: {"chat", "both", "any"}, paths[1]: {"both", "any"}, paths[2]: {"any"}}
