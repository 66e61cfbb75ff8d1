"""`llmgw doctor`: what it looks at, each thing wrong once, and what it says of a running daemon."""

import json
import os
import resource
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_nvml
import pytest
from harness import Repo, run_cli, serving
from jsonschema import Draft202012Validator

from llmgw.admin.schemas import file_name
from llmgw.admin.shapes import CheckRow
from llmgw.agent.nvml import Reading
from llmgw.agent.process import self_identity
from llmgw.cli import checkup
from llmgw.engine.manager import Engines
from llmgw.facts import DeviceFact, EngineFact
from llmgw.ids import EngineName
from llmgw.statedir import StateDir, StateLock
from llmgw.units import GIB, Bytes

SCHEMA = Path(__file__).parents[2] / "schemas" / "output" / file_name("doctor")


def machine(root: Path, **fields: object) -> checkup.Machine:
    made = checkup.Machine(state=StateDir(root), cache=root / "weights", addresses=(), ports=range(21000, 21002))
    return replace(made, **fields)  # type: ignore[arg-type]


def rows(check: checkup.Check, looked_at: checkup.Machine) -> list[CheckRow]:
    return list(check(looked_at))


def only(check: checkup.Check, looked_at: checkup.Machine) -> CheckRow:
    (row,) = rows(check, looked_at)
    return row


