"""What a request is answered by the state of its model, and what the gateway tells the store meanwhile."""

import asyncio

import pytest
from gateway_rig import DONE, PATIENCE, STREAM_HEAD, Asked, Rig, chunked, echo, event, get, model, post, say, until

from llmgw.facts import Progress, ReplicaUse
from llmgw.gateway import seeking
from llmgw.gateway import usage as reporting
from llmgw.ids import NodeName
from llmgw.plan import ModelState, Reason, Rejection
from llmgw.store import keys
from llmgw.units import GIB, MIB, Bytes, Seconds, Wall


async def test_without_a_catalog_nothing_is_served_and_health_is_fine(rig: Rig) -> None:
    answer = await rig.post({"model": "m"})
    assert (answer.status, answer.code) == (503, "not_ready")
    assert int(answer.headers["retry-after"]) > 0
    assert (await rig.ask(get("/v1/models"))).code == "not_ready"
    assert (await rig.ask(get("/health"))).status == 200


async def test_models_are_listed_with_alias_and_state(rig: Rig) -> None:
    await rig.serving(echo, "default", "org/M:free")
    await rig.catalog(model("cold", description="not up"))
    listed = (await rig.ask(get("/v1/models"))).json
    assert listed["object"] == "list"
    assert [(found["id"], found["state"]) for found in listed["data"]] == [("cold", "loading"), ("m", "ready")]
    assert listed["data"][1]["aliases"] == ["default", "org/M:free"]
    assert listed["data"][1]["owned_by"] == "llmgw"
    for name in ("m", "default", "org/M:free", "org%2FM:free"):
        assert (await rig.ask(get(f"/v1/models/{name}"))).json["id"] == "m"
    assert (await rig.ask(get("/v1/models/nope"))).code == "model_not_found"


async def test_stopped_refuses_every_post_before_reading_it_and_answers_gets(rig: Rig) -> None:
    await rig.serving()
    await rig.stop_serving()
    for data in (post(b"not json"), post({"model": "m"}), post({}, "/v1/models"), post({}, "/v1/any/thing")):
        answer = await rig.ask(data)
        assert (answer.status, answer.code) == (503, "system_stopped")
        assert "ada" in answer.json["error"]["message"]
    assert (await rig.ask(get("/v1/models"))).json["data"][0]["state"] == "stopped"
    await rig.store.delete(keys.STOPPED)
    await rig.settle()
    assert (await rig.post({"model": "m"})).status == 200


async def test_twenty_requests_for_a_cold_model_are_all_answered_when_it_is_ready(rig: Rig) -> None:
    engine = await rig.engine()
    await rig.catalog(model("m", "alias"))
    await rig.status("m", ModelState.LOADING)
    asked = [asyncio.create_task(rig.post({"model": "m" if n % 2 else "alias"})) for n in range(20)]
    await until(lambda: rig.metric("llmgw_gateway_held", model="m") == 20, "twenty waiting")
    await rig.status("m", ModelState.LOADING, progress=Progress(done=Bytes(1)))
    assert not any(task.done() for task in asked)
    await rig.endpoint("m", engine.url)
    assert [(await task).status for task in asked] == [200] * 20
    assert rig.metric("llmgw_gateway_held", model="m") == 0


async def test_a_request_held_too_long_is_told_how_far_the_model_is(rig: Rig) -> None:
    await rig.catalog(model("m"), cold_start_timeout=Seconds(0.1))
    progress = Progress(done=Bytes(12 * MIB), total=Bytes(48 * MIB))
    await rig.status("m", ModelState.LOADING, reason="fetching weights", progress=progress)
    answer = await rig.post({"model": "m"})
    assert (answer.status, answer.code) == (503, "model_loading")
    assert "fetching weights (12.0 MiB of 48.0 MiB fetched, 25 %)" in answer.json["error"]["message"]
    assert answer.headers["retry-after"]


