"""HTTP as it comes from clients good and bad: bytes in, bytes out."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from gateway_rig import Asked, Rig, echo, get, model, opened, post, say, until

from llmgw.gateway.admission import Buffers
from llmgw.gateway.client import Limits
from llmgw.gateway.http1 import RequestParser
from llmgw.gateway.keys import Caller
from llmgw.units import Bytes, Seconds


async def test_pipelined_requests_are_answered_in_order(rig: Rig) -> None:
    async def unequal(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if asked.json["n"] == 0:
            await asyncio.sleep(0.05)
        await echo(asked, reader, writer)

    await rig.serving(unequal)
    wire = await rig.wire()
    batch = b"".join(post({"model": "m", "n": n}) for n in range(5))
    wire.send(batch + get("/health") + post({"model": "m", "n": 9}))
    for n in (0, 1, 2, 3, 4):
        assert f'"n": {n}' in (await wire.answer()).json["body"]
    assert (await wire.answer()).json == {"status": "ok"}
    assert '"n": 9' in (await wire.answer()).json["body"]


async def test_a_client_that_sends_too_far_ahead_gets_the_answer_under_way_and_is_still_seen_to_leave(rig: Rig) -> None:
    go_on = asyncio.Event()

    async def slow(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        await say({"ok": True})(asked, reader, writer)

    engine = await rig.serving(slow)
    staying, leaving = await rig.wire(), await rig.wire()
    for wire in (staying, leaving):
        for _ in range(40):
            wire.send(post({"model": "m", "pad": "x" * 50_000}))
        await wire.writer.drain()
    await until(lambda: len(engine.asked) == 2, "the first of each arriving")
    await leaving.close()
    await until(lambda: rig.metric("llmgw_gateway_cancelled_total", model="m") == 1, "its leaving being seen")
    go_on.set()
    answered = (await staying.until_closed()).count(b'{"ok": true}')
    assert 1 <= answered < 40  # those that came in one piece with the first may be answered too


async def test_a_request_may_come_byte_by_byte(rig: Rig) -> None:
    await rig.serving()
    wire = await rig.wire()
    for byte in post({"model": "m"}):
        wire.send(bytes([byte]))
        await asyncio.sleep(0)
    assert (await wire.answer()).status == 200


async def test_a_chunked_body_is_understood(rig: Rig) -> None:
    engine = await rig.serving()
    answer = await rig.ask(
        b"POST /v1/completions HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\n"
        b'5;ext=1\r\n{"mod\r\n8\r\nel":"m"}\r\n0\r\nTrailer: dropped\r\n\r\n'
    )
    assert answer.status == 200
    assert engine.asked[0].body == b'{"model":"m"}'
    assert "trailer" not in engine.asked[0].headers


async def test_100_continue_is_said_before_the_body_and_only_when_it_is_wanted(rig: Rig) -> None:
    engine = await rig.serving()
    wire = await rig.wire()
    head, _, body = post({"model": "m"}, headers="Expect: 100-continue\r\n").partition(b"\r\n\r\n")
    wire.send(head + b"\r\n\r\n")
    assert (await wire.answer()).status == 100
    wire.send(body)
    assert (await wire.answer()).status == 200
    assert "expect" not in engine.asked[0].headers
    wire.send(head + b"\r\n\r\n" + body)
    assert (await wire.answer()).status == 200


async def test_a_body_too_large_is_refused_before_it_is_sent(rig: Rig) -> None:
    await rig.catalog(model("m"), max_body=1000)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: gw\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n"
    answer = await rig.ask(head)
    assert (answer.status, answer.code) == (413, "body_too_large")
    assert answer.headers["connection"] == "close"


async def test_a_hundred_megabytes_sent_regardless_still_leave_the_client_its_answer(rig: Rig) -> None:
    await rig.catalog(model("m"))
    wire = await rig.wire()
    wire.send(b"POST /v1/completions HTTP/1.1\r\nHost: gw\r\nContent-Length: 104857600\r\n\r\n")
    for _ in range(100):
        wire.send(bytes(1 << 20))
        await wire.writer.drain()
    answer = await wire.answer()
    assert (answer.status, answer.code) == (413, "body_too_large")
    assert await wire.until_closed() == b""


async def test_a_chunked_body_is_refused_once_it_is_too_large(rig: Rig) -> None:
    await rig.catalog(model("m"), max_body=1000)
    wire = await rig.wire()
    wire.send(b"POST /v1/completions HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(3):
        wire.send(b"190\r\n" + b"x" * 400 + b"\r\n")
    assert (await wire.answer()).code == "body_too_large"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /health HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /health HTTP/1.0\r\n\r\n", 200),
        (b"GET /health HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"GET /health\r\n\r\n", 505),
        (b"GET http://any.where/health HTTP/1.1\r\nHost: a\r\n\r\n", 200),
        (b"\r\n\r\nGET /health HTTP/1.1\r\nHost: a\r\n\r\n", 200),
        (b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400),
        (b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
        (b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 3, 3\r\n\r\nabc", 400),
        (b"POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /v1/x HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /v1/x HTTP/1.1\r\nHost : a\r\n\r\n", 400),
        (b"POST /v1/x HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n", 400),
        (b"POST /v1/x HTTP/1.1\nHost: a\n\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # TLS
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431),
    ],
)
async def test_odd_requests_get_the_right_status(rig: Rig, request_bytes: bytes, status: int) -> None:
    answer = await rig.ask(request_bytes)
    assert answer.status == status
    assert answer.headers["x-request-id"]
    if status >= 400:
        assert answer.json["error"]["message"]


async def test_a_head_that_never_ends_is_refused(rig: Rig) -> None:
    wire = await rig.wire()
    wire.send(b"GET /health HTTP/1.1\r\nHost: a\r\n")
    for number in range(100):
        wire.send(b"X-%d: " % number + b"y" * 1000 + b"\r\n")
        await asyncio.sleep(0)
    assert (await wire.answer()).status == 431


@pytest.mark.parametrize("begun", [b"0\r\nX: ", b"0\r\nX", b"0\r\nX: y\r\nZ: ", b"2;x="])
async def test_a_body_that_never_ends_its_trailers_or_a_chunks_line_is_refused(rig: Rig, begun: bytes) -> None:
    """The parser gathers a field until it is whole, so that its size is known to nobody before."""
    wire = await rig.wire()
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    wire.send(head + b'6\r\n{"m": \r\n' + begun)
    for _ in range(100):
        wire.send(b"y" * 2000)
        await asyncio.sleep(0)
    assert (await wire.answer()).status == 431
    assert rig.metric("llmgw_gateway_body_bytes") == 0


def test_a_body_of_many_chunks_may_have_a_lot_of_framing() -> None:
    parser = RequestParser(lambda: 1 << 20, Buffers(Bytes(1 << 20)), lambda credential: (Caller(None), None))
    parser.feed(b"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(20_000):  # each chunk in three reads, of which two bring nothing of the body
        for part in (b"1;eeeee\r\n", b"x", b"\r\n"):
            parser.feed(part)
    parser.feed(b"0\r\n\r\n")
    assert parser.ready[0].body == b"x" * 20_000


async def test_nothing_is_taken_for_a_request_after_a_bad_one(rig: Rig) -> None:
    wire = await rig.wire()
    wire.send(get("/health") + b"nonsense\r\n\r\n" + get("/health"))
    assert (await wire.answer()).status == 200
    assert (await wire.answer()).status == 400
    assert await wire.until_closed() == b""


async def test_connection_close_is_honoured_and_what_follows_ignored(rig: Rig) -> None:
    await rig.serving()
    wire = await rig.wire()
    wire.send(post({"model": "m"}, headers="Connection: close\r\n") + get("/health"))
    answer = await wire.answer()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert await wire.until_closed() == b""


async def test_http10_gets_an_unchunked_stream_and_a_close(rig: Rig) -> None:
    async def stream(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"8\r\ndata: 1\n\r\n1\r\n\n\r\n0\r\n\r\n")

    await rig.serving(stream)
    wire = await rig.wire()
    wire.send(post({"model": "m"}).replace(b"HTTP/1.1", b"HTTP/1.0"))
    answer = await wire.answer()
    assert answer.body == b"data: 1\n\n"
    assert "transfer-encoding" not in answer.headers


async def test_http10_keep_alive_is_kept_where_the_length_is_known(rig: Rig) -> None:
    await rig.serving()
    wire = await rig.wire()
    for _ in range(2):
        wire.send(post({"model": "m"}, headers="Connection: keep-alive\r\n").replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert (await wire.answer()).headers["connection"] == "keep-alive"


async def test_an_offer_to_upgrade_is_declined_without_losing_the_body(rig: Rig) -> None:
    engine = await rig.serving()
    upgrade = (
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAA\r\n"
    )
    wire = await rig.wire()
    data = post({"model": "m"}, headers=upgrade)
    wire.send(data[:60])
    await asyncio.sleep(0.01)
    wire.send(data[60:] + get("/health"))
    assert (await wire.answer()).status == 200
    assert (await wire.answer()).json == {"status": "ok"}
    assert engine.asked[0].json == {"model": "m"}
    assert not {"upgrade", "http2-settings"} & engine.asked[0].headers.keys()


async def test_thousands_of_offers_to_upgrade_in_one_go_are_declined_one_after_the_other(rig: Rig) -> None:
    await rig.catalog(model("m"))
    wire = await rig.wire()
    offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    wire.send(get("/health", headers=offer) * 2000 + get("/v1/models"))
    for _ in range(2000):
        assert (await wire.answer()).json == {"status": "ok"}
    assert (await wire.answer()).json["object"] == "list"


async def test_what_an_offer_to_upgrade_says_besides_counts_as_ever(rig: Rig) -> None:
    engine = await rig.serving()
    answer = await rig.post(
        {"model": "m"}, headers="Connection: X-Hop, upgrade\r\nUpgrade: h2c\r\nX-Hop: 1\r\nX-End: 1\r\n"
    )
    assert answer.status == 200
    assert {"x-hop", "x-end"} & engine.asked[0].headers.keys() == {"x-end"}
    wire = await rig.wire()
    wire.send(b"GET /health HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n")
    assert (await wire.answer()).status == 200
    assert await wire.until_closed() == b""
    wire = await rig.wire()
    wire.send(get("/health", headers="Connection: close, upgrade\r\nUpgrade: h2c\r\n"))
    assert (await wire.answer()).headers["connection"] == "close"


async def test_head_and_options_are_answered_without_a_body(rig: Rig) -> None:
    await rig.catalog(model("m"))
    wire = await rig.wire()
    wire.send(get("/v1/models", "HEAD"))
    answer = await wire.answer(head_only=True)
    assert int(answer.headers["content-length"]) > 0
    wire.send(get("/v1/chat/completions", "OPTIONS"))
    answer = await wire.answer()
    assert (answer.status, answer.headers["allow"]) == (204, "POST, OPTIONS")
    wire.send(get("/health"))
    assert (await wire.answer()).status == 200


async def test_a_page_of_this_machine_may_read_answers_and_no_other_may(rig: Rig) -> None:
    await rig.serving(say({}, extra="Access-Control-Allow-Origin: *\r\n"))
    local = await rig.post({"model": "m"}, headers="Origin: http://localhost:3000\r\n")
    assert local.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert (
        "access-control-allow-origin"
        not in (await rig.post({"model": "m"}, headers="Origin: https://evil.example\r\n")).headers
    )
    assert "access-control-allow-origin" not in (await rig.post({"model": "m"})).headers


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ("Origin: https://elsewhere.example\r\nContent-Type: text/plain\r\n", False),
        ("Origin: null\r\n", False),
        ("Origin: https://elsewhere.example\r\nSec-Fetch-Site: cross-site\r\nContent-Type: text/plain\r\n", False),
        ("Origin: https://chat.example\r\nSec-Fetch-Site: same-origin\r\n", True),  # behind a proxy of that name
        ("Origin: http://gw\r\n", True),
        ("Origin: http://localhost:3000\r\nSec-Fetch-Site: cross-site\r\n", True),
        (
            "Origin: https://elsewhere.example\r\nContent-Type: application/json\r\n",
            True,
        ),  # it had to ask, and was refused
        ("", True),
    ],
)
async def test_no_page_of_another_site_makes_models_work_blindly(rig: Rig, headers: str, allowed: bool) -> None:
    engine = await rig.serving()
    data = post({"model": "m"}).replace(b"Content-Type: application/json\r\n", headers.encode())
    answer = await rig.ask(data)
    assert answer.status == (200 if allowed else 403)
    assert bool(engine.asked) == allowed


async def test_a_sane_request_id_is_kept_and_any_other_replaced(rig: Rig) -> None:
    engine = await rig.serving()
    kept = await rig.post({"model": "m"}, headers="X-Request-Id: abc-123\r\n")
    assert kept.headers["x-request-id"] == "abc-123" == engine.asked[0].headers["x-request-id"]
    made = await rig.post({"model": "m"}, headers='X-Request-Id: "><script>\r\n')
    other = await rig.post({"model": "m"})
    assert made.headers["x-request-id"].startswith("req-")
    assert made.headers["x-request-id"] != other.headers["x-request-id"]


async def test_wrong_methods_and_unknown_paths(rig: Rig) -> None:
    await rig.catalog(model("m"))
    for data, status, allow in (
        (get("/v1/chat/completions"), 405, "POST, OPTIONS"),
        (get("/v1/chat/completions", "DELETE"), 405, "POST, OPTIONS"),
        (post({"model": "m"}, "/v1/models"), 405, "GET, HEAD, OPTIONS"),
        (post({"model": "m"}, "/health"), 405, "GET, HEAD, OPTIONS"),
        (get("/nope"), 404, None),
        (get("/v1/nope"), 404, None),
        (post({"model": "m"}, "/nope"), 404, None),
        (post({"model": "m"}, "/v1/../slots/0"), 404, None),
        (post({"model": "m"}, "/v1/%2e%2e/slots"), 404, None),
        (post({"model": "m"}, "/v1//x"), 404, None),
        (post({"model": "m"}, "/v1/"), 404, None),
    ):
        answer = await rig.ask(data)
        assert answer.status == status, data
        assert answer.headers.get("allow") == allow
        assert answer.code == ("path_not_found" if status == 404 else "method_not_allowed")


async def test_bodies_that_name_no_model_are_refused_in_words(rig: Rig) -> None:
    await rig.catalog(model("m"))
    for body, code in (
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b'{"model":"m"} trailing', "invalid_json"),
        (b"[]", "invalid_json"),
        (b'"m"', "invalid_json"),
        (b'{"model":"m","temperature":NaN}', "invalid_json"),
        (b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "invalid_json"),
        (b"{}", "model_missing"),
        (b'{"model":""}', "model_missing"),
        (b'{"model":null}', "model_missing"),
        (b'{"model":7}', "model_missing"),
        (b'{"model":"\xff"}', "invalid_json"),
    ):
        answer = await rig.post(body)
        assert (answer.status, answer.code) == (400, code), body[:40]


async def test_bodies_of_other_kinds_are_refused_in_words(rig: Rig) -> None:
    await rig.catalog(model("m"))
    for headers in ("Content-Type: multipart/mixed; boundary=x\r\n", "Content-Encoding: gzip\r\n"):
        data = post({"model": "m"}).replace(b"Content-Type: application/json\r\n", headers.encode())
        assert (await rig.ask(data)).code == "unsupported_media_type"


@pytest.fixture
async def hasty() -> AsyncIterator[Rig]:
    limits = Limits(
        head=Seconds(0.15), body=Seconds(0.15), idle=Seconds(0.15), stalled=Seconds(0.3),
        linger=Seconds(0.1), sweep=Seconds(0.02),
    )  # fmt: skip
    async with opened(limits) as rig:
        yield rig


async def test_requests_that_do_not_arrive_are_given_up(hasty: Rig) -> None:
    for part in (b"GET /he", b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc"):
        wire = await hasty.wire()
        wire.send(part)
        assert (await wire.answer()).code == "request_timeout"
        assert await wire.until_closed() == b""


async def test_idle_connections_are_closed_without_a_word(hasty: Rig) -> None:
    wire = await hasty.wire()
    assert await wire.until_closed() == b""
    wire = await hasty.wire()
    wire.send(get("/health"))
    assert (await wire.answer()).status == 200
    assert await wire.until_closed() == b""


async def test_waiting_for_an_engine_is_not_idleness(hasty: Rig) -> None:
    async def slow(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.5)
        await echo(asked, reader, writer)

    await hasty.serving(slow)
    assert (await hasty.post({"model": "m"})).status == 200


async def test_a_client_that_takes_nothing_loses_its_engine(hasty: Rig) -> None:
    async def flood(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        while True:
            writer.write(bytes(1 << 20))
            await writer.drain()

    engine = await hasty.serving(flood)
    wire = await hasty.wire()
    wire.send(post({"model": "m"}))
    await until(lambda: engine.gone == 1, "the engine being let go")
