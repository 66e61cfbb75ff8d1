"""Asking an engine in plain HTTP: every way in which it can answer, and not answer."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from llmgw.agent import http
from llmgw.agent.cgroups import Counts
from llmgw.agent.http import Answer, Unanswered
from llmgw.units import Mono


@asynccontextmanager
async def server(*pieces: bytes, stay: bool = False) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Sends the pieces, one after the other; what it was asked is in the list. `stay`: does not close."""
    asked: list[bytes] = []
    done = asyncio.Event()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(65_536))
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        if stay:
            await done.wait()
        writer.close()

    listening = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", asked
    finally:
        done.set()
        listening.close()
        await asyncio.sleep(0.01)


async def ask(url: str, *, body: bytes | None = None, timeout: float = 5.0) -> Answer:
    return await http.ask("GET" if body is None else "POST", url, headers={"X-Key": "k"}, body=body, timeout=timeout)


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ((OK + b"Content-Length: 2\r\n\r\nok",), Answer(200, b"ok")),
        ((OK + b"Content-", b"Length: 2\r\n\r\n", b"o", b"k"), Answer(200, b"ok")),
        ((OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\no\r\n", b"1\r\nk\r\n0\r\n\r\n"), Answer(200, b"ok")),
        ((OK + b"\r\n", b"until ", b"it closes"), Answer(200, b"until it closes")),
        ((b"HTTP/1.1 100 Continue\r\n\r\n", OK + b"Content-Length: 2\r\n\r\nok"), Answer(200, b"ok")),
        ((b"HTTP/1.0 503 Loading\r\nContent-Length: 0\r\n\r\n",), Answer(503, b"")),
        ((b"HTTP/1.1 204 None\r\n\r\n",), Answer(204, b"")),
    ],
)
async def test_an_answer_is_read_however_it_ends(pieces: tuple[bytes, ...], expected: Answer) -> None:
    async with server(*pieces) as (url, _):
        assert await ask(url) == expected


async def test_an_answer_that_is_whole_does_not_wait_for_the_connection_to_end() -> None:
    async with server(OK + b"Content-Length: 2\r\n\r\nok", stay=True) as (url, _):
        assert (await ask(url, timeout=60)).body == b"ok"  # the connection never ends


async def test_a_request_says_where_it_goes_and_what_it_brings() -> None:
    async with server(OK + b"Content-Length: 0\r\n\r\n") as (url, asked):
        await ask(f"{url}/base/completion?x=1", body=b"{}")
        head, _, body = asked[0].partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")
        assert lines[0] == b"POST /base/completion?x=1 HTTP/1.1"
        assert {b"Host: " + url.removeprefix("http://").encode(), b"X-Key: k", b"Content-Length: 2"} <= set(lines)
        assert body == b"{}"


@pytest.mark.parametrize(
    "pieces",
    [
        (),
        (b"SSH-2.0-OpenSSH_9.6\r\n",),
        (OK + b"Content-Length: 10\r\n\r\nshort",),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhal",),
        (b"HTTP/1.1 200",),
        (OK + b"Content-Length: 9999999\r\n\r\n", *[b"x" * 1_000_000] * 6),
    ],
    ids=["nothing", "another protocol", "cut short", "cut in a chunk", "cut in the head", "too large"],
)
async def test_anything_else_is_no_answer(pieces: tuple[bytes, ...]) -> None:
    async with server(*pieces) as (url, _):
        with pytest.raises(Unanswered):
            await ask(url)


async def test_an_engine_that_says_nothing_is_given_up_in_time_and_its_connection_closed() -> None:
    async with server(OK, stay=True) as (url, _):
        async with asyncio.timeout(30):
            with pytest.raises(Unanswered, match="timed out"):
                await ask(url, timeout=0.2)
    gc.collect()  # a connection left open would be told of


@pytest.mark.parametrize("url", ["https://127.0.0.1:1", "http://", "http://[::1", "ftp://x", "http://127.0.0.1:99999"])
async def test_a_url_that_is_none_of_an_engine_is_no_answer(url: str) -> None:
    with pytest.raises(Unanswered):
        await ask(url)


async def test_where_nobody_listens_there_is_no_answer() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(Unanswered):
            await ask(f"http://127.0.0.1:{taken.getsockname()[1]}")


def test_counts_are_read_once_for_all_who_look_at_the_same_moment(tmp_path: Path) -> None:
    group = tmp_path / "memory.events"
    group.write_text("oom_kill 1\n")
    counts = Counts(root=tmp_path, proc=tmp_path)
    assert counts.of("0::/\n", Mono(10.0)) == {"/.": 1}
    group.write_text("oom_kill 2\n")
    assert counts.of("0::/\n", Mono(10.1)) == {"/.": 1}
    assert counts.just_now("0::/\n") == {"/.": 2}
    assert counts.of("0::/\n", Mono(11.0)) == {"/.": 2}
