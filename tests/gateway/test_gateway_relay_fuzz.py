"""Whatever bytes a client or an engine sends, over real connections: nothing crashes, hangs, or is smuggled."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise

import h11
import pytest
from gateway_rig import PATIENCE, STREAM_HEAD, Asked, Rig, Wire, chunked, event, model, opened, post, say
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmgw.gateway import seeking
from llmgw.gateway.client import Limits
from llmgw.units import Seconds

EVIL = b'POST /v1/evil HTTP/1.1\r\nHost: gw\r\nContent-Length: 13\r\n\r\n{"model":"m"}'
LAST = b"GET /health HTTP/1.1\r\nHost: gw\r\nConnection: close\r\n\r\n"
SLOWLY = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
FEW = settings(max_examples=25, deadline=None, suppress_health_check=SLOWLY, derandomize=True)
MANY = settings(max_examples=2000, deadline=None, suppress_health_check=SLOWLY)


def body(text: bytes = b"") -> bytes:
    return b'{"model":"m","x":%b}' % json.dumps(text.decode("latin-1")).encode()


def sized(data: bytes, length: int | None = None, more: bytes = b"") -> bytes:
    size = len(data) if length is None else length
    return b"POST /v1/good HTTP/1.1\r\nHost: gw\r\n%bContent-Length: %d\r\n\r\n%b" % (more, size, data)


def in_chunks(data: bytes, more: bytes = b"") -> bytes:
    head = b"POST /v1/good HTTP/1.1\r\nHost: gw\r\n%bTransfer-Encoding: chunked\r\n\r\n" % more
    return head + chunked(data[:7]) + chunked(data[7:]) + b"0\r\n\r\n"


REQUESTS = [
    sized(body()), sized(body(EVIL)), in_chunks(body()), in_chunks(body(EVIL)), sized(body(EVIL), 0),
    sized(body(EVIL), 9999), sized(EVIL), in_chunks(EVIL), sized(body(), more=b"Transfer-Encoding: chunked\r\n"),
    in_chunks(body(), more=b"Content-Length: 3\r\n"), sized(body(), more=b"Content-Length: 5\r\n"),
    sized(body(), more=b"Connection: close\r\n"), sized(body(), more=b"Expect: 100-continue\r\n"),
    sized(body(), more=b"Connection: Upgrade\r\nUpgrade: h2c\r\n"), sized(body()).replace(b"1.1", b"1.0"),
    b"GET /health HTTP/1.1\r\nHost: gw\r\n\r\n", b"HEAD /v1/models HTTP/1.1\r\nHost: gw\r\n\r\n",
    b"0\r\n\r\n", b"\r\n", b"\n", b"\x00", b"Transfer-Encoding: chunked\r\n", EVIL,
]  # fmt: skip
ANSWERS = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n",
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    STREAM_HEAD, chunked(event("a")), chunked(b"data: x"), b"0\r\n\r\n", b"ffffffffffffffff\r\n", b"\r\n",
    b"\n", b"\x00", b"HTTP/1.1 200 OK\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 3\r\n", b"X: a\rb\r\n",
    b"\r\n\r\n",
]  # fmt: skip


PIECES = st.lists(st.sampled_from(REQUESTS) | st.binary(max_size=20), min_size=1, max_size=5)
SAID = st.lists(st.sampled_from(ANSWERS) | st.binary(max_size=20), min_size=1, max_size=6)
CUTS = st.lists(st.integers(0, 600), max_size=3)


class Shared:
    """One gateway for many examples, with an event loop of its own."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.run = runner.run
        self.rig: Rig
        self.asked: list[Asked] = []
        self.answer: list[bytes] = []  #: what the engine says to the next request, in place of an answer
        self.said_all = asyncio.Event()
        self.over: object = None  #: the address of the connection that it said it over

    async def serve(self, rig: Rig) -> None:
        self.rig = rig
        engine = await rig.engine(self._behave)
        self.asked = engine.asked
        await rig.catalog(model("m"))
        await rig.endpoint("m", engine.url)

    async def _behave(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.answer:
            await say({"path": asked.target})(asked, reader, writer)
            return
        pieces, self.answer = self.answer, []
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        self.over = writer.get_extra_info("peername")
        writer.close()
        self.said_all.set()

    async def heard_out(self) -> None:
        """The engine has said what it says and closed, and the gateway knows. Before that, what nobody asked for cannot
        be told from the answer to a request that was sent meanwhile: HTTP/1.1 has no numbers."""
        assert self.rig.gateway._relay is not None
        async with asyncio.timeout(PATIENCE):
            while not self.said_all.is_set() or any(
                one._transport is None or one._transport.get_extra_info("sockname") == self.over
                for target in self.rig.gateway._relay.targets.values()
                for one in target.idle
            ):
                await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def wire(self) -> AsyncIterator[Wire]:
        """A connection, after which the gateway has to be as it was before."""
        assert self.rig.gateway._relay is not None
        self.asked.clear()
        for target in self.rig.gateway._relay.targets.values():
            target.suspect_until = 0.0
        wire = Wire(*await asyncio.open_connection(*self.rig.gateway.address))
        try:
            yield wire
        finally:
            await wire.close()
        async with asyncio.timeout(PATIENCE):
            while self.rig.metric("llmgw_gateway_connections") or self.rig.metric("llmgw_gateway_body_bytes"):
                await asyncio.sleep(0.001)
        assert self.rig.metric("llmgw_gateway_in_flight", model="m") == 0


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    limits = Limits(
        head=Seconds(0.05), body=Seconds(0.05), idle=Seconds(0.05), linger=Seconds(0.05), sweep=Seconds(0.01)
    )
    with asyncio.Runner() as runner, pytest.MonkeyPatch.context() as patch:
        patch.setattr(seeking, "REPLACED", 0.01)
        found, opening = Shared(runner), opened(limits)
        runner.run(found.serve(runner.run(opening.__aenter__())))
        yield found
        runner.run(opening.__aexit__(None, None, None))


def judged(data: bytes) -> list[tuple[str, bytes]]:
    """The requests in it that an engine is to see, as another HTTP parser finds them, one by one."""
    found: list[tuple[str, bytes]] = []
    while True:
        connection, target, body = h11.Connection(h11.SERVER), "", b""
        connection.receive_data(data.lstrip(b"\r\n"))  # RFC 9112 section 2.2: empty lines before a request are ignored
        try:
            while not isinstance(event := connection.next_event(), h11.EndOfMessage):
                if isinstance(event, h11.Request):
                    target = event.target.decode("latin-1") if event.method == b"POST" else ""
                elif isinstance(event, h11.Data):
                    body += event.data
                else:
                    return found
        except h11.RemoteProtocolError:
            return found
        if target.startswith("/v1/") and is_for_m(body):
            found.append((target, bytes(body)))
        if connection.their_state is h11.MUST_CLOSE:
            return found
        data = connection.trailing_data[0]


def is_for_m(body: bytes) -> bool:
    try:
        asked = json.loads(body)
    except ValueError:
        return False
    return isinstance(asked, dict) and asked.get("model") == "m"


def a_client_sends_anything(shared: Shared, parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts) + LAST
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]

    async def send() -> bytes:
        async with shared.wire() as wire:
            for start, end in pairwise(edges):
                wire.send(data[start:end])
                await asyncio.sleep(0)
            return await wire.until_closed()

    said = shared.run(send())
    assert not said or said.startswith(b"HTTP/1.1 ")
    asked = [(each.target, each.body) for each in shared.asked]
    assert asked == judged(data)[: len(asked)]


