"""No bytes make the request parser crash, hang, or see a request that is not there."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.gateway.admission import Buffers
from llmgw.gateway.http1 import MAX_HEAD, RequestParser
from llmgw.gateway.keys import Caller
from llmgw.units import Bytes

GOOD = [
    b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n",
    b'POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 13\r\n\r\n{"model":"m"}',
    b"POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nok",
    b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
]
BROKEN = [
    b"POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\r\n",
    b"\x00",
]
NOBODY = Caller(None)
FRAGMENTS = st.sampled_from([*GOOD, *BROKEN, b"\r\n\r\n", b"Upgrade: h2c\r\n", b"Host: a\r\n", b"0\r\n\r\n"])


def parsed(data: bytes, cuts: list[int], buffers: Buffers | None = None) -> RequestParser:
    parser = RequestParser(lambda: 1000, buffers or Buffers(Bytes(5000)), lambda token: (NOBODY, None))
    edges = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    for start, end in pairwise(edges):
        if start < end:
            parser.feed(data[start:end])
    return parser


@given(st.lists(FRAGMENTS | st.binary(max_size=40), max_size=8), st.lists(st.integers(0, 2000), max_size=6))
@settings(max_examples=300, deadline=None)
def test_any_bytes_in_any_pieces_give_requests_or_one_refusal(parts: list[bytes], cuts: list[int]) -> None:
    buffers = Buffers(Bytes(1500))
    parser = parsed(b"".join(parts), cuts, buffers)
    assert sum(len(request.body) for request in parser.ready) <= buffers.used <= 1500
    for request in parser.ready:
        assert len(request.body) <= 1000
        assert len(request.head.fields.forward) <= MAX_HEAD + 200
    if parser.refusal is not None:
        assert 400 <= parser.refusal.status < 600
    parser.close()
    assert buffers.used == 0


@given(st.lists(st.sampled_from(GOOD), min_size=1, max_size=5), st.lists(st.integers(0, 2000), max_size=8))
@settings(max_examples=300, deadline=None)
def test_how_requests_are_cut_into_pieces_changes_nothing(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    whole, cut = parsed(data, []), parsed(data, cuts)
    assert whole.refusal is None
    assert cut.refusal is None
    assert [(r.head, r.body) for r in cut.ready] == [(r.head, r.body) for r in whole.ready]
    assert len(whole.ready) == len(parts)


@given(st.binary(max_size=3000).filter(lambda data: b" HTTP/1." not in data))
@settings(max_examples=200, deadline=None)
def test_noise_is_never_a_request(data: bytes) -> None:
    parser = parsed(data, [])
    assert not parser.ready or parser.ready[0].body == b""
