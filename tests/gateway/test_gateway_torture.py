"""What is cut off, lies or comes out of turn, from either side: every byte of it, over real connections."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator

import pytest
from gateway_rig import Asked, FakeEngine, Rig, Wire, chunked, event, get, model, opened, post, say, until

from llmgw.gateway import silence
from llmgw.gateway.client import Limits
from llmgw.units import Seconds

BODY = b'{"model":"m","n":1}'
SIZED = b"POST /v1/chat/completions HTTP/1.1\r\nHost: gw\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
CHUNKED = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"9\r\n%b\r\na;x=y\r\n%b\r\n0\r\nTrailer: x\r\n\r\n" % (BODY[:9], BODY[9:])
)
PLAIN = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n{"a": 1}'
PIECES = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    + chunked(event("a")) + chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"
)  # fmt: skip


def reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def gone(rig: Rig) -> None:
    """Until nothing is left of any request."""
    for name in ("llmgw_gateway_body_bytes", "llmgw_gateway_connections"):
        await until(lambda name=name: rig.metric(name) == 0, f"{name} being 0")
    assert rig.metric("llmgw_gateway_in_flight", model="m") == 0


@pytest.mark.parametrize("data", [SIZED, CHUNKED], ids=["sized", "chunked"])
@pytest.mark.parametrize("how", ["closed", "half closed", "reset"])
async def test_a_request_cut_off_at_any_byte_never_reaches_an_engine(rig: Rig, data: bytes, how: str) -> None:
    engine = await rig.serving()
    for length in range(len(data)):
        wire = await rig.wire()
        rig.wires.remove(wire)
        wire.send(data[:length])
        if how == "reset":
            await wire.writer.drain()
            reset(wire.writer)
        elif how == "half closed":
            wire.writer.write_eof()
            assert b" 200 " not in await wire.until_closed()
            await wire.close()
        else:
            await wire.close()
    await gone(rig)
    assert not engine.asked
    assert (await rig.ask(data)).status == 200


@pytest.mark.parametrize("answer", [PLAIN, PIECES, STREAM], ids=["sized", "chunked", "stream"])
@pytest.mark.parametrize("how", ["closed", "reset"])
async def test_an_answer_cut_off_at_any_byte_is_never_taken_for_whole(rig: Rig, answer: bytes, how: str) -> None:
    length = 0

    async def cut(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer[:length])
        await writer.drain()
        if how == "reset":
            reset(writer)
        writer.close()

    body, ending = answer.index(b"\r\n\r\n") + 4, b"0\r\n\r\n" if answer is not PLAIN else b""
    engine = await rig.serving(cut)
    for length in range(0, len(answer), 1 if how == "closed" else 3):
        engine.asked.clear()
        rig.gateway._relay.targets["replica-of-m"].suspect_until = 0.0  # type: ignore[union-attr,index]
        wire = await rig.wire()
        wire.send(post({"model": "m"}, headers="X-LLMGW-No-Fallback: 1\r\n"))
        if length <= body and not (length == body and answer is not PLAIN):
            await until(lambda: engine.asked, "the engine being asked")
            await wire.close()  # held for a replacement that never comes, so that another may answer
            continue
        said = await wire.until_closed()
        if answer is STREAM:
            assert b'"code":"engine_lost"' in said, length
            assert said.count(b"HTTP/1.1") == 1
        else:
            assert not (ending and said.endswith(ending)), length
            assert said.partition(b"\r\n\r\n")[2] != PLAIN[body:], length
    assert rig.metric("llmgw_gateway_in_flight", model="m") == 0


LIES = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nab",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nab",
    b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nab",
    b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nab",
    b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999999\r\n\r\nab",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX: a\x00b\r\nContent-Length: 2\r\n\r\nab",
    b"HTTP/1.1 200 OK\r\nX: a\rSet-Cookie: b\r\nContent-Length: 2\r\n\r\nab",
    b"HTTP/1.1 200 OK\r\nX Y: a\r\nContent-Length: 2\r\n\r\nab",
    b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nab",
    b"HTTP/1.1 200 OK\r\nnocolon\r\nContent-Length: 2\r\n\r\nab",
    b"HTTP/1.1 200 OK\nContent-Length: 2\n\nab",
    b"HTTP/1.1 20 OK\r\nContent-Length: 2\r\n\r\nab",
    b"HTTP/1.1 2000 OK\r\nContent-Length: 2\r\n\r\nab",
    b"HTTP/1.1 OK 200\r\nContent-Length: 2\r\n\r\nab",
    b"HTTP/3.7 200 OK\r\nContent-Length: 2\r\n\r\nab",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: ws\r\nConnection: upgrade\r\n\r\nab",
    b"ICY 200 OK\r\n\r\nab",
    b"\x00\x01\x02",
    b"{}",
]


@pytest.mark.parametrize("lie", LIES)
async def test_an_answer_that_could_be_read_in_two_ways_is_no_answer(rig: Rig, lie: bytes) -> None:
    async def answer(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(lie)

    bad, good = await rig.engine(answer), await rig.engine(say({"ok": True}))
    await rig.serving()
    await rig.endpoint("m", bad.url, "replica-of-m")
    await rig.endpoint("m", good.url, "second", tier=1)
    told = await rig.post({"model": "m"})
    assert (told.status, told.code) == (502, "engine_lost")
    assert "set-cookie" not in told.headers
    assert not good.asked, "an answer came, whatever it was: the request may have been acted on"


CODINGS = [b"gzip, chunked", b"chunked, chunked", b"gzip", b"xchunked", b"identity", b"\x0bchunked"]


@pytest.mark.parametrize("coding", CODINGS)
async def test_an_answer_in_a_coding_that_is_not_told_further_is_not_passed_on(rig: Rig, coding: bytes) -> None:
    async def answer(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: " + coding + b"\r\n\r\n2\r\nab\r\n0\r\n\r\n")
        await writer.drain()
        writer.close()

    await rig.serving(answer)
    wire = await rig.wire()
    wire.send(post({"model": "m"}))
    assert (await wire.answer()).code == "engine_lost"


MORE = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
    b"evil",
    b"\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n",
]


@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("late", [False, True])
async def test_what_an_engine_says_beyond_its_answer_is_nobodys_answer(rig: Rig, more: bytes, late: bool) -> None:
    said = asyncio.Event()

    async def answer(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if asked.json["n"] == 0:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" + (b"" if late else more))
            await writer.drain()
            if late:
                await said.wait()
                writer.write(more)
        else:
            await say({"n": asked.json["n"]})(asked, reader, writer)

    engine = await rig.serving(answer)
    wire = await rig.wire()
    wire.send(post({"model": "m", "n": 0}))
    assert (await wire.answer()).body == b"ok"
    said.set()
    if late:
        await until(lambda: engine.gone == 1 or more == b"\r\n", "its connection being given up")
    for n in (1, 2):
        wire.send(post({"model": "m", "n": n}))
        assert (await wire.answer()).json == {"n": n}


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b;c=\"d\"\r\nhello\r\n0;x\r\nTrailer: t\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 E\r\nX: y\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-LENGTH:5\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\nhello",
    ],
)  # fmt: skip
async def test_unusual_answers_that_can_be_read_in_one_way_are_understood(rig: Rig, answer: bytes) -> None:
    async def behave(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in answer:
            writer.write(bytes([byte]))
            await asyncio.sleep(0)

    await rig.serving(behave)
    wire = await rig.wire()
    for _ in range(2):
        wire.send(post({"model": "m"}))
        told = await wire.answer()
        assert (told.status, told.body) == (200, b"hello")
        assert "trailer" not in told.headers


async def test_an_answer_that_is_all_headers_is_given_up(rig: Rig) -> None:
    sent = 0

    async def endless(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\n")
        for number in range(4000):
            writer.write(b"X-%d: %b\r\n" % (number, b"y" * 4000))
            await writer.drain()
            sent += 4000
        writer.write(b"Content-Length: 2\r\n\r\nab")

    await rig.serving(endless)
    wire = await rig.wire()
    wire.send(post({"model": "m"}))
    assert (await wire.answer()).code == "engine_lost"
    assert sent < 8_000_000


async def test_an_answer_whose_trailers_never_end_is_given_up(rig: Rig) -> None:
    sent = 0

    async def endless(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX: ")
        for _ in range(4000):
            writer.write(b"y" * 4000)
            await writer.drain()
            sent += 4000
        writer.write(b"\r\n\r\n")

    await rig.serving(endless)
    wire = await rig.wire()
    wire.send(post({"model": "m"}))
    assert b"\r\n2\r\nab\r\n" in await wire.until_closed()  # and no last chunk
    assert sent < 8_000_000
    assert rig.metric("llmgw_gateway_in_flight", model="m") == 0


async def test_an_engine_that_answers_before_it_has_read_the_request_is_heard(rig: Rig) -> None:
    """Its connection is not used again: what it left unread would be taken for the next request."""
    hasty = await asyncio.start_server(_answer_at_once, "127.0.0.1", 0)
    await rig.serving()
    url = f"http://127.0.0.1:{hasty.sockets[0].getsockname()[1]}"
    await rig.endpoint("m", url, "replica-of-m")
    for _ in range(2):
        told = await rig.post({"model": "m", "pad": "x" * 4_000_000})
        assert told.status in (413, 502)
    hasty.close()


async def _answer_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n")
    writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
    await writer.drain()
    writer.close()


async def test_errors_in_the_middle_of_a_pipeline_are_answered_in_their_place(rig: Rig) -> None:
    engine = await rig.serving()
    wire = await rig.wire()
    batch = [post({"model": "m", "n": 1}), post({"model": "none"}), get("/nope"), post({"model": "m", "n": 2})]
    wire.send(
        b"".join((*batch, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", post({"model": "m", "n": 3})))
    )
    assert [(await wire.answer()).status for _ in range(5)] == [200, 404, 404, 200, 400]
    assert await wire.until_closed() == b""
    assert [asked.json["n"] for asked in engine.asked] == [1, 2]


@pytest.mark.parametrize("expect", [b"100-continue", b"100-Continue", b"something-else", b"100-continue, x", b""])
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_whatever_is_expected_a_body_that_comes_is_read(rig: Rig, expect: bytes, version: bytes) -> None:
    engine = await rig.serving()
    data = SIZED.replace(b"HTTP/1.1", b"HTTP/" + version).replace(b"Host", b"Expect: " + expect + b"\r\nHost")
    wire = await rig.wire()
    wire.send(data)
    told = await wire.answer()
    if told.status == 100:
        told = await wire.answer()
    assert told.status == 200
    assert "expect" not in engine.asked[0].headers


@pytest.mark.parametrize("target", [b"http://elsewhere.example/v1/x", b"HTTP://a:80/v1/x", b"http://[::1]:9/v1/x?q=1"])
async def test_a_target_in_absolute_form_loses_its_authority(rig: Rig, target: bytes) -> None:
    engine = await rig.serving()
    told = await rig.ask(SIZED.replace(b"/v1/chat/completions", target))
    assert told.status == 200
    assert engine.asked[0].target.startswith("/v1/x")
    assert engine.asked[0].headers["host"] in engine.url


@pytest.fixture
async def hasty() -> AsyncIterator[Rig]:
    limits = Limits(head=Seconds(0.2), body=Seconds(0.2), idle=Seconds(0.2), linger=Seconds(0.1), sweep=Seconds(0.02))
    async with opened(limits) as rig:
        yield rig


@pytest.mark.parametrize("length", [1, 20, 60, SIZED.index(b"{"), len(SIZED) - 1])
async def test_a_request_that_stops_coming_is_given_up_wherever_it_stops(hasty: Rig, length: int) -> None:
    engine = await hasty.serving()
    wire = await hasty.wire()
    wire.send(SIZED[:length])
    assert (await wire.answer()).code == "request_timeout"
    assert await wire.until_closed() == b""
    assert not engine.asked


async def test_a_head_that_comes_a_byte_at_a_time_has_no_more_time_for_it(hasty: Rig) -> None:
    wire: Wire = await hasty.wire()
    said = asyncio.ensure_future(wire.answer())
    for byte in b"GET /health HTTP/1.1\r\nHost: gw\r\nX: " + b"y" * 1000:
        if said.done():
            break
        wire.send(bytes([byte]))
        await asyncio.sleep(0.01)
    assert (await said).code == "request_timeout"


async def test_an_engine_that_does_not_read_yet_is_not_taken_for_lost(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernel acknowledges what it can keep of a large body, and says that there is no room for more."""
    monkeypatch.setattr(silence, "SILENCE", 0.3)
    listener = socket.create_server(("127.0.0.1", 0))
    await rig.catalog(model("m"))
    await rig.endpoint("m", f"http://127.0.0.1:{listener.getsockname()[1]}")
    asked = asyncio.create_task(rig.post({"model": "m", "x": "x" * 4_000_000}))
    await asyncio.wait({asked}, timeout=0.9)
    engine = FakeEngine(say({}))
    rig.engines.append(engine)
    engine._server = await asyncio.start_server(engine._serve, sock=listener)
    assert (await asked).status == 200
    assert rig.metric("llmgw_gateway_engine_lost_total", model="m") == 0
