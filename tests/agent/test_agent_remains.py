"""What engines leave behind: no zombies, no open descriptors, on either side."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

from agent_world import Node, pids_in

from llmgw.agent import process
from llmgw.agent.orphans import come_to_us
from llmgw.facts import FailureKind, Phase


def zombies_of(parent: int) -> list[int]:
    found = (process.read_stat(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [stat.pid for stat in found if stat is not None and stat.parent == parent and stat.state == "Z"]


def open_files(pid: int) -> dict[int, str]:
    directory = Path(f"/proc/{pid}/fd")
    found = {}
    for name in os.listdir(directory):
        with suppress(FileNotFoundError):  # closed meanwhile
            found[int(name)] = os.readlink(directory / name)
    return found


async def test_engines_that_end_in_any_way_leave_no_zombie(node: Node) -> None:
    before = set(zombies_of(os.getpid()))
    async with node.agent():
        for id, command in {
            "exits": "exit 3",
            "is-killed": "kill -9 $$",
            "leaves-a-child": "sleep 300 & exit 0",
            "daemonises": "setsid sleep 300 & sleep 0.1; exit 0",
        }.items():
            await node.assign(node.assignment(id, options={"command": command}))
            await node.until(Phase.FAILED, id)
        assignment, _ = await node.ready("stopped", options={"command": "sleep 300 & exec $SERVER"})
        await node.stop(assignment)
        await node.until(Phase.STOPPED, "stopped")
        _, killed = await node.ready("killed")
        os.kill(killed.pid, signal.SIGKILL)
        await node.until(Phase.FAILED, "killed")
        assert pids_in(node.state.root) == []
        assert set(zombies_of(os.getpid())) <= before


async def test_an_engine_holds_nothing_open_but_its_log(node: Node) -> None:
    leaked = os.open(node.state.root, os.O_RDONLY)
    os.set_inheritable(leaked, True)  # as a careless library might
    try:
        async with node.agent():
            await node.ready("first")  # by now the agent has sockets and pidfds of its own open
            _, fact = await node.ready(options={"command": "sleep 300 & exec $SERVER"})
            (sleeper,) = {
                pid for pid in pids_in(node.home()) if b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()[:10]
            }
            log = str(node.home() / "log")
            assert open_files(sleeper) == {0: "/dev/null", 1: log, 2: log}
            others = set(open_files(fact.pid).values()) - {"/dev/null", log}
            assert all(name.startswith(("socket:", "anon_inode:[eventpoll]")) for name in others)
    finally:
        os.close(leaked)


async def test_the_agent_holds_nothing_open_of_engines_that_have_ended(node: Node) -> None:
    async with node.agent():
        for round in range(4):
            for id in (f"a{round}", f"b{round}"):
                assignment, _ = await node.ready(id)
                await node.stop(assignment)
                await node.until(Phase.STOPPED, id)
                await node.unassign(id)
                await node.until_gone(id)
            if round == 0:
                before = await least_open()
        assert await least_open() <= before


async def least_open() -> int:
    """Descriptors of ours, without those that are open for a moment only."""
    found = []
    for _ in range(10):
        found.append(len(open_files(os.getpid())))
        await asyncio.sleep(0.05)
    return min(found)


async def test_the_intent_is_on_disk_before_the_engine_exists_and_its_identity_soon_after(node: Node) -> None:
    async with node.agent():
        _, fact = await node.ready(options={"command": "cp state.json seen.json; exec $SERVER"})
        seen = json.loads((node.home() / "seen.json").read_bytes())
        now = json.loads((node.home() / "state.json").read_bytes())
        assert seen["mark"] == now["mark"]
        # The shell may have been slower than the second write; whose mark it carries was known before it ran.
        assert seen.get("identity") in (None, now["identity"])
        assert now["identity"]["pid"] == fact.pid


async def test_a_wrapper_that_goes_away_and_leaves_the_engine_in_its_group_is_detached_too(node: Node) -> None:
    async with node.agent():
        await node.assign(node.assignment(options={"command": "$SERVER & sleep 0.3; exit 0"}))
        failure = (await node.until(Phase.FAILED)).failure
        assert failure is not None
        assert failure.kind is FailureKind.DETACHED
        assert pids_in(node.state.root) == []


SUBREAPER = """
    import asyncio, ctypes, os, subprocess, sys
    from pathlib import Path
    sys.path.insert(0, {here!r})
    from agent_world import Node
    from test_agent_remains import zombies_of
    from llmgw.agent import orphans
    from llmgw.agent.timing import Timing
    ctypes.CDLL(None).prctl(36, 1)
    assert orphans.come_to_us()
    async def main():
        node = Node(Path({root!r}))
        node.timing = Timing(bury_every=0.4)
        async with node.agent():
            subprocess.run(["sh", "-c", "sleep 0.2 & sleep 0.2 & exit 0"], check=True)
            own = subprocess.Popen(["sh", "-c", "sleep 1; exit 7"])
            most = 0
            for _ in range(12):
                most = max(most, len(zombies_of(os.getpid())))
                await asyncio.sleep(0.05)
            while (code := own.poll()) is None:
                await asyncio.sleep(0.02)
            await asyncio.sleep(1)
            print("most", most, len(zombies_of(os.getpid())), code)
    asyncio.run(main())
"""


async def test_as_process_1_it_buries_orphans_and_takes_no_status_from_who_waits_for_it(tmp_path: Path) -> None:
    assert not come_to_us()
    code = textwrap.dedent(SUBREAPER).format(here=os.path.dirname(__file__), root=str(tmp_path))
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    most, left, status = map(int, done.stdout.rpartition("most ")[2].split())
    assert most > 0, "there were some"
    assert (left, status) == (0, 7)
