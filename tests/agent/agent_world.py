"""A node in a temporary directory: real processes, a real store, small scripts as engines."""

import asyncio
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from llmgw.agent.around import LOG_SIZE, Around
from llmgw.agent.loop import Agent
from llmgw.agent.ports import Ports
from llmgw.agent.scopes import Scopes
from llmgw.agent.timing import Timing
from llmgw.agent.traffic import Traffic
from llmgw.catalog.spec import FetchLimits, ProfileSpec, WeightsSpec
from llmgw.clock import SystemClock
from llmgw.engine.api import Engine, HttpRequest, LaunchSpec, Readiness, Slot, Verdict
from llmgw.engine.manager import Engines
from llmgw.facts import (
    EngineFact,
    EngineLoad,
    Exit,
    FailureKind,
    Footprint,
    Level,
    NodeReport,
    Phase,
    Progress,
    ReplicaFact,
    ReplicaUse,
    Usage,
    WeightsFact,
)  # fmt: skip
from llmgw.ids import EngineName, ModelName, NodeName, ProfileName, ReplicaId, Revision, SpecDigest
from llmgw.plan import Assignment, Endpoint, Want
from llmgw.statedir import StateDir
from llmgw.store import codec, keys
from llmgw.store.events import EventLog
from llmgw.store.memory import MemoryStore
from llmgw.units import Bytes, Seconds, Wall
from llmgw.weights.upkeep import Upkeep

NODE = NodeName("n1")
SECRET = b"cluster secret"

SERVER = r"""
import json, os, signal, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
port, flags = int(sys.argv[1]), set(sys.argv[2:])
if "stubborn" in flags:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "slow" in flags:
    time.sleep(0.6)
busy = os.path.join(os.getcwd(), "busy")
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0" if "alone" in flags else "HTTP/1.1"
    def do_POST(self):  # /decode
        self.rfile.read(int(self.headers["Content-Length"]))
        with open("decoded", "a") as file:
            file.write("x")
        while os.path.exists("deaf"):
            time.sleep(0.02)
        self.answer(500, b"no more") if os.path.exists("sick") else self.answer(200, b"a")
    def do_GET(self):
        while os.path.exists("prompt"):  # a long one: with "alone", nothing else is answered meanwhile
            sum(range(10**5))
        if self.headers.get("Authorization") != "Bearer " + os.environ["LLMGW_ENGINE_KEY"]:
            return self.answer(401, b"who are you")
        if self.path == "/load":
            return self.answer(200, json.dumps({"running": int(os.path.exists(busy))}).encode())
        if self.path == "/env":
            return self.answer(200, json.dumps(dict(os.environ)).encode())
        self.answer(500 if "broken" in flags else 503 if "never" in flags or os.path.exists("ill") else 200, b"ok")
    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
class Server(HTTPServer if "alone" in flags else ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
try:
    server = Server(("127.0.0.1", port), Handler)
except OSError:
    print("bind failed: address in use", file=sys.stderr)
    sys.exit(98)
print("listening on", port, flush=True)
server.serve_forever(poll_interval=0.05)
"""