def doctor(*arguments: object, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    return run_cli("doctor", *map(str, arguments), env=env)


def test_it_works_without_a_daemon_and_changes_nothing(tmp_path: Path) -> None:
    done = doctor("--state", tmp_path / "state", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--json")
    answer = json.loads(done.stdout)
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(answer)
    names = {check["name"] for check in answer["checks"]}
    assert names >= {"python", "system", "git", "state", "cache", "ports", "engine ports", "descriptors", "memory"}
    assert names >= {"clock", "gpus", "engine cpu", "engine command", "daemon"}
    assert done.returncode == (0 if answer["well"] else 1), done.stderr
    assert answer["well"] == all(check["verdict"] != "fail" for check in answer["checks"])
    assert not any(tmp_path.iterdir())


def test_every_check_that_is_not_well_says_what_to_do_and_a_failure_exits_1(tmp_path: Path) -> None:
    (tmp_path / "VERSION").write_text("99\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = doctor("--state", tmp_path, "--listen", f"127.0.0.1:{port}", "--admin", "127.0.0.1:0", "--json")
    assert done.returncode == 1
    bad = {check["name"]: check for check in json.loads(done.stdout)["checks"] if check["verdict"] == "fail"}
    assert bad.keys() == {"state", "ports"}
    assert "upgrade llmgw" in bad["state"]["advice"]
    assert str(port) in bad["ports"]["message"]
    assert "--listen" in bad["ports"]["advice"]


def test_text_is_a_line_for_each_check_with_the_advice_below(tmp_path: Path) -> None:
    done = doctor("--state", tmp_path / "file" / "x", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("ok    python")
    assert lines[-1].endswith("looked at")


def test_wrong_addresses_are_wrong_usage(tmp_path: Path) -> None:
    assert doctor("--state", tmp_path, "--listen", "nonsense").returncode == 64


def test_a_state_directory_is_judged_by_its_version_its_files_and_its_owner(tmp_path: Path) -> None:
    fresh = machine(tmp_path / "new" / "deeper")
    assert only(checkup.state, fresh).verdict == "ok"
    (tmp_path / "odd").mkdir(mode=0o700)
    (tmp_path / "odd" / "thesis.txt").touch()
    assert "other files" in only(checkup.state, machine(tmp_path / "odd")).message
    (tmp_path / "odd" / "VERSION").write_text("banana")
    assert "damaged" in only(checkup.state, machine(tmp_path / "odd")).message
    (tmp_path / "plain").touch()
    assert only(checkup.state, machine(tmp_path / "plain")).verdict == "fail"

    good = StateDir(tmp_path / "good")
    good.prepare()
    assert "nobody" in only(checkup.state, machine(good.root)).message
    lock = StateLock(good)
    lock.acquire(self_identity())
    assert f"pid {os.getpid()}" in only(checkup.state, machine(good.root)).message
    lock.release()
    good.root.chmod(0o755)
    assert rows(checkup.state, machine(good.root))[0].advice == f"chmod 700 {good.root}"
    assert stat.S_IMODE(good.root.stat().st_mode) == 0o755  # said, not done
    good.admin.write_text("{")
    assert only(checkup.state, machine(good.root)).verdict == "fail"


def test_ports_that_are_taken_are_named_and_a_daemons_own_are_not_blamed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
        taken = machine(tmp_path, addresses=(("127.0.0.1", port),), ports=range(port, port + 1))
        gateway, engines = rows(checkup.ports, taken)
        assert (gateway.verdict, engines.verdict) == ("fail", "fail")
        gateway, _ = rows(checkup.ports, replace(taken, daemon=True))
        assert gateway.verdict == "ok"


def test_a_full_disk_is_a_failure_and_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = only(checkup.cache, machine(tmp_path))
    assert " free on /" in found.message
    monkeypatch.setattr(checkup, "_NO_DISK", 1 << 62)
    full = only(checkup.cache, machine(tmp_path))
    assert full.verdict == "fail"
    assert "llmgw collect" in full.advice


def test_a_low_limit_of_descriptors_is_noticed() -> None:
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
        "from llmgw.cli import checkup; print(*[row.verdict for row in checkup.descriptors(None)])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "warn"
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 256


def test_engines_say_version_and_path_or_why_not_and_broken_plugins_are_named() -> None:
    facts = (
        EngineFact(name=EngineName("a"), version="1.2", path="/opt/a"),
        EngineFact(name=EngineName("b"), why="install it with: apt install b"),
    )
    found = Engines(broken={"odd": "Traceback\nImportError: no module named x"})
    good, bad, plugin = checkup.engines(found, facts)
    assert good.message == "1.2 at /opt/a"
    assert (bad.verdict, bad.advice) == ("warn", "install it with: apt install b")
    assert (plugin.name, plugin.message) == ("plugin odd", "ImportError: no module named x")
    assert [row.verdict for row in checkup.engines(Engines(), facts[1:])] == ["warn", "fail"]


def test_gpus_are_listed_and_one_that_is_lost_is_a_warning() -> None:
    size = {"total": Bytes(24 * GIB), "free": Bytes(20 * GIB)}
    good = DeviceFact(uuid="GPU-a", name="NVIDIA L4", index=0, **size)
    first, second, *_ = checkup.gpus(Reading(devices=(good, replace(good, uuid="GPU-b", why="it fell off the bus"))))
    assert first.message == "NVIDIA L4 GPU-a: 20.0 GiB of 24.0 GiB free"
    assert (second.verdict, "GPU-b" in second.message) == ("warn", True)
    (broken,) = checkup.gpus(Reading(why="the driver says: no", expected=False))
    assert broken.verdict == "warn"


def test_the_stand_in_for_a_driver_is_seen_from_the_command_line(nvml_library: Path, tmp_path: Path) -> None:
    (tmp_path / "scenario").write_text("driver 1\ngpu GPU-a NVIDIA_L4 23034 400 0 0\n")
    env = fake_nvml.environment(nvml_library, tmp_path / "scenario")
    done = doctor("--state", tmp_path / "s", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", env=env)
    assert "NVIDIA L4 GPU-a: 22.1 GiB of 22.5 GiB free" in done.stdout


def test_a_check_that_cannot_be_made_says_so_and_the_others_go_on(tmp_path: Path) -> None:
    def unlucky(_: checkup.Machine) -> Any:
        raise PermissionError(13, "Permission denied")

    found = list(checkup.examine(machine(tmp_path), (unlucky, checkup.python)))
    assert [row.name for row in found] == ["unlucky", "python"]
    assert "Permission denied" in found[0].message


def test_a_daemon_is_asked_and_nodes_shows_devices_and_engines(nvml_library: Path, tmp_path: Path) -> None:
    (tmp_path / "scenario").write_text(
        "driver 550.54\ngpu GPU-a NVIDIA_L4 23034 400 0 0\ngpu GPU-b NVIDIA_L4 23034 0 0 0\nproc GPU-a c 1 300\n"
    )
    repo = Repo(tmp_path / "catalog")
    repo.commit({"cluster.yaml": "apiVersion: llmgw/v1\nkind: Cluster\n"})
    with serving(
        repo.path, tmp_path / "home", env=fake_nvml.environment(nvml_library, tmp_path / "scenario")
    ) as daemon:
        checks = {check["name"]: check for check in daemon.ask("doctor")["checks"]}
        assert " answers at " in checks["daemon"]["message"]
        assert (checks["report"]["verdict"], checks["watcher"]["verdict"]) == ("ok", "ok")
        assert (checks["catalog"]["verdict"], checks["pass"]["verdict"]) == ("ok", "ok")
        assert "in use by pid" in checks["state"]["message"]

        (node,) = daemon.ask("nodes")["nodes"]
        first, second = node["devices"]
        assert (first["uuid"], first["name"], first["driver"]) == ("GPU-a", "NVIDIA L4", "550.54")
        assert first["foreign"] == first["used"] == 400 << 20
        assert first["processes"] == [{"pid": 1, "memory": 300 << 20, "ours": False}]
        assert second["free"] == second["total"]
        assert {engine["name"] for engine in node["engines"]} >= {"cpu", "command"}
        assert next(engine["path"] for engine in node["engines"] if engine["name"] == "cpu")
        text = daemon.cli("nodes").stdout
        assert "GPU-a" in text
        assert "22.1 GiB of 22.5 GiB" in text

        daemon.kill()
        again = daemon.cli("doctor", check=False)
        assert again.returncode == 1
        assert "seems to have ended" in again.stdout
