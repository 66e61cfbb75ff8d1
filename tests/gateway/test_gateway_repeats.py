"""Heads that come again: read once, and never taken for anything else than what a parser makes of them."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from calls import calls_of
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.gateway.admission import Buffers
from llmgw.gateway.http1 import DENIED_BODY, RequestParser
from llmgw.gateway.keys import MISSING, Caller, Credential
from llmgw.gateway.openai import ApiError
from llmgw.gateway.repeats import LONGEST, Repeat
from llmgw.gateway.reply import Answered
from llmgw.gateway.request import Request
from llmgw.gateway.upstream import EngineConnection, Target
from llmgw.ids import EngineName, ModelName, ReplicaId
from llmgw.plan import Endpoint
from llmgw.units import MIB, Bytes

LINES = st.sampled_from([
    b"Host: gw", b"X-One: 1", b"Authorization: Bearer sk-1", b"content-type: application/json", b"Connection: close",
    b"Connection: keep-alive", b"Transfer-Encoding: chunked", b"Expect: 100-continue", b"X-Request-Id: mine",
    b"X-Content-Length: 3", b"Content-Length: 2", b"Upgrade: h2c", b"Connection: Upgrade, HTTP2-Settings", b"X-Empty:",
])  # fmt: skip
STARTS = st.sampled_from([b"POST /v1/x HTTP/1.1", b"GET /v1/models HTTP/1.1", b"POST /v1/x?a=1 HTTP/1.0", b"junk"])
BODIES = st.lists(st.binary(max_size=12), min_size=3, max_size=5)


class Door:
    """Lets everybody in until it is shut."""

    def __init__(self, denied: ApiError | None = None) -> None:
        self.denied = denied
        self.seen: list[Credential | None] = []

    def __call__(self, credential: Credential | None) -> tuple[Caller, ApiError | None]:
        self.seen.append(credential)
        return Caller(None), self.denied


def parser(limit: int = MIB, door: Door | None = None, buffers: Buffers | None = None) -> RequestParser:
    return RequestParser(lambda: limit, buffers or Buffers(Bytes(MIB)), door or Door())


def message(start: bytes, lines: Sequence[bytes], length: bytes, body: bytes) -> bytes:
    return b"\r\n".join((start, *lines, b"Content-Length: " + length, b"", body))


def simple(body: bytes) -> bytes:
    return message(b"POST /v1/x HTTP/1.1", [b"Host: gw"], b"%d" % len(body), body)


def told(of: RequestParser) -> tuple[Any, ...]:
    requests = [(each.head, each.body, each.counted, each.keep_alive, each.denied) for each in of.ready]
    return requests, of.refusal, of.last, of.part, of.expects_continue


def take(of: RequestParser) -> Request:
    assert of.refusal is None
    return of.ready.popleft()


@settings(max_examples=300, deadline=None)
@given(STARTS, st.lists(LINES, max_size=4), BODIES, st.sampled_from([b"%d", b"0%d", b"+%d", b" %d", b"%d "]))
def test_a_head_that_comes_again_says_what_it_said_to_a_parser(
    start: bytes, lines: list[bytes], bodies: list[bytes], number: bytes
) -> None:
    kept = parser()
    for body in bodies:
        data = message(start, [b"Host: gw", *lines], number % len(body), body)
        fresh = parser()
        kept.feed(data)
        fresh.feed(data)
        assert told(kept) == told(fresh)
        if not kept.ready or kept.refusal is not None or kept.last:
            return
        take(kept)


@settings(max_examples=300, deadline=None)
@given(st.data(), st.binary(max_size=6))
def test_one_byte_of_difference_is_a_parser_s_to_judge(data: st.DataObject, body: bytes) -> None:
    kept, fresh = parser(), parser()
    for _ in range(2):
        kept.feed(simple(b"first"))
        take(kept)
    changed = bytearray(simple(body))
    changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    extra = data.draw(st.sampled_from([b"", b"\r\n", b"x", simple(b"")]))
    kept.feed(bytes(changed) + extra)
    fresh.feed(bytes(changed) + extra)
    assert told(kept) == told(fresh)


def test_what_comes_again_is_not_parsed_again_and_gets_an_id_of_its_own() -> None:
    kept = parser()
    for _ in range(2):
        kept.feed(simple(b"one"))
        first = take(kept)
    kept._parser = None  # nobody asks it
    for body in (b"two", b"another", b""):
        kept.feed(simple(body))
        again = take(kept)
        assert (again.body, again.head) == (body, first.head)
        assert again.id != first.id
        assert again.id.encode() in again.echo


def test_heads_of_which_each_is_another_are_not_remembered() -> None:
    kept = parser()
    with calls_of(Repeat.of.__func__) as made:  # type: ignore[attr-defined]
        for number in range(5):
            kept.feed(message(b"POST /v1/x HTTP/1.1", [b"Host: gw", b"Traceparent: %d" % number], b"1", b"a"))
            assert take(kept).body == b"a"
    assert made == []


def test_requests_that_name_themselves_are_parsed_each() -> None:
    kept = parser()
    for number in (b"1", b"2"):
        kept.feed(message(b"POST /v1/x HTTP/1.1", [b"Host: gw", b"X-Request-Id: " + number], b"0", b""))
        assert take(kept).id == number.decode()


def test_who_asks_is_asked_each_time() -> None:
    door = Door()
    kept = parser(door=door)
    for _ in range(2):
        kept.feed(simple(b"one"))
        take(kept)
    door.denied = MISSING
    kept.feed(simple(b"two"))
    assert take(kept).denied is MISSING
    kept.feed(simple(b"x" * (DENIED_BODY + 1)))
    assert kept.refusal is MISSING


def test_a_body_is_bounded_and_counted_however_its_head_is_read() -> None:
    buffers = Buffers(Bytes(10))
    kept = parser(limit=8, buffers=buffers)
    for _ in range(2):
        kept.feed(simple(b"12345678"))
        take(kept).release()
    kept.feed(simple(b"123"))
    assert buffers.used == 3
    kept.feed(simple(b"12345678"))
    assert kept.refusal is not None
    assert kept.refusal.status == 503
    assert [each.body for each in kept.ready] == [b"123"]
    other = parser(limit=8)
    for _ in range(2):
        other.feed(simple(b"12345678"))
        take(other)
    other.feed(simple(b"123456789"))
    assert other.refusal is not None
    assert other.refusal.status == 413


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\r\n\r\n", b"POST / HTTP/1.1\r\nHost: gw\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nab",
        b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: 1\nX: 1\r\n\r\na",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
        b"POST / HTTP/1.1\r\nX: " + b"x" * LONGEST + b"\r\nContent-Length: 1\r\n\r\na",
    ],
)  # fmt: skip
def test_what_has_no_length_of_its_own_is_not_remembered(data: bytes) -> None:
    assert Repeat.of(data, data.partition(b"\r\n\r\n")[2], None) is None


# engines


class Wire:
    """A transport that nothing comes out of."""

    def __init__(self) -> None:
        self.closed = False

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, _name: str) -> None:
        return None

    def write(self, _data: bytes) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    abort = close


class Heard:
    """Who waits for an answer."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def engine_answered(self, answered: Answered, length: int | None, body: bytes, done: bool) -> None:
        self.said.append((answered, length, body, done))

    def engine_sent(self, body: bytes, done: bool) -> None:
        self.said.append((body, done))

    def engine_lost(self, why: str, *, answered: bool, stale: bool) -> None:
        self.said.append((why, answered, stale))


