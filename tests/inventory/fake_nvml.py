"""A stand-in for NVIDIA's libnvidia-ml.so.1, compiled for the test, and children that load it by path."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

READ = """
import dataclasses, json, os, sys
from llmgw.agent.nvml import Nvml
from llmgw.units import Mono
nvml = Nvml()
for now, scenario in json.load(sys.stdin):
    open(os.environ["FAKE_NVML"], "w").write(scenario)
    reading = nvml.read(Mono(now))
    print(json.dumps(dataclasses.asdict(reading)))
"""


def build(directory: Path) -> Path:
    """The directory to put into LD_LIBRARY_PATH."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, library = Path(__file__).with_name("fake_nvml.c"), directory / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{library.name}"]
    subprocess.run([compiler, *flags, "-o", library, source], check=True, timeout=60)
    return directory


def environment(library: Path, scenario: Path) -> dict[str, str]:
    return {**os.environ, "LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(scenario)}


def run(argv: Sequence[str], env: Mapping[str, str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv], env=env, input=stdin, capture_output=True, text=True, timeout=60, check=False
    )


def read(library: Path, tmp: Path, *looks: tuple[float, str]) -> list[dict[str, Any]]:
    """What one inventory sees at each look: (monotonic time, scenario)."""
    done = run(["-c", READ], environment(library, tmp / "scenario"), json.dumps(looks))
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
