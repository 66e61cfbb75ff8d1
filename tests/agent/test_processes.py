"""Identity, starting, ending and watching of single processes."""

import asyncio
import os
import platform
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvloop
from agent_world import alive, eventually

from llmgw.agent import process, spawn
from llmgw.agent.ending import Ending, Target, find, leader_of, run_stop_command
from llmgw.agent.process import Identity, current, is_alive, parse_stat
from llmgw.agent.watch import Watch
from llmgw.catalog.spec import SecretRef
from llmgw.facts import Exit
from llmgw.units import Mono


@contextmanager
def started(tmp_path: Path, script: str) -> Iterator[tuple[Target, Identity]]:
    """A shell script, spawned as engines are; ended with the block."""
    mark = secrets.token_hex(16)
    env = spawn.environment(os.environ, {}, {}, key="k", mark=mark)
    pid = spawn.spawn(["/bin/sh", "-c", script], env, home=tmp_path, log=tmp_path / "log")
    identity = current(pid)
    assert identity is not None
    target = Target(mark=mark, leader=identity)
    try:
        yield target, identity
    finally:
        end(target, grace=0)
        process.reap(identity)


def end(target: Target, *, grace: float) -> None:
    ending = Ending(target, grace=grace)
    while (wait := ending.step(Mono(time.monotonic()))) is not None:
        time.sleep(wait)


def test_a_command_name_with_spaces_and_parentheses_is_read_right() -> None:
    fields = " ".join(str(number) for number in range(7, 53))
    stat = parse_stat(f"12 (a) (b ) S) S 1 2 3 4 5 6 {fields}".encode())
    assert (stat.pid, stat.state, stat.parent, stat.group, stat.session) == (12, "S", 1, 2, 3)
    assert parse_stat(Path("/proc/self/stat").read_bytes()).pid == os.getpid()
    with pytest.raises(ValueError, match="short"):
        parse_stat(b"12 (x) S 1")


def test_an_identity_reads_back_and_is_somebody_elses_after_any_difference() -> None:
    ours = current(os.getpid())
    assert ours is not None
    assert Identity.parse(str(ours)) == ours
    assert str(ours) == process.self_identity()
    assert is_alive(ours)
    for text in ("", "a:b:c:d", "x:1:2", f"{ours}:1"):
        assert Identity.parse(text) is None
    for change in ("boot", "namespace", "ticks"):
        value = "other" if change == "boot" else 1
        fields = {name: getattr(ours, name) for name in ("boot", "namespace", "pid", "ticks")} | {change: value}
        assert not is_alive(Identity(**fields))


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen(["true"])
    identity = None
    while identity is None or is_alive(identity):
        identity = current(child.pid)
        time.sleep(0.01)
    assert current(child.pid) == identity
    child.wait()
    assert current(child.pid) is None


