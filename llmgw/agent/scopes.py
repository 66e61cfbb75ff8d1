"""Where systemd runs, each engine gets a transient scope: a control group of its own, apart from llmgw's unit.

`systemd-run --scope` registers its own process and then becomes the program that it was given, so the pid that was
started stays the engine's, with its environment, session and log. Elsewhere engines are plain processes, and the unit's
`KillMode=process` lets them live on.
"""

import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llmgw.agent import cgroups
from llmgw.ids import ModelName, ReplicaId

BOOTED: Final = Path("/run/systemd/system")  #: there where systemd is the init system: sd_booted(3)
FAILED: Final = "Failed to start transient scope unit"  #: how systemd-run begins to say that there is no scope
_PATIENCE: Final = 5.0  #: seconds for a scope to be had


def _limited() -> bool:
    return any(True for _ in cgroups.limits(cgroups.CGROUPS, cgroups.membership()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scopes:
    """Words to put before an engine's command line; none where scopes are not to be had, and `why`."""

    command: tuple[str, ...] = ()
    why: str = "not looked for"

    def before(self, replica: ReplicaId, model: ModelName) -> tuple[str, ...]:
        """Another name at each start: the scope of the one before may not be gone yet."""
        if not self.command:
            return ()
        unit = f"--unit=llmgw-{replica}-{secrets.token_hex(4)}"
        return (*self.command, unit, f"--description=llmgw: {model}", "--")


def look(
    *,
    booted: Path = BOOTED,
    root: bool | None = None,
    limited: Callable[[], bool] = _limited,
    path: str | None = None,
) -> Scopes:
    """Whether a scope can be had here: one is. Blocking, some 5 s at most.

    Of the system's manager alone: scopes of a user's end when the user logs out, which plain processes need not.
    """
    if not booted.is_dir():
        return Scopes(why="systemd does not run here")
    if not (os.geteuid() == 0 if root is None else root):
        return Scopes(why="only root may make them")
    if limited():
        return Scopes(why="the memory of llmgw's control group is limited, and engines are to stay within")
    program = shutil.which("systemd-run", path=path)
    if program is None:
        return Scopes(why="there is no systemd-run")
    command = (program, "--scope", "--quiet", "--collect", "--no-ask-password")
    # From 254 on it can replace ${NAME} in arguments, and means to do so by default one day.
    for each in ((*command, "--expand-environment=no"), command):
        found = Scopes(command=each, why="")
        failed = _try(found)
        if failed is None:
            return found
    return Scopes(why=failed or "")


def _try(scopes: Scopes) -> str | None:
    argv = [*scopes.before(ReplicaId("check"), ModelName("check")), shutil.which("true") or "/bin/true"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"systemd-run does not work: {error}"
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return None if done.returncode == 0 else f"systemd-run fails: {said[-1] if said else done.returncode}"


def has_program(argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether there is what a scope would have to become: its own failure is hard to tell from an engine's."""
    name = argv[0]
    if os.sep in name and not name.startswith(os.sep):
        return True  # relative to the engine's own directory
    return shutil.which(name, path=env.get("PATH", os.defpath)) is not None
