"""`llmgw service`: unit files, and what is said without systemd."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmgw.cli import service
from llmgw.cli.service import Part, unit


def line(text: str, name: str) -> str:
    return next(row for row in text.splitlines() if row.startswith(f"{name}=")).partition("=")[2]


@pytest.mark.parametrize("part", Part)
def test_a_unit_leaves_engines_alone_and_is_started_at_boot(part: Part) -> None:
    text = unit(part, ["--store", "etcd://e"], user=None, program=["/usr/bin/llmgw"])
    assert line(text, "KillMode") == "process"
    assert line(text, "WantedBy") == "multi-user.target"
    assert line(text, "ExecStart") == f"/usr/bin/llmgw {part} --store etcd://e"
    assert "User=" not in text


ANALYZE = shutil.which("systemd-analyze")


@pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze")
@pytest.mark.parametrize("part", Part)
def test_systemd_finds_nothing_wrong_with_a_unit(part: Part, tmp_path: Path) -> None:
    assert ANALYZE is not None
    arguments = ["--store", "etcd://e", "/srv/my models", "100%", "$HOME"]
    file = tmp_path / "llmgw-part.service"
    file.write_text(unit(part, arguments, user="root", program=[sys.executable, "-m", "llmgw"]))
    done = subprocess.run([ANALYZE, "verify", str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert [row for row in done.stderr.splitlines() if file.name in row] == []
    assert done.returncode == 0, done.stderr


def test_a_service_that_stops_its_engines_gets_the_time_for_it() -> None:
    def seconds(*arguments: str) -> int:
        return int(line(unit(Part.AGENT, arguments, user=None, program=["llmgw"]), "TimeoutStopSec"))

    assert seconds("--on-exit", "keep") == seconds() < 120
    assert seconds("--on-exit", "stop") == seconds("--on-exit=stop") > 120 + 30, "drain, and SIGTERM's grace"


def test_each_part_has_a_state_directory_of_its_own_on_one_machine() -> None:
    states = {part: line(unit(part, [], user="llmgw", program=["llmgw"]), "StateDirectory") for part in Part}
    assert len(set(states.values()) - {states[Part.UP]}) == 2
    assert states[Part.CONTROLLER] == states[Part.UP]


def test_what_systemd_would_read_otherwise_is_quoted() -> None:
    text = unit(Part.UP, ["/srv/my models", "100%", "$HOME", 'a"b'], user=None, program=["llmgw"])
    assert line(text, "ExecStart") == r'llmgw up "/srv/my models" 100%% $$HOME "a\"b"'
    assert shlex.split(line(text, "ExecStart"))[2] == "/srv/my models"


def test_install_prints_the_unit_and_changes_nothing(cli: Any) -> None:
    ran = cli("service", "install", "gateway", "--print", "--store", "etcd://e", "--listen", "0.0.0.0:80")
    assert (ran.code, ran.err) == (0, "")
    assert line(ran.out, "ExecStart").endswith("gateway --store etcd://e --listen 0.0.0.0:80")


@pytest.mark.skipif(service.RUNNING.is_dir(), reason="systemd runs this machine")
@pytest.mark.parametrize("command", [("status",), ("start", "agent"), ("stop",), ("restart",), ("install", "up")])
def test_without_systemd_that_is_said(cli: Any, command: tuple[str, ...]) -> None:
    ran = cli("service", *command)
    assert ran.code == 1
    assert "systemd does not run this machine" in ran.err


def test_a_line_break_in_an_argument_is_refused(cli: Any) -> None:
    ran = cli("service", "install", "up", "--print", "a\nExecStart=evil")
    assert ran.code == 64
