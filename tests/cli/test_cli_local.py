"""Commands that need no daemon, as processes of their own."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from llmgw.admin.schemas import file_name

SCHEMAS = Path(__file__).parents[2] / "schemas" / "output"

GOOD = """\
apiVersion: llmgw/v1
kind: Cluster
name: home
"""

BAD = """\
apiVersion: llmgw/v1
kind: Model
name: Not a name
profiles:
  - {name: main, engine: nonesuch}
"""


def llmgw(*args: object, **env: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", "from llmgw.cli.main import main; main()", *map(str, args)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LLMGW_")}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=clean | env)


def parsed(schema: str, out: str) -> Any:
    value = json.loads(out)
    Draft202012Validator(json.loads((SCHEMAS / file_name(schema)).read_text())).validate(value)
    return value


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    root = tmp_path / "catalog"
    root.mkdir()
    (root / "cluster.yaml").write_text(GOOD)
    return root


def test_validate_says_ok_with_the_count_and_the_revision(catalog: Path) -> None:
    ran = llmgw("validate", catalog)
    assert ran.returncode == 0, ran.stderr
    warning, ok = ran.stdout.splitlines()
    assert warning.endswith("(warning)")
    assert ok.startswith("ok: 0 models, revision ")


def test_validate_prints_every_problem_with_its_place_and_exits_3(catalog: Path) -> None:
    (catalog / "models.yaml").write_text(BAD)
    ran = llmgw("validate", catalog)
    assert ran.returncode == 3
    lines, file = ran.stdout.splitlines(), catalog / "models.yaml"
    assert any(line.startswith(f"{file}:3:") and "$.name" in line for line in lines)
    assert any(line.startswith(f"{file}:5:") and "nonesuch" in line for line in lines)
    assert f"{sum(line.startswith(f'{file}:') for line in lines)} problems" in ran.stderr


def test_validate_as_json_is_one_object_valid_or_not(catalog: Path) -> None:
    good = llmgw("validate", catalog, "-o", "json")
    assert (good.returncode, parsed("validate", good.stdout)["valid"]) == (0, True)
    (catalog / "models.yaml").write_text(BAD)
    bad = llmgw("validate", catalog, "--json")
    answer = parsed("validate", bad.stdout)
    assert (bad.returncode, answer["valid"]) == (3, False)
    assert {problem["file"] for problem in answer["problems"]} == {str(catalog / "models.yaml")}


def test_validate_of_nothing_is_an_error_and_not_an_invalid_catalog(tmp_path: Path) -> None:
    ran = llmgw("validate", tmp_path / "nothing")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "nothing" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_down_without_anything_running_is_fine_and_makes_no_directory(tmp_path: Path) -> None:
    ran = llmgw("down", "--state", tmp_path / "state")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == f"nothing of {tmp_path / 'state'} was running\n"
    assert not (tmp_path / "state").exists()
    as_json = llmgw("down", "--json", LLMGW_STATE=str(tmp_path / "state"))
    assert parsed("down", as_json.stdout) == {"version": 1, "ended": 0, "daemon": False}


def test_up_on_a_port_that_is_taken_says_which_and_how_to_choose_another(catalog: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        ran = llmgw("up", catalog, "--state", tmp_path / "state", "--listen", listen, "--admin", "127.0.0.1:0")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert f"cannot listen on {listen}" in ran.stderr
    assert "--listen" in ran.stderr
    assert "Traceback" not in ran.stderr
