"""Assignments in, processes and reports out."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace

import httpx
import pytest
from agent_world import NODE, SECRET, Node, ScriptEngine, alive, eventually, pids_in

from llmgw.agent.fingerprints import Fingerprints
from llmgw.agent.process import MARK_VARIABLE
from llmgw.agent.report import Reporter, Wanted
from llmgw.catalog.spec import ProfileSpec, SecretRef
from llmgw.engine.api import LaunchSpec, Slot, engine_key
from llmgw.engine.manager import Engines
from llmgw.facts import FailureKind, Level, Phase
from llmgw.ids import ReplicaId
from llmgw.store import keys
from llmgw.units import Seconds


async def test_an_assignment_becomes_a_ready_replica_with_pid_and_url(node: Node) -> None:
    async with node.agent() as agent:
        _, fact = await node.ready()
        assert fact.pid is not None
        assert alive(fact.pid)
        assert os.getsid(fact.pid) == fact.pid
        assert fact.url == f"http://127.0.0.1:{node.engine.ports_used[0]}"
        assert agent.serving() == 1
        report = await node.report()
        assert report is not None
        assert report.engines[0].why is None
        assert report.memory.total > 0
        assert report.disk.free > 0


async def test_the_engine_sees_its_key_and_mark_and_none_of_our_own_settings(node: Node, monkeypatch) -> None:
    monkeypatch.setenv("LLMGW_TOKEN", "secret token")
    monkeypatch.setenv("HF_TOKEN_HERE", "hf secret")
    async with node.agent():
        env = {"HF_TOKEN": SecretRef(from_env="HF_TOKEN_HERE"), "PLAIN": "x"}
        _, fact = await node.ready(env=env)
        key = engine_key(SECRET, ReplicaId("r1"))
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(f"{fact.url}/env", headers={"Authorization": f"Bearer {key}"})
        seen = answer.json()
        assert seen["LLMGW_ENGINE_KEY"] == key
        assert seen["SCRIPT_KEY"] == key  # the name under which this program looks for it
        assert seen["LLMGW_REPLICA_MARK"]
        assert seen["SPT_NOENV"] == "1"
        assert (seen["HF_TOKEN"], seen["PLAIN"]) == ("hf secret", "x")
        assert "LLMGW_TOKEN" not in seen
        assert b"hf secret" not in (node.home() / "state.json").read_bytes()
        assert key.encode() not in (node.home() / "state.json").read_bytes()
        assert stat.S_IMODE((node.home() / "state.json").stat().st_mode) == 0o600


async def test_a_missing_secret_is_a_terminal_failure_that_names_the_variable(node: Node) -> None:
    async with node.agent():
        await node.assign(node.assignment(env={"HF_TOKEN": SecretRef(from_env="NOT_SET_ANYWHERE")}))
        failure = (await node.until(Phase.FAILED)).failure
        assert failure is not None
        assert failure.kind is FailureKind.TERMINAL
        assert "NOT_SET_ANYWHERE" in failure.reason


async def test_a_failure_is_told_while_what_is_left_of_the_engine_is_still_being_ended(node: Node) -> None:
    node.grace = 1.5
    async with node.agent():
        left = 'trap "" TERM; while :; do sleep 0.1; done'
        command = f"sh -c '{left}' & $SERVER & sleep 0.3; kill $!; exit 3"
        await node.assign(node.assignment(options={"command": command}))
        ending = await node.until(Phase.STOPPING)
        assert ending.failure is not None
        assert (await node.until(Phase.FAILED)).failure == ending.failure


async def test_an_unknown_engine_and_a_missing_program_are_terminal_failures(node: Node) -> None:
    async with node.agent():
        known = node.assignment("a")
        await node.assign(replace(known, profile=replace(known.profile, engine="vlm")))
        await node.assign(node.assignment("b", wrapper=("/no/such/wrapper",)))
        unknown, missing = (await node.until(Phase.FAILED, "a")).failure, (await node.until(Phase.FAILED, "b")).failure
        assert unknown is not None
        assert missing is not None
        assert (unknown.kind, missing.kind) == (FailureKind.TERMINAL, FailureKind.TERMINAL)
        assert "'vlm'" in unknown.reason
        assert "/no/such/wrapper" in missing.reason


async def test_a_killed_engine_is_failed_at_once_with_its_signal_and_log(node: Node) -> None:
    async with node.agent():
        _, fact = await node.ready()
        os.kill(fact.pid, signal.SIGKILL)
        failed = await node.until(Phase.FAILED, timeout=30)
        assert failed.failure is not None
        assert failed.failure.kind is FailureKind.CRASH
        assert "signal 9" in failed.failure.reason
        assert "listening on" in failed.failure.reason
        assert failed.pid is None
        log = node.state.root / "logs" / "m" / "r1.log"
        assert str(log) in failed.failure.reason
        assert "listening on" in log.read_text()


async def test_a_failed_replica_is_forgotten_when_its_assignment_goes(node: Node) -> None:
    async with node.agent():
        _, fact = await node.ready()
        os.kill(fact.pid, signal.SIGKILL)
        await node.until(Phase.FAILED)
        assert node.home().exists()
        await node.unassign()
        await node.until_gone()
        assert not node.home().exists()
        _, again = await node.ready("r2")
        assert again.pid != fact.pid


async def test_a_failed_replica_is_forgotten_though_its_assignment_goes_before_it_is_tidied_up(node: Node) -> None:
    async with node.agent():
        _, fact = await node.ready()
        watch = node.store.watch(keys.report(NODE), from_revision=(await node.store.list("")).revision)
        os.kill(fact.pid, signal.SIGKILL)
        async for _ in watch:  # as fast as a controller can be
            seen = await node.fact()
            if seen is not None and seen.phase is Phase.FAILED:
                await node.unassign()
                break
        await watch.aclose()
        await node.until_gone()


async def test_the_last_three_logs_of_a_model_are_kept(node: Node) -> None:
    async with node.agent():
        for id in ("a", "b", "c", "d"):
            assignment = node.assignment(id, options={"command": f"echo I am {id}; exit 3"})
            await node.assign(assignment)
            await node.until(Phase.FAILED, id)
    kept = sorted(path.name for path in (node.state.root / "logs" / "m").iterdir())
    assert kept == ["b.log", "c.log", "d.log"]


async def test_an_engine_that_is_never_ready_hangs_and_is_ended(node: Node) -> None:
    async with node.agent():
        assignment = replace(node.assignment(args=("never",)), start_timeout=Seconds(0.8))
        await node.assign(assignment)
        failure = (await node.until(Phase.FAILED)).failure
        assert failure is not None
        assert failure.kind is FailureKind.HANG
        assert "0.8s" in failure.reason
        assert "503" in failure.reason
        assert pids_in(node.state.root) == []


async def test_an_engine_that_says_it_is_broken_fails_for_good(node: Node) -> None:
    async with node.agent():
        await node.assign(node.assignment(args=("broken",)))
        failure = (await node.until(Phase.FAILED)).failure
        assert failure is not None
        assert failure.kind is FailureKind.TERMINAL
        assert pids_in(node.state.root) == []


async def test_a_port_taken_meanwhile_is_retried_on_another_and_is_no_failure(node: Node) -> None:
    """The engine finds its first port taken: a listener comes up between our check and its bind."""
    async with node.agent():
        command = 'test -e once || { touch once; echo "bind failed" >&2; exit 98; }; exec $SERVER'
        _, fact = await node.ready(options={"command": command})
        first, second = node.engine.ports_used
        assert first != second
        assert fact.url is not None
        assert fact.url.endswith(str(second))
        assert fact.failure is None
        assert "port taken" in node.reasons()


class Overtaken(ScriptEngine):
    """Its first port is taken by another program as soon as it has been chosen; with a mark, as another's engine is."""

    def __init__(self, mark: str | None, says: int) -> None:
        """`says`: the status of its answers."""
        super().__init__()
        self.mark, self.says = mark, says
        self.strangers: list[subprocess.Popen[bytes]] = []

    def launch(self, profile: ProfileSpec, slot: Slot, level: Level) -> LaunchSpec:
        if not self.strangers:
            env = {**os.environ, **({} if self.mark is None else {MARK_VARIABLE: self.mark})}
            argv = [sys.executable, "-S", "-c", STRANGER, str(slot.port), str(self.says)]
            other = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE)
            self.strangers.append(other)
            assert other.stdout is not None
            other.stdout.readline()
        return super().launch(profile, slot, level)


