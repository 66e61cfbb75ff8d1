"""`llmgw collect`"""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.exits import ExitCode
from llmgw.cli.options import Admin, Json, Output, OutputFormat, State, duration, state_root, user, wants_json

if TYPE_CHECKING:
    from llmgw.admin.shapes import CollectOutput

TIMEOUT = 600.0
"""Seconds for the nodes: a node tells every 2 s that it is at work, and is given up on without."""


def collect(
    state: State = None,
    admin: Admin = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List exactly what --collect would delete.")] = False,
    delete: Annotated[bool, typer.Option("--collect", help="Delete what is removable.")] = False,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="AGE", help="Instead of the catalog's min_age: 7d, 0s.")
    ] = None,
    keep_revisions: Annotated[
        int | None, typer.Option("--keep-revisions", metavar="N", min=0, help="Instead of the catalog's.")
    ] = None,
    node: Annotated[str | None, typer.Option("--node", help="On this node alone.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Only what this model wants or wanted.")] = None,
    plan_id: Annotated[
        str | None, typer.Option("--plan-id", metavar="ID", help="Delete only if the list still is the one of this id.")
    ] = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> ExitCode | None:
    """List or remove weights that the catalog does not want.

    Says of each whether it can go, or why it is kept. Only with --collect is anything deleted, and each node looks
    again for itself. Exit code 1: a node could not be asked, or the list is not the one of --plan-id.

    \b
    Example:
      llmgw collect
      llmgw collect --dry-run --older-than 7d
      llmgw collect --collect --older-than 7d --plan-id 1f0c2e9a77b3
    """
    from llmgw.admin.shapes import CollectOutput, CollectRequest
    from llmgw.cli.client import connect
    from llmgw.cli.printing import print_json
    from llmgw.errors import UsageError

    if plan_id is not None and not delete:
        raise UsageError("--plan-id goes with --collect: it says which list was agreed to")
    age = None if older_than is None else duration(older_than, "--older-than")
    client = replace(connect(state_root(state), admin), timeout=TIMEOUT)
    if delete and not dry_run:
        asked = CollectRequest(
            older_than=age, keep_revisions=keep_revisions, node=node, model=model, plan_id=plan_id, by=user()
        )
        answer = client.post("collect", CollectOutput, asked)
    else:
        given = {"older_than": age, "keep_revisions": keep_revisions, "node": node, "model": model}
        said = {name: str(value) for name, value in given.items() if value is not None}
        answer = client.get("collect", CollectOutput, {"dry_run": dry_run, **said})
    if wants_json(output, as_json):
        print_json(answer)
    else:
        _print(answer)
    return ExitCode.ERROR if answer.unreached else None


def _print(answer: "CollectOutput") -> None:
    from llmgw.cli.printing import print_line, print_table
    from llmgw.cli.rows import WEIGHTS_HEADERS, weights_cells
    from llmgw.units import format_bytes

    if answer.stale:
        print_line(f"nothing is removable now: {answer.stale}")
    if answer.entries:
        print_table(WEIGHTS_HEADERS, [weights_cells(row) for row in answer.entries])
    for node, why in answer.unreached.items():
        print_line(f"{node} could not be asked: {why}")
    if answer.unlisted:
        print_line(f"{answer.unlisted} more on disk are not listed yet: these go first; then ask again")
    if answer.collected:
        refused = f", {answer.refused} refused" if answer.refused else ""
        print_line(f"{len(answer.entries)} asked for, {format_bytes(answer.removed)} removed{refused}")
    elif answer.dry_run:
        print_line(f"--collect would delete {format_bytes(answer.removable)}; nothing was deleted")
        if answer.entries:
            print_line(f"to delete just these: the same with --collect --plan-id {answer.plan_id} for --dry-run")
    elif not answer.entries:
        if not answer.stale:
            print_line("every cache entry is wanted by the catalog in force")
    else:
        print_line(f"{format_bytes(answer.removable)} removable, {format_bytes(answer.kept)} kept")