FIRST_THREAD_ENDS = """\
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(300,)).start()
ctypes.CDLL(None).syscall(%d, 0)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of exit(2) is another elsewhere")
def test_what_looks_like_a_zombie_and_has_threads_is_alive_until_they_are_gone(tmp_path: Path) -> None:
    script = tmp_path / "first_thread_ends.py"
    script.write_text(FIRST_THREAD_ENDS % 60)
    with started(tmp_path, f"exec {shlex.join([sys.executable, str(script)])}") as (target, identity):
        deadline = time.monotonic() + 30
        while (stat := process.read_stat(identity.pid)) is not None and stat.state != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert stat is not None
        assert (stat.threads, is_alive(identity)) == (2, True)
        assert identity in find(target)
        end(target, grace=0)
        assert process.reap(identity) == -signal.SIGKILL


MANY_THREADS = """\
import os, signal, threading, time
memory = bytearray(1) * (64 << 20)
for _ in range(40):
    threading.Thread(target=time.sleep, args=(300,), daemon=True).start()
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
open("up", "w").close()
time.sleep(300)
"""


def test_one_of_many_threads_can_be_buried_as_soon_as_it_counts_as_gone(tmp_path: Path) -> None:
    script = tmp_path / "many_threads.py"
    script.write_text(MANY_THREADS)
    with started(tmp_path, f"exec {shlex.join([sys.executable, str(script)])}") as (_, identity):
        deadline = time.monotonic() + 30
        while not (tmp_path / "up").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(identity.pid, signal.SIGTERM)
        while is_alive(identity):
            assert time.monotonic() < deadline
        assert process.reap(identity) == 0


def test_an_engine_is_detached_with_nothing_of_ours_open(tmp_path: Path) -> None:
    leaked = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(leaked, True)
    try:
        with started(tmp_path, "ls -l /proc/self/fd > fds; pwd > dir; exec sleep 300") as (_, identity):
            deadline = time.monotonic() + 30
            while not (tmp_path / "dir").exists() or not (tmp_path / "dir").read_text():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert os.getsid(identity.pid) == identity.pid
            opened = [line.rpartition("-> ")[2] for line in (tmp_path / "fds").read_text().splitlines() if "->" in line]
            assert "/dev/null" in opened
            assert str(tmp_path) not in opened
            flags = Path(f"/proc/{identity.pid}/fdinfo/1").read_text()
            assert int(flags.split("flags:")[1].split()[0], 8) & os.O_APPEND
    finally:
        os.close(leaked)


def test_secrets_are_read_where_they_are_and_a_missing_one_names_its_place(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from a file\n")
    env = {"A": SecretRef(from_env="X"), "B": SecretRef(from_file=str(tmp_path / "token")), "C": "plain"}
    assert spawn.resolve(env, {"X": "from env"}) == {"A": "from env", "B": "from a file", "C": "plain"}
    with pytest.raises(spawn.MissingSecret, match="variable X"):
        spawn.resolve(env, {})
    with pytest.raises(spawn.MissingSecret, match="/no/such/file"):
        spawn.resolve({"B": SecretRef(from_file="/no/such/file")}, {})


def test_a_process_that_is_stopped_goes_on_when_it_is_asked_to_end(tmp_path: Path) -> None:
    script = "trap 'echo asked > told; exit' TERM; kill -STOP $$; while :; do sleep 0.05; done"
    with started(tmp_path, script) as (target, identity):
        deadline = time.monotonic() + 30
        while parse_stat(Path(f"/proc/{identity.pid}/stat").read_bytes()).state != "T":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        end(target, grace=30)
        assert time.monotonic() < deadline + 20
        assert (tmp_path / "told").read_text() == "asked\n"


def test_ending_asks_first_and_kills_after_the_grace(tmp_path: Path) -> None:
    with started(tmp_path, "trap 'echo asked >> told' TERM; while :; do sleep 0.05; done") as (target, identity):
        time.sleep(0.2)
        began = time.monotonic()
        end(target, grace=0.4)
        assert 0.3 < time.monotonic() - began < 30
        assert not alive(identity.pid)
        assert (tmp_path / "told").read_text() == "asked\n"  # once: a second SIGTERM makes some engines drop all


def test_ending_finds_what_escaped_the_session_and_lost_its_parent(tmp_path: Path) -> None:
    with started(tmp_path, "setsid sh -c 'sleep 300 & sleep 300' & sleep 0.2; exit 0") as (target, identity):
        deadline = time.monotonic() + 30
        while is_alive(identity):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert len(find(target)) == 3
        end(target, grace=0.5)
        assert find(target) == {}


def test_a_child_that_dropped_the_mark_is_ours_while_its_group_leader_is_proven(tmp_path: Path) -> None:
    with started(tmp_path, "env -i sleep 300 & wait") as (target, _):
        time.sleep(0.2)
        assert len(find(target)) == 2
        end(target, grace=2)
        assert find(target) == {}


def test_without_proof_a_session_is_nobodys(tmp_path: Path) -> None:
    """The leader's number is another program's now: neither it nor its group is ours."""
    other = subprocess.Popen(["sleep", "300"], start_new_session=True)
    try:
        now = current(other.pid)
        assert now is not None
        stale = Identity(boot=now.boot, namespace=now.namespace, pid=now.pid, ticks=now.ticks - 1)
        assert find(Target(mark="no such mark", leader=stale)) == {}
        process.send(stale, signal.SIGKILL)
        end(Target(mark="no such mark", leader=stale), grace=0)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_the_leader_of_a_mark_is_the_one_that_was_started(tmp_path: Path) -> None:
    with started(tmp_path, "sleep 300 & setsid sleep 300 & wait") as (target, identity):
        time.sleep(0.2)
        assert leader_of(target.mark) == identity
    assert leader_of(target.mark) is None


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize(
    ("script", "expected"), [("exit 7", Exit(code=7)), ("kill -9 $$", Exit(signal=9)), ("exit 0", Exit(code=0))]
)
def test_a_childs_end_is_heard_with_its_status(tmp_path: Path, run, script: str, expected: Exit) -> None:
    async def main() -> None:
        heard: list[Exit] = []
        with started(tmp_path, f"sleep 0.1; {script}") as (_, identity):
            watch = Watch(identity, heard.append)
            watch.start()
            await eventually(lambda: heard, "heard", timeout=30)
            watch.close()
        assert heard == [expected]

    run(main())


async def test_an_end_before_the_watch_is_heard_too(tmp_path: Path) -> None:
    heard: list[Exit] = []
    with started(tmp_path, "exit 3") as (_, identity):
        await eventually(lambda: not is_alive(identity), "ended")
        Watch(identity, heard.append).start()
        await eventually(lambda: heard, "heard", timeout=30)
    assert heard == [Exit(code=3)]


async def test_without_pidfd_the_end_is_heard_by_looking(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    heard: list[Exit] = []
    with started(tmp_path, "sleep 0.1; exit 3") as (_, identity):
        Watch(identity, heard.append).start()
        await eventually(lambda: heard, "heard", timeout=30)
    assert heard == [Exit(code=3)]


def test_a_spawned_engine_lives_on_when_python_ends(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from llmgw.agent.spawn import spawn; home = Path(sys.argv[1])\n"
        "print(spawn(['sleep', '300'], {'PATH': '/usr/bin:/bin'}, home=home, log=home / 'log'))"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    pid = int(done.stdout)
    assert done.stderr == ""
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)


def test_a_stop_command_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = "sleep 300 & echo $!; wait"
    began = time.monotonic()
    run_stop_command(["sh", "-c", script], {"PATH": "/usr/bin:/bin"}, home=tmp_path, log=log, timeout=0.3)
    assert time.monotonic() - began < 60
    child, deadline = int(log.read_text()), time.monotonic() + 30
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(child)


def test_a_stop_command_that_is_not_there_hinders_nothing(tmp_path: Path) -> None:
    run_stop_command(["/no/such/program"], {}, home=tmp_path, log=tmp_path / "log", timeout=1)
