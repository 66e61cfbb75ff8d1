"""Simulated agents for run.py: each says to etcd just what a real one would, over a connection of its own.

It has the registration, lease, watches and reports of a real agent, by the same code; its engines alone are made up:
one that is assigned is ready a second later. What it is told on stdin, a line each:

    rest            only heartbeats
    loads RATE      so many nodes a second report another load
    deaths RATE     on so many nodes a second an engine dies

Prints `ready` once every agent has reported.
"""

import argparse
import asyncio
import random
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from llmgw.agent.report import HEARTBEAT
from llmgw.app.membership import Membership
from llmgw.clock import SystemClock
from llmgw.errors import RetryableError
from llmgw.facts import (
    DeviceFact,
    DiskFact,
    EngineFact,
    EngineLoad,
    Failure,
    FailureKind,
    MemoryFact,
    NodeReport,
    Phase,
    ReplicaFact,
    WeightsFact,
)
from llmgw.ids import EngineName, NodeName, ReplicaId
from llmgw.plan import Assignment, Want
from llmgw.statedir import AdminAddress, StateDir
from llmgw.store import codec, keys
from llmgw.store.address import read_address
from llmgw.store.api import Change
from llmgw.store.etcd import EtcdStore
from llmgw.store.follow import follow, listed
from llmgw.store.held import Held
from llmgw.store.shared_events import SharedEvents
from llmgw.store.values import Role
from llmgw.units import GIB, MIB, Bytes

STARTING = 1.0  #: seconds until an engine is ready
METADATA = {f"llama.key_{number}": number * 1024 for number in range(20)}  #: as many as a GGUF header has


class Node:
    """One agent."""

    def __init__(self, name: str, url: str) -> None:
        self.name = NodeName(name)
        self._store = EtcdStore(read_address(url, {}))
        self._clock = SystemClock()
        self._replicas: dict[ReplicaId, ReplicaFact] = {}
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.reported = asyncio.Event()

    async def run(self) -> None:
        held = Held(self._store)
        member = Membership(
            self._store,
            held,
            role=Role.AGENT,
            name=self.name,
            state=StateDir(Path("/nowhere") / self.name),
            clock=self._clock,
            anew=lambda: None,
        )
        while True:
            try:
                await member.claim(print)
                break
            except RetryableError:
                await asyncio.sleep(1)
        self._start(SharedEvents(self._store, Role.AGENT, self.name, read=False).run())
        self._start(held.run())
        self._start(member.obey())
        for prefix in WATCHED:
            self._start(self._follow(prefix.format(node=self.name), lambda _: None))
        self._start(self._follow(keys.assignments(self.name), self._assigned))
        self._start(self._report())
        await self.reported.wait()
        await member.tell(AdminAddress(url="http://127.0.0.1:1", token="", gateway=""))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(_ended)

    async def _follow(self, prefix: str, apply: Callable[[Change], None]) -> None:
        seen = await listed(self._store, prefix)
        for entry in seen.entries:
            apply(Change(entry.key, entry.value, entry.revision))
        async for changes in follow(self._store, prefix, seen):
            for change in changes:
                apply(change)

    # -- engines that are not there

    def _assigned(self, change: Change) -> None:
        id = ReplicaId(keys.last(change.key))
        if change.value is None:
            self._replicas.pop(id, None)
            self._changed.set()
            return
        assignment = codec.decode(change.value, Assignment)
        if assignment.want is Want.STOP:
            self._move(id, Phase.STOPPED)
        elif id not in self._replicas:
            fact = replace(assignment.placing(self._clock.now().wall), phase=Phase.STARTING)
            self._replicas[id] = replace(fact, pid=4711, url=f"http://127.0.0.1:1/{id}", resident=Bytes(4 * GIB))
            self._changed.set()
            asyncio.get_running_loop().call_later(STARTING, self._move, id, Phase.READY)

    def _move(self, id: ReplicaId, phase: Phase, **more: Any) -> None:
        fact = self._replicas.get(id)
        if fact is not None and fact.phase.occupies_memory:
            self._replicas[id] = replace(fact, phase=phase, since=self._clock.now().wall, **more)
            self._changed.set()

    @property
    def serves(self) -> bool:
        return any(fact.phase is Phase.READY for fact in self._replicas.values())

    def other_load(self) -> None:
        for id, fact in self._replicas.items():
            self._replicas[id] = replace(fact, load=EngineLoad(running=random.randrange(1, 5), waiting=0), served=True)
        self._changed.set()

    def death(self) -> None:
        for id in [id for id, fact in self._replicas.items() if fact.phase is Phase.READY][:1]:
            failure = Failure(kind=FailureKind.CRASH, reason="exit code 1: simulated", at=self._clock.now().wall)
            self._move(id, Phase.FAILED, failure=failure)

    # -- the report

    async def _report(self) -> None:
        while True:
            self._changed.clear()
            try:
                await self._store.put(keys.report(self.name), codec.encode(self._seen()))
                self.reported.set()
            except RetryableError:
                await asyncio.sleep(0.5)
                continue
            try:
                async with asyncio.timeout(HEARTBEAT):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _seen(self) -> NodeReport:
        used = Bytes(len(self._replicas) * 4 * GIB)
        return NodeReport(
            node=self.name,
            at=self._clock.now().wall,
            memory=MemoryFact(
                total=Bytes(256 * GIB), available=Bytes(200 * GIB - random.randrange(GIB)), foreign=Bytes(GIB)
            ),
            disk=DiskFact(total=Bytes(2000 * GIB), free=Bytes(1000 * GIB - random.randrange(MIB)), mount="/srv"),
            engines=(
                EngineFact(name=EngineName("command")),
                EngineFact(name=EngineName("cpu"), version="2026.10", path="/opt/llmgw/lib/python3.11/site-packages"),
                EngineFact(name=EngineName("vllm"), why="vllm is not installed: pip install vllm"),
            ),
            devices=tuple(
                DeviceFact(
                    uuid=f"GPU-{self.name}-{index}",
                    name="Simulated 80GB",
                    index=index,
                    total=Bytes(80 * GIB),
                    used=used,
                    free=Bytes(80 * GIB - used),
                    foreign=Bytes(0),
                    driver="570.1",
                )
                for index in range(2)
            ),
            replicas=tuple(fact for _, fact in sorted(self._replicas.items())),
            weights=tuple(
                WeightsFact(
                    source=f"https://models.example.org/model-{number}.gguf",
                    entry=f"v1-sha256-{number:064}",
                    size=Bytes(4 * GIB),
                    last_wanted=self._clock.now().wall,
                    metadata=METADATA,
                )
                for number in range(2)
            ),
        )


