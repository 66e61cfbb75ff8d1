"""How fast a file comes over loopback, against curl, in one run."""

import asyncio
import multiprocessing
import os
import socket
import subprocess
import time
from multiprocessing.connection import Connection
from pathlib import Path

from llmgw.catalog.spec import WeightsSpec
from llmgw.clock import SystemClock
from llmgw.units import Bytes
from llmgw.weights.cache import Cache


def serve(path: str, ready: "Connection[int, int]") -> None:
    """Every request is answered with the whole file, by the kernel: the server must not be what is measured."""
    size = os.path.getsize(path)
    with socket.create_server(("127.0.0.1", 0)) as listening, open(path, "rb") as file:
        ready.send(listening.getsockname()[1])
        while True:
            connection, _ = listening.accept()
            with connection:
                asked = connection.recv(65_536)
                head = f'HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nETag: "1"\r\nConnection: close\r\n\r\n'
                connection.sendall(head.encode())
                at = 0
                while not asked.startswith(b"HEAD") and at < size:
                    at += os.sendfile(connection.fileno(), file.fileno(), at, size - at)


def by_curl(url: str, folder: Path) -> float:
    """Seconds, curl's start included; the file is gone afterwards."""
    target = folder / "curl.bin"
    begun = time.perf_counter()
    subprocess.run(["curl", "-sf", "-o", str(target), url], check=True)
    took = time.perf_counter() - begun
    target.unlink()
    return took


def by_llmgw(url: str, folder: Path) -> float:
    """Seconds from asking to a published entry: fetched, hashed, synced, renamed."""
    root = folder / "cache"
    cache = Cache(root, cluster_id="bench", clock=SystemClock())
    cache.open()

    async def fetch() -> float:
        begun = time.perf_counter()
        await cache.fetch(WeightsSpec(source=url), reserve=Bytes(0), progress=lambda _: None)
        return time.perf_counter() - begun

    took = asyncio.run(fetch())
    subprocess.run(["rm", "-rf", str(root)], check=True)
    return took


def measure(folder: Path, size: int, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of each round, by curl and by llmgw, in turn: what else the machine does falls on both alike."""
    source = folder / "source.bin"
    with source.open("wb") as file:
        for _ in range(size // (1 << 20)):
            file.write(os.urandom(1 << 20))
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(str(source), there), daemon=True)
    server.start()
    try:
        url = f"http://127.0.0.1:{here.recv()}/model.bin"
        curls, ours = [], []
        for _ in range(rounds):
            curls.append(by_curl(url, folder))
            ours.append(by_llmgw(url, folder))
        return curls, ours
    finally:
        server.kill()
        server.join()
        source.unlink()