class ScriptEngine(Engine):
    """Runs SERVER with the profile's `args` as its flags, or `command` through sh with $PORT and $SERVER set."""

    name = EngineName("script")
    needs_weights = False

    def __init__(self) -> None:
        self.ports_used: list[int] = []
        self.slots: list[Slot] = []

    def fingerprint(self) -> EngineFact:
        return EngineFact(name=self.name, version="1")

    def footprint(self, profile: ProfileSpec, files: Mapping[str, WeightsFact], level: Level) -> Footprint | None:
        return None

    def launch(self, profile: ProfileSpec, slot: Slot, level: Level) -> LaunchSpec:
        self.ports_used.append(slot.port)
        self.slots.append(slot)
        script = slot.directory / "server.py"
        script.write_text(SERVER)
        server = [sys.executable, "-S", str(script), str(slot.port), *profile.args]
        shell = profile.options.get("command")
        argv: Sequence[str] = ["/bin/sh", "-c", str(shell)] if shell else server
        given = slot.files.get("weights")
        # A shell splits SERVER into words, and the interpreter's own path may hold spaces.
        python = slot.directory / "python"
        python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        python.chmod(0o755)
        env = {"SERVER": " ".join([str(python), *server[1:]]), "WEIGHTS": "" if given is None else str(given)}
        stop = profile.options.get("stop")
        return LaunchSpec(
            argv=argv, url=f"http://{slot.host}:{slot.port}", env=env, stop_argv=stop, key_variables=("SCRIPT_KEY",)
        )

    def read_probe(self, request: HttpRequest, status: int, body: bytes) -> Readiness:
        return {200: Readiness.READY, 500: Readiness.BROKEN}.get(status, Readiness.LOADING)

    def probes(self, profile: ProfileSpec) -> Sequence[HttpRequest]:
        work = HttpRequest(path="/decode", method="POST", body=b"a", timeout=0.5)
        return (HttpRequest(path="/health"), work) if profile.options.get("decodes") else super().probes(profile)

    def load(self, profile: ProfileSpec) -> HttpRequest | None:
        return None if profile.options.get("mute") else HttpRequest(path="/load", timeout=2.0)

    def read_load(self, status: int, body: bytes) -> EngineLoad | None:
        return EngineLoad(running=msgspec.json.decode(body)["running"], waiting=0) if status == 200 else None

    def classify(self, exit: Exit, log_tail: str) -> Verdict:
        if exit.code == 98 or (exit == Exit() and "bind failed" in log_tail):
            return Verdict(kind=FailureKind.CRASH, reason="its port is taken", port_clash=True)
        return super().classify(exit, log_tail)


class NoCache:
    """For replicas without weights."""

    def __init__(self, root: Path) -> None:
        self.root = root

    unlisted = 0

    def limit(self, limits: FetchLimits) -> None:
        pass

    def locate(self, spec: WeightsSpec) -> Path | None:
        return None

    async def fetch(
        self, spec: WeightsSpec, *, reserve: Bytes, progress: Callable[[Progress], None], limits: FetchLimits
    ) -> Path:
        raise AssertionError("nothing to fetch")

    def facts(self, wanted: Iterable[WeightsSpec]) -> tuple[WeightsFact, ...]:
        return ()

    def mark_wanted(self, specs: Iterable[WeightsSpec], now: Wall) -> None:
        pass


