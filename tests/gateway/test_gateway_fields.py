"""What header fields say is remembered from request to request; what differs between two requests never is."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from llmgw.gateway.admission import Buffers
from llmgw.gateway.fields import understand
from llmgw.gateway.http1 import RequestParser
from llmgw.gateway.keys import Caller, Credential
from llmgw.gateway.openai import ApiError
from llmgw.gateway.reply import Reply
from llmgw.gateway.reply import understand as answered
from llmgw.gateway.request import Request
from llmgw.units import MIB, Bytes

NAMES = (
    "Host",
    "Accept",
    "Content-Type",
    "X-Stainless-Lang",
    "User-Agent",
    "Connection",
    "x-LLMGW-no-fallback",
    "Origin",
)
VALUES = ("a", "b", "application/json", "close", "keep-alive, accept", "http://localhost:3000", "http://far.example")
SEEN: deque[Credential | None] = deque(maxlen=1)


SSE = ((b"content-type", b"text/event-stream; charset=utf-8"),)


def admit(credential: Credential | None) -> tuple[Caller, ApiError | None]:
    SEEN.append(credential)
    return Caller(None), None


def parse(fields: list[tuple[str, str]], body: bytes, id: str) -> Request:
    parser = RequestParser(lambda: MIB, Buffers(Bytes(MIB)), admit)
    sent = [("Host", "gw"), *fields, ("X-Request-Id", id), ("content-length", str(len(body)))]
    head = "".join(f"{name}: {value}\r\n" for name, value in sent)
    parser.feed(f"POST /v1/x HTTP/1.1\r\n{head}\r\n".encode() + body)
    assert parser.refusal is None
    return parser.ready.popleft()


@given(st.lists(st.tuples(st.sampled_from(NAMES[1:]), st.sampled_from(VALUES)), max_size=6), st.binary(max_size=20))
def test_what_is_remembered_is_what_is_worked_out_anew(fields: list[tuple[str, str]], body: bytes) -> None:
    raw = tuple((name.encode(), value.encode()) for name, value in [("Host", "gw"), *fields])
    assert understand(raw) == understand.__wrapped__(raw)
    first, second = parse(fields, body, "one"), parse(fields, body + b"!", "two")
    assert (first.id, second.id) == ("one", "two")
    assert (first.body, second.body) == (body, body + b"!")
    assert first.head.fields.forward == second.head.fields.forward
    assert b"content-length" not in first.head.fields.forward.lower()


def test_fields_that_the_connection_names_stay_behind_and_credentials_do_as_well() -> None:
    fields = [("Connection", "keep-alive, X-Mine"), ("X-Mine", "1"), ("X-Other", "2"), ("X-Api-Key", "sk-secret")]
    request = parse(fields, b"", "id")
    assert request.head.fields.forward == b"X-Other: 2\r\n"
    assert request.tag == b"X-Request-Id: id\r\n"
    assert SEEN[0] == Credential.of(b"sk-secret")


def test_each_request_is_its_own_callers_though_all_else_is_the_same() -> None:
    for token in ("one", "two", "one"):
        parse([("Authorization", f"Bearer {token}")], b"", "id")
        assert SEEN[0] == Credential.of(token.encode())
    parse([], b"", "id")
    assert SEEN[0] is None


def test_answers_that_differ_in_their_length_alone_are_told_apart() -> None:
    for length in (b"1", b"22"):
        reply = Reply(parse([], b"", length.decode()))
        head = reply.head(answered(200, ((b"Server", b"engine"), (b"Connection", b"close"))), int(length))
        assert b"Content-Length: %b\r\n" % length in head
        assert b"X-Request-Id: %b\r\n" % length in head
        assert head.count(b"Content-Length") == 1
        assert b"Connection" not in head
    stream = Reply(parse([], b"", "s"))
    assert b"Transfer-Encoding: chunked" in stream.head(answered(200, SSE), None)
    assert stream.is_stream
