"""llmgw killed, its state damaged, its parts failing: what serves goes on, and nothing is doubled or lost."""

import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from harness import WEB, Daemon, Repo, alive, cluster, command, eventually, serving


def engines_below(state: Path) -> set[int]:
    """Live processes that work in one of the state directory's replicas and carry a mark of llmgw's."""
    found = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            here = os.readlink(process / "cwd").startswith(str(state / "replicas"))
            marked = here and b"LLMGW_REPLICA_MARK=" in (process / "environ").read_bytes()
        except OSError:
            continue
        if marked and alive(int(process.name)):
            found.add(int(process.name))
    return found


def start_raw(daemon: Daemon) -> None:
    """Without waiting for anything."""
    argv = [sys.executable, "-m", "llmgw", "up", str(daemon.catalog), "--state", str(daemon.state), "--node", "box"]
    with daemon.output.open("ab") as log:
        daemon.process = subprocess.Popen(
            [*argv, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=daemon.env, start_new_session=True,
        )  # fmt: skip


def test_killed_at_any_moment_no_engine_is_doubled_or_lost(tmp_path: Path) -> None:
    names, moments = ["a", "b", "c"], random.Random(5)
    repo = Repo(tmp_path / "catalog")
    repo.commit({f"{name}.yaml": command(name) for name in names})
    with serving(repo.path, tmp_path / "home") as daemon:
        daemon.kill()
        for number in range(4):
            start_raw(daemon)
            time.sleep(moments.uniform(0.5, 1.5))  # the moment is the point of it: any outcome has to be right
            name = moments.choice(names)
            repo.commit({f"{name}.yaml": command(name, tag=str(number))})
            time.sleep(moments.uniform(0.0, 0.4))
            daemon.kill()
        daemon.start()
        ready = daemon.ready(*names)
        eventually(
            lambda: engines_below(daemon.state) == {r["pid"] for r in daemon.ready(*names).values()},
            within=30,
            what=f"one engine a model, not {engines_below(daemon.state)} for {ready}",
        )
        assert {path.name for path in daemon.state.rglob(".*")} <= {".llmgw-cache", ".llmgw-spare"}


def test_damaged_files_in_the_state_directory_cost_no_engine(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": command("a")})
    with serving(repo.path, tmp_path / "home") as daemon:
        before = daemon.ready("a")["a"]
        daemon.kill()
        damaged = [*(daemon.state / "store").iterdir(), daemon.state / "last-good" / "catalog.json"]
        assert len(damaged) >= 3
        for file in (*damaged, daemon.state / "lock"):
            file.write_bytes(b"\xff\x00{")
        daemon.start()
        assert daemon.ready("a")["a"]["pid"] == before["pid"]
        assert "llmgw goes on without" in daemon.output.read_text()


def test_a_client_that_asks_while_llmgw_starts_is_never_told_that_its_model_does_not_exist(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": command("a")})
    with serving(repo.path, tmp_path / "home", flags=["--listen", f"127.0.0.1:{port}"]) as daemon:
        daemon.ready("a")
        daemon.kill()
        assert daemon.process is not None
        argv, statuses = daemon.process.args, set[int]()
        with daemon.output.open("ab") as log:
            daemon.process = subprocess.Popen(argv, stdout=log, stderr=log, env=daemon.env, start_new_session=True)
        deadline = time.monotonic() + 30
        while 200 not in statuses and time.monotonic() < deadline:
            try:
                answer = httpx.get(f"http://127.0.0.1:{port}/v1/models/a", timeout=5, **WEB)
            except httpx.TransportError:
                time.sleep(0.002)
                continue
            statuses.add(answer.status_code)
        assert statuses <= {200, 503}
        assert 200 in statuses


def test_a_crash_loop_is_quarantined_remembered_and_lifted_by_a_fix(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    settings = cluster(recovery={"backoff": "0.1s", "backoff_cap": "0.2s", "quarantine_retry": "10m"})
    repo.commit({"c.yaml": settings, "a.yaml": command("a", "sh", "-c", "echo oh dear; exit 3")})

    def state(daemon: Daemon) -> dict[str, str]:
        return next(iter(daemon.seen("models")["models"]), {"state": "not read yet"})

    with serving(repo.path, tmp_path / "home") as daemon:
        eventually(lambda: state(daemon)["state"] == "failed", within=30, what="quarantine")
        told = state(daemon)["reason"]
        assert "exit code 3" in told
        assert "oh dear" in told
        assert "4 times" in told
        daemon.kill()
        daemon.start()
        eventually(lambda: state(daemon)["state"] == "failed", within=30, what="still quarantined")
        assert "4 times" in state(daemon)["reason"]
        repo.commit({"a.yaml": command("a")})
        daemon.ready("a", within=30)


BROKEN = """
import asyncio, sys, threading, time
from pathlib import Path
from llmgw.app import ending, parts, up
from llmgw.catalog.origin import Origin
from llmgw.ids import node_name

class Broken(parts.Agent):
    async def run(self):
        hung = asyncio.create_task(asyncio.to_thread(time.sleep, float(sys.argv[3])))
        await asyncio.sleep(0.3)
        raise ValueError("a bug")

async def report(store, url):
    pass

parts.Agent, ending.HUNG = Broken, 1.0
state = Path(sys.argv[2])
options = up.UpOptions(
    catalog=Origin(where=sys.argv[1]), state=state, node=node_name("box"), listen=("127.0.0.1", 0),
    admin=("127.0.0.1", 0),
)
up.run_up(options, report=report, say=lambda text: print("said:", text, flush=True))
"""


@pytest.mark.parametrize("hangs", [0, 600])
def test_a_part_that_fails_ends_llmgw_with_a_reason_though_a_thread_hangs(tmp_path: Path, hangs: int) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": command("a")})
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, str(repo.path), str(tmp_path / "state"), str(hangs)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    if hangs:
        assert "leaving it behind" in done.stdout
    assert "ended by a fault of its own: ValueError: a bug" in done.stdout + done.stderr
    assert not (tmp_path / "state" / "admin.json").exists()


@pytest.mark.parametrize("flag", ["--listen", "--admin"])
@pytest.mark.parametrize("address", ["taken", "a..b:0"])
def test_an_address_that_cannot_be_had_is_said_with_the_flag_to_change(tmp_path: Path, flag: str, address: str) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        where = f"127.0.0.1:{holder.getsockname()[1]}" if address == "taken" else address
        other = "--admin" if flag == "--listen" else "--listen"
        done = subprocess.run(
            [sys.executable, "-m", "llmgw", "up", str(tmp_path), "--state", str(tmp_path / "state"),
             flag, where, other, "127.0.0.1:0"],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert f"cannot listen on {where}" in done.stderr
    assert f"name another with {flag}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "state" / "admin.json").exists()
