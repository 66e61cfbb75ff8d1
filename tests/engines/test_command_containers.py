"""Containers under `engine: command`: what their client's end does not end, the stop command does."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from agent_world import Node, alive, eventually

from llmgw.agent.owned import end_owned
from llmgw.engine.manager import Engines
from llmgw.facts import FailureKind, Phase, ReplicaFact
from llmgw.ids import EngineName
from llmgw.plan import Assignment
from llmgw.store import keys
from llmgw.store.memory import MemoryStore
from llmgw_command.engine import CommandEngine

DOCKER = [sys.executable, str(Path(__file__).with_name("stand_in_docker.py"))]


class Dock(Node):
    """A node with the engine `command`, and containers."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.engines = Engines(by_name={EngineName("command"): CommandEngine()})
        self.root = root / "docker"
        self.root.mkdir()

    def container(self, id: str = "r1") -> Assignment:
        options = {
            "command": [*DOCKER, "run", "--rm", "--name", "llmgw-{replica}", "-p", "{host}:{port}:8000", "image"],
            "stop_command": [*DOCKER, "stop", "llmgw-{replica}"],
        }
        plain = self.assignment(id, options=options, env={"STAND_IN_DOCKER": str(self.root)})
        return replace(plain, profile=replace(plain.profile, engine=EngineName("command")))

    async def serving(self, id: str = "r1") -> tuple[Assignment, ReplicaFact, int]:
        """Ready, with the container's pid, which is none that the agent knows."""
        assignment = self.container(id)
        await self.assign(assignment)
        fact = await self.until(Phase.READY, id)
        pid = int((self.root / f"llmgw-{id}").read_text())
        assert pid != fact.pid
        return assignment, fact, pid

    def stopped(self) -> list[str]:
        file = self.root / "stopped"
        return file.read_text().split() if file.exists() else []

    def kill_containers(self) -> None:
        for file in self.root.glob("llmgw-*"):
            with suppress(ValueError, ProcessLookupError):
                os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.fixture
def dock(tmp_path: Path) -> Iterator[Dock]:
    dock = Dock(tmp_path)
    yield dock
    dock.kill_all()
    dock.kill_containers()


def answers(fact: ReplicaFact) -> bool:
    assert fact.url is not None
    host, _, port = fact.url.removeprefix("http://").rpartition(":")
    with socket.socket() as client:
        return client.connect_ex((host, int(port))) == 0


async def test_ending_the_client_alone_would_not_end_the_container(dock: Dock) -> None:
    """Else the tests below would show nothing."""
    plain = dock.container()
    options = {"command": plain.profile.options["command"]}
    await dock.assign(replace(plain, profile=replace(plain.profile, options=options)))
    async with dock.agent():
        fact = await dock.until(Phase.READY)
        await dock.unassign()
        await dock.stop(replace(plain, profile=replace(plain.profile, options=options)))
        await dock.until(Phase.STOPPED)
        assert fact.pid is not None
        assert not alive(fact.pid)
        assert answers(fact)


@pytest.mark.parametrize("eviction", [False, True], ids=["stopped", "evicted"])
async def test_a_container_ends_with_its_replica(dock: Dock, eviction: bool) -> None:
    async with dock.agent():
        assignment, fact, pid = await dock.serving()
        await dock.stop(assignment, eviction=eviction)
        await dock.until(Phase.STOPPED)
        assert not alive(pid)
        assert not answers(fact)
        assert dock.stopped() == ["llmgw-r1"]


async def test_a_container_whose_client_is_killed_is_ended_before_the_failure_is_told(dock: Dock) -> None:
    async with dock.agent():
        _, fact, pid = await dock.serving()
        assert fact.pid is not None
        os.kill(fact.pid, signal.SIGKILL)
        failed = await dock.until(Phase.FAILED)
        assert not alive(pid), "a relaunch would find its memory taken"
        assert failed.failure is not None
        assert failed.failure.kind is FailureKind.CRASH


async def test_a_container_that_dies_takes_its_client_and_replica_along(dock: Dock) -> None:
    async with dock.agent():
        _, fact, pid = await dock.serving()
        os.kill(pid, signal.SIGKILL)
        failed = await dock.until(Phase.FAILED)
        assert failed.failure is not None
        assert "exit code 137" in failed.failure.reason
        assert fact.pid is not None
        assert not alive(fact.pid)


