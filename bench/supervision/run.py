"""What it costs one agent to supervise many engines. Writes RESULTS.md beside it.

    python bench/supervision/run.py [--engines 200] [--seconds 60]

Each engine is a real process, started, watched, sampled, adopted and ended as any: `sleep`. Its HTTP side, load and
health, is answered for all of them by one small server of its own, so that what is measured is llmgw and not 200
interpreters. The agent runs in a process by itself over the embedded store. Supervising: processor time and memory of
that process over some seconds in which nothing happens. Adopting: a second agent on the same state directory, from the
start of its work until all are told adopted, and until all have answered their probes and are ready. Loopback only.
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import uvloop

from llmgw.agent import owned
from llmgw.agent.loop import Agent
from llmgw.catalog.spec import ProfileSpec, WeightsSpec
from llmgw.clock import SystemClock
from llmgw.engine.api import Engine, HttpRequest, LaunchSpec, Readiness, Slot
from llmgw.engine.manager import Engines
from llmgw.facts import EngineFact, EngineLoad, Footprint, Level, NodeReport, Phase, Progress, WeightsFact
from llmgw.ids import EngineName, ModelName, NodeName, ProfileName, ReplicaId, Revision, SpecDigest
from llmgw.plan import Assignment
from llmgw.statedir import StateDir
from llmgw.store import codec, keys
from llmgw.store.events import EventLog
from llmgw.store.memory import MemoryStore
from llmgw.units import Bytes, Seconds, Wall

HERE = Path(__file__).parent
NODE = NodeName("bench")
SLEEP = shutil.which("sleep") or "sleep"


class StandIn(Engine):
    """A process that sleeps, and an address where a server answers in its place."""

    name = EngineName("stand-in")
    needs_weights = False

    def __init__(self, server: str) -> None:
        self._server = server

    def fingerprint(self) -> EngineFact:
        return EngineFact(name=self.name, version="1")

    def footprint(self, profile: ProfileSpec, files: Mapping[str, WeightsFact], level: Level) -> Footprint | None:
        return None

    def launch(self, profile: ProfileSpec, slot: Slot, level: Level) -> LaunchSpec:
        return LaunchSpec(argv=[SLEEP, "86400"], url=f"{self._server}/{slot.replica}")

    def probes(self, profile: ProfileSpec) -> list[HttpRequest]:
        return [HttpRequest(path="/health"), HttpRequest(path="/completion", method="POST", body=b"{}")]

    def read_probe(self, request: HttpRequest, status: int, body: bytes) -> Readiness:
        return Readiness.READY if status == 200 else Readiness.LOADING

    def load(self, profile: ProfileSpec) -> HttpRequest | None:
        return HttpRequest(path="/metrics")

    def read_load(self, status: int, body: bytes) -> EngineLoad | None:
        return EngineLoad(running=0, waiting=0) if status == 200 else None


class NoCache:
    """These engines have no weights."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def locate(self, spec: WeightsSpec) -> Path | None:
        return None

    async def fetch(self, spec: WeightsSpec, *, reserve: Bytes, progress: Callable[[Progress], None]) -> Path:
        raise NotImplementedError

    def facts(self, wanted: Iterable[WeightsSpec]) -> tuple[WeightsFact, ...]:
        return ()

    def mark_wanted(self, specs: Iterable[WeightsSpec], now: Wall) -> None:
        pass


def assignment(number: int) -> Assignment:
    return Assignment(
        replica=ReplicaId(f"r{number}"),
        model=ModelName(f"m{number}"),
        profile=ProfileSpec(name=ProfileName("p"), engine=StandIn.name),
        spec=SpecDigest(f"s{number}"),
        node=NODE,
        revision=Revision("v1"),
        footprint=Footprint(host=Bytes(1)),
        start_timeout=Seconds(120),
        drain_timeout=Seconds(1),
    )


# -- the processes: each is this file with a role


async def serve() -> None:
    """Answer every request of every connection with 200."""
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok"

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if b"ontent-" in head and b"ength: 2\r\n" in head:
                    await reader.readexactly(2)
                writer.write(answer)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


