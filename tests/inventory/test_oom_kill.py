"""A real kill by the kernel: an engine in a control group that is too small for it."""

import os
import shlex
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from agent_world import Node

from llmgw.agent.cgroups import CGROUPS, membership
from llmgw.facts import FailureKind, Phase
from llmgw.units import MIB

LIMIT = 64 * MIB
NOT_WRITABLE = "no memory control group can be made here"

HOG = """
import os, time
while not os.path.exists("eat"):
    time.sleep(0.02)
hoard = []
while True:
    hoard.append(b"x" * (4 << 20))
"""


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A group of its own with little memory, below ours or at the top."""
    name = f"llmgw-test-{os.getpid()}-{threading.get_ident() % 10000}"
    for parent, limit in _parents():
        group = parent / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(LIMIT))
        except OSError:
            group.rmdir()
            continue
        yield group
        with suppress(OSError):
            group.rmdir()
        return
    pytest.skip(NOT_WRITABLE)


def _parents() -> Iterator[tuple[Path, str]]:
    for line in membership().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield CGROUPS / path.lstrip("/"), "memory.max"
            yield CGROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            yield CGROUPS / "memory", "memory.limit_in_bytes"


def moved_into(group: Path, then: str) -> dict[str, str]:
    """The options of an engine that serves, and runs `then` beside its server in that group."""
    return {"command": f"echo $$ > {shlex.quote(str(group / 'cgroup.procs'))}; {then}"}


async def test_an_engine_that_the_kernel_kills_for_memory_failed_for_memory(node: Node, small_group: Path) -> None:
    hog = node.state.root / "hog.py"
    # The engine is one process: its server in a thread, the hog in the main one, as a long prompt would do it.
    hog.write_text(
        "import runpy, sys, threading\n"
        "threading.Thread(target=runpy.run_path, args=(sys.argv.pop(1),), daemon=True).start()\n" + HOG
    )
    command = f'set -- $SERVER; exec {shlex.quote(sys.executable)} -S {shlex.quote(str(hog))} "$3" "$4"'
    async with node.agent():
        await node.ready(options=moved_into(small_group, command))
        (node.home() / "eat").touch()
        failed = await node.until(Phase.FAILED, timeout=30)
        assert failed.failure is not None
        assert failed.failure.kind is FailureKind.OOM, failed.failure
        assert failed.failure.reason.count(small_group.name) == 1
        log = node.state.root / "logs" / "m" / "r1.log"
        assert "llmgw: the kernel's oom_kill ended it (cgroup" in log.read_text()


async def test_a_plain_kill_in_such_a_group_is_no_want_of_memory(node: Node, small_group: Path) -> None:
    async with node.agent():
        _, ready = await node.ready(options=moved_into(small_group, "exec $SERVER"))
        assert ready.pid is not None
        os.kill(ready.pid, 9)
        failed = await node.until(Phase.FAILED)
        assert failed.failure is not None
        assert failed.failure.kind is FailureKind.CRASH
        assert "signal 9" in failed.failure.reason
