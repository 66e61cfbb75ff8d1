"""The catalog's times of supervision, taken up by an agent while its engines run."""

import asyncio
import os
import signal
from dataclasses import replace

from agent_world import Node, eventually

from llmgw.agent.timing import Timing
from llmgw.catalog.spec import SupervisionSettings
from llmgw.facts import FailureKind, Phase
from llmgw.ids import Digest, Revision
from llmgw.store import codec, keys
from llmgw.store.values import Applied
from llmgw.units import Seconds, Wall

PATIENT = Timing(look_used=0.05, look_idle=0.05, look_timeout=0.2, hang_after=3600.0, probe_every=3600.0)
IMPATIENT = SupervisionSettings(hang_after=Seconds(0.8), probe_every=Seconds(0.2))


async def put_in_force(node: Node, supervision: SupervisionSettings | None) -> None:
    applied = Applied(revision=Revision("r"), digest=Digest("d"), at=Wall(1), supervision=supervision)
    await node.store.put(keys.APPLIED, codec.encode(applied))


def decoded(node: Node) -> int:
    return len((node.home() / "decoded").read_text())


async def test_how_often_idle_engines_are_probed_follows_the_catalog(node: Node) -> None:
    node.timing = PATIENT
    async with node.agent():
        await node.ready(options={"decodes": True})
        await asyncio.sleep(0.4)
        assert decoded(node) == 1, "the one that it became ready by"
        await put_in_force(node, IMPATIENT)
        await eventually(lambda: decoded(node) > 2, "probed")
        await put_in_force(node, replace(IMPATIENT, probe_every=Seconds(0)))
        await asyncio.sleep(0.4)  # one may be under way
        before = decoded(node)
        await asyncio.sleep(0.6)
        assert decoded(node) == before, "0 is never"


async def test_how_long_an_engine_may_be_silent_follows_the_catalog_also_while_it_is(node: Node) -> None:
    node.timing = PATIENT
    async with node.agent():
        _, fact = await node.ready()
        os.kill(fact.pid, signal.SIGSTOP)
        await asyncio.sleep(1.0)
        assert (await node.fact()).phase is Phase.READY
        await put_in_force(node, IMPATIENT)
        failure = (await node.until(Phase.FAILED)).failure
        assert failure is not None
        assert failure.kind is FailureKind.HANG
        assert "answered nothing for 0.8s" in failure.reason


async def test_a_catalog_that_says_nothing_of_it_changes_nothing(node: Node) -> None:
    node.timing = replace(PATIENT, probe_every=0.2)
    async with node.agent():
        await node.ready(options={"decodes": True})
        await put_in_force(node, None)
        await eventually(lambda: decoded(node) > 2, "probed as before")
