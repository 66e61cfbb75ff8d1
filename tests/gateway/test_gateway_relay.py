"""Requests through a real gateway to small engines."""

import asyncio
import json

import pytest
from gateway_rig import (
    DONE,
    STREAM_HEAD,
    Asked,
    Rig,
    chunked,
    echo,
    event,
    get,
    key_of,
    model,
    post,
    say,
    until,
)

from llmgw.gateway import seeking
from llmgw.gateway.exchange import KEPT_BODY


async def test_a_request_reaches_the_engine_unchanged_with_the_engines_own_key(rig: Rig) -> None:
    engine = await rig.serving()
    endpoint = await rig.endpoint("m", engine.url)
    body = b'{ "model" : "m",  "messages":[{"role":"user","content":"h\\u00e9"}] }'
    answer = await rig.post(
        body, "/v1/chat/completions?x=1", "Authorization: Bearer mine\r\nX-Api-Key: mine\r\nX-Custom: kept\r\n"
    )
    assert answer.status == 200
    asked = engine.asked[0]
    assert asked.body == body
    assert asked.target == "/v1/chat/completions?x=1"
    assert asked.headers["authorization"] == f"Bearer {key_of(endpoint)}"
    assert asked.headers["x-custom"] == "kept"
    assert "x-api-key" not in asked.headers
    assert answer.headers["x-accel-buffering"] == "no"


async def test_hop_by_hop_fields_stay_on_their_own_connection(rig: Rig) -> None:
    hops = "Keep-Alive: timeout=5\r\nConnection: keep-alive, X-Engine-Hop\r\nX-Engine-Hop: 1\r\n"
    engine = await rig.serving(say({}, extra=f"{hops}Server: tiny\r\n"))
    answer = await rig.post(
        {"model": "m"},
        headers="Connection: keep-alive, X-Secret-Hop\r\nX-Secret-Hop: 1\r\nTE: trailers\r\nAccept-Encoding: gzip\r\n",
    )
    assert not {"connection", "te", "x-secret-hop", "accept-encoding"} & engine.asked[0].headers.keys()
    assert not {"keep-alive", "x-engine-hop"} & answer.headers.keys()
    assert answer.headers["server"] == "tiny"


async def test_an_alias_is_rewritten_to_the_models_own_name_and_nothing_else(rig: Rig) -> None:
    engine = await rig.serving(echo, "default", "meta-llama/Llama-3.1-8B:free")
    await rig.post(b'{"n": 1.50, "model":"default" , "x":{"model":"default"}}')
    await rig.post({"model": "meta-llama/Llama-3.1-8B:free"})
    assert engine.asked[0].body == b'{"n": 1.50, "model":"m" , "x":{"model":"default"}}'
    assert engine.asked[1].json == {"model": "m"}


async def test_an_unknown_model_is_not_found_with_near_names(rig: Rig) -> None:
    await rig.serving(echo, "smollm2")
    answer = await rig.post({"model": "smolm2"})
    assert (answer.status, answer.code) == (404, "model_not_found")
    assert answer.json["error"]["param"] == "model"
    assert "did you mean 'smollm2'?" in answer.json["error"]["message"]


async def test_a_stream_is_relayed_event_by_event(rig: Rig) -> None:
    go_on = asyncio.Event()

    async def stream(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunked(event("one")))
        await go_on.wait()
        writer.write(chunked(event("two")) + DONE)

    await rig.serving(stream)
    wire = await rig.wire()
    wire.send(post({"model": "m", "stream": True}))
    head = await wire.reader.readuntil(b"\r\n\r\n")
    assert b"X-Accel-Buffering: no" in head
    first = await wire.reader.readuntil(b"\n\n")
    assert b"one" in first
    assert not go_on.is_set()
    go_on.set()
    rest = await wire.reader.readuntil(b"0\r\n\r\n")
    assert b"two" in rest
    assert b"[DONE]" in rest
    wire.send(get("/health"))  # the connection is as good as new
    assert (await wire.answer()).status == 200


async def test_an_engine_lost_mid_stream_ends_with_an_error_event_and_no_done(rig: Rig) -> None:
    async def break_off(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunked(event("one")) + chunked(b'data: {"half'))
        await writer.drain()
        writer.transport.abort()

    await rig.serving(break_off)
    for path, start in (("/v1/chat/completions", b"data: "), ("/v1/messages", b"event: error\ndata: ")):
        wire = await rig.wire()
        wire.send(post({"model": "m", "stream": True}, path))
        answer = await wire.answer()
        *events, last, end = answer.body.split(b"\n\n")
        assert end == b""
        assert b"half" not in answer.body
        assert b"[DONE]" not in answer.body
        assert b"one" in events[0]
        assert last.lstrip(b"\n").startswith(start)
        assert json.loads(last.partition(b"data: ")[2])["error"]["code"] == "engine_lost"
        assert await wire.until_closed() == b""
    assert rig.metric("llmgw_gateway_engine_lost_total", model="m") == 2