async def test_a_held_request_is_answered_at_once_when_its_model_fails_or_goes(rig: Rig) -> None:
    await rig.catalog(model("bad"), model("gone"))
    asked = [asyncio.create_task(rig.post({"model": name})) for name in ("bad", "gone")]
    await until(lambda: rig.metric("llmgw_gateway_held", model="gone") == 1, "waiting")
    await rig.status("bad", ModelState.FAILED, reason="corrupt file")
    await rig.remove("gone")
    assert [(await task).code for task in asked] == ["model_failed", "model_not_found"]


async def test_a_client_that_stops_waiting_leaves_its_place(rig: Rig) -> None:
    await rig.catalog(model("m"))
    wire = await rig.wire()
    wire.send(post({"model": "m"}))
    await until(lambda: rig.metric("llmgw_gateway_held", model="m") == 1, "waiting")
    await wire.close()
    await until(lambda: rig.metric("llmgw_gateway_held", model="m") == 0, "its place being free")
    assert rig.metric("llmgw_gateway_cancelled_total", model="m") == 1


async def test_states_that_waiting_cannot_help_are_answered_at_once(rig: Rig) -> None:
    await rig.catalog(model("bad"), model("off"), model("big"))
    await rig.status("bad", ModelState.FAILED, reason="crash: exit code 1", retry_at=Wall(4e9))
    await rig.status("off", ModelState.INACTIVE, reason="wanted at 0")
    rejection = Rejection(
        node=NodeName("n1"), reason=Reason.HOST_MEMORY, need=Bytes(9 * GIB), have=Bytes(2 * GIB)
    )  # fmt: skip
    await rig.status("big", ModelState.UNSCHEDULABLE, rejections=(rejection,))
    bad, off, big = [await rig.post({"model": name}) for name in ("bad", "off", "big")]
    assert (bad.status, bad.code) == (503, "model_failed")
    assert "exit code 1; next attempt in" in bad.json["error"]["message"]
    assert int(bad.headers["retry-after"]) > 1000
    assert (off.status, off.code) == (503, "model_inactive")
    assert (big.status, big.code) == (503, "model_unschedulable")
    assert "need 9.0 GiB, have 2.0 GiB on n1" in big.json["error"]["message"]


async def test_a_ready_endpoint_serves_whatever_the_status_says(rig: Rig) -> None:
    await rig.serving()
    await rig.status("m", ModelState.UNSCHEDULABLE)
    assert (await rig.post({"model": "m"})).status == 200


async def test_a_model_that_left_the_catalog_is_not_served_though_its_endpoint_is_listed(rig: Rig) -> None:
    await rig.serving()
    await rig.remove("m")
    assert (await rig.post({"model": "m"})).code == "model_not_found"


