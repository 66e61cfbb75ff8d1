"""Memory of llmgw's gateway: idle connections that are kept, and streams whose clients read slowly.

    python bench/gateway/connections.py [--connections 10000] [--streams 1000] [--write]

Each idle connection has had an answer. Of each stream a client takes its first bytes and then none, while the engine
sends whatever it is let: what is not taken lies in the gateway until that lets the engine wait. What counts is the
gateway's resident memory (RSS), with an API key, its limits and an access log, as in run.py. `--write` puts the table
into RESULTS.md, under its own heading. The hard limit of open files (`ulimit -Hn`) has to allow the connections.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import psutil
import uvloop

from llmgw.store.tokens import new_token

HERE = Path(__file__).resolve().parent
HEADING = "## Memory by connections and streams"
TOKEN = new_token()[1]
EVENT = {"id": "x", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "tok" * 100}}]}
DATA = b"data: " + json.dumps(EVENT, separators=(",", ":")).encode() + b"\n\n"
CHUNKS = b"%x\r\n%b\r\n" % (len(DATA), DATA) * 16
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{"object":"x"}\n'
SMALL = 4096  #: bytes of a slow client's own buffers, which the kernel doubles


class Engine(asyncio.Protocol):
    """Answers at once, or streams without an end, as fast as it is read."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self.streams = self.paused = False

    def data_received(self, data: bytes) -> None:
        if b'"stream":true' in data:
            self.streams = True
            self.transport.write(HEAD)
            self._fill()
        else:
            self.transport.write(ANSWER)

    def _fill(self) -> None:
        while self.streams and not self.paused and not self.transport.is_closing():
            self.transport.write(CHUNKS)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self._fill()


async def engine(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


@contextlib.contextmanager
def running(*command: str) -> Iterator[psutil.Process]:
    with subprocess.Popen([sys.executable, *command]) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def request(*, stream: bool) -> bytes:
    messages = [{"role": "user", "content": "Which of these trains gets me to Lisbon before noon?"}]
    body = json.dumps({"model": "m", "messages": messages, "stream": stream}, separators=(",", ":")).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def connect(port: int) -> socket.socket:
    """Raises ConnectionRefusedError until somebody listens."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    sock.settimeout(20)
    try:
        sock.connect(("127.0.0.1", port))
    except OSError:
        sock.close()
        raise
    return sock


def asked(port: int, count: int, *, stream: bool) -> list[socket.socket]:
    """So many connections, each with the beginning of an answer; 100 are opened at a time."""
    found: list[socket.socket] = []
    wanted = request(stream=stream)
    while len(found) < count:
        some = [connect(port) for _ in range(min(100, count - len(found)))]
        for sock in some:
            sock.sendall(wanted)
        for sock in some:
            answer = sock.recv(1024)
            assert answer.startswith(b"HTTP/1.1 200"), answer
        found += some
    return found


def settled(process: psutil.Process) -> int:
    """Resident bytes, once they and the process are at rest: nothing comes in any more."""
    before, busy = -1, 1.0
    while busy > 0.1 or abs(process.memory_info().rss - before) > 2**20:
        before, used = process.memory_info().rss, sum(process.cpu_times()[:2])
        time.sleep(1)
        busy = sum(process.cpu_times()[:2]) - used
    return int(process.memory_info().rss)


def measure(what: str, count: int, *, stream: bool) -> str:
    """A row of the table."""
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as directory:
        port, upstream, log = free_port(), free_port(), str(Path(directory) / "access.log")
        serve = (str(HERE / "serve.py"), str(port), str(upstream), TOKEN, log)
        with running(__file__, "engine", str(upstream)), running(*serve) as gateway:
            deadline = time.monotonic() + 30
            while True:
                try:
                    connect(port).close()
                    asked(port, 50, stream=False)
                    break
                except (ConnectionRefusedError, AssertionError):
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.1)
            idle = settled(gateway)
            sockets = asked(port, count, stream=stream)
            full = settled(gateway)
            for sock in sockets:
                sock.close()
            after = settled(gateway)
    each = (full - idle) / count / 1000
    cells = (f"{count:,} {what}", f"{idle / 1e6:.0f}", f"{full / 1e6:.0f}", f"{each:.1f}", f"{after / 1e6:.0f}")
    print(cells, file=sys.stderr)
    return f"| {' | '.join(cells)} |"


def table(connections: int, streams: int) -> str:
    rows = [
        "| what | RSS MB before | with them | KB each | after |",
        "|---|---|---|---|---|",
        measure("idle connections", connections, stream=False),
        measure("streams that nobody reads", streams, stream=True),
    ]
    return "\n".join(rows)


def write(text: str) -> None:
    """Under its own heading: what stands before it, or after the next, is kept."""
    file = HERE / "RESULTS.md"
    before, _, rest = file.read_text().partition(f"{HEADING}\n")
    later = rest.partition("\n## ")[2]
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    said = f"`python bench/gateway/connections.py --write` on {datetime.now(UTC):%Y-%m-%d}: {machine}."
    own = f"{HEADING}\n\n{said}\n\n{text}\n"
    file.write_text(f"{before.rstrip()}\n\n{own}" + (f"\n## {later}" if later else ""))


def main() -> None:
    if sys.argv[1:2] == ["engine"]:
        uvloop.run(engine(int(sys.argv[2])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--write", action="store_true", help="put the table into RESULTS.md")
    chosen = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    text = table(chosen.connections, chosen.streams)
    print(text)
    if chosen.write:
        write(text)


if __name__ == "__main__":
    main()
