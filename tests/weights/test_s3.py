"""`s3://` against a server that speaks S3, on loopback, through s3fs: what the file system in memory cannot show."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import pytest
from servers import closed_port

from llmgw.catalog.spec import WeightsSpec
from llmgw.errors import WeightsRefused, WeightsUnavailable
from llmgw.units import MIB, Bytes
from llmgw.weights.api import WeightSource
from llmgw.weights.cache import Cache
from llmgw.weights.filesystems import Filesystems

pytestmark = pytest.mark.slow

CONTENT = bytes(range(256)) * 4096 * 48  # 48 MiB: three of the blocks that are asked for at once
FETCH = """\
import asyncio, sys
from pathlib import Path
from llmgw.catalog.spec import FetchLimits, WeightsSpec
from llmgw.clock import SystemClock
from llmgw.weights.api import WeightSource
from llmgw.weights.cache import Cache
cache = Cache(Path(sys.argv[1]), cluster_id="c1", clock=SystemClock())
cache.open()
spec, limits = WeightsSpec(source=sys.argv[2]), FetchLimits(bandwidth=8 << 20)
asyncio.run(cache.fetch(spec, reserve=0, progress=lambda _: None, limits=limits))
"""


@dataclass
class Line:
    """A TCP connection to the server, that can stall. `down`: bytes that came from there."""

    port: int
    down: int = 0
    stall_at: float = float("inf")
    go_on: threading.Event = field(default_factory=threading.Event)

    def serve(self, listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                server = socket.create_connection(("127.0.0.1", self.port))
                for source, target, down in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pump, args=(source, target, down), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, down: bool) -> None:
        with suppress(OSError), source, target:
            while data := source.recv(65_536):
                self.down += len(data) if down else 0
                if self.down > self.stall_at:
                    self.go_on.wait(60)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@pytest.fixture
def server() -> Iterator[Any]:
    pytest.importorskip("s3fs", reason="no s3fs: pip install 'llmgw[slow]'")
    moto = pytest.importorskip("moto.server", reason="no moto: pip install 'llmgw[slow]'")
    made = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def line(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    """The way to a server with a bucket of models, as the environment names it."""
    made = Line(int(server.get_host_and_port()[1]))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=made.serve, args=(listening,), daemon=True).start()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{listening.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": "127.0.0.1",
        }.items():
            monkeypatch.setenv(name, value)
        put(made, "models", {"a/m.gguf": CONTENT, "repo/config.json": b"{}", "repo/sub/t.json": b"[]", "a/none": b""})
        yield made
        made.go_on.set()
        listening.shutdown(socket.SHUT_RDWR)


def put(line: Line, bucket: str, files: dict[str, bytes]) -> None:
    import boto3

    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{line.port}")
    with suppress(client.exceptions.BucketAlreadyOwnedByYou):
        client.create_bucket(Bucket=bucket)
    for key, body in files.items():
        client.put_object(Bucket=bucket, Key=key, Body=body)
    client.close()


@pytest.fixture
def cache(cache_with: Callable[[WeightSource], Cache]) -> Cache:
    return cache_with(Filesystems({"s3"}, first_wait=0.01))


async def get(cache: Cache, source: str, **more: Any) -> Path:
    return await cache.fetch(WeightsSpec(source=source, **more), reserve=Bytes(0), progress=lambda _: None)


def names(root: Path) -> set[str]:
    return {path.name.partition("-")[0] for path in root.iterdir()} - {".llmgw"}


def until(condition: Callable[[], bool], within: float = 60) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


async def test_a_file_a_folder_and_a_pattern_come_out_of_a_bucket(line: Line, cache: Cache) -> None:
    described = await Filesystems().describe(WeightsSpec(source="s3://models/a/m.gguf"))
    assert described.size == len(CONTENT)
    assert (await get(cache, "s3://models/a/m.gguf")).read_bytes() == CONTENT
    folder = await get(cache, "s3://models/repo")
    assert {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()} == {
        "config.json", "sub/t.json",
    }  # fmt: skip
    assert (await get(cache, "s3://models/a/m*.gguf")).name == "m.gguf"
    assert names(cache.root) == {"v1"}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("s3://models/a/other.gguf", "no such file or folder"),
        ("s3://nobodys-bucket/m.gguf", "The specified bucket does not exist"),
        ("s3://models/a/none", "0 bytes"),
    ],
)
async def test_what_is_not_there_is_refused_and_leaves_nothing(
    source: str, said: str, line: Line, cache: Cache
) -> None:
    with pytest.raises(WeightsRefused, match=f"{source}.*{said}"):
        await get(cache, source)
    assert names(cache.root) == set()


async def test_credentials_that_are_refused_are_named_and_others_are_found_at_once(
    line: Line, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(cache.root / "none"))
    with pytest.raises(WeightsUnavailable, match=r"Unable to locate credentials.*s3fs finds"):
        await get(cache, "s3://models/a/m.gguf")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    reckon_with_keys(line, after=0)
    try:
        with pytest.raises(WeightsRefused, match=r"denied.*check the credentials"):
            await get(cache, "s3://models/a/m.gguf")
    finally:
        reckon_with_keys(line, after=10**9)
    assert names(cache.root) == set()
    assert (await get(cache, "s3://models/a/m.gguf")).read_bytes() == CONTENT


def reckon_with_keys(line: Line, *, after: int) -> None:
    """The server looks at who asks, after so many more questions."""
    url = f"http://127.0.0.1:{line.port}/moto-api/reset-auth"
    asking = Request(url, data=str(after).encode(), method="POST", headers={"Content-Type": "text/plain"})
    build_opener(ProxyHandler({})).open(asking).read()


async def test_a_server_that_cannot_be_reached_may_be_later(
    line: Line, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed_port()}")
    with pytest.raises(WeightsUnavailable, match=r"Could not connect.*check the network"):
        await get(cache, "s3://models/a/m.gguf")
    assert names(cache.root) == set()


def test_a_download_whose_process_was_killed_is_gone_on_with(line: Line, cache: Cache) -> None:
    child = subprocess.Popen([sys.executable, "-c", FETCH, str(cache.root), "s3://models/a/m.gguf"], env=os.environ)
    try:
        until(lambda: came(cache.root) >= 17 * MIB)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    kept, before = came(cache.root), line.down
    cache.open()
    assert asyncio.run(get(cache, "s3://models/a/m.gguf")).read_bytes() == CONTENT
    assert line.down - before < len(CONTENT) - kept + MIB, "what was here did not come again"
    assert names(cache.root) == {"v1"}


def came(root: Path) -> int:
    return sum(path.stat().st_size for path in root.glob("*/entry/files/m.gguf"))


async def test_a_file_that_was_replaced_meanwhile_comes_anew(line: Line, cache: Cache) -> None:
    await stalled_and_left(line, cache)
    put(line, "models", {"a/m.gguf": CONTENT[::-1]})
    assert (await get(cache, "s3://models/a/m.gguf")).read_bytes() == CONTENT[::-1]


async def test_who_leaves_a_stalled_download_does_not_wait_for_it(line: Line, cache: Cache) -> None:
    took = await stalled_and_left(line, cache)
    assert took < 20
    assert names(cache.root) == {"kept"}
    assert (await get(cache, "s3://models/a/m.gguf")).read_bytes() == CONTENT


async def stalled_and_left(line: Line, cache: Cache) -> float:
    """Seconds that it took to leave. The line goes on then."""
    line.stall_at = line.down + 20 * MIB
    task = asyncio.ensure_future(get(cache, "s3://models/a/m.gguf"))
    await asyncio.to_thread(until, lambda: line.down > line.stall_at and came(cache.root) >= 16 * MIB)
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    took = time.monotonic() - began
    line.stall_at = float("inf")
    line.go_on.set()
    return took
