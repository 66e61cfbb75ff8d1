"""Options that commands share, and what they mean."""

import getpass
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from llmgw.errors import TerminalError, UsageError
from llmgw.units import parse_seconds


class OutputFormat(StrEnum):
    TABLE = "table"
    JSON = "json"


State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        readable=False,
        envvar="LLMGW_STATE",
        metavar="DIR",
        help="The daemon's state directory. Default: $XDG_STATE_HOME/llmgw, else ~/.local/state/llmgw.",
    ),
]
Admin = Annotated[
    str | None,
    typer.Option("--admin", metavar="URL", help="Ask a daemon elsewhere; its token comes from LLMGW_TOKEN."),
]
Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="What to print on stdout.")]
Json = Annotated[bool, typer.Option("--json", help="The same as -o json: one JSON object.")]


def state_root(given: Path | None) -> Path:
    """The state directory: the option or LLMGW_STATE, else the place the XDG specification names."""
    if given is not None:
        return given.expanduser().absolute()
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    # The specification: a relative path is invalid and to be ignored.
    root = base if base.is_absolute() else Path("~/.local/state").expanduser()
    return root / "llmgw"


def wants_json(output: OutputFormat, as_json: bool) -> bool:
    return as_json or output is OutputFormat.JSON


def user() -> str:
    """Who throws a switch, as others are told."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no such user in the password file, as in some containers
        return "someone"


def address(text: str, option: str) -> tuple[str, int]:
    """`127.0.0.1:8080`, `[::1]:8080`, `localhost:8080`; port 0: any free one. Raises UsageError."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(f"{option} {text}: write an IPv6 address in brackets, such as [::1]:8080")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{option} {text}: write an address and a port, such as 127.0.0.1:8080")
    return host, int(port)


def port_range(text: str) -> range:
    """`LO-HI`, both included. Raises UsageError."""
    low, dash, high = text.partition("-")
    if not dash or not low.isdecimal() or not high.isdecimal() or not 1 <= int(low) <= int(high) <= 65535:
        raise UsageError(f"--engine-ports {text}: write a first and a last port, such as 21000-21999")
    return range(int(low), int(high) + 1)


def duration(text: str, option: str) -> float:
    """`60s`, `5m`, `0`. Raises UsageError."""
    try:
        return 0.0 if text == "0" else parse_seconds(text)
    except ValueError as error:
        raise UsageError(f"{option} {text}: {error}") from error


def refuse_windows(platform: str = sys.platform) -> None:
    """Raises TerminalError on native Windows: detached engines, their signals and locks need POSIX."""
    if platform == "win32":
        raise TerminalError("llmgw serves models on Linux and macOS; on Windows run it inside WSL2")
