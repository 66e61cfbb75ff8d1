"""`llmgw restart`: every process begins anew, one after another; engines keep serving."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from llmgw.cli.options import Admin, Json, Output, OutputFormat, State, state_root, user, wants_json
from llmgw.errors import LlmgwError, TerminalError

if TYPE_CHECKING:
    from llmgw.admin.shapes import MemberRow
    from llmgw.cli.client import AdminClient

PATIENCE: Final = 60.0
"""Seconds for one process to be back."""

POLL: Final = 0.2


class NotBack(TerminalError):
    """A process did not come back; those after it were left as they are."""


def restart(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Only processes of this name: a node's, say. Default: all.")
    ] = None,
    state: State = None,
    admin: Admin = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> None:
    """Have every process begin anew; engines keep serving.

    Agents first, then gateways, controllers that stand by, and last the one that leads. Each must be back before the
    next begins. So an upgrade is put to use.

    \b
    Example:
      llmgw restart
      llmgw restart gpu-1
    """
    from llmgw.admin.members import MembersOutput
    from llmgw.cli.printing import note, print_json, print_line

    root = state_root(state)
    client = _reach(root, admin)
    members = [row for row in client.get("members", MembersOutput).members if name in (None, row.name)]
    if not members:
        raise TerminalError(f"no process is named {name}; `llmgw status` lists them" if name else "no process is known")
    done = []
    for row in sorted(members, key=lambda row: row.url == client.url):  # who answers us last of all
        note(f"restarting {row.role} {row.name}")
        done.append(_restart_one(root, admin, row))
    if wants_json(output, as_json):
        print_json(MembersOutput(members=tuple(done)))
    else:
        what = "1 process" if len(done) == 1 else f"{len(done)} processes"
        print_line(f"restarted {what}; engines kept serving")


def _restart_one(root: Path, admin: str | None, row: "MemberRow") -> "MemberRow":
    """Order it, and wait for its next instance. Raises NotBack."""
    from llmgw.admin.members import MembersOutput, RestartRequest

    order = RestartRequest(role=row.role, name=row.name, instance=row.instance, by=user())
    _reach(root, admin).post("restart", MembersOutput, order)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        time.sleep(POLL)
        try:
            members = _reach(root, admin, patience=1).get("members", MembersOutput).members
        except LlmgwError:  # the one that we ask begins anew itself
            continue
        for found in members:
            if (found.role, found.name) == (row.role, row.name) and found.instance != row.instance:
                return found
    raise NotBack(
        f"{row.role} {row.name} on {row.host} (pid {row.pid}) did not come back within {PATIENCE:.0f} s: look at its "
        "log there; what comes after it was left as it is"
    )


def _reach(root: Path, admin: str | None, *, patience: float = PATIENCE) -> "AdminClient":
    """A process that has just begun anew may have another address. Raises DaemonUnreachable."""
    from llmgw.cli.client import DaemonUnreachable, connect

    deadline = time.monotonic() + patience
    while True:
        try:
            return connect(root, admin)
        except DaemonUnreachable:
            if time.monotonic() > deadline or admin is not None:
                raise
            time.sleep(POLL)
