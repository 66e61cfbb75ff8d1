"""`llmgw rollback` and `llmgw history`: back to what was in force before."""

import time
from typing import Annotated

import typer

from llmgw.cli.options import Admin, Json, Output, OutputFormat, State, state_root, user, wants_json

Revision = Annotated[
    str | None,
    typer.Argument(metavar="REVISION", help="As `llmgw history` shows it, or git knows it. Default: the one before."),
]


def rollback(
    revision: Revision = None,
    state: State = None,
    admin: Admin = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> None:
    """Go back to an earlier revision until `llmgw resume`.

    Newer revisions are read and validated, and wait. It holds across restarts. The repository is not changed.

    \b
    Example:
      llmgw rollback
      llmgw rollback 86613e714b63
    """
    from llmgw.admin.orders import OrderOutput, RevisionRequest
    from llmgw.cli.approve import settled
    from llmgw.cli.client import connect
    from llmgw.cli.printing import print_json, print_line
    from llmgw.cli.text import short_revision

    client = connect(state_root(state), admin)
    asked = RevisionRequest(revision=revision, by=user())
    answer = settled(client, client.post("rollback", OrderOutput, asked))
    if wants_json(output, as_json):
        print_json(answer)
        return
    short = short_revision(answer.revision)
    if not answer.changed:
        print_line(f"rolled back to {short} already: nothing to do; `llmgw resume` follows the catalog again")
    elif answer.catalog.applied == answer.revision:
        print_line(f"{short} is in force, and stays so; `llmgw resume` follows the catalog again")
    else:
        print_line(f"rolling back to {short}; `llmgw status` shows how it comes into force")


def history(
    state: State = None, admin: Admin = None, output: Output = OutputFormat.TABLE, as_json: Json = False
) -> None:
    """List the revisions that were in force, the newest last.

    \b
    Example:
      llmgw history
    """
    from llmgw.admin.orders import HistoryOutput
    from llmgw.cli.client import connect
    from llmgw.cli.printing import print_json, print_line, print_table
    from llmgw.cli.text import ago, short_revision

    answer = connect(state_root(state), admin).get("history", HistoryOutput)
    if wants_json(output, as_json):
        print_json(answer)
        return
    now = time.time()
    rows = [
        (
            str(row.number),
            short_revision(row.revision),
            ago(row.at, now),
            str(row.models),
            "yes" if row.in_force else "",
        )
        for row in answer.entries
    ]
    if rows:
        print_table(("NUMBER", "REVISION", "SINCE", "MODELS", "IN FORCE"), rows)
    else:
        print_line("no catalog was in force yet")


def _mark(holds: bool) -> str:
    return "yes" if holds else ""