async def test_a_port_that_was_taken_meanwhile_leaves_no_container_in_the_way(dock: Dock) -> None:
    (dock.root / "first-fails").touch()
    async with dock.agent():
        assignment, _, pid = await dock.serving()
        assert "port taken" in dock.reasons()
        assert dock.stopped() == ["llmgw-r1"]
        await dock.stop(assignment)
        await dock.until(Phase.STOPPED)
        assert not alive(pid)


async def test_a_crash_on_the_second_port_is_not_taken_for_another_clash(dock: Dock) -> None:
    script = "if test -e again; then echo no >&2; exit 3; fi; touch again; echo address already in use >&2; exit 1"
    plain = dock.container()
    async with dock.agent():
        await dock.assign(replace(plain, profile=replace(plain.profile, options={"command": ["sh", "-c", script]})))
        failed = await dock.until(Phase.FAILED)
        assert failed.failure is not None
        assert failed.failure.reason.startswith("ended with exit code 3: no")
        assert dock.reasons().count("port taken") == 1


async def test_down_ends_containers(dock: Dock) -> None:
    async with dock.agent():
        _, _, first = await dock.serving("a")
        _, fact, second = await dock.serving("b")
    assert fact.pid is not None
    os.kill(fact.pid, signal.SIGKILL)  # its container has nobody left who knows of it but the record
    os.waitpid(fact.pid, 0)
    await asyncio.to_thread(end_owned, dock.state, lambda _: None)
    assert not alive(first)
    assert not alive(second)
    assert dock.stopped() == ["llmgw-a", "llmgw-b"]


async def test_a_container_is_adopted_with_its_client_and_ends_as_any_other(dock: Dock) -> None:
    async with dock.agent():
        assignment, before, pid = await dock.serving()
    dock.store = MemoryStore(None)  # as after a restart of all
    async with dock.agent():
        after = await dock.until(Phase.READY)
        assert (after.pid, after.adopted) == (before.pid, True)
        assert alive(pid)
        assert dock.stopped() == []
        await dock.stop(assignment)
        await dock.until(Phase.STOPPED)
        assert not alive(pid)


async def test_a_container_whose_client_died_while_llmgw_was_away_is_ended_at_its_return(dock: Dock) -> None:
    async with dock.agent():
        _, fact, pid = await dock.serving()
    assert fact.pid is not None
    os.kill(fact.pid, signal.SIGKILL)
    os.waitpid(fact.pid, 0)
    assert alive(pid)
    async with dock.agent():
        await dock.until(Phase.FAILED)
        assert not alive(pid)


async def test_a_stop_command_that_hangs_or_is_missing_does_not_hold_up_the_end(dock: Dock) -> None:
    dock.grace = 0.5
    async with dock.agent():
        for id, stop in (("hangs", ["sleep", "600"]), ("lacks", ["/no/such/program"])):
            plain = dock.container(id)
            options = {**plain.profile.options, "stop_command": stop}
            assignment = replace(plain, profile=replace(plain.profile, options=options))
            await dock.assign(assignment)
            await dock.until(Phase.READY, id)
            await dock.stop(assignment)
            await dock.until(Phase.STOPPED, id)


async def test_the_key_is_in_the_file_and_variables_that_the_profile_names_and_nowhere_else(dock: Dock) -> None:
    plain = dock.container()
    script = 'test "$(cat "$1")" = "$LLMGW_ENGINE_KEY" && test "$OWN_KEY" = "$LLMGW_ENGINE_KEY" && ls -l "$1"; exit 3'
    options = {"command": ["sh", "-c", script, "sh", "{key_file}"], "key_variables": ["OWN_KEY"]}
    async with dock.agent():
        await dock.assign(replace(plain, profile=replace(plain.profile, options=options)))
        failed = await dock.until(Phase.FAILED)
        assert failed.failure is not None
        assert "-rw-------" in failed.failure.reason
        await dock.unassign()
        await dock.until_gone()
        assert not dock.home().exists()


async def test_load_is_read_where_the_profile_says(dock: Dock) -> None:
    plain = dock.container()
    server = str(Path(__file__).with_name("plain_server.py"))
    options = {
        "command": [sys.executable, server, "{host}", "{port}", "--load"],
        "load": {"running": "own:running", "waiting": "own:waiting"},
    }
    async with dock.agent():
        await dock.assign(replace(plain, profile=replace(plain.profile, options=options)))

        async def busy() -> bool:
            fact = await dock.fact()
            return fact is not None and fact.load is not None and (fact.load.running, fact.load.waiting) == (3, 1)

        await eventually(busy, "its load is read", story=dock.story)
        await dock.store.delete(keys.assignment(plain.node, plain.replica))