class Node:
    """What outlives an agent: its state directory, the store, the engines it started."""

    def __init__(self, root: Path) -> None:
        self.state = StateDir(root / "state")
        self.state.prepare()
        self.store = MemoryStore(None)
        self.engine = ScriptEngine()
        self.engines = Engines(by_name={self.engine.name: self.engine})
        self.cache = NoCache(root / "weights")
        self.upkeep: Upkeep | None = None
        self.events = EventLog()
        self.ports = free_range(12)
        self.grace = 10.0
        self.timing = Timing()
        self.log_size = LOG_SIZE
        self.scopes = Scopes()
        self._started: set[int] = set()

    def make_agent(self) -> Agent:
        return Agent(
            node=NODE,
            store=self.store,
            state=self.state,
            cache=self.cache,
            engines=self.engines,
            clock=SystemClock(),
            events=self.events,
            secret=SECRET,
            ports=self.ports,
            grace=self.grace,
            timing=self.timing,
            log_size=self.log_size,
            scopes=lambda: self.scopes,
            upkeep=self.upkeep,
        )

    def around(self) -> Around:
        """For a part on its own."""
        return Around(
            node=NODE,
            state=self.state,
            cache=self.cache,
            engines=self.engines,
            clock=SystemClock(),
            events=self.events,
            secret=SECRET,
            host="127.0.0.1",
            grace=self.grace,
            ports=Ports(self.ports),
            traffic=Traffic(),
            changed=lambda: None,
        )

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Agent]:
        """Run one; at the end it is cancelled, as by a daemon's SIGTERM: engines go on."""
        await self.store.delete(keys.report(NODE))  # what the tests then see is this agent's
        agent = self.make_agent()
        task = asyncio.create_task(agent.run())
        try:
            yield agent
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    # -- the controller's and gateway's part

    def assignment(self, id: str = "r1", **profile: object) -> Assignment:
        return Assignment(
            replica=ReplicaId(id),
            model=ModelName("m"),
            profile=ProfileSpec(name=ProfileName("p"), engine=EngineName("script"), **profile),  # type: ignore[arg-type]
            spec=SpecDigest("s"),
            node=NODE,
            revision=Revision("v1"),
            footprint=Footprint(host=Bytes(1)),
            start_timeout=Seconds(20),
            drain_timeout=Seconds(20),
        )

    async def assign(self, assignment: Assignment) -> int:
        return await self.store.put(keys.assignment(NODE, assignment.replica), codec.encode(assignment))

    async def unassign(self, id: str = "r1") -> None:
        await self.store.delete(keys.assignment(NODE, ReplicaId(id)))

    async def stop(self, assignment: Assignment, *, eviction: bool = False) -> int:
        return await self.assign(replace(assignment, want=Want.STOP, eviction=eviction))

    async def publish(self, id: str = "r1") -> int:
        endpoint = Endpoint(
            id=ReplicaId(id), model=ModelName("m"), url="http://x", names=("m",), engine=EngineName("script")
        )
        return await self.store.put(keys.endpoint(NODE, ReplicaId(id)), codec.encode(endpoint))

    async def use(
        self,
        *,
        seen: int,
        outstanding: Mapping[str, int] | None = None,
        heard: float | None = None,
        failures: int = 0,
    ) -> None:
        uses = {
            ReplicaId(id): ReplicaUse(
                outstanding=count,
                last_used=Wall(1),
                heard=None if heard is None else Wall(heard),
                failures=failures,
            )
            for id, count in (outstanding or {}).items()
        }
        usage = Usage(at=Wall(time.time()), seen=seen, replicas=uses)
        await self.store.put(keys.usage("g"), codec.encode(usage))

    # -- looking

    async def report(self) -> NodeReport | None:
        entry = await self.store.get(keys.report(NODE))
        return None if entry is None else codec.decode(entry.value, NodeReport)

    async def fact(self, id: str = "r1") -> ReplicaFact | None:
        report = await self.report()
        found = [fact for fact in report.replicas if fact.id == id] if report else []
        if found and found[0].pid is not None:
            self._started.add(found[0].pid)
        return found[0] if found else None

    async def until(self, phase: Phase, id: str = "r1", *, timeout: float = 30) -> ReplicaFact:
        """The replica's fact once it is in that phase."""

        async def look() -> ReplicaFact | None:
            fact = await self.fact(id)
            return fact if fact is not None and fact.phase is phase else None

        return await eventually(look, f"{id} {phase}", timeout=timeout, story=self.story)

    async def until_gone(self, id: str = "r1") -> None:
        async def look() -> bool:
            return (await self.report()) is not None and (await self.fact(id)) is None

        await eventually(look, f"{id} forgotten", story=self.story)

    async def ready(self, id: str = "r1", **profile: object) -> tuple[Assignment, ReplicaFact]:
        assignment = self.assignment(id, **profile)
        await self.assign(assignment)
        return assignment, await self.until(Phase.READY, id)

    def home(self, id: str = "r1") -> Path:
        return self.state.replicas / id

    def reasons(self) -> list[str]:
        return [event.reason for event in self.events.recent()]

    def story(self) -> str:
        return "\n".join(f"{event.subject} {event.reason}: {event.message}" for event in self.events.recent())

    def kill_all(self) -> None:
        """Whatever a failed test left running, and only that: every process below this node's directory."""
        for pid in pids_in(self.state.root):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self._started:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        deadline = time.monotonic() + 30
        while pids_in(self.state.root) and time.monotonic() < deadline:
            time.sleep(0.02)


async def eventually(
    look: Callable[[], object], what: str, *, timeout: float = 30, story: Callable[[], str] = lambda: ""
) -> Any:
    deadline = time.monotonic() + timeout
    while True:
        found = look()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"never: {what}\n{story()}"
        await asyncio.sleep(0.02)


def pids_in(root: Path) -> list[int]:
    """Live processes whose working directory is below `root`."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                if os.readlink(f"/proc/{name}/cwd").startswith(str(root)):
                    found.append(int(name))
    return found


def alive(pid: int) -> bool:
    """Not counting zombies."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def free_range(count: int) -> range:
    """Ports nobody listens on, below those that the system hands out."""
    start = 23000 + (os.getpid() * 37) % 8000
    while True:
        ports = range(start, start + count)
        if all(_is_free(port) for port in ports):
            return ports
        start += count


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
