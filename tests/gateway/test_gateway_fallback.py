"""Another model in a model's place: routed when the controller says so, un-routed when it is ready again."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from gateway_rig import DONE, STREAM_HEAD, Asked, Rig, ask_of, asked, chunked, event, get, lazy, model, say, until
from hypothesis import given
from hypothesis import strategies as st

from llmgw.catalog.spec import ModelSpec
from llmgw.gateway.openai import Code
from llmgw.gateway.routes import Hold, Refusal, Route, RoutingTable
from llmgw.ids import Digest, EngineName, ModelName, ReplicaId, Revision
from llmgw.plan import Endpoint, ModelState, ModelStatus
from llmgw.store import codec, keys
from llmgw.store.values import Applied
from llmgw.units import Seconds, Wall

A, B, C = (ModelName(name) for name in "abc")
REFUSING = "X-LLMGW-No-Fallback: 1\r\n"


async def failed(rig: Rig, name: str = "a", fallback: str = "b", **more: Any) -> None:
    await rig.status(name, ModelState.FAILED, reason="oom", fallback=ModelName(fallback), **more)


async def test_the_fallback_answers_and_the_answer_says_so(rig: Rig) -> None:
    engine = await rig.engine()
    await rig.catalog(model("a", "alias"), model("b"))
    await rig.endpoint("b", engine.url)
    await failed(rig)
    for name in ("a", "alias"):
        answer = await rig.post({"model": name, "n": 1})
        assert (answer.status, answer.headers["x-llmgw-fallback"]) == (200, "b")
    assert [found.json for found in engine.asked] == [{"model": "b", "n": 1}] * 2
    assert rig.metric("llmgw_gateway_fallback_total", model="a") == 2
    assert rig.metric("llmgw_gateway_requests_total", model="a", status="2xx") == 2
    own = await rig.post({"model": "b"})
    assert "x-llmgw-fallback" not in own.headers
    assert rig.metric("llmgw_gateway_fallback_total", model="b") == 0


async def test_it_is_un_routed_as_soon_as_the_model_has_an_endpoint_of_its_own(rig: Rig) -> None:
    own, other = await rig.engine(), await rig.engine()
    await rig.catalog(model("a"), model("b"))
    await rig.endpoint("b", other.url)
    await failed(rig)
    assert (await rig.post({"model": "a"})).headers["x-llmgw-fallback"] == "b"
    await rig.endpoint("a", own.url)  # the status still names the fallback
    answer = await rig.post({"model": "a"})
    assert "x-llmgw-fallback" not in answer.headers
    assert (len(own.asked), len(other.asked)) == (1, 1)


async def test_without_a_word_of_the_controller_no_fallback_answers(rig: Rig) -> None:
    engine = await rig.engine()
    spec = model("a")
    await rig.catalog(
        ModelSpec(name=A, profiles=spec.profiles, fallback=B), model("b"), cold_start_timeout=Seconds(0.05)
    )
    await rig.endpoint("b", engine.url)
    assert (await rig.post({"model": "a"})).code == "model_loading"
    await rig.status("a", ModelState.FAILED)
    assert (await rig.post({"model": "a"})).code == "model_failed"
    assert engine.asked == []


@pytest.mark.parametrize("value", ["1", "true", "yes"])
async def test_a_client_may_refuse_it(rig: Rig, value: str) -> None:
    engine = await rig.engine()
    await rig.catalog(model("a"), model("b"))
    await rig.endpoint("b", engine.url)
    await failed(rig)
    refused = await rig.post({"model": "a"}, headers=f"x-llmgw-no-fallback: {value}\r\n")
    assert (refused.status, refused.code) == (503, "model_failed")
    assert "oom" in refused.json["error"]["message"]
    assert (await rig.post({"model": "a"}, headers="X-LLMGW-No-Fallback: 0\r\n")).status == 200
    assert "x-llmgw-no-fallback" not in engine.asked[0].headers


async def test_while_the_fallback_loads_requests_wait_for_it_and_count_for_it(rig: Rig) -> None:
    engine = await rig.engine()
    await rig.catalog(model("a"), model("b"))
    await failed(rig)
    await rig.status("b", ModelState.LOADING)
    task = asyncio.create_task(rig.post({"model": "a"}))
    await until(lambda: rig.metric("llmgw_gateway_held", model="a") == 1, "waiting")
    while (usage := await rig.usage()) is None or usage.held != {"b": 1}:
        await asyncio.sleep(0.005)
    await rig.endpoint("b", engine.url)
    assert (await task).headers["x-llmgw-fallback"] == "b"
    assert rig.metric("llmgw_gateway_held", model="a") == 0


async def test_who_waits_for_the_fallback_is_served_by_the_model_itself_where_that_is_ready_first(rig: Rig) -> None:
    engine = await rig.engine()
    await rig.catalog(model("a"), model("b"))
    await failed(rig)
    task = asyncio.create_task(rig.post({"model": "a"}))
    await until(lambda: rig.metric("llmgw_gateway_held", model="a") == 1, "waiting")
    await rig.endpoint("a", engine.url)
    answer = await task
    assert answer.status == 200
    assert "x-llmgw-fallback" not in answer.headers
    assert engine.asked[0].json["model"] == "a"


async def test_who_waits_for_the_model_goes_to_the_fallback_once_it_gives_up(rig: Rig) -> None:
    engine = await rig.engine()
    await rig.catalog(model("a"), model("b"))
    await rig.endpoint("b", engine.url)
    willing = asyncio.create_task(rig.post({"model": "a"}))
    refusing = asyncio.create_task(rig.post({"model": "a"}, headers=REFUSING))
    await until(lambda: rig.metric("llmgw_gateway_held", model="a") == 2, "waiting")
    await failed(rig)
    assert (await willing).headers["x-llmgw-fallback"] == "b"
    assert (await refusing).code == "model_failed"


async def test_a_wait_for_the_fallback_that_is_too_long_says_for_what(rig: Rig) -> None:
    await rig.catalog(model("a"), model("b"), cold_start_timeout=Seconds(0.05))
    await failed(rig)
    answer = await rig.post({"model": "a"})
    assert answer.code == "model_loading"
    assert "model 'b', the fallback of 'a', is still loading" in answer.json["error"]["message"]


async def test_an_on_demand_fallback_is_asked_for_and_so_is_the_model_itself(rig: Rig) -> None:
    engine = await rig.engine()
    await rig.catalog(lazy("a"), lazy("b"))
    await failed(rig)
    await rig.status("b", ModelState.INACTIVE)
    task = asyncio.create_task(rig.post({"model": "a"}))
    await asked(rig, "b")
    await asked(rig, "a")
    await rig.endpoint("b", engine.url)
    assert (await task).status == 200
    assert await ask_of(rig.store, "c") is None


async def test_an_engine_of_the_fallback_that_is_lost_leads_to_the_next_one(rig: Rig) -> None:
    async def die(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    dying, fine = await rig.engine(die), await rig.engine()
    await rig.catalog(model("a"), model("b"))
    await failed(rig)
    await rig.endpoint("b", dying.url, "b1")
    await rig.endpoint("b", fine.url, "b2", tier=1)
    answer = await rig.post({"model": "a"})
    assert (answer.status, answer.headers["x-llmgw-fallback"]) == (200, "b")
    assert rig.metric("llmgw_gateway_fallback_total", model="a") == 1


async def test_a_fallback_gets_nothing_of_the_parameters_of_the_model_whose_engine_was_lost(rig: Rig) -> None:
    async def dies(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    own, other = await rig.engine(dies), await rig.engine()
    mine = replace(model("a"), strip_params=("n",), set_params={"temperature": 0}, default_params={"seed": 1})
    await rig.catalog(replace(mine, fallback=B), replace(model("b"), set_params={"top_k": 5}))
    endpoint = await rig.endpoint("a", own.url)
    await rig.endpoint("b", other.url)
    asked = asyncio.create_task(rig.post({"model": "a", "n": 2, "temperature": 1}))
    await until(lambda: rig.metric("llmgw_gateway_held", model="a") == 1, "a lost")
    await failed(rig)
    await rig.withdraw(endpoint)
    assert (await asked).headers["x-llmgw-fallback"] == "b"
    assert own.asked[0].json == {"model": "a", "temperature": 0, "seed": 1}
    assert other.asked[0].json == {"model": "b", "n": 2, "temperature": 1, "top_k": 5}


async def test_a_fallback_answers_only_what_its_engines_serve(rig: Rig) -> None:
    engine = await rig.engine()
    await rig.catalog(model("a"), lazy("b"))
    await failed(rig)

    await rig.status("b", ModelState.INACTIVE, surfaces=("chat/completions",))
    told = await rig.post({"model": "a"}, "/v1/embeddings")
    assert (told.status, told.code) == (503, "model_failed")  # not 404: the model itself serves it, when it is well
    assert await ask_of(rig.store, "b") is None
    await rig.endpoint("b", engine.url, surfaces=("chat/completions",))
    assert (await rig.post({"model": "a"}, "/v1/embeddings")).code == "model_failed"
    assert (await rig.post({"model": "a"})).headers["x-llmgw-fallback"] == "b"
    assert (await rig.post({"model": "b"}, "/v1/embeddings")).code == "surface_not_served"


async def test_who_waits_for_a_model_whose_fallback_does_not_serve_it_goes_on_waiting(rig: Rig) -> None:
    other = await rig.engine()
    await rig.catalog(model("a"), model("b"))
    await rig.endpoint("b", other.url, surfaces=("chat/completions",))
    await rig.status("a", ModelState.LOADING, fallback=B)
    held = asyncio.create_task(rig.post({"model": "a"}, "/v1/embeddings"))
    await until(lambda: rig.metric("llmgw_gateway_held", model="a") == 1)
    await rig.status("a", ModelState.LOADING, fallback=B, reason="about to be tried again")
    assert rig.metric("llmgw_gateway_hold_seconds_count", model="a") == 0  # the same stay, not a new one
    own = await rig.engine()
    await rig.endpoint("a", own.url)
    assert (await held).status == 200
    assert (len(own.asked), len(other.asked)) == (1, 0)


async def test_models_are_listed_with_their_fallback_while_it_serves(rig: Rig) -> None:
    engine = await rig.engine()
    await rig.catalog(model("a", "alias"), model("b"))
    await rig.endpoint("b", engine.url)
    await failed(rig)
    listed = (await rig.ask(get("/v1/models"))).json["data"]
    assert [(m["id"], m["state"], m["fallback"]) for m in listed] == [("a", "failed", "b"), ("b", "ready", None)]
    assert (await rig.ask(get("/v1/models/alias"))).json["id"] == "a"


async def test_the_answer_of_an_engine_cannot_claim_to_be_a_fallbacks(rig: Rig) -> None:
    await rig.serving(say({}, extra="X-LLMGW-Fallback: other\r\n"))
    assert "x-llmgw-fallback" not in (await rig.post({"model": "m"})).headers


async def test_a_stream_of_the_fallback_says_so_too(rig: Rig) -> None:
    async def stream(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunked(event("one")) + DONE)

    engine = await rig.engine(stream)
    await rig.catalog(model("a"), model("b"))
    await rig.endpoint("b", engine.url)
    await failed(rig)
    answer = await rig.post({"model": "a", "stream": True})
    assert answer.headers["x-llmgw-fallback"] == "b"
    assert b"[DONE]" in answer.body


# the table by itself


def table(*statuses: ModelStatus, endpoints: tuple[str, ...] = (), models: tuple[ModelSpec, ...] = ()) -> RoutingTable:
    ready = [
        Endpoint(id=ReplicaId(f"r-{name}"), model=ModelName(name), url="http://h:1", names=(), engine=EngineName("e"))
        for name in endpoints
    ]
    known = models or tuple(map(model, "abc"))
    applied = Applied(revision=Revision("r"), digest=Digest("d"), at=Wall(0))
    return RoutingTable.build(applied=applied, models=known, endpoints=ready, statuses=statuses, stopped=None)


def status(name: str, state: ModelState = ModelState.FAILED, fallback: str | None = None) -> ModelStatus:
    return ModelStatus(model=ModelName(name), state=state, fallback=ModelName(fallback) if fallback else None)


def test_a_fallback_of_a_fallback_serves() -> None:
    found = table(status("a", fallback="b"), status("b", fallback="c"), endpoints=("c",)).resolve("a")
    assert isinstance(found, Route)
    assert (found.model, found.instead_of) == (C, A)


def test_a_circle_of_fallbacks_ends() -> None:
    found = table(status("a", fallback="b"), status("b", fallback="a")).resolve("a")
    assert isinstance(found, Refusal)
    assert (found.code, found.model) == (Code.MODEL_FAILED, A)


def test_a_fallback_that_cannot_serve_leaves_the_models_own_answer() -> None:
    found = table(status("a", fallback="b"), status("b", ModelState.UNSCHEDULABLE)).resolve("a")
    assert isinstance(found, Refusal)
    assert found.model == A
    loading = table(status("a", ModelState.LOADING, fallback="b"), status("b")).resolve("a")
    assert loading == Hold(A, status("a", ModelState.LOADING, fallback="b"))


def test_a_fallback_that_is_not_in_the_catalog_is_none() -> None:
    found = table(status("a", fallback="gone")).resolve("a")
    assert isinstance(found, Refusal)


def test_a_client_that_refuses_a_fallback_gets_what_there_is_without_one() -> None:
    routes = table(status("a", fallback="b"), endpoints=("b",))
    assert isinstance(routes.resolve("a"), Route)
    assert isinstance(routes.resolve("a", fallback=False), Refusal)
    assert isinstance(routes.resolve("b", fallback=False), Route)
    assert routes.resolve("nope", fallback=False).code == Code.MODEL_NOT_FOUND  # type: ignore[union-attr]


def test_a_quarantined_on_demand_model_is_asked_for_by_those_whom_its_fallback_serves() -> None:
    found = table(status("a", fallback="b"), endpoints=("b",), models=(lazy("a"), model("b"))).resolve("a")
    assert isinstance(found, Route)
    assert found.wants == (A,)


async def test_a_damaged_status_hides_no_fallback_of_others(rig: Rig) -> None:
    engine = await rig.engine()
    await rig.catalog(model("a"), model("b"), model("c"))
    await rig.endpoint("b", engine.url)
    await rig.store.put(keys.explain(C), b"?")
    await rig.store.put(keys.explain(A), codec.encode(status("a", fallback="b")))
    await rig.settle()
    assert (await rig.post({"model": "a"})).headers["x-llmgw-fallback"] == "b"


NAMES = st.sampled_from("abcd")
statuses = st.dictionaries(NAMES, st.tuples(st.sampled_from(ModelState), st.none() | NAMES))


@given(statuses, st.sets(NAMES), st.sets(NAMES))
def test_whatever_the_statuses_say_a_request_comes_to_one_thing(
    told: dict[str, tuple[ModelState, str | None]], ready: set[str], on_demand: set[str]
) -> None:
    models = tuple(lazy(name) if name in on_demand else model(name) for name in "abcd")
    routes = table(*(status(n, s, f) for n, (s, f) in told.items()), endpoints=tuple(ready), models=models)
    for name in "abcd":
        found, own = routes.resolve(name), routes.resolve(name, fallback=False)
        if name in ready:
            assert found == own == Route(ModelName(name), routes.endpoints[ModelName(name)])
            continue
        assert not isinstance(own, Route), "nobody answers in its place for a client who refuses that"
        if isinstance(found, Refusal):
            assert found == own
            continue
        assert found.named == name
        assert set(found.wants) <= on_demand - ready, "only what is on demand and not ready is asked for"
        if isinstance(found, Route):
            assert found.endpoints == routes.endpoints[found.model]
            assert name not in on_demand or name in found.wants
        elif found.model in on_demand:
            assert found.model in found.wants
