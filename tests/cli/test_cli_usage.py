"""Wrong usage, help, and what the command line must not do at import."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import llmgw
from llmgw.cli.options import address, port_range, refuse_windows, state_root
from llmgw.errors import TerminalError, UsageError

COMMANDS = (
    "up",
    "controller",
    "agent",
    "gateway",
    "down",
    "validate",
    "schema",
    "migrate",
    "plan",
    "diff",
    "sync",
    "init",
    "status",
    "models",
    "replicas",
    "nodes",
    "cordon",
    "drain",
    "uncordon",
    "events",
    "explain",
    "logs",
    "run",
    "stop",
    "start",
    "restart",
    "reset",
    "approve",
    "apply",
    "suspend",
    "resume",
    "rollback",
    "history",
    "simulate",
    "pull",
    "collect",
    "bench",
    "doctor",
    "keys",
    "weights",
    "service",
    "plugins",
)


def llmgw_process(*args: str, **more: Any) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", "from llmgw.cli.main import main; main()", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **more)


@pytest.mark.parametrize(
    "args",
    [
        ["nonsense"],
        ["--nonsense"],
        ["status", "--nonsense"],
        ["status", "extra"],
        ["status", "-o", "yaml"],
        ["events", "-n", "0"],
        ["events", "-n", "many"],
        ["up", "a", "b"],
        ["up", "--listen", "8080"],
        ["up", "--admin", "127.0.0.1:http"],
        ["up", "--engine-ports", "9-1"],
        ["up", "--on-exit", "explode"],
        ["up", "--node", "Bad Name!"],
        ["models", "--admin", "ftp://x"],
    ],
)
def test_wrong_usage_exits_64_and_says_so_on_stderr(cli: Any, args: list[str]) -> None:
    ran = cli(*args)
    assert (ran.code, ran.out) == (64, "")
    assert ran.err


def test_a_misspelt_command_gets_a_suggestion(cli: Any) -> None:
    assert "Did you mean 'replicas'" in cli("replcias").err


@pytest.mark.parametrize("command", COMMANDS)
def test_each_commands_help_has_an_example(cli: Any, command: str) -> None:
    ran = cli(command, "--help")
    assert ran.code == 0
    assert f"Example:\n    llmgw {command}" in ran.out


@pytest.mark.parametrize("args", [[], ["-h"], ["--help"]])
def test_help_lists_every_command(cli: Any, args: list[str]) -> None:
    ran = cli(*args)
    assert (ran.code, ran.err) == (0, "")
    listed = [line.split()[0] for line in ran.out.partition("Commands:\n")[2].splitlines()]
    assert listed == list(COMMANDS)
    assert "..." not in ran.out.partition("Commands:\n")[2], "a summary is cut off"


def test_version(cli: Any) -> None:
    assert cli("--version").out == f"llmgw {llmgw.__version__}\n"


def test_help_imports_no_server_no_plugin_and_no_schema() -> None:
    heavy = "fastapi uvicorn httpx jsonschema pluggy ruamel structlog msgspec rich llmgw.engine llmgw.store llmgw.app"
    code = f"""
import sys
from llmgw.cli.main import main
try:
    main(["up", "--help"])
except SystemExit as ended:
    assert ended.code == 0
loaded = {heavy.split()!r}
print([name for name in loaded if name in sys.modules], file=sys.stderr)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stderr == "[]\n"


def test_completion_lists_commands_without_loading_a_plugin() -> None:
    env = {**os.environ, "_LLMGW_COMPLETE": "complete_bash", "COMP_WORDS": "llmgw re", "COMP_CWORD": "1"}
    ran = llmgw_process(env=env)
    assert ran.stdout.split() == ["replicas", "restart", "reset", "resume"]


def test_a_reader_that_leaves_early_is_no_error_message() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as out:
        command = [sys.executable, "-c", "from llmgw.cli.main import main; main()", "--help"]
        ran = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, timeout=60)
    assert ran.stderr == b""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert address(text, "--listen") == expected


@pytest.mark.parametrize("text", ["", "8080", ":8080", "host:", "host:x", "host:65536", "::1:8080", "host:-1", "[]:1"])
def test_what_is_no_address_is_told_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="--listen"):
        address(text, "--listen")


def test_native_windows_is_sent_to_wsl2_and_that_is_no_wrong_usage() -> None:
    with pytest.raises(TerminalError, match="WSL2") as refused:
        refuse_windows("win32")
    assert not isinstance(refused.value, UsageError)
    refuse_windows("linux")


def test_port_ranges_include_both_ends() -> None:
    assert list(port_range("18000-18002")) == [18000, 18001, 18002]
    for text in ("", "1", "1-", "-1", "0-5", "5-4", "1-65536", "a-b"):
        with pytest.raises(UsageError):
            port_range(text)


def test_the_state_directory_follows_the_xdg_specification(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert state_root(None) == tmp_path / ".local/state/llmgw"
    monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
    assert state_root(None) == Path("/var/state/llmgw")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert state_root(None) == tmp_path / ".local/state/llmgw"
    assert state_root(Path("here")) == Path.cwd() / "here"
