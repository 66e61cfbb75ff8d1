"""An agent's report: what its replicas take and took, whether they served, and engines asked anew."""

import asyncio
import sys
from dataclasses import replace

import pytest
from agent_world import NODE, Node, ScriptEngine, eventually

from llmgw.agent.fingerprints import Fingerprints
from llmgw.clock import SystemClock
from llmgw.engine.manager import Engines
from llmgw.facts import EngineFact, Phase
from llmgw.ids import EngineName
from llmgw.store import keys
from llmgw.units import MIB

HUNGRY = """import mmap; m = mmap.mmap(-1, 80 << 20); m.write(b"x" * len(m)); m.close()"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's own peak is read from /proc")
async def test_a_replica_reports_its_peak_also_of_what_came_and_went_and_keeps_it_after_its_end(node: Node) -> None:
    async with node.agent():
        command = "set -- $SERVER; printf '%s\\n' '" + HUNGRY + "' | cat - $3 > big.py; exec $1 -S big.py $4"
        assignment, _ = await node.ready(options={"command": command})

        async def sampled() -> bool:
            fact = await node.fact()
            return fact is not None and fact.resident_peak is not None

        await eventually(sampled, "its memory is sampled", story=node.story)
        fact = await node.fact()
        assert fact is not None
        assert fact.resident is not None
        assert fact.resident_peak is not None
        assert fact.resident_peak > 80 * MIB > fact.resident
        assert not fact.served

        await node.publish()
        await node.use(seen=10, outstanding={"r1": 0})

        async def served() -> bool:
            fact = await node.fact()
            return fact is not None and fact.served

        await eventually(served, "it served", story=node.story)
        await node.store.delete(keys.endpoint(assignment.node, assignment.replica))
        await node.use(seen=1000)
        await node.stop(assignment)
        ended = await node.until(Phase.STOPPED)
        assert (ended.resident, ended.resident_peak, ended.served) == (None, fact.resident_peak, True)


async def test_the_report_tells_the_mount_of_the_cache_and_no_devices_where_there_is_no_driver(node: Node) -> None:
    async with node.agent():
        report = await eventually(node.report, "a report")
        assert report.node == NODE
        assert report.disk.mount.startswith("/")


class Changing(ScriptEngine):
    """An engine that is installed while we look on."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.fact = EngineFact(name=self.name, why="not installed")

    def fingerprint(self) -> EngineFact:
        self.asked += 1
        return self.fact


async def test_engines_are_asked_anew_after_a_doubt_and_now_and_then_and_only_news_is_told() -> None:
    engine, told = Changing(), asyncio.Event()
    found = Engines(by_name={engine.name: engine}, lost={EngineName("odd"): "its plugin is broken"})
    prints = Fingerprints(found, refresh=3600, gap=0.01)
    assert [fact.why for fact in await prints.look()] == ["its plugin is broken", "not installed"]
    watching = asyncio.create_task(prints.run(SystemClock(), told.set))
    try:
        prints.doubt()
        await eventually(lambda: engine.asked >= 2, "asked after a doubt")
        assert not told.is_set()
        engine.fact = replace(engine.fact, why=None, version="2", path="/opt/engine")
        prints.doubt()
        await eventually(told.is_set, "the news is told")
        assert prints.facts[1].path == "/opt/engine"
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_engines_are_asked_anew_though_nothing_happens() -> None:
    engine = Changing()
    prints = Fingerprints(Engines(by_name={engine.name: engine}), refresh=0.02, gap=0.01)
    watching = asyncio.create_task(prints.run(SystemClock(), lambda: None))
    try:
        await eventually(lambda: engine.asked >= 3, "asked three times")
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
