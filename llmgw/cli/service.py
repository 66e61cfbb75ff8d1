"""`llmgw service`: this machine's llmgw processes as systemd services."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final

import typer

from llmgw.cli.text import clean
from llmgw.errors import TerminalError, UsageError

UNITS: Final = Path("/etc/systemd/system")
RUNNING: Final = Path("/run/systemd/system")
"""There where systemd runs the machine."""

_STOP: Final = 40  #: seconds until systemd kills what does not end; requests get 5 at the gateway
_LONG_STOP: Final = 300  #: the same, where engines are stopped too: drain time-outs are 2 minutes unless set


class Part(StrEnum):
    UP = "up"
    CONTROLLER = "controller"
    AGENT = "agent"
    GATEWAY = "gateway"


Which = Annotated[list[Part] | None, typer.Argument(metavar="[PART]...", help="Default: all that are installed.")]

_WHAT: Final = {
    Part.UP: "llmgw",
    Part.CONTROLLER: "llmgw controller",
    Part.AGENT: "llmgw agent",
    Part.GATEWAY: "llmgw gateway",
}


def make_app() -> typer.Typer:
    app = typer.Typer(rich_markup_mode=None)
    app.callback()(_root)
    app.command("install", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(install)
    app.command("status")(status)
    app.command("start")(start)
    app.command("stop")(stop)
    app.command("restart")(restart)
    return app


def _root() -> None:
    """Run llmgw's processes as services of systemd.

    \b
    Example:
      llmgw service install up /srv/catalog
      llmgw service status
    """


def install(
    context: typer.Context,
    part: Annotated[Part, typer.Argument(metavar="PART", help="up, controller, agent or gateway.")],
    print_: Annotated[bool, typer.Option("--print", help="Print the unit file, and change nothing.")] = False,
    run_as: Annotated[str | None, typer.Option("--run-as", metavar="USER", help="Default: root.")] = None,
) -> None:
    """Write a unit file for a process and have systemd start it.

    What follows is the process's own command line. Engines keep serving when the service stops or restarts.

    \b
    Example:
      llmgw service install agent --print --store etcd://etcd-1 --node gpu-1
      llmgw service install up --run-as llmgw /srv/catalog
    """
    from llmgw.cli.printing import print_line

    text = unit(part, context.args, user=run_as, program=_program())
    if print_:
        sys.stdout.write(text)
        return
    _need_systemd()
    file = UNITS / _service(part)
    try:
        file.write_text(text)
    except OSError as error:
        raise TerminalError(f"cannot write {file}: {error.strerror}; run it as root, or use --print") from error
    _systemctl("daemon-reload")
    _systemctl("enable", "--now", _service(part))
    print_line(f"wrote {file}; {_service(part)} is started, now and at boot")


def status(parts: Which = None) -> int:
    """Show this machine's llmgw services.

    \b
    Example:
      llmgw service status
    """
    _need_systemd()
    return _systemctl("status", "--no-pager", *_chosen(parts), check=False)


def start(parts: Which = None) -> None:
    """Start this machine's llmgw services.

    \b
    Example:
      llmgw service start agent
    """
    _need_systemd()
    _systemctl("start", *_chosen(parts))


def stop(parts: Which = None) -> None:
    """Stop this machine's llmgw services; engines keep serving.

    `llmgw stop` stops serving; `llmgw down` ends engines.

    \b
    Example:
      llmgw service stop gateway
    """
    _need_systemd()
    _systemctl("stop", *_chosen(parts))


def restart(parts: Which = None) -> None:
    """Restart this machine's llmgw services; engines keep serving.

    \b
    Example:
      llmgw service restart
    """
    _need_systemd()
    _systemctl("restart", *_chosen(parts))


def unit(part: Part, arguments: Sequence[str], *, user: str | None, program: Sequence[str]) -> str:
    """The unit file. KillMode=process: engines are no concern of systemd's when the service ends.
    OOMPolicy=continue: nor is one that the kernel ends for want of memory.
    StartLimitIntervalSec=0: what is in the way at boot, a name service or a disk, may take its time; a wrong command
    line (64) stays wrong. Engines that are to be stopped with the service get time to finish their requests."""
    if any(character in argument for argument in arguments for character in "\n\r"):
        raise UsageError("an argument of a service has no line breaks")
    command = " ".join(_quoted(word) for word in (*program, part, *arguments))
    who = f"User={user}\n" if user else ""
    return f"""\
[Unit]
Description={_WHAT[part]}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={command}
{who}Environment=LLMGW_STATE=/var/lib/{_state(part)}
EnvironmentFile=-/etc/llmgw/environment
StateDirectory={_state(part)}
StateDirectoryMode=0700
KillMode=process
OOMPolicy=continue
Restart=on-failure
RestartSec=2
RestartPreventExitStatus=64
TimeoutStopSec={_LONG_STOP if _stops_engines(arguments) else _STOP}
LimitNOFILE=65536

[Install]
WantedBy=multi-user.target
"""


def _stops_engines(arguments: Sequence[str]) -> bool:
    return "--on-exit=stop" in arguments or ("--on-exit", "stop") in pairwise(arguments)


def _state(part: Part) -> str:
    return "llmgw" if part in (Part.UP, Part.CONTROLLER) else f"llmgw-{part}"


def _service(part: Part) -> str:
    return f"{_state(part)}.service" if part is not Part.CONTROLLER else "llmgw-controller.service"


def _quoted(word: str) -> str:
    """As systemd reads it: `%` and `$` mean nothing."""
    plain = word.replace("%", "%%").replace("$", "$$")
    if plain and not set(plain) & set(" \t'\"\\;"):
        return plain
    escaped = plain.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _program() -> Sequence[str]:
    """By its whole path: a service's PATH is another."""
    script = Path(sys.argv[0])
    if script.name == "llmgw" and script.is_absolute() and os.access(script, os.X_OK):
        return [str(script)]
    found = shutil.which("llmgw")
    return [found] if found else [sys.executable, "-m", "llmgw"]


def _need_systemd() -> None:
    if not RUNNING.is_dir():
        raise TerminalError(
            "systemd does not run this machine: have what does start `llmgw up`, `controller`, `agent` or `gateway`; "
            "`llmgw service install PART --print` shows what the service would be"
        )


def _chosen(parts: list[Part] | None) -> list[str]:
    if parts:
        return [_service(part) for part in parts]
    found = [_service(part) for part in Part if (UNITS / _service(part)).exists()]
    if not found:
        raise TerminalError(f"no llmgw service is installed in {UNITS}: `llmgw service install PART` does that")
    return found


def _systemctl(*arguments: str, check: bool = True) -> int:
    done = subprocess.run(["systemctl", *arguments], check=False)
    if check and done.returncode != 0:
        raise TerminalError(f"systemctl {clean(' '.join(arguments))} failed (exit code {done.returncode})")
    return done.returncode
