"""Draining, and ending every process of a replica and no other."""

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from agent_world import Node, alive, eventually, pids_in

from llmgw.facts import FailureKind, Phase
from llmgw.ids import ReplicaId
from llmgw.plan import Want
from llmgw.store import codec, keys
from llmgw.store.api import Delete, Put
from llmgw.units import Seconds


async def withdraw(node: Node, assignment, *, eviction: bool = False) -> int:
    """As the controller does: the endpoint goes in the transaction that asks for the stop."""
    stop = replace(assignment, want=Want.STOP, eviction=eviction)
    put = Put(keys.assignment(assignment.node, assignment.replica), codec.encode(stop))
    return await node.store.txn([put, Delete(keys.endpoint(assignment.node, assignment.replica))])


async def test_stopped_means_gone_and_the_directory_too(node: Node) -> None:
    async with node.agent():
        assignment, fact = await node.ready()
        await node.stop(assignment)
        stopped = await node.until(Phase.STOPPED)
        assert not alive(fact.pid)
        assert (stopped.pid, stopped.url, stopped.failure) == (None, None, None)
        await eventually(lambda: not node.home().exists(), "directory removed")
        assert (node.state.root / "logs" / "m" / "r1.log").exists()
        await node.unassign()
        await node.until_gone()


async def test_a_stop_waits_until_the_gateway_has_seen_it_and_nothing_is_outstanding(node: Node) -> None:
    async with node.agent():
        assignment, fact = await node.ready()
        published = await node.publish()
        await node.use(seen=published, outstanding={"r1": 1})
        asked = await withdraw(node, assignment)
        await node.until(Phase.DRAINING)
        await node.use(seen=published)  # nothing outstanding, but it may still send
        await asyncio.sleep(0.4)
        assert (await node.fact()).phase is Phase.DRAINING
        await node.use(seen=asked, outstanding={"r1": 1})
        await asyncio.sleep(0.4)
        assert (await node.fact()).phase is Phase.DRAINING
        assert alive(fact.pid)
        await node.use(seen=asked)
        await node.until(Phase.STOPPED)


async def test_a_stop_waits_while_the_engine_itself_is_busy(node: Node) -> None:
    async with node.agent():
        assignment, _ = await node.ready()
        (node.home() / "busy").touch()
        await node.stop(assignment)
        await node.until(Phase.DRAINING)
        await asyncio.sleep(0.4)
        assert (await node.fact()).phase is Phase.DRAINING
        (node.home() / "busy").unlink()
        await node.until(Phase.STOPPED)


async def test_an_endpoint_withdrawn_before_the_stop_needs_to_be_seen_only_once(node: Node) -> None:
    async with node.agent():
        assignment, _ = await node.ready()
        await node.publish()
        await node.store.delete(keys.endpoint(assignment.node, ReplicaId("r1")))
        withdrawn = (await node.store.list(keys.ENDPOINTS)).revision
        await node.use(seen=withdrawn)
        await node.stop(replace(assignment, drain_timeout=Seconds(600)))
        await node.until(Phase.STOPPED)


async def test_an_eviction_that_does_not_drain_is_given_up_and_the_replica_is_ready_again(node: Node) -> None:
    async with node.agent():
        assignment, fact = await node.ready()
        published = await node.publish()
        await node.use(seen=published, outstanding={"r1": 1})
        await withdraw(node, replace(assignment, drain_timeout=Seconds(0.3)), eviction=True)
        await node.until(Phase.DRAINING)
        again = await node.until(Phase.READY)
        assert (again.pid, again.kept_serving) == (fact.pid, True)
        assert "eviction given up" in node.reasons()
        await node.assign(assignment)

        async def decided() -> bool:
            return not (await node.until(Phase.READY)).kept_serving

        await eventually(decided, "decided afresh")


async def test_an_eviction_decided_on_again_is_carried_out_though_its_assignment_is_the_same(node: Node) -> None:
    async with node.agent():
        assignment, _ = await node.ready()
        published = await node.publish()
        await node.use(seen=published, outstanding={"r1": 1})
        asked = await withdraw(node, replace(assignment, drain_timeout=Seconds(0.3)), eviction=True)
        await node.until(Phase.DRAINING)
        await node.until(Phase.READY)
        await node.use(seen=asked)
        await node.until(Phase.STOPPED)


async def test_a_stop_that_does_not_drain_happens_anyway(node: Node) -> None:
    async with node.agent():
        assignment, fact = await node.ready()
        published = await node.publish()
        await node.use(seen=published, outstanding={"r1": 1})
        await withdraw(node, replace(assignment, drain_timeout=Seconds(0.3)))
        await node.until(Phase.STOPPED)
        assert not alive(fact.pid)
        assert "drain timed out" in node.reasons()


