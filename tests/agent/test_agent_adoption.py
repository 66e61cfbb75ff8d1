"""Engines outlive the agent, and the next one finds them: by proof, never by number alone."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from typing import Any

import pytest
from agent_world import Node, alive, eventually, pids_in

from llmgw.agent import process, records
from llmgw.agent.ending import leader_of
from llmgw.agent.records import Record
from llmgw.facts import FailureKind, Level, Phase
from llmgw.ids import ReplicaId, SpecDigest
from llmgw.store import keys
from llmgw.store.memory import MemoryStore


async def test_engines_go_on_without_the_agent_and_the_next_one_adopts_the_same_pid(node: Node) -> None:
    async with node.agent():
        _, before = await node.ready()
    assert alive(before.pid)
    node.store = MemoryStore(None)  # as after a restart of all
    async with node.agent() as agent:
        after = await node.until(Phase.READY)
        assert (after.pid, after.url, after.adopted) == (before.pid, before.url, True)
        assert agent.serving() == 1
        assert len(node.engine.ports_used) == 1
        await node.ready("r2")
        assert len(set(node.engine.ports_used)) == 2


@pytest.mark.parametrize("answers", [True, False])
async def test_the_first_report_tells_of_an_engine_that_goes_on_serving_that_it_is_ready(
    node: Node, answers: bool
) -> None:
    async with node.agent():
        _, before = await node.ready()
    node.store = MemoryStore(None)
    if not answers:  # it is not waited for long
        os.kill(before.pid, signal.SIGSTOP)
    async with node.agent() as agent:
        async with asyncio.timeout(30):
            await agent._reporter.told.wait()
        first = await node.fact()
        assert first is not None
        assert first.phase is (Phase.READY if answers else Phase.STARTING)


async def test_devices_and_level_are_told_and_kept_by_the_next_agent(node: Node) -> None:
    shrunk = replace(
        node.assignment(),
        level=Level.DEGRADED,
        launched=SpecDigest("smaller"),
        devices=("GPU-a", "GPU-b"),
        draft_url="http://127.0.0.1:8200",
    )
    async with node.agent():
        await node.assign(shrunk)
        before = await node.until(Phase.READY)
    assert node.engine.slots[-1].devices == ("GPU-a", "GPU-b")
    assert node.engine.slots[-1].draft_url == "http://127.0.0.1:8200"
    node.store = MemoryStore(None)
    async with node.agent():
        after = await node.until(Phase.READY)
    for fact in (before, after):
        assert (fact.level, fact.launched, fact.devices) == (Level.DEGRADED, "smaller", ("GPU-a", "GPU-b"))


async def test_an_adopted_replica_with_its_assignment_is_not_started_again_and_can_be_stopped(node: Node) -> None:
    async with node.agent():
        assignment, before = await node.ready()
    async with node.agent():
        await node.until(Phase.READY)
        await node.stop(assignment)
        await node.until(Phase.STOPPED)
        assert not alive(before.pid)
        assert len(node.engine.ports_used) == 1


async def test_a_stop_decided_while_the_agent_was_away_drains_first(node: Node) -> None:
    async with node.agent():
        assignment, before = await node.ready()
    (node.home() / "busy").touch()
    await node.stop(assignment)
    async with node.agent():
        await node.until(Phase.DRAINING)
        await asyncio.sleep(0.3)
        assert alive(before.pid)
        (node.home() / "busy").unlink()
        await node.until(Phase.STOPPED)


async def test_an_adopted_engine_that_dies_is_failed_at_once(node: Node) -> None:
    async with node.agent():
        _, before = await node.ready()
    async with node.agent():
        await node.until(Phase.READY)
        os.kill(before.pid, signal.SIGKILL)
        failed = await node.until(Phase.FAILED, timeout=30)
        assert failed.failure is not None
        assert failed.failure.kind is FailureKind.CRASH


async def test_one_that_died_while_the_agent_was_away_is_reported_failed_and_says_so(node: Node) -> None:
    async with node.agent():
        _, before = await node.ready(options={"command": "sleep 300 & exec $SERVER"})
    os.kill(before.pid, signal.SIGKILL)
    os.waitpid(before.pid, 0)
    node.store = MemoryStore(None)
    async with node.agent():
        failed = await node.until(Phase.FAILED)
        assert failed.failure is not None
        assert "while llmgw was away" in failed.failure.reason
        assert "listening on" in failed.failure.reason
        assert pids_in(node.state.root) == []  # the worker it left too


@pytest.mark.parametrize("elsewhere", [{"boot": "another"}, {"namespace": 1}], ids=["boot", "container"])
async def test_a_restarted_machine_or_container_is_not_the_models_fault(node: Node, elsewhere: dict[str, Any]) -> None:
    async with node.agent():
        _, before = await node.ready()
    os.kill(before.pid, signal.SIGKILL)
    os.waitpid(before.pid, 0)
    record = records.read(node.home())
    assert record.identity is not None
    records.write(node.state, replace(record, identity=replace(record.identity, **elsewhere)))
    node.store = MemoryStore(None)
    async with node.agent():
        failed = await node.until(Phase.FAILED)
        assert failed.failure is not None
        assert failed.failure.kind is FailureKind.NODE
        assert "restarted" in failed.failure.reason


async def test_a_failure_is_not_judged_again_nor_run_again_by_the_next_agent(node: Node) -> None:
    async with node.agent():
        _, before = await node.ready()
        os.kill(before.pid, signal.SIGKILL)
        first = (await node.until(Phase.FAILED)).failure
        await eventually(lambda: records.read(node.home()).failure is not None, "failure recorded")
    async with node.agent():
        assert (await node.until(Phase.FAILED)).failure == first
        assert len(node.engine.ports_used) == 1


async def test_a_pid_that_is_another_programs_now_is_neither_adopted_nor_killed(node: Node) -> None:
    async with node.agent():
        _, before = await node.ready()
    os.kill(before.pid, signal.SIGKILL)
    os.waitpid(before.pid, 0)
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
    try:
        other = process.current(bystander.pid)
        record = records.read(node.home())
        assert other is not None
        records.write(node.state, replace(record, identity=replace(other, ticks=other.ticks - 1)))
        async with node.agent():
            failed = await node.until(Phase.FAILED)
            assert failed.pid is None
            await node.unassign()
            await node.until_gone()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


async def test_our_own_pid_in_a_state_file_with_a_wrong_start_time_harms_nothing(node: Node) -> None:
    ours = process.current(os.getpid())
    assert ours is not None
    records.write(
        node.state,
        Record(
            assignment=node.assignment(),
            mark="0" * 32,
            port=node.ports[0],
            url="http://127.0.0.1:1",
            identity=replace(ours, ticks=ours.ticks + 1),
        ),
    )
    async with node.agent() as agent:
        await node.until(Phase.FAILED)
        assert agent.serving() == 0


async def test_a_reboot_since_then_is_said(node: Node) -> None:
    ours = process.current(os.getpid())
    assert ours is not None
    identity = replace(ours, boot="another-boot")
    record = Record(assignment=node.assignment(), mark="0" * 32, port=1, url="http://x", identity=identity)
    records.write(node.state, record)
    async with node.agent():
        failed = await node.until(Phase.FAILED)
        assert failed.failure is not None
        assert "restarted" in failed.failure.reason


async def test_a_process_whose_identity_was_never_written_is_found_by_its_mark(node: Node) -> None:
    async with node.agent():
        _, before = await node.ready(options={"command": "sleep 300 & exec $SERVER"})
    record = records.read(node.home())
    records.write(node.state, replace(record, identity=None))
    async with node.agent():
        after = await node.until(Phase.READY)
        assert (after.pid, after.adopted) == (before.pid, True)
        assert records.read(node.home()).identity == record.identity


async def test_an_intent_that_was_never_carried_out_is_run_as_new(node: Node) -> None:
    assignment = node.assignment()
    records.write(node.state, Record(assignment=assignment, mark="1" * 32, port=node.ports[0], url="http://x"))
    assert leader_of("1" * 32) is None
    await node.assign(assignment)
    async with node.agent():
        fact = await node.until(Phase.READY)
        assert not fact.adopted


async def test_state_files_that_say_nothing_are_told_of_and_left_alone(node: Node) -> None:
    async with node.agent():
        _, before = await node.ready()
    good = (node.home() / "state.json").read_bytes()
    for name, content in {"half": good[:100], "garbage": b"\0\1", "newer": b'{"v":99}', "other": good}.items():
        (node.state.replicas / name).mkdir()
        (node.state.replicas / name / "state.json").write_bytes(content)
    (node.home() / "state.json").write_bytes(good[: len(good) // 2])
    async with node.agent() as agent:
        await node.ready("r2")
        assert node.reasons().count("state unreadable") == 5
        assert alive(before.pid)
        assert agent.serving() == 1
    assert (node.state.replicas / "garbage" / "state.json").read_bytes() == b"\0\1"


async def test_an_adopted_engine_whose_plugin_is_gone_is_ended_with_the_reason(node: Node) -> None:
    async with node.agent():
        _, before = await node.ready()
    node.engines = replace(node.engines, by_name={})
    async with node.agent():
        failed = await node.until(Phase.FAILED)
        assert failed.failure is not None
        assert failed.failure.kind is FailureKind.TERMINAL
        assert not alive(before.pid)


DAEMON = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from agent_world import Node
from llmgw.agent.process import self_identity
from llmgw.statedir import StateLock
async def main():
    node = Node(Path({root!r}))
    StateLock(node.state).acquire(self_identity())
    node.ports = range({first}, {last})
    async with node.agent():
        _, fact = await node.ready()
        print("engine", fact.pid, flush=True)
        await asyncio.sleep(300)
asyncio.run(main())
"""


