"""What two parsers could read in two ways is refused, and an engine never sees it."""

import pytest
from gateway_rig import Rig

BODY = b'{"model":"m"}'
CHUNKED = b"d\r\n" + BODY + b"\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        (b"Content-Length: 13\r\nContent-Length: 13\r\n", BODY),
        (b"Content-Length: +13\r\n", BODY),
        (b"Content-Length: 0xd\r\n", BODY),
        (b"Content-Length: 1 3\r\n", BODY),
        (b"Content-Length:\r\n 13\r\n", BODY),
        (b"Content-Length: \r\n", BODY),
        (b"Content-Length : 13\r\n", BODY),
        (b"Content-Length: 99999999999999999999999\r\n", BODY),
        (b"Content-Length: 13\r\nTransfer-Encoding: identity\r\n", BODY),
        (b"Content-Length: 13\r\nTransfer-Encoding: chunked\r\n", CHUNKED),
        (b"Transfer-Encoding: xchunked\r\n", CHUNKED),
        (b"Transfer-Encoding: ,chunked\r\n", CHUNKED),
        (b"Transfer-Encoding: chunked, chunked\r\n", CHUNKED),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", CHUNKED),
        (b"Transfer-Encoding: \x0bchunked\r\n", CHUNKED),
        (b"Transfer-Encoding: chunked\r\n", b"d;a\nb\r\n" + BODY + b"\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\n", b"d\n" + BODY + b"\n0\n\n"),
        (b"Transfer-Encoding: chunked\r\n", b"d\r\n" + BODY + b"0\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\n", b"d \r\n" + BODY + b"\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\n", b"-1\r\n" + BODY),
        (b"Transfer-Encoding: chunked\r\n", b"ffffffffffffffffff\r\n" + BODY),
        (b"Transfer-Encoding: chunked\r\n", b"d\r\n" + BODY + b"\r\n0\r\nContent-Length: 5\r\n\r\n"),
        (b"Content-Length: 13\r\nX: a\r\n b\r\n", BODY),
        (b"Content-Length: 13\r\nX: a\nY: b\r\n", BODY),
        (b"Content-Length: 13\r\nX: a\rY: b\r\n", BODY),
        (b"Content-Length: 13\r\nX: a\x01\r\n", BODY),
        (b"Content-Length: 13\r\nX Y: a\r\n", BODY),
        (b"Content-Length: 13\r\n: a\r\n", BODY),
        (b"Content-Length: 13\r\nnocolon\r\n", BODY),
    ],
)
async def test_ambiguous_framing_is_refused_and_closes(rig: Rig, fields: bytes, body: bytes) -> None:
    engine = await rig.serving()
    wire = await rig.wire()
    hidden = b"GET /health HTTP/1.1\r\nHost: gw\r\n\r\n"
    wire.send(b"POST /v1/completions HTTP/1.1\r\nHost: gw\r\n" + fields + b"\r\n" + body + hidden)
    assert (await wire.answer()).status == 400
    assert await wire.until_closed() == b"", "nothing after it is taken for a request"
    assert not engine.asked


@pytest.mark.parametrize(
    "name", ["m\r\nX-Injected: 1", "m\x00", 'm"', "m\\u0022", "é" * 50, "m" * 100_000, "../m", "m\u2028"]
)
async def test_no_name_of_a_model_is_more_than_text(rig: Rig, name: str) -> None:
    engine = await rig.serving()
    answer = await rig.post({"model": name})
    assert (answer.status, answer.code) == (404, "model_not_found")
    assert len(answer.raw) < 2000
    assert b"X-Injected" not in answer.raw.partition(b"\r\n\r\n")[0]
    assert not engine.asked


@pytest.mark.parametrize(
    "target",
    [b"/v1/../x", b"/v1//x", b"/v1/%2e%2e/x", b"/v1/x/", b"/v1/x#y", b"/V1/x", b"/v1/x;y", b"*", b"http://h?/v1/x"],
)
async def test_a_path_that_an_engine_could_read_otherwise_is_not_relayed(rig: Rig, target: bytes) -> None:
    engine = await rig.serving()
    answer = await rig.ask(b"POST " + target + b" HTTP/1.1\r\nHost: gw\r\nContent-Length: 13\r\n\r\n" + BODY)
    assert answer.status in (400, 404, 405)
    assert not engine.asked