def an_engine_says_anything(shared: Shared, parts: list[bytes]) -> None:
    async def ask() -> bytes | None:
        """The answer to a second request on the same connection, where there is one."""
        async with shared.wire() as wire:
            shared.answer = parts
            shared.said_all.clear()
            if not await understood(wire):
                return None
            await shared.heard_out()
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                wire.send(post({"model": "m"}, "/v1/after"))
                return (await wire.answer()).body
            return None

    assert shared.run(ask()) in (None, b'{"path": "/v1/after"}')


async def understood(wire: Wire) -> bool:
    """Ask once, and read the answer as another HTTP client does. Whether the connection is good for more."""
    client = h11.Connection(h11.CLIENT)
    asked = post({"model": "m"}, "/v1/before")
    _, _, body = asked.partition(b"\r\n\r\n")
    client.send(h11.Request(method="POST", target="/", headers=[("Host", "gw"), ("Content-Length", str(len(body)))]))
    client.send(h11.Data(body))
    client.send(h11.EndOfMessage())
    wire.send(asked)
    async with asyncio.timeout(PATIENCE):
        while True:
            event = client.next_event()  # raises for what is no HTTP
            if isinstance(event, h11.EndOfMessage):
                return client.their_state is h11.DONE
            if event is h11.NEED_DATA:
                with contextlib.suppress(ConnectionResetError):
                    if data := await wire.reader.read(65536):
                        client.receive_data(data)
                        continue
                return False  # broken off, and seen to be


@FEW
@given(parts=PIECES, cuts=CUTS)
def test_no_bytes_of_a_client_become_a_request_that_is_not_there(
    shared: Shared, parts: list[bytes], cuts: list[int]
) -> None:
    a_client_sends_anything(shared, parts, cuts)


@FEW
@given(parts=SAID)
def test_no_bytes_of_an_engine_become_another_requests_answer(shared: Shared, parts: list[bytes]) -> None:
    an_engine_says_anything(shared, parts)


@pytest.mark.slow
@MANY
@given(parts=PIECES, cuts=CUTS)
def test_no_bytes_of_a_client_become_a_request_that_is_not_there_at_length(
    shared: Shared, parts: list[bytes], cuts: list[int]
) -> None:
    a_client_sends_anything(shared, parts, cuts)


@pytest.mark.slow
@MANY
@given(parts=SAID)
def test_no_bytes_of_an_engine_become_another_requests_answer_at_length(shared: Shared, parts: list[bytes]) -> None:
    an_engine_says_anything(shared, parts)
