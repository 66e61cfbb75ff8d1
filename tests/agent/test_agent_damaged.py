"""An engine that finds its weights damaged: whether they are is looked at, and what is damaged is fetched anew."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_world import NODE, Node, ScriptEngine
from servers import Site, serve

from llmgw.catalog.spec import WeightsSpec
from llmgw.clock import SystemClock
from llmgw.engine.api import Verdict
from llmgw.facts import Exit, FailureKind, Phase, ReplicaFact
from llmgw.units import Bytes
from llmgw.weights.cache import Cache
from llmgw.weights.upkeep import Upkeep, Verified

GOOD = b"good weights" * 1000
COMMAND = 'grep -q "^good" "$WEIGHTS" && [ ! -e "$WEIGHTS.picky" ] && exec $SERVER; echo damaged; exit 1'


class ParticularEngine(ScriptEngine):
    """Says that what it was given is damaged."""

    def classify(self, exit: Exit, log_tail: str) -> Verdict:
        if "damaged" in log_tail:
            return Verdict(kind=FailureKind.TERMINAL, reason="the weights are damaged", damaged=True)
        return super().classify(exit, log_tail)


@pytest.fixture
def site() -> Iterator[Site]:
    with serve() as running:
        running.files["/w"] = GOOD
        yield running


@pytest.fixture
def cache(node: Node, tmp_path: Path) -> Cache:
    """The node's, with an engine that is particular."""
    node.engine = ParticularEngine()
    node.engines.by_name[node.engine.name] = node.engine  # type: ignore[index]
    made = Cache(tmp_path / "weights", cluster_id="c", clock=SystemClock())
    made.open()
    node.cache = made  # type: ignore[assignment]
    node.upkeep = Upkeep(made, node=NODE, log=tmp_path / "log", clock=SystemClock())
    return made


async def launched(node: Node, site: Site, id: str) -> None:
    await node.assign(node.assignment(id, weights=WeightsSpec(source=f"{site.url}/w"), options={"command": COMMAND}))


async def failed(node: Node, site: Site, id: str) -> tuple[FailureKind, str]:
    await launched(node, site, id)
    fact: ReplicaFact = await node.until(Phase.FAILED, id)
    assert fact.failure is not None
    return fact.failure.kind, fact.failure.reason


def the_file(cache: Cache, site: Site) -> Path:
    found = cache.locate(WeightsSpec(source=f"{site.url}/w"))
    assert found is not None
    return found


async def test_damaged_weights_are_set_aside_and_fetched_anew(node: Node, cache: Cache, site: Site) -> None:
    async with node.agent():
        await launched(node, site, "r1")
        await node.until(Phase.READY, "r1")
        path = the_file(cache, site)
        with path.open("rb") as held:  # as an engine that runs has it
            path.write_bytes(b"evil" + GOOD[4:])
            kind, reason = await failed(node, site, "r2")
            assert kind is FailureKind.FETCH, "it is tried again, and is no fault of the model's"
            assert "damaged on the disk" in reason
            assert "fetched anew" in reason
            assert held.read() == b"evil" + GOOD[4:], "what is open is left alone"
        aside = list(cache.root.glob("corrupt-v1-sha256-*/files/w"))
        assert [one.read_bytes()[:4] for one in aside] == [b"evil"]
        await launched(node, site, "r3")
        await node.until(Phase.READY, "r3")
        assert len(site.gets) == 2
        assert (await node.until(Phase.READY, "r1")).failure is None
        assert the_file(cache, site).read_bytes() == GOOD


async def test_weights_that_are_sound_leave_the_blame_where_it_is(node: Node, cache: Cache, site: Site) -> None:
    async with node.agent():
        await cache.fetch(WeightsSpec(source=f"{site.url}/w"), reserve=Bytes(0), progress=lambda _: None)
        the_file(cache, site).with_name("w.picky").touch()
        kind, reason = await failed(node, site, "r1")
        assert kind is FailureKind.TERMINAL
        assert reason.endswith("its files on the disk are as they were fetched")
        assert len(site.gets) == 1


async def test_weights_that_are_damaged_again_and_again_are_left_to_a_person(
    node: Node, cache: Cache, site: Site
) -> None:
    async with node.agent():
        spec = WeightsSpec(source=f"{site.url}/w")
        for number, expected in enumerate((FailureKind.FETCH, FailureKind.FETCH, FailureKind.TERMINAL)):
            await cache.fetch(spec, reserve=Bytes(0), progress=lambda _: None)
            the_file(cache, site).write_bytes(b"evil" + GOOD[4:])
            kind, reason = await failed(node, site, f"r{number}")
            assert kind is expected, reason
        assert "check the disk" in reason
        assert len(list(cache.root.glob("corrupt-*"))) == 2


async def test_weights_that_were_cut_short_are_fetched_anew(node: Node, cache: Cache, site: Site) -> None:
    async with node.agent():
        short = 'printf good > "$WEIGHTS"; echo damaged; exit 1'
        spec = WeightsSpec(source=f"{site.url}/w")
        await node.assign(node.assignment("r1", weights=spec, options={"command": short}))
        fact = await node.until(Phase.FAILED, "r1")
        assert fact.failure is not None
        assert fact.failure.kind is FailureKind.FETCH
        await launched(node, site, "r2")
        await node.until(Phase.READY, "r2")


async def test_an_engine_that_served_is_tried_again_before_its_files_are_hashed(
    node: Node, cache: Cache, site: Site
) -> None:
    dies = "$SERVER & p=$!; while [ ! -e die ]; do sleep 0.05; done; kill $p; echo damaged; exit 1"
    async with node.agent():
        spec = WeightsSpec(source=f"{site.url}/w")
        await node.assign(node.assignment("r1", weights=spec, options={"command": dies}))
        await node.until(Phase.READY, "r1")
        (node.home("r1") / "die").touch()
        fact = await node.until(Phase.FAILED, "r1")
        assert fact.failure is not None
        assert fact.failure.kind is FailureKind.CRASH
        assert "hashing weights" not in node.reasons()


class Endless(Upkeep):
    """Hashes for ever."""

    begun: asyncio.Event

    async def verify(self, entry: str) -> Verified:
        self.begun.set()
        await asyncio.Event().wait()
        raise AssertionError


async def test_whoever_stops_it_does_not_wait_for_the_hashing(
    node: Node, cache: Cache, site: Site, tmp_path: Path
) -> None:
    upkeep = node.upkeep = Endless(cache, node=NODE, log=tmp_path / "log", clock=SystemClock())
    upkeep.begun = asyncio.Event()
    spec = WeightsSpec(source=f"{site.url}/w")
    async with node.agent():
        await cache.fetch(spec, reserve=Bytes(0), progress=lambda _: None)
        the_file(cache, site).write_bytes(b"evil" + GOOD[4:])
        assignment = node.assignment("r1", weights=spec, options={"command": COMMAND})
        await node.assign(assignment)
        await upkeep.begun.wait()
        await node.stop(assignment)
        await node.until(Phase.STOPPED, "r1")
