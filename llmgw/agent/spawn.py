"""Starting an engine: detached, in a session of its own, with nothing of ours open."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from llmgw import descriptors
from llmgw.agent.process import MARK_VARIABLE
from llmgw.catalog.spec import SecretRef
from llmgw.engine.api import KEY_VARIABLE
from llmgw.errors import TerminalError

_OURS: Final = "LLMGW_"


class MissingSecret(TerminalError):
    """A secret that a profile refers to is not on this node. Names the reference, never a value."""


def spawn(argv: Sequence[str], env: Mapping[str, str], *, home: Path, log: Path) -> int:
    """Start it and return its pid; it outlives us. Reap it with `process.reap`. Raises OSError."""
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=fd,
            stderr=fd,
            cwd=home,
            env=env,
            start_new_session=True,
            close_fds=True,
            umask=0o022,
        )
    finally:
        os.close(fd)
    descriptors.restore_for(child.pid)
    child.returncode = 0  # from here on it is known by its identity: Popen neither reaps it nor warns that it runs
    return child.pid


def environment(
    inherited: Mapping[str, str], engine: Mapping[str, str], profile: Mapping[str, str], *, key: str, mark: str
) -> dict[str, str]:
    """What an engine's process sees: later sources win, our own last. Our own settings and secrets are not inherited.

    SPT_NOENV keeps setproctitle, where an engine uses it, from wiping the environment and the mark with it.
    """
    kept = {name: value for name, value in inherited.items() if not name.startswith(_OURS)}
    own = {KEY_VARIABLE: key, MARK_VARIABLE: mark, "SPT_NOENV": "1"}
    return {**kept, **engine, **profile, **own}


def resolve(env: Mapping[str, str | SecretRef], inherited: Mapping[str, str]) -> dict[str, str]:
    """A profile's `env` with its secrets read. Raises MissingSecret."""
    return {name: value if isinstance(value, str) else _read(name, value, inherited) for name, value in env.items()}


def _read(name: str, ref: SecretRef, inherited: Mapping[str, str]) -> str:
    if ref.from_env is not None:
        if ref.from_env not in inherited:
            raise MissingSecret(
                f"env {name}: the variable {ref.from_env} is not set where llmgw runs on this node: set it and restart"
            )
        return inherited[ref.from_env]
    try:
        text = Path(ref.from_file or "").expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise MissingSecret(f"env {name}: cannot read {ref.from_file} on this node: {why}") from error
    return text.rstrip("\r\n")
