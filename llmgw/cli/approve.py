"""`llmgw approve` and `llmgw apply`: a revision that waits for a person comes into force."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from llmgw.cli.options import Admin, Json, Output, OutputFormat, State, state_root, user, wants_json

if TYPE_CHECKING:
    from llmgw.admin.orders import OrderOutput
    from llmgw.cli.client import AdminClient

PATIENCE: Final = 10.0  #: seconds that a revision may take to come into force before the command ends without it
POLL: Final = 0.1  #: seconds between two looks

Named = Annotated[str, typer.Argument(metavar="REVISION", help="The one that waits, as `llmgw status` shows it.")]
Maybe = Annotated[
    str | None, typer.Argument(metavar="REVISION", help="The one that waits, to be sure that it is meant.")
]


def approve(
    revision: Named,
    state: State = None,
    admin: Admin = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> None:
    """Approve a revision that is held for what it removes.

    It names the revision, so that none is approved that came meanwhile. With `sync: manual` it applies it too.

    \b
    Example:
      llmgw approve 3f2a9c41d07b
    """
    _order("approve", revision, state, admin, output, as_json)


def apply(
    revision: Maybe = None,
    state: State = None,
    admin: Admin = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> None:
    """Put the newest revision in force (`sync: manual`).

    For catalogs that say that each revision waits. `llmgw plan` shows before what that would do.

    \b
    Example:
      llmgw apply
    """
    _order("apply", revision, state, admin, output, as_json)


def _order(
    what: str, revision: str | None, state: Path | None, admin: str | None, output: OutputFormat, as_json: bool
) -> None:
    from llmgw.admin.orders import OrderOutput, RevisionRequest
    from llmgw.cli.client import connect
    from llmgw.cli.printing import print_json, print_line
    from llmgw.cli.text import short_revision

    client = connect(state_root(state), admin)
    answer = client.post(what, OrderOutput, RevisionRequest(revision=revision, by=user()))
    done = settled(client, answer)
    if wants_json(output, as_json):
        print_json(done)
        return
    short = short_revision(done.revision)
    if not done.changed:
        print_line(f"{short} is in force already: nothing to do")
    elif done.catalog.applied == done.revision:
        print_line(f"{short} is in force; `llmgw status` shows how its models fare")
    elif done.catalog.held is not None:
        print_line(f"{short} is approved, and still held: {done.catalog.held.message}")
    else:
        print_line(f"{short} is approved; `llmgw status` shows how it comes into force")


def settled(client: "AdminClient", answer: "OrderOutput") -> "OrderOutput":
    """With the catalog as it stands once its revision is in force, or when patience ends."""
    from dataclasses import replace

    from llmgw.admin.shapes import StatusOutput

    deadline = time.monotonic() + PATIENCE
    while answer.changed and answer.catalog.applied != answer.revision and time.monotonic() < deadline:
        time.sleep(POLL)
        answer = replace(answer, catalog=client.get("status", StatusOutput).catalog)
    return answer