def start_daemon(node: Node, tmp_path) -> tuple[subprocess.Popen[str], int]:
    """An agent in a process of its own, with one ready engine; its pid and the engine's."""
    text = textwrap.dedent(DAEMON).format(
        here=os.path.dirname(__file__), root=str(tmp_path), first=node.ports.start, last=node.ports.stop
    )
    daemon = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    assert daemon.stdout is not None
    for line in daemon.stdout:  # log lines come first
        if line.startswith("engine "):
            return daemon, int(line.split()[1])
    with daemon:
        daemon.kill()
    raise AssertionError("the daemon ended before its engine was ready")


async def test_kill_9_of_the_daemon_leaves_engines_serving_and_they_are_adopted(node: Node, tmp_path) -> None:
    daemon, engine = await asyncio.to_thread(start_daemon, node, tmp_path)
    with daemon:
        daemon.kill()
    assert alive(engine)
    async with node.agent():
        fact = await node.until(Phase.READY)
        assert (fact.pid, fact.adopted) == (engine, True)
        await node.stop(node.assignment())
        await node.until(Phase.STOPPED)
        assert not alive(engine)


async def test_an_adopted_process_has_an_unknown_exit_status(node: Node, tmp_path) -> None:
    daemon, engine = await asyncio.to_thread(start_daemon, node, tmp_path)
    with daemon:
        daemon.kill()
    async with node.agent():
        await node.until(Phase.READY)
        os.kill(engine, signal.SIGKILL)
        failed = await node.until(Phase.FAILED, timeout=30)
        assert failed.failure is not None
        assert "unknown exit status" in failed.failure.reason


async def test_an_adopted_replica_that_was_stopped_leaves_nothing_for_the_next(node: Node) -> None:
    async with node.agent():
        assignment, _ = await node.ready()
        await node.stop(assignment)
        await node.until(Phase.STOPPED)
        await eventually(lambda: not node.home().exists(), "directory removed")
    node.store = MemoryStore(None)
    async with node.agent():
        await eventually(node.report, "reported")
        assert await node.fact() is None
        assert (await node.store.get(keys.assignment(assignment.node, ReplicaId("r1")))) is None