async def test_an_answer_broken_off_in_a_plain_body_is_not_completed(rig: Rig) -> None:
    async def break_off(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart")
        await writer.drain()
        writer.transport.abort()

    await rig.serving(break_off)
    wire = await rig.wire()
    wire.send(post({"model": "m"}))
    assert not (await wire.until_closed()).endswith(b"0\r\n\r\n")


async def test_an_old_client_sees_a_reset_where_it_could_not_see_that_a_body_broke_off(rig: Rig) -> None:
    async def break_off(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n")
        await writer.drain()
        writer.transport.abort()

    await rig.serving(break_off)
    wire = await rig.wire()
    wire.send(post({"model": "m"}).replace(b"HTTP/1.1", b"HTTP/1.0"))
    with pytest.raises(ConnectionResetError):
        await wire.reader.read()


async def test_a_client_that_leaves_mid_stream_ends_the_engines_work_at_once(rig: Rig) -> None:
    async def endless(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        while not writer.is_closing() and not reader.at_eof():
            writer.write(chunked(event("more")))
            await writer.drain()
            await asyncio.sleep(0.01)
        raise ConnectionResetError

    engine = await rig.serving(endless)
    wire = await rig.wire()
    wire.send(post({"model": "m", "stream": True}))
    await wire.reader.readuntil(b"more")
    await wire.close()
    await until(lambda: engine.gone == 1, "the engine's connection closing")
    assert rig.metric("llmgw_gateway_cancelled_total", model="m") == 1
    assert rig.metric("llmgw_gateway_in_flight", model="m") == 0


async def test_a_client_that_leaves_before_any_answer_ends_the_engines_work_too(rig: Rig) -> None:
    async def silent(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)

    engine = await rig.serving(silent)
    for half in (True, False):  # the end of its side alone counts
        wire = await rig.wire()
        wire.send(post({"model": "m"}))
        count = len(engine.asked)
        await until(lambda n=count: len(engine.asked) > n, "the request arriving")
        if half:
            wire.writer.write_eof()
        else:
            await wire.close()
    await until(lambda: engine.gone == 2, "both connections closing")


async def test_an_engine_lost_before_any_byte_has_another_replica_tried(rig: Rig) -> None:
    async def die(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    broken, good = await rig.engine(die), await rig.engine()
    await rig.catalog(model("m"))
    await rig.endpoint("m", broken.url, "a")
    await rig.endpoint("m", good.url, "b")
    for _ in range(4):
        answer = await rig.post({"model": "m"})
        assert answer.status == 200
    assert len(good.asked) == 4
    assert len(broken.asked) == 1  # suspect after the first
    assert rig.metric("llmgw_gateway_retried_total", model="m") == 1


async def test_an_engine_lost_between_head_and_body_has_another_replica_tried(rig: Rig) -> None:
    async def die(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()

    broken, good = await rig.engine(die), await rig.engine()
    await rig.catalog(model("m"))
    await rig.endpoint("m", broken.url, "a")
    await rig.endpoint("m", good.url, "b")
    assert [(await rig.post({"model": "m"})).status for _ in range(3)] == [200] * 3
    assert len(broken.asked) == 1


async def test_when_every_engine_is_lost_the_answer_says_so(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeking, "REPLACED", 0.2)
    engine = await rig.serving()
    await engine.stop()
    answer = await rig.post({"model": "m"})
    assert (answer.status, answer.code) == (502, "engine_lost")


async def test_a_body_too_large_to_be_kept_is_not_sent_twice(rig: Rig) -> None:
    async def die(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    engine = await rig.serving(die)
    answer = await rig.post({"model": "m", "pad": "x" * KEPT_BODY})
    assert (answer.status, answer.code) == (502, "engine_lost")
    assert (len(engine.asked), engine.connections) == (1, 1)


async def test_a_request_that_kills_engines_does_not_get_them_all(rig: Rig) -> None:
    async def die(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    engines = [await rig.engine(die) for _ in range(5)]
    await rig.catalog(model("m"))
    for number, engine in enumerate(engines):
        await rig.endpoint("m", engine.url, f"r{number}")
    assert (await rig.post({"model": "m"})).code == "engine_lost"
    assert sum(len(engine.asked) for engine in engines) == 2


async def test_a_kept_connection_that_the_engine_closed_is_no_failure(rig: Rig) -> None:
    async def once(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await say({})(asked, reader, writer)
        if engine.connections == 1:
            await reader.readexactly(1)  # the second request on this connection, which it never answers
            writer.transport.abort()

    engine = await rig.serving(once)
    assert (await rig.post({"model": "m"})).status == 200
    assert (await rig.post({"model": "m"})).status == 200
    assert engine.connections == 2
    assert rig.metric("llmgw_gateway_engine_lost_total", model="m") == 0


async def test_connections_to_engines_are_kept(rig: Rig) -> None:
    engine = await rig.serving()
    wire = await rig.wire()
    for _ in range(10):
        wire.send(post({"model": "m"}))
        assert (await wire.answer()).status == 200
    assert engine.connections == 1


async def test_load_goes_to_the_replica_with_the_least_outstanding(rig: Rig) -> None:
    release = asyncio.Event()

    async def slow(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        await echo(asked, reader, writer)

    engines = [await rig.engine(slow) for _ in range(3)]
    spare = await rig.engine(slow)
    await rig.catalog(model("m"))
    for number, engine in enumerate(engines):
        await rig.endpoint("m", engine.url, f"r{number}")
    await rig.endpoint("m", spare.url, "spare", tier=1)
    answers = [asyncio.create_task(rig.post({"model": "m"})) for _ in range(9)]
    await until(lambda: sum(len(engine.asked) for engine in engines) == 9, "nine requests")
    release.set()
    assert {(await answer).status for answer in answers} == {200}
    assert [len(engine.asked) for engine in engines] == [3, 3, 3]
    assert not spare.asked


async def test_a_hundred_streams_half_of_whose_clients_leave(rig: Rig) -> None:
    async def stream(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        for number in range(20):
            writer.write(chunked(event(str(number))))
            await writer.drain()
            await asyncio.sleep(0.005)
        writer.write(DONE)

    engine = await rig.serving(stream)
    wires = [await rig.wire() for _ in range(100)]
    for wire in wires:
        wire.send(post({"model": "m", "stream": True}))

    async def finish(number: int) -> bytes:
        wire = wires[number]
        if number % 2:
            await wire.reader.readuntil(b'"0"')
            await wire.close()
            return b""
        return (await wire.answer()).body

    bodies = await asyncio.gather(*map(finish, range(100)))
    assert sum(body.endswith(b"data: [DONE]\n\n") for body in bodies) == 50
    assert {body.count(b"data: ") for body in bodies[::2]} == {21}
    await until(lambda: rig.metric("llmgw_gateway_in_flight", model="m") == 0, "all being over")
    await until(lambda: engine.gone == 50, "fifty engine connections closing")


async def test_a_slow_reader_slows_the_engine_and_not_the_memory(rig: Rig) -> None:
    sent = 0

    async def flood(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(STREAM_HEAD)
        for _ in range(400):
            piece = chunked(b"data: " + b"x" * 100_000 + b"\n\n")
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
        writer.write(DONE)

    await rig.serving(flood)
    wire = await rig.wire()
    wire.send(post({"model": "m", "stream": True}))
    before = -1
    while sent != before:  # until everything in between is full
        before = sent
        await asyncio.sleep(0.2)
    assert sent < 30_000_000
    answer = await wire.answer()
    assert len(answer.body) > 40_000_000


async def test_a_large_body_is_passed_on_whole(rig: Rig) -> None:
    engine = await rig.serving()
    await rig.catalog(model("m", "alias"), max_body=64 << 20)
    text = "x" * (12 << 20)
    assert (await rig.post({"model": "alias", "prompt": text}, "/v1/completions")).status == 200
    assert engine.asked[0].json == {"model": "m", "prompt": text}


async def test_an_engine_that_answers_in_http10_is_understood(rig: Rig) -> None:
    async def old(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nall of it")
        await writer.drain()
        writer.close()

    await rig.serving(old)
    answer = await rig.post({"model": "m"})
    assert (answer.status, answer.body) == (200, b"all of it")


async def test_interim_answers_of_an_engine_are_not_the_answer(rig: Rig) -> None:
    async def early(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
        await echo(asked, reader, writer)

    await rig.serving(early)
    answer = await rig.post({"model": "m"})
    assert answer.status == 200
    assert "link" not in answer.headers


async def test_an_engine_that_does_not_speak_http_is_lost(rig: Rig) -> None:
    async def babble(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH\r\n")

    await rig.serving(babble)
    assert (await rig.post({"model": "m"})).code == "engine_lost"


async def test_errors_of_the_engine_pass_as_they_are(rig: Rig) -> None:
    await rig.serving(say({"error": {"message": "context too long"}}, "400 Bad Request"))
    answer = await rig.post({"model": "m"})
    assert (answer.status, answer.json) == (400, {"error": {"message": "context too long"}})
    assert rig.metric("llmgw_gateway_requests_total", model="m", status="4xx") == 1


async def test_other_paths_that_name_a_model_are_relayed_too(rig: Rig) -> None:
    engine = await rig.serving()
    for path in ("/v1/embeddings", "/v1/rerank", "/v1/something/new", "/tokenize", "/detokenize"):
        assert (await rig.post({"model": "m"}, path)).status == 200
    assert [asked.target for asked in engine.asked][-2:] == ["/tokenize", "/detokenize"]
