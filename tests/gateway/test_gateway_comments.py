"""Streams that wait begin with comments, where that is wanted: what clients get, and what the SDKs make of it."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anthropic
import openai
import pytest
from gateway_rig import (
    DONE,
    STREAM_HEAD,
    Asked,
    Behaviour,
    FakeEngine,
    Rig,
    Wire,
    chunked,
    event,
    model,
    post,
    say,
    until,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.gateway import stay
from llmgw.gateway.admission import Buffers
from llmgw.gateway.early import MOST, Early, wants_stream
from llmgw.gateway.fields import understand
from llmgw.gateway.keys import Caller
from llmgw.gateway.openai import ApiError, Code
from llmgw.gateway.reply import understand as answered
from llmgw.gateway.request import Head, Request, tag_of
from llmgw.plan import ModelState
from llmgw.units import MIB, Bytes, Seconds

ASK = [{"role": "user", "content": "What is the capital of France?"}]
STREAM = {"model": "m", "stream": True, "messages": ASK}
TALKATIVE = replace(model("m"), stream_comments=True)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stay, "FIRST", 0.02)
    monkeypatch.setattr(stay, "EVERY", 0.02)


def streaming(*words: str) -> Behaviour:
    async def behave(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        for word in words:
            writer.write(chunked(event(word)))
        writer.write(DONE)

    return behave


async def waiting(rig: Rig, body: Any = STREAM, headers: str = "", path: str = "/v1/chat/completions") -> Wire:
    wire = await rig.wire()
    wire.send(post(body, path, headers))
    return wire


async def comments(wire: Wire, count: int = 2) -> bytes:
    """The head and that many comments."""
    found = await wire.reader.readuntil(b"\r\n\r\n")
    for _ in range(count):
        size = int(await wire.reader.readuntil(b"\r\n"), 16)
        found += await wire.reader.readexactly(size)
        await wire.reader.readexactly(2)
    return found


async def ready(rig: Rig, behaviour: Behaviour) -> FakeEngine:
    engine = await rig.engine(behaviour)
    await rig.endpoint("m", engine.url)
    return engine


async def test_a_stream_that_waits_for_its_model_gets_its_head_and_is_told_how_far_it_is(rig: Rig) -> None:
    await rig.catalog(TALKATIVE)
    await rig.status("m", ModelState.LOADING, reason="fetching\nweights")
    wire = await waiting(rig, headers="X-Request-Id: mine\r\n")
    head, _, body = (await comments(wire)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream")
    assert b"X-Request-Id: mine" in head
    assert body == b": loading: fetching weights\n\n" * 2
    engine = await ready(rig, streaming("The", " capital"))
    rest = await wire._chunks()
    assert rest.endswith(event("The") + event(" capital") + b"data: [DONE]\n\n")
    assert "x-llmgw-stream-comments" not in engine.asked[0].headers
    assert rig.metric("llmgw_gateway_requests_total", model="m", status="2xx") == 1
    wire.send(post(STREAM))  # and the connection is as good as before
    assert (await wire.answer()).body == event("The") + event(" capital") + b"data: [DONE]\n\n"


async def test_one_that_waits_for_a_slot_is_told_that(rig: Rig) -> None:
    door = asyncio.Event()

    async def behave(*args: Any) -> None:
        await door.wait()
        await streaming("yes")(*args)

    await rig.catalog(TALKATIVE)
    await rig.endpoint("m", (await rig.engine(behave)).url, slots=1)
    first = await waiting(rig)
    await until(lambda: rig.metric("llmgw_gateway_in_flight", model="m") == 1, "the first")
    second = await waiting(rig)
    assert (await comments(second)).endswith(b": waiting for a free slot\n\n" * 2)
    door.set()
    assert (await first.answer()).body == event("yes") + b"data: [DONE]\n\n"
    assert (await second._chunks()).endswith(event("yes") + b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("spec", "headers", "body"),
    [
        (model("m"), "", STREAM),
        (TALKATIVE, "", {"model": "m", "messages": ASK}),
        (TALKATIVE, "", {"model": "m", "stream": False}),
        (TALKATIVE, "X-LLMGW-Stream-Comments: 0\r\n", STREAM),
    ],
    ids=["off", "no-stream", "stream-false", "refused"],
)
async def test_who_does_not_want_comments_gets_a_status(rig: Rig, spec: Any, headers: str, body: Any) -> None:
    await rig.catalog(spec, cold_start_timeout=Seconds(0.15))
    answer = await rig.post(body, headers=headers)
    assert (answer.status, answer.code) == (503, "model_loading")


async def test_a_request_can_ask_for_them_itself(rig: Rig) -> None:
    await rig.catalog(model("m"))
    wire = await waiting(rig, headers="X-LLMGW-Stream-Comments: 1\r\n")
    assert (await comments(wire)).endswith(b": loading\n\n" * 2)


async def test_a_refusal_before_the_first_comment_is_a_status(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stay, "FIRST", 60.0)
    await rig.catalog(TALKATIVE)
    wire = await waiting(rig)
    await until(lambda: rig.metric("llmgw_gateway_held", model="m") == 1, "waiting")
    await rig.status("m", ModelState.FAILED, reason="oom")
    assert (await wire.answer()).status == 503


@pytest.mark.parametrize(
    ("path", "begins"),
    [
        ("/v1/chat/completions", b'data: {"error":{'),
        ("/v1/messages", b'event: error\ndata: {"type":"error","error":{'),
        ("/v1/responses", b'event: error\ndata: {"type":"error","code":"model_failed"'),
    ],
)
async def test_a_refusal_after_it_is_an_event_with_an_error_and_the_end(rig: Rig, path: str, begins: bytes) -> None:
    await rig.catalog(TALKATIVE)
    wire = await waiting(rig, path=path)
    await comments(wire)
    await rig.status("m", ModelState.FAILED, reason="oom")
    said = (await wire._chunks()).rpartition(b": loading\n\n")[2]
    assert said.lstrip(b"\n").startswith(begins)
    assert b"oom" in said
    assert await wire.until_closed() == b""
    assert rig.metric("llmgw_gateway_requests_total", model="m", status="5xx") == 1
    assert rig.metric("llmgw_gateway_held", model="m") == 0


async def test_an_engines_own_error_becomes_an_event_as_it_stands(rig: Rig) -> None:
    await rig.catalog(TALKATIVE)
    wire = await waiting(rig)
    await comments(wire)
    error = {"message": "too long", "type": "exceed_context_size_error", "code": 400}
    await ready(rig, say({"error": error}, "400 Bad Request"))
    said = (await wire._chunks()).rpartition(b": loading")[2].partition(b"data: ")[2]
    assert json.loads(said) == {"error": error}
    assert rig.metric("llmgw_gateway_requests_total", model="m", status="4xx") == 1


async def test_an_engine_that_does_not_stream_is_told_in_one_event(rig: Rig) -> None:
    await rig.catalog(TALKATIVE)
    wire = await waiting(rig)
    await comments(wire)
    await ready(rig, say({"said": "all at once"}))
    assert (await wire._chunks()).endswith(b'data: {"said": "all at once"}\n\n')


async def test_an_engine_that_is_lost_before_it_answers_is_replaced_while_comments_go_on(rig: Rig) -> None:
    await rig.catalog(TALKATIVE)
    wire = await waiting(rig)
    await comments(wire)

    async def leave(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    doomed = await ready(rig, leave)
    await until(lambda: doomed.asked, "the first try")
    await rig.endpoint("m", (await rig.engine(streaming("yes"))).url, id="other")
    assert (await wire._chunks()).endswith(event("yes") + b"data: [DONE]\n\n")


async def test_a_client_that_leaves_while_it_is_told_leaves_nothing_behind(rig: Rig) -> None:
    await rig.catalog(TALKATIVE)
    wire = await waiting(rig)
    await comments(wire)
    await wire.close()
    await until(lambda: rig.metric("llmgw_gateway_held", model="m") == 0, "leaving")
    assert rig.metric("llmgw_gateway_cancelled_total", model="m") == 1


async def test_a_gateway_that_closes_says_so_in_the_stream(rig: Rig) -> None:
    await rig.catalog(TALKATIVE)
    wire = await waiting(rig)
    await comments(wire)
    await rig.gateway.close()
    assert b'"code":"shutting_down"' in await wire.until_closed()


async def test_http_1_0_gets_it_without_chunks_and_the_connection_ends(rig: Rig) -> None:
    await rig.catalog(TALKATIVE)
    wire = await rig.wire()
    wire.send(post(STREAM).replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert await wire.reader.readuntil(b": loading\n\n")
    await ready(rig, streaming("yes"))
    assert (await wire.until_closed()).endswith(event("yes") + b"data: [DONE]\n\n")


# the official SDKs


@pytest.fixture
async def client(rig: Rig) -> AsyncIterator[openai.AsyncOpenAI]:
    host, port = rig.gateway.address
    async with openai.AsyncOpenAI(base_url=f"http://{host}:{port}/v1", api_key="any", max_retries=0) as found:
        yield found


async def told(rig: Rig) -> None:
    """Somebody was told that he waits."""
    held = rig.gateway._relay.held  # type: ignore[union-attr]
    await until(lambda: any(isinstance(one._reply, Early) for one in held), "a comment")  # type: ignore[attr-defined]
    await asyncio.sleep(0.05)


async def test_openais_sdk_passes_over_comments_and_a_short_read_timeout_is_met(
    rig: Rig, client: openai.AsyncOpenAI
) -> None:
    await rig.catalog(TALKATIVE)

    async def ask() -> str:
        words = ""
        patient = client.with_options(timeout=openai.Timeout(20.0, read=5.0))
        async with await patient.chat.completions.create(model="m", messages=ASK, stream=True) as chunks:  # type: ignore[call-overload]
            async for chunk in chunks:
                words += chunk.choices[0].delta.content or ""
        return words

    task = asyncio.create_task(ask())
    await told(rig)
    await ready(rig, streaming("The", " capital", " is Paris"))
    assert await task == "The capital is Paris"


async def test_openais_sdk_raises_what_is_refused_after_comments(rig: Rig, client: openai.AsyncOpenAI) -> None:
    await rig.catalog(TALKATIVE)

    async def ask() -> None:
        async for _ in await client.chat.completions.create(model="m", messages=ASK, stream=True):  # type: ignore[call-overload]
            pass

    task = asyncio.create_task(ask())
    await told(rig)
    await rig.status("m", ModelState.FAILED, reason="oom")
    with pytest.raises(openai.APIError, match="quarantine") as failed:
        await task
    assert failed.value.code == "model_failed"


async def test_anthropics_sdk_passes_over_comments_and_raises_what_is_refused_after_them(rig: Rig) -> None:
    host, port = rig.gateway.address
    await rig.catalog(TALKATIVE)
    async with anthropic.AsyncAnthropic(base_url=f"http://{host}:{port}", api_key="any", max_retries=0) as client:

        async def ask() -> None:
            async with client.messages.stream(model="m", max_tokens=5, messages=ASK) as stream:  # type: ignore[arg-type]
                async for _ in stream.text_stream:
                    pass

        task = asyncio.create_task(ask())
        await told(rig)
        await rig.status("m", ModelState.FAILED, reason="oom")
        with pytest.raises(anthropic.APIStatusError, match="quarantine"):
            await task


# by itself


def request(path: str = "/v1/chat/completions", *, http11: bool = True) -> Request:
    head = Head("POST", b"/", path, http11, understand(()))
    return Request(head, "1", tag_of("1"), Caller(None), Buffers(Bytes(MIB)))


@pytest.mark.parametrize(
    ("body", "wants"),
    [
        (b'{"stream": true}', True), (b'{"stream": false}', False), (b'{"stream": 1}', False), (b"{}", False),
        (b"", False), (b"[]", False), (b'{"stream": null}', False), (b'{"stream": "true"}', False), (b"\xff", False),
    ],
)  # fmt: skip
def test_only_who_says_so_wants_a_stream(body: bytes, wants: bool) -> None:
    assert wants_stream(body) is wants


@pytest.mark.parametrize(
    "body", [b"", b"<html>no</html>", b"[1]", b'{"error": "no"}', b'{"detail": "no"}', b"\xff\xfe"]
)
def test_an_error_that_is_no_object_is_told_all_the_same(body: bytes) -> None:
    early = Early(request())
    early.head(answered(502, ((b"Content-Type", b"text/plain"),)), len(body))
    said = early.framed(body, True)
    error = json.loads(said.partition(b"data: ")[2].partition(b"\n")[0])["error"]
    assert error["message"]
    assert said.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize(("size", "whole"), [(MOST, True), (MOST + 1, False)])
def test_an_answer_that_is_too_large_for_one_event_is_an_error_and_not_a_part_of_it(size: int, whole: bool) -> None:
    early = Early(request(http11=False))
    early.head(answered(200, ((b"Content-Type", b"application/json"),)), size)
    body = b'{"said": "' + b"x" * (size - 12) + b'"}'
    said = early.framed(body[:1000], False) + early.framed(body[1000:-1], False) + early.framed(body[-1:], True)
    told = json.loads(said.removeprefix(b"data: "))
    assert list(told) == (["said"] if whole else ["error"])
    assert not whole or said == b"data: %b\n\n" % body


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40), st.lists(st.binary(max_size=30), max_size=4), st.sampled_from([200, 400, 500]))
def test_whatever_comes_after_comments_the_client_can_read_it(text: str, pieces: list[bytes], status: int) -> None:
    early = Early(request(http11=False))
    comment = early.comment(text)
    assert comment.startswith(b": ")
    assert comment.count(b"\n") == 2
    early.head(answered(status, ((b"Content-Type", b"application/json"),)), None)
    said = b"".join(early.framed(piece, number == len(pieces) - 1) for number, piece in enumerate(pieces))
    if pieces:
        assert all(line.startswith((b"data: ", b"event: ")) or not line for line in said.splitlines()), said
    assert early.broken_off(ApiError(status=500, code=Code.ENGINE_LOST, message="x")) is not None
