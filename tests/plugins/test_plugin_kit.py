"""`llmgw plugins new` writes a package that works; `llmgw plugins check` tells good from bad."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from little_plugins import AT_IMPORT, AT_RUN_TIME, GOOD, environment, install, llmgw
from typer.main import get_command

from llmgw.cli.main import make_app

ROOT = Path(__file__).parents[2]

DEMANDING = GOOD.replace(
    "    needs_weights = False",
    '    options_schema = {"type": "object", "required": ["x"], "additionalProperties": False, "properties": {"x": '
    '{"type": "string", "description": "Needed."}}}\n    needs_weights = False',
)


def run(*argv: object, cwd: Path, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", *map(str, argv)], cwd=cwd, env=env, capture_output=True, text=True, timeout=170
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment without plugins of ours."""
    root = tmp_path_factory.mktemp("plain")
    return environment(root / "none", root / "cache")


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory, plain: dict[str, str]) -> tuple[Path, dict[str, str]]:
    """A new plugin's source, and the environment of a process that finds it installed."""
    root = tmp_path_factory.mktemp("new")
    source = root / "source"
    made = llmgw("plugins", "new", "my-echo", "--dir", source, env=plain)
    assert (made.returncode, made.stdout) == (0, f"{source}\n"), made.stderr
    target = root / "target"
    pip = ["pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    installed = run(*pip, "--no-build-isolation", "--target", target, ".", cwd=source)
    assert installed.returncode == 0, installed.stderr
    return source, environment(target, root / "cache")


def test_a_generated_plugin_passes_its_own_tests(generated: tuple[Path, dict[str, str]]) -> None:
    source, env = generated
    ran = run("pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=source, env=env)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"^\d+ passed in", ran.stdout, re.MULTILINE), "none skipped, no warning"


def test_a_generated_plugin_is_listed_and_passes_the_check(generated: tuple[Path, dict[str, str]]) -> None:
    _, env = generated
    rows = {row["name"]: row for row in json.loads(llmgw("plugins", "list", "--json", env=env).stdout)["plugins"]}
    assert (rows["my-echo"]["state"], rows["my-echo"]["distribution"]) == ("ok", "llmgw-my-echo")
    ran = llmgw("plugins", "check", "llmgw_my_echo", "--json", env=env, timeout=170)
    answer = json.loads(ran.stdout)
    Draft202012Validator(json.loads((ROOT / "schemas/output/plugin-check.v1.schema.json").read_text())).validate(answer)
    assert (ran.returncode, answer["ok"]) == (0, True), answer
    assert {row["outcome"] for row in answer["checks"]} <= {"ok", "skipped"}
    assert {"check_becomes_ready_and_stops_on_sigterm", "check_refuses_requests_without_its_key"} <= {
        row["check"] for row in answer["checks"] if row["outcome"] == "ok"
    }


@pytest.mark.parametrize("name", ["my-echo", "x", "3d.models", "llmgw-a-rather-long-name-of-an-engine"])
def test_a_generated_plugin_is_clean_by_ruff_and_by_mypy(tmp_path: Path, plain: dict[str, str], name: str) -> None:
    for tool in ("ruff", "mypy"):
        pytest.importorskip(tool, reason="the development tools are not installed: make lint installs them")
    source = tmp_path / "source"
    assert llmgw("plugins", "new", name, "--dir", source, env=plain).returncode == 0
    clean = {**os.environ, "MYPY_CACHE_DIR": str(tmp_path / "mypy"), "RUFF_NO_CACHE": "true"}
    for check in (["ruff", "check", "."], ["ruff", "format", "--check", "."]):
        ran = run(*check, cwd=source, env=clean)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    if name == "my-echo":
        ran = run("mypy", cwd=source, env=clean)
        assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("name", ["Not A Name", "../x", "", "-x", "import", "cpu", "llmgw-cpu", "a" * 64])
def test_a_name_that_cannot_be_is_wrong_usage_and_nothing_is_written(
    tmp_path: Path, plain: dict[str, str], name: str
) -> None:
    ran = llmgw("plugins", "new", "--dir", tmp_path / "new", "--", name, env=plain)
    assert ran.returncode == 64
    assert ran.stderr
    assert not (tmp_path / "new").exists()


def test_a_directory_with_something_in_it_is_left_as_it_is(tmp_path: Path, plain: dict[str, str]) -> None:
    (tmp_path / "mine").touch()
    ran = llmgw("plugins", "new", "my-echo", "--dir", tmp_path, env=plain)
    assert ran.returncode == 1
    assert "is not empty: name another place with --dir" in ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("checked")
    sources = {
        "fine": GOOD,
        "demanding": DEMANDING,
        **{name: AT_IMPORT[name] for name in ("raises", "osexit", "badschema")},
        **{name: AT_RUN_TIME[name] for name in ("fpraises", "launchraises")},
        "launchexits": GOOD.replace("argv = (sys.executable", "import os; os._exit(5)\n        argv = (sys.executable"),
    }
    return environment(install(sources.items(), root / "target", root / "wheels"), root / "cache")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "raises: broken RuntimeError: no luck today"),
        ("osexit", "osexit: broken it ended its process (exit code 7) while being imported"),
        ("badschema", "no JSON Schema"),
        ("fpraises", "failed   fpraises: fingerprint is quick and usable"),
        ("launchraises", "ValueError: not today"),
        ("launchexits", "their process ended with exit code 5"),
        ("fine", "failed   fine: refuses requests without its key"),  # its server says {} to everybody
        ("little-raises", "raises: broken"),
        ("nonesuch", "no plugin, distribution or module 'nonesuch' is installed here"),
    ],
)
def test_check_fails_with_the_reason(checked: dict[str, str], name: str, said: str) -> None:
    ran = llmgw("plugins", "check", name, env=checked, timeout=170)
    assert ran.returncode == 1, ran.stdout
    assert said in ran.stdout + ran.stderr


def test_check_starts_an_engine_that_needs_options_once_they_are_given(checked: dict[str, str]) -> None:
    without = llmgw("plugins", "check", "demanding", env=checked)
    assert without.returncode == 0
    assert "skipped  demanding: becomes ready" in without.stdout
    assert "give them with --options" in without.stdout
    given = llmgw("plugins", "check", "demanding", "--options", '{"x": "y"}', env=checked, timeout=170)
    assert "ok       demanding: becomes ready and stops on sigterm" in given.stdout


@pytest.mark.parametrize(
    "arguments", [["--options", "{"], ["--options", "[]"], ["--weights", "/nonexistent/model.gguf"]]
)
def test_check_with_something_that_cannot_be_is_wrong_usage(plain: dict[str, str], arguments: list[str]) -> None:
    assert llmgw("plugins", "check", "command", *arguments, env=plain).returncode == 64


def test_the_commands_documented_are_those_there_are_with_their_options() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    commands = get_command(make_app()).commands["plugins"].commands  # type: ignore[attr-defined]
    assert re.findall(r"^### plugins (\S+)$", text, re.MULTILINE) == list(commands)
    for name, command in commands.items():
        section = re.search(rf"^### plugins {name}\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
        assert section is not None
        assert f"llmgw plugins {name}" in section[1]
        listed = re.search(r"^Options: (.*?)(?:\. Exit|\.$)", section[1], re.MULTILINE | re.DOTALL)
        assert listed is not None
        documented = set(re.findall(r"`(--[a-z]+|[A-Z]+)`", listed[1]))
        wanted = {
            p.metavar if p.param_type_name == "argument" else max(p.opts, key=len)
            for p in command.params
            if "--help" not in p.opts
        }
        assert documented == wanted, name
