"""What clients can make the gateway hold is bounded, whatever they send and however little they read."""

import asyncio
import contextlib
import gc
import select
import socket
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from gateway_rig import STREAM_HEAD, Asked, Rig, chunked, event, get, model, opened, post, until

from llmgw.gateway.client import Limits
from llmgw.gateway.openai import read_model, rewrite_model
from llmgw.units import KIB, MIB, Bytes, Seconds


async def silent(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(1)


async def test_bodies_over_all_clients_are_bounded_and_the_place_is_given_back() -> None:
    async with opened(Limits(bodies=Bytes(3 * MIB))) as rig:
        await rig.serving(silent)
        body = {"model": "m", "x": "x" * MIB}
        held = [await rig.wire() for _ in range(2)]
        for wire in held:
            wire.send(post(body))
        await until(lambda: rig.metric("llmgw_gateway_in_flight", model="m") == 2, "two under way")
        for chunked in (False, True):
            wire = await rig.wire()
            data = post(body)
            if chunked:
                head, _, sent = data.partition(b"\r\n\r\n")
                head = head.rpartition(b"\r\n")[0] + b"\r\nTransfer-Encoding: chunked"
                data = b"%b\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (head, len(sent), sent)
            wire.send(data)
            answer = await wire.answer()
            assert (answer.status, answer.code) == (503, "overloaded")
            assert int(answer.headers["retry-after"]) > 0
        assert (await rig.post({"model": "n"})).code == "model_not_found", "small requests go on"
        partial = await rig.wire()
        partial.send(post({"model": "m", "x": "x" * (MIB // 2)})[: MIB // 3])
        await until(lambda: rig.metric("llmgw_gateway_body_bytes") > 2.2 * MIB, "half a body being counted")
        for wire in (*held, partial):
            await wire.close()
        await until(lambda: rig.metric("llmgw_gateway_body_bytes") == 0, "all being given back")


async def test_answers_are_not_piled_up_for_a_client_that_asks_on_without_reading(rig: Rig) -> None:
    await rig.catalog(*(model(f"m{number}", description="x" * 1000) for number in range(100)))
    wire = await rig.wire()
    wire.writer.transport.pause_reading()
    for _ in range(1000):
        wire.send(get("/v1/models"))
    (client,) = rig.gateway._connections
    await until(lambda: client._writing_paused, "the client's side being full")
    await asyncio.sleep(0.05)
    assert client._transport is not None
    assert client._transport.get_write_buffer_size() < MIB
    wire.writer.transport.resume_reading()
    for _ in range(1000):
        answer = await wire.answer()
        assert answer.status == 200
        assert len(answer.json["data"]) == 100


def _connect(rig: Rig) -> socket.socket:
    """A client that takes no memory to speak of in this process, and reads nothing by itself."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        sock.connect(rig.gateway.address)
    return sock


async def unsent(rig: Rig, fields: str) -> tuple[socket.socket, int]:
    """A client that has taken nothing of an answer that is complete, but for what the gateway could not send yet. How
    long its body is."""
    piece, sent = bytes(16 * KIB), 0

    async def more_than_the_kernel_takes(
        asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
        stuck = 0
        while stuck < 20:  # a kernel takes more after a moment
            stuck = stuck + 1 if waiting() else 0
            if not stuck:
                writer.write(chunked(piece))
                sent += len(piece)
            await asyncio.sleep(0.001)
        writer.write(b"0\r\n\r\n")

    def waiting() -> int:
        return client._transport.get_write_buffer_size() if client._transport is not None else 0

    await rig.serving(more_than_the_kernel_takes)
    sock = _connect(rig)
    await until(lambda: rig.gateway._connections, "the connection")
    (client,) = rig.gateway._connections
    assert client._transport is not None
    client._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * KIB)
    sock.send(post({"model": "m"}, headers=fields))
    await until(lambda: sent and rig.metric("llmgw_gateway_request_duration_seconds_count", model="m"), "the answer")
    assert waiting()
    return sock, sent


@pytest.mark.parametrize("fields", ["", "Connection: close\r\n"])
async def test_a_client_that_takes_its_answer_slowly_gets_all_of_it(fields: str) -> None:
    """Its engine is done long before: neither idleness nor closing ends what is not sent yet."""
    async with opened(Limits(idle=Seconds(0.1), linger=Seconds(0.1), sweep=Seconds(0.02))) as rig:
        sock, sent = await unsent(rig, fields)
        await asyncio.sleep(0.3)  # three times as long as either patience
        got = 0
        while got < sent and (data := await asyncio.get_running_loop().sock_recv(sock, 64 * KIB)):
            got += data.count(0)
        assert got == sent
        sock.close()


async def test_one_that_takes_no_more_of_it_is_let_go() -> None:
    patience = Seconds(0.1)
    async with opened(Limits(stalled=patience, idle=patience, linger=patience, sweep=Seconds(0.02))) as rig:
        sock, _ = await unsent(rig, "Connection: close\r\n")
        await until(lambda: not rig.gateway._connections, "the connection being given up")
        sock.close()


async def test_one_that_leaves_without_taking_it_is_let_go() -> None:
    async with opened(Limits(stalled=Seconds(0.1), linger=Seconds(0.1), sweep=Seconds(0.02))) as rig:
        sock, _ = await unsent(rig, "")
        sock.send(post({"model": "m"})[:-1])
        sock.shutdown(socket.SHUT_WR)
        await until(lambda: not rig.gateway._connections, "the connection being given up")
        sock.close()


@contextlib.contextmanager
def _traced() -> Iterator[Callable[[], int]]:
    """What is allocated in the block and still there, in bytes."""

    def held() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    gc.collect()
    tracemalloc.start()
    try:
        yield held
    finally:
        tracemalloc.stop()


async def endless(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A stream that goes on as long as anybody takes it."""
    piece = chunked(event("tok" * 5000))
    writer.write(STREAM_HEAD)
    while not writer.is_closing():
        writer.write(piece)
        await writer.drain()


async def test_streams_that_nobody_reads_hold_little_each_and_their_engines_wait(rig: Rig) -> None:
    await rig.serving(endless)
    streams = 25
    with _traced() as held:
        clients = [_connect(rig) for _ in range(streams)]
        await until(lambda: len(rig.gateway._connections) == streams, "all being connected")
        for client in clients:
            client.sendall(post({"model": "m", "stream": True}))
        connections = tuple(rig.gateway._connections)
        await until(lambda: all(each._writing_paused for each in connections), "every client being full")
        paused = [each._exchange._connection for each in connections if each._exchange is not None]
        assert all(each is not None and each._paused for each in paused), "so does each engine's side"
        for _ in range(20):  # whatever is still on its way
            await asyncio.sleep(0.005)
        size = held()
    each = size / streams
    for client in clients:
        client.close()
    assert each < 300 * KIB, f"{each / KIB:.0f} KiB, of which the engine's side has at most 80"


async def test_connections_that_are_kept_hold_little_each(rig: Rig) -> None:
    await rig.serving()
    for wire in [await rig.wire() for _ in range(2)]:  # what is there once, for all
        wire.send(post({"model": "m"}))
        await wire.answer()
    count = 100
    with _traced() as held:
        clients = [_connect(rig) for _ in range(count)]
        await until(lambda: len(rig.gateway._connections) == count + 2, "all being connected")
        for client in clients:
            client.sendall(post({"model": "m"}))
            await until(lambda client=client: _readable(client), "an answer")
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
        each = held() / count
    for client in clients:
        client.close()
    assert each < 16 * KIB, f"{each / KIB:.1f} KiB"


def _readable(sock: socket.socket) -> bool:
    return bool(select.select([sock], [], [], 0)[0])


async def test_many_small_chunks_make_one_body(rig: Rig) -> None:
    engine = await rig.serving()
    body = b'{"model":"m","x":"' + b"yz" * 20_000 + b'"}'
    pieces = b"".join(b"2\r\n%b\r\n" % body[at : at + 2] for at in range(0, len(body), 2))
    head = b"POST /v1/completions HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert (await rig.ask(head + pieces + b"0\r\n\r\n")).status == 200
    assert engine.asked[0].body == body


def test_a_key_of_megabytes_is_stepped_over_in_little_time_and_memory() -> None:
    body = b'{"' + b"\\n" * (4 * MIB) + b'":1,"model":"a"}'
    assert read_model(body) == "a"
    assert rewrite_model(body, "b") == body[:-3] + b'b"}'