async def test_a_stop_taken_back_while_draining_is_ready_again(node: Node) -> None:
    async with node.agent():
        assignment, fact = await node.ready()
        (node.home() / "busy").touch()
        await node.stop(assignment)
        await node.until(Phase.DRAINING)
        await node.assign(assignment)
        assert (await node.until(Phase.READY)).pid == fact.pid


async def test_a_stop_while_starting_does_not_wait_for_readiness(node: Node) -> None:
    async with node.agent():
        assignment = node.assignment(args=("never",))
        await node.assign(assignment)
        await node.until(Phase.STARTING)
        await node.stop(assignment)
        await node.until(Phase.STOPPED)
        assert pids_in(node.state.root) == []


async def test_stopping_ends_what_a_wrapper_forked(node: Node) -> None:
    async with node.agent():
        assignment, fact = await node.ready(options={"command": "sleep 300 & $SERVER; echo never mind"})
        assert len(pids_in(node.state.root)) == 3
        await node.stop(assignment)
        await node.until(Phase.STOPPED)
        assert pids_in(node.state.root) == []
        assert not alive(fact.pid)


async def test_stopping_ends_a_child_in_a_session_of_its_own(node: Node) -> None:
    async with node.agent():
        assignment, _ = await node.ready(options={"command": "setsid sleep 300 & exec $SERVER"})
        await node.stop(assignment)
        await node.until(Phase.STOPPED)
        assert pids_in(node.state.root) == []


async def test_an_engine_that_ignores_sigterm_is_killed_after_the_grace(node: Node) -> None:
    node.grace = 0.3
    async with node.agent():
        assignment, fact = await node.ready(args=("stubborn",))
        await node.stop(assignment)
        await node.until(Phase.STOPPED)
        assert not alive(fact.pid)


async def test_a_wrapper_that_leaves_a_daemon_elsewhere_is_a_detached_failure_and_the_daemon_is_ended(
    node: Node,
) -> None:
    async with node.agent():
        await node.assign(node.assignment(options={"command": "setsid $SERVER & sleep 0.2; exit 0"}))
        failure = (await node.until(Phase.FAILED)).failure
        assert failure is not None
        assert failure.kind is FailureKind.DETACHED
        assert pids_in(node.state.root) == []


async def test_an_engine_killed_leaves_none_of_its_workers(node: Node) -> None:
    async with node.agent():
        _, fact = await node.ready(options={"command": "sleep 300 & exec $SERVER"})
        os.kill(fact.pid, signal.SIGKILL)
        failure = (await node.until(Phase.FAILED)).failure
        assert failure is not None
        assert failure.kind is FailureKind.CRASH
        assert pids_in(node.state.root) == []


async def test_a_bystander_with_our_parent_and_user_is_not_touched(node: Node) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    try:
        async with node.agent():
            assignment, _ = await node.ready()
            await node.stop(assignment)
            await node.until(Phase.STOPPED)
            assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


async def test_the_stop_command_runs_first_with_the_engines_environment(node: Node) -> None:
    async with node.agent():
        stop = ("/bin/sh", "-c", "echo asked with ${#LLMGW_ENGINE_KEY} >> ../../asked")
        assignment, _ = await node.ready(options={"stop": stop})
        await node.stop(assignment)
        await node.until(Phase.STOPPED)
        assert (node.state.root / "asked").read_text() == "asked with 64\n"


async def test_stop_engines_ends_all_and_starts_no_other(node: Node) -> None:
    async with node.agent() as agent:
        await node.ready("a")
        await node.ready("b")
        assert await agent.stop_engines() == 2
        assert agent.serving() == 0
        assert pids_in(node.state.root) == []
        await node.assign(node.assignment("c"))
        await asyncio.sleep(0.2)
        assert await node.fact("c") is None


async def test_a_second_stop_engines_hastens_the_first(node: Node) -> None:
    async with node.agent() as agent:
        assignment, _ = await node.ready(args=("stubborn",))
        await node.assign(replace(assignment, drain_timeout=Seconds(600)))
        (node.home() / "busy").touch()
        first = asyncio.create_task(agent.stop_engines())
        await node.until(Phase.DRAINING)
        async with asyncio.timeout(60):
            await agent.stop_engines(at_once=True)
            assert await first == 1
        assert pids_in(node.state.root) == []


@pytest.mark.parametrize("at_once", [False, True])
async def test_stop_engines_after_the_agent_ended_still_ends_them(node: Node, at_once: bool) -> None:
    async with node.agent() as agent:
        await node.ready()
    assert agent.serving() == 1
    assert await agent.stop_engines(at_once=at_once) == 1
    assert agent.serving() == 0