WATCHED = (keys.ENDPOINTS + "{node}/", keys.USAGE, keys.CATALOG, keys.UPKEEP_ORDERS + "{node}/")
"""Prefixes that an agent follows besides its own assignments."""


def _ended(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        print(f"failed: {error!r}", file=sys.stderr, flush=True)


class Changes:
    """What the nodes do besides heartbeats, as stdin says."""

    def __init__(self, nodes: list[Node]) -> None:
        self._nodes = nodes
        self._rate = 0.0
        self._do: Callable[[Node], None] = Node.other_load

    def told(self, line: str) -> None:
        what, *rate = line.split()
        self._rate = float(rate[0]) if rate else 0.0
        self._do = Node.death if what == "deaths" else Node.other_load

    async def run(self) -> None:
        due = 0.0
        while True:
            await asyncio.sleep(0.1)
            due = due + self._rate / 10 if self._rate else 0.0
            serving = [node for node in self._nodes if node.serves] if due >= 1 else []
            while due >= 1 and serving:
                due -= 1
                self._do(random.choice(serving))


async def main(options: argparse.Namespace) -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    nodes = [Node(f"n{number:04}", options.store) for number in range(options.first, options.first + options.count)]
    starting = []
    for node in nodes:
        starting.append(asyncio.create_task(node.run()))
        await asyncio.sleep(options.over / len(nodes))
    await asyncio.gather(*starting)
    print("ready", flush=True)
    changes = Changes(nodes)
    changing = asyncio.create_task(changes.run())
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        changes.told(line.decode())
    changing.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Simulated agents.")
    parser.add_argument("store")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--over", type=float, default=120.0, help="seconds in which they start")
    asyncio.run(main(parser.parse_args()))
