"""`llmgw down`: ends a state directory's daemon and engines, and nothing else."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from agent_world import Node, alive, pids_in
from test_agent_adoption import start_daemon

from llmgw.agent.owned import end_owned
from llmgw.agent.process import self_identity
from llmgw.errors import StateDirError
from llmgw.statedir import StateDir, StateLock


async def test_down_ends_a_live_daemon_and_then_its_engines(node: Node, tmp_path: Path) -> None:
    daemon, engine = await asyncio.to_thread(start_daemon, node, tmp_path)
    said: list[str] = []
    with daemon:
        assert await asyncio.to_thread(end_owned, node.state, said.append) == 1
    assert not alive(engine)
    assert pids_in(node.state.root) == []
    assert list(node.state.replicas.iterdir()) == []
    assert f"ending llmgw (pid {daemon.pid})" in said
    assert f"stopping m (pid {engine})" in said


async def test_down_without_a_daemon_ends_what_it_left(node: Node) -> None:
    async with node.agent():
        await node.ready("a")
        await node.ready("b", options={"command": "setsid sleep 300 & exec $SERVER"})
    assert await asyncio.to_thread(end_owned, node.state, lambda _: None) == 2
    assert pids_in(node.state.root) == []
    assert await asyncio.to_thread(end_owned, node.state, lambda _: None) == 0


def test_down_of_a_directory_that_is_not_there_does_nothing(tmp_path: Path) -> None:
    assert end_owned(StateDir(tmp_path / "nothing"), lambda _: None) == 0
    assert not (tmp_path / "nothing").exists()


def test_a_lock_left_by_a_process_whose_pid_is_anothers_now_ends_nobody(node: Node) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    try:
        lock = StateLock(node.state)
        lock.acquire(self_identity())
        owner = node.state.lock_file.read_text().replace(str(os.getpid()), str(bystander.pid))
        lock.release()
        node.state.lock_file.write_text(owner)
        assert end_owned(node.state, lambda _: None) == 0
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_lock_held_by_somebody_unproven_is_refused_and_nobody_is_signalled(node: Node) -> None:
    lock = StateLock(node.state)
    lock.acquire("another-boot:1:1:1")
    try:
        with pytest.raises(StateDirError, match="in use by pid"):
            end_owned(node.state, lambda _: None)
    finally:
        lock.release()