async def test_an_engine_replaced_while_its_request_fails_has_the_request_held_for_the_next(rig: Rig) -> None:
    release = asyncio.Event()

    async def die_later(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.transport.abort()

    old, new = await rig.engine(die_later), await rig.engine()
    await rig.catalog(model("m"))
    endpoint = await rig.endpoint("m", old.url, "old")
    asked = asyncio.create_task(rig.post({"model": "m"}))
    await until(lambda: old.asked, "the request arriving")
    await rig.withdraw(endpoint)
    release.set()
    await until(lambda: rig.metric("llmgw_gateway_held", model="m") == 1, "being held")
    await rig.endpoint("m", new.url, "new")
    assert (await asked).status == 200


async def test_a_withdrawn_endpoint_finishes_what_it_has_and_gets_nothing_new(rig: Rig) -> None:
    go_on = asyncio.Event()

    async def stream(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunked(event("one")))
        await go_on.wait()
        writer.write(DONE)

    old, new = await rig.engine(stream), await rig.engine()
    await rig.catalog(model("m"))
    endpoint = await rig.endpoint("m", old.url, "old")
    wire = await rig.wire()
    wire.send(post({"model": "m", "stream": True}))
    await wire.reader.readuntil(b"one")
    await rig.endpoint("m", new.url, "new")
    await rig.withdraw(endpoint)
    usage = await rig.usage()
    assert usage is not None
    assert usage.replicas[endpoint.id].outstanding == 1
    assert (await rig.post({"model": "m"})).status == 200
    assert len(new.asked) == 1
    go_on.set()
    assert b"[DONE]" in await wire.reader.readuntil(b"0\r\n\r\n")
    for _ in range(500):
        usage = await rig.usage()
        assert usage is not None
        if endpoint.id not in usage.replicas:
            break
        await asyncio.sleep(0.01)
    else:
        raise AssertionError("the withdrawn endpoint stayed in the report")


async def test_a_withdrawal_is_acknowledged_at_once_with_its_revision(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "PACE", 3600.0)  # a report that is not hurried comes in no test's time
    await rig.serving()
    await rig.post({"model": "m"})
    for _ in range(5):
        await rig.store.delete("endpoints/n1/replica-of-m")
        revision = (await rig.store.list("endpoints/")).revision
        async with asyncio.timeout(PATIENCE):
            while (usage := await rig.usage()) is None or usage.seen < revision:
                await asyncio.sleep(0.001)
        await rig.endpoint("m", rig.engines[0].url)


async def test_usage_tells_when_a_replica_was_last_used_and_rests_when_nothing_happens(rig: Rig) -> None:
    await rig.serving()
    await rig.post({"model": "m"})
    for _ in range(300):
        usage = await rig.usage()
        if usage is not None and usage.replicas:
            break
        await asyncio.sleep(0.01)
    assert usage is not None
    (use,) = usage.replicas.values()
    assert use.outstanding == 0
    assert use.last_used > 1.7e9
    before = (await rig.store.list("")).revision
    await asyncio.sleep(1.2)
    assert (await rig.store.list("")).revision == before


async def test_usage_tells_when_an_engine_was_heard_last_and_how_often_requests_went_wrong_there(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeking, "REPLACED", 0.2)
    failing = await rig.engine(say({"error": "no more"}, "500 Internal Server Error"))
    endpoint = await rig.endpoint("m", failing.url)
    await rig.catalog(model("m"))
    await rig.settle()
    assert (await rig.post({"model": "m"})).status == 500

    async def use() -> ReplicaUse | None:
        usage = await rig.usage()
        return None if usage is None else usage.replicas.get(endpoint.id)

    while (told := await use()) is None or told.outstanding:
        await asyncio.sleep(0.01)
    assert told.failures == 1
    assert told.heard is not None
    assert abs(told.heard - told.last_used) < 1.0
    await failing.stop()
    assert (await rig.post({"model": "m"})).status == 502
    while (then := await use()) is None or then.failures == 1:
        await asyncio.sleep(0.01)
    assert then.failures == 2
    assert then.heard == pytest.approx(told.heard, abs=0.1)


async def test_node_reports_do_not_make_the_gateway_write(rig: Rig) -> None:
    await rig.serving()
    before = await rig.usage()
    for number in range(5):
        await rig.store.put("nodes/n1/report", b"%d" % number)
        await asyncio.sleep(0.01)
    assert await rig.usage() == before


async def test_one_unreadable_endpoint_does_not_hide_the_others(rig: Rig) -> None:
    await rig.serving()
    await rig.store.put("endpoints/n1/from-the-future", b'{"v": 99}')
    await rig.store.put("endpoints/n1/broken", b"?")
    await rig.endpoint("m", "https://not.supported", "odd")
    assert (await rig.post({"model": "m"})).status == 200


async def test_closing_refuses_who_waits_finishes_who_is_served_and_tells_the_store(rig: Rig) -> None:
    go_on = asyncio.Event()

    async def slow(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        await echo(asked, reader, writer)

    engine = await rig.serving(slow)
    await rig.catalog(model("cold"))
    served, held = (asyncio.create_task(rig.post({"model": name})) for name in ("m", "cold"))
    idle = await rig.wire()
    await until(lambda: engine.asked and rig.metric("llmgw_gateway_held", model="cold") == 1, "both under way")
    closing = asyncio.create_task(rig.gateway.close(drain=5.0))
    assert (await held).code == "shutting_down"
    assert await idle.until_closed() == b""
    assert not served.done()
    go_on.set()
    assert (await served).status == 200
    await closing
    assert await rig.usage() is None
    await rig.gateway.close()


async def test_closing_without_patience_ends_everything(rig: Rig) -> None:
    async def silent(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)

    engine = await rig.serving(silent)
    wire = await rig.wire()
    wire.send(post({"model": "m"}))
    await until(lambda: engine.asked, "the request arriving")
    await rig.gateway.close()
    assert (await wire.answer()).code == "shutting_down"
    assert await wire.until_closed() == b""
    await until(lambda: engine.gone == 1, "the engine's connection closing")


async def test_a_stream_cut_off_by_closing_ends_with_an_error_event(rig: Rig) -> None:
    async def endless(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunked(event("one")))
        await reader.readexactly(1)

    engine = await rig.serving(endless)
    wire = await rig.wire()
    wire.send(post({"model": "m", "stream": True}))
    await wire.reader.readuntil(b'"one"')
    await rig.gateway.close(drain=0.05)
    rest = await wire.until_closed()
    assert b'"code":"shutting_down"' in rest
    assert b"[DONE]" not in rest
    await until(lambda: engine.gone == 1, "the engine's connection closing")


async def test_a_request_whose_only_engine_dies_is_held_for_the_one_that_replaces_it(rig: Rig) -> None:
    async def die(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    old, new = await rig.engine(die), await rig.engine()
    await rig.catalog(model("m"))
    endpoint = await rig.endpoint("m", old.url, "old")
    asked = asyncio.create_task(rig.post({"model": "m"}))
    await until(lambda: rig.metric("llmgw_gateway_held", model="m") == 1, "waiting for word of its engine")
    await old.stop()
    late = asyncio.create_task(rig.post({"model": "m"}))  # nobody has withdrawn the endpoint yet
    await until(lambda: rig.metric("llmgw_gateway_held", model="m") == 2, "the other waiting too")
    await rig.status("m", ModelState.READY)
    assert len(old.asked) == 1, "news of other things is no reason to ask a lost engine again"
    await rig.withdraw(endpoint)
    await rig.endpoint("m", new.url, "new")
    assert [(await task).status for task in (asked, late)] == [200, 200]
    assert len(new.asked) == 2
    assert rig.metric("llmgw_gateway_hold_seconds_count", model="m") == 2, "each waited once, whatever came meanwhile"


async def test_an_alias_that_moves_while_its_engine_is_lost_is_served_by_its_new_model(rig: Rig) -> None:
    async def die(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    old, new = await rig.engine(die), await rig.engine()
    await rig.catalog(model("a", "alias"), model("b"))
    await rig.endpoint("a", old.url)
    await rig.endpoint("b", new.url)
    asked = asyncio.create_task(rig.post({"model": "alias", "n": 1}))
    await until(lambda: rig.metric("llmgw_gateway_held", model="a") == 1, "being held")
    await rig.catalog(model("a"), model("b", "alias"))
    assert (await asked).status == 200
    assert [engine.asked[0].json for engine in (old, new)] == [{"model": name, "n": 1} for name in ("a", "b")]


async def test_a_refusal_counts_for_the_model_that_it_is_about(rig: Rig) -> None:
    await rig.catalog(model("m", "alias"))
    await rig.status("m", ModelState.FAILED, reason="it crashed")
    assert (await rig.post({"model": "alias"})).code == "model_failed"
    assert rig.metric("llmgw_gateway_requests_total", model="m", status="5xx") == 1
    await rig.catalog(model("n"))
    await rig.remove("m")
    assert rig.metric("llmgw_gateway_requests_total", model="m", status="5xx") == 0, "no labels of models that went"


async def test_an_address_in_use_is_an_error_at_start(rig: Rig) -> None:
    with pytest.raises(OSError, match="in use"):
        await Rig().gateway.start(*rig.gateway.address)
