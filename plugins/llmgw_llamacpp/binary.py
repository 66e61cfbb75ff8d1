"""Which llama-server is run."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

VARIABLE: Final = "LLMGW_LLAMA_SERVER"
NAME: Final = "llama-server"
HOW: Final = (
    f"get one from https://github.com/ggml-org/llama.cpp/releases (or build it), then name it in options.binary of the "
    f"profile or in {VARIABLE}, or put it in PATH as {NAME}"
)


def default() -> str | None:
    """What profiles without `options.binary` run; None: there is none. A variable that names nothing counts as none."""
    return find(os.environ.get(VARIABLE) or NAME)


def find(name: str) -> str | None:
    """The executable of that path, or of that name in PATH."""
    found = shutil.which(str(Path(name).expanduser()) if "/" in name else name)
    return None if found is None else os.path.abspath(found)


def version(path: str) -> str:
    """As the program tells it. Raises OSError or ValueError, saying what it did instead."""
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", timeout=8, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"{path} --version did not end") from error
    said = f"{done.stdout}\n{done.stderr}".strip()
    if done.returncode != 0:
        last = said.splitlines()[-1][:200] if said else "nothing"
        raise ValueError(f"{path} --version ended with {done.returncode}, saying: {last}")
    match = re.search(r"version: *(\S.*)", said)
    return match[1].strip() if match else "unknown"