async def supervise(root: Path, server: str, engines: int, seconds: float) -> dict[str, float]:
    """One agent: starts what is not there, adopts what is; then rests. Figures in seconds and bytes."""
    state, store = StateDir(root), MemoryStore(None)
    state.prepare()
    agent = Agent(
        node=NODE,
        store=store,
        state=state,
        cache=NoCache(root / "weights"),
        engines=Engines(by_name={StandIn.name: StandIn(server)}),
        clock=SystemClock(),
        events=EventLog(),
        secret=b"secret",
        ports=range(20000, 20000 + 2 * engines),
    )
    for number in range(engines):
        one = assignment(number)
        await store.put(keys.assignment(NODE, one.replica), codec.encode(one))
    began = time.monotonic()
    task = asyncio.create_task(agent.run())
    known = await until(store, lambda report: len(report.replicas) == engines, task)
    ready = await until(
        store, lambda report: sum(fact.phase is Phase.READY for fact in report.replicas) == engines, task
    )
    figures = {"known": known - began, "ready": ready - began}
    if seconds:
        await asyncio.sleep(12)  # what began together has spread
        cpu, at = time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        figures |= {"share": (time.process_time() - cpu) / (time.monotonic() - at), "resident": resident()}
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return figures


async def until(store: MemoryStore, holds: Callable[[NodeReport], bool], task: asyncio.Task[None]) -> float:
    deadline = time.monotonic() + 300
    while True:
        entry = await store.get(keys.report(NODE))
        if entry is not None and holds(codec.decode(entry.value, NodeReport)):
            return time.monotonic()
        if task.done() or time.monotonic() > deadline:
            raise SystemExit("the engines did not become ready; is the machine very busy?")
        await asyncio.sleep(0.03)


def resident() -> float:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmRSS"))
    return float(line.split()[1]) * 1024


def run_role(role: str, *arguments: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, "--role", role, *arguments], stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def report(engines: int, seconds: float, first: Mapping[str, float], adopted: list[Mapping[str, float]]) -> str:
    known, ready = (sorted(one[name] for one in adopted)[len(adopted) // 2] for name in ("known", "ready"))
    return f"""\
# Supervising engines

{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, Python {sys.version.split()[0]}.
Made by `python bench/supervision/run.py`.

| what, with {engines} engines | figure | aim |
|---|---|---|
| supervising them at rest: share of one core over {seconds:.0f} s | {100 * first["share"]:.1f} % | 5 % |
| the same: resident memory of the agent's process | {first["resident"] / 1e6:.0f} MB | 200 MB |
| adopting them: until all are known, median of {len(adopted)} | {known:.2f} s | |
| the same: until all have answered their probes and are ready | {ready:.2f} s | 2 s |
| starting them anew, until all are ready | {first["ready"]:.1f} s | |
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what supervising engines costs.")
    parser.add_argument("--engines", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--no-write", action="store_true", help="print only")
    parser.add_argument("--role", choices=["serve", "supervise"], help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--server", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "serve":
        asyncio.run(serve())
        return
    if options.role == "supervise":
        print(json.dumps(uvloop.run(supervise(options.root, options.server, options.engines, options.seconds))))
        return
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen([sys.executable, __file__, "--role", "serve"], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            where = ["--root", folder, "--server", server.stdout.readline().strip()]
            many = ["--engines", str(options.engines)]
            first = run_role("supervise", *where, *many, "--seconds", str(options.seconds))
            adopted: list[Mapping[str, float]] = [
                run_role("supervise", *where, *many, "--seconds", "0") for _ in range(5)
            ]
        finally:
            owned.end_owned(StateDir(Path(folder)), lambda text: None)
            server.kill()
            server.wait()
    table = report(options.engines, options.seconds, first, adopted)
    print(table)
    if not options.no_write:
        (HERE / "RESULTS.md").write_text(table)


if __name__ == "__main__":
    main()