def target() -> Target:
    endpoint = Endpoint(
        id=ReplicaId("r"), model=ModelName("m"), url="http://127.0.0.1:1", names=(), engine=EngineName("e")
    )  # fmt: skip
    return Target(endpoint, b"secret")


def connection(to: Target, loop: asyncio.AbstractEventLoop) -> EngineConnection:
    made = EngineConnection(to, loop)
    made.connection_made(cast(asyncio.Transport, Wire()))
    return made


def answer(data: bytes, over: EngineConnection) -> tuple[list[tuple[Any, ...]], bool]:
    """What becomes of an answer; and whether the connection is good for another."""
    heard = Heard()
    assert over.send(heard, b"", b"")
    over.data_received(data)
    return heard.said, over.usable


ANSWER_LINES = st.sampled_from([
    b"Server: engine", b"Content-Type: application/json", b"Connection: close", b"Transfer-Encoding: chunked",
    b"Content-Length: 1", b"X-Content-Length: 5", b"Connection: keep-alive", b"Content-Type: text/event-stream",
])  # fmt: skip
STATUSES = st.sampled_from([b"200 OK", b"204 No Content", b"404 Not Found", b"500", b"100 Continue", b"99"])


@settings(max_examples=300, deadline=None)
@given(STATUSES, st.lists(ANSWER_LINES, max_size=3), BODIES, st.sampled_from([b"", b"", b"", b"x", b"\r\n"]))
def test_an_engine_s_head_that_comes_again_says_what_it_said_to_a_parser(
    status: bytes, lines: list[bytes], bodies: list[bytes], extra: bytes
) -> None:
    loop = asyncio.new_event_loop()
    try:
        kept = connection(target(), loop)
        for body in bodies:
            data = message(b"HTTP/1.1 " + status, lines, b"%d" % len(body), body) + extra
            found = answer(data, kept)
            assert found == answer(data, connection(target(), loop))
            if not kept.usable or not found[0] or not found[0][-1][-1]:
                return
    finally:
        loop.close()


def test_an_answer_that_begins_as_the_last_did_is_not_parsed_again() -> None:
    loop = asyncio.new_event_loop()
    try:
        kept = connection(target(), loop)
        for _ in range(2):
            answer(message(b"HTTP/1.1 200 OK", [b"Server: engine"], b"2", b"{}"), kept)
        kept._parser = None
        said, usable = answer(message(b"HTTP/1.1 200 OK", [b"Server: engine"], b"3", b"[1]"), kept)
        assert [each[1:] for each in said] == [(3, b"[1]", True)]
        assert usable
    finally:
        loop.close()