STRANGER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(sys.argv[2]))
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *args):
        pass
server = HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("listening", flush=True)
server.serve_forever()
"""


@pytest.mark.parametrize(
    ("mark", "says"),
    [("of-another", 200), (None, 500)],
    ids=["another's engine: ready", "a program: never to be ready"],
)
async def test_what_another_program_on_its_port_answers_says_nothing_of_a_replica(
    node: Node, mark: str | None, says: int
) -> None:
    engine = node.engine = Overtaken(mark, says)
    node.engines = Engines(by_name={engine.name: engine})
    try:
        async with node.agent():
            _, fact = await node.ready(args=("slow",))  # it tries to have its port a while after it was started
            assert len(engine.ports_used) == 2
            assert fact.url == f"http://127.0.0.1:{engine.ports_used[1]}"
            assert node.reasons().count("ready") == 1
    finally:
        for other in engine.strangers:
            other.kill()
            other.communicate()


async def test_ports_that_are_always_taken_are_a_failure_after_five_tries(node: Node) -> None:
    async with node.agent():
        await node.assign(node.assignment(options={"command": "exit 98"}))
        failure = (await node.until(Phase.FAILED)).failure
        assert failure is not None
        assert failure.kind is FailureKind.CRASH
        assert len(node.engine.ports_used) == 5


async def test_two_replicas_never_share_a_port(node: Node) -> None:
    async with node.agent():
        assignments = [node.assignment(f"r{number}") for number in range(4)]
        await asyncio.gather(*map(node.assign, assignments))
        facts = [await node.until(Phase.READY, assignment.replica) for assignment in assignments]
        assert len({fact.url for fact in facts}) == 4


async def test_load_is_read_soon_after_a_gateway_uses_the_replica(node: Node) -> None:
    async with node.agent():
        await node.ready()
        (node.home() / "busy").touch()
        await node.use(seen=0, outstanding={"r1": 1})

        async def running() -> bool:
            fact = await node.fact()
            return fact is not None and fact.load is not None and fact.load.running == 1

        await eventually(running, "load read", timeout=30)


async def test_an_assignment_that_cannot_be_read_is_told_of_and_harms_no_other(node: Node) -> None:
    async with node.agent():
        await node.store.put(keys.assignment(NODE, ReplicaId("bad")), b'{"v":1,"nonsense":true}')
        await node.store.put(keys.assignment(NODE, ReplicaId("new")), b'{"v":99}')
        await node.assign(node.assignment("..%2Fx"))
        await node.ready()
        assert node.reasons().count("value refused") == 3


async def test_deleting_the_assignment_of_a_running_replica_leaves_it_running(node: Node) -> None:
    async with node.agent():
        assignment, fact = await node.ready()
        await node.unassign()
        await node.ready("r2")
        assert (await node.until(Phase.READY)).pid == fact.pid
        await node.stop(assignment)
        await node.until(Phase.STOPPED)


async def test_a_stop_for_a_replica_that_never_was_is_reported_stopped(node: Node) -> None:
    async with node.agent():
        await node.stop(node.assignment())
        await node.until(Phase.STOPPED)
        await node.unassign()
        await node.until_gone()


async def test_a_cancellation_in_the_moment_of_a_change_ends_the_reporter(node: Node) -> None:
    """asyncio.wait_for of Python 3.11 loses a cancellation that meets its result."""
    around = node.around()
    reporter = Reporter(node.store, {}, Wanted())
    for turns in range(4):
        task = asyncio.create_task(reporter.run(around, Fingerprints(node.engines)))
        await eventually(node.report, "reported")
        await asyncio.sleep(0.1)
        reporter.changed()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=15)
        assert done
        await node.store.delete(keys.report(NODE))
