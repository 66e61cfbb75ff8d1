"""Running git: nothing of a repository's configuration runs on our behalf, nobody is asked anything, and what takes too
long is ended with all that it started."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from llmgw.errors import CatalogUnreadable

CONFIG: Final = (
    "core.fsmonitor=false",
    f"core.hooksPath={os.devnull}",
    "core.quotePath=false",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "protocol.allow=never",  # a partial clone would otherwise fetch what is missing, by a program of its choosing
)

KEPT: Final = ("PATH", "HOME", "XDG_CONFIG_HOME", "TMPDIR")
"""What git needs of our environment to find its configuration; no GIT_* of ours, such as a hook that started us would
leave."""


def command(directory: Path, *arguments: str, config: Sequence[str] = ()) -> list[str]:
    """The words of a git command in `directory`. `config`: further settings; no secret, for all can see them."""
    words = ["git", "-C", str(directory), "--no-pager", "--no-replace-objects", "--literal-pathspecs"]
    for setting in (*CONFIG, *config):
        words += ["-c", setting]
    return [*words, *arguments]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return kept | {
        "LC_ALL": "C",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "false",
        "GIT_SSH_COMMAND": "false",
        **(more or {}),
    }


def run(
    words: Sequence[str], *, where: Path, timeout: float, said: bytes = b"", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Blocks. `said`: on its standard input; `where`: for messages.

    Raises FileNotFoundError without a git to ask, CatalogUnreadable where it does not answer in `timeout` seconds, and
    for words that no program can be given.
    """
    if any("\0" in word for word in words):
        raise CatalogUnreadable("git cannot be asked for a name that holds a NUL")
    try:
        # A group of its own: Ctrl-C is for llmgw, not for the git that it happens to be asking.
        process = subprocess.Popen(
            words,
            env=environment(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CatalogUnreadable(f"cannot run git: {error.strerror}") from error
    with process:
        try:
            out, err = process.communicate(said, timeout)
        except subprocess.TimeoutExpired as error:
            raise CatalogUnreadable(f"git did not answer within {timeout:.0f} s in {where}") from error
        finally:
            if process.returncode is None:
                end_group(process.pid)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def end_group(pid: int) -> None:
    """End a process that leads a group, and all of the group: git's helpers hold its pipes open."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def last_line(stderr: bytes) -> str:
    lines = [line for line in stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it gave no reason"
