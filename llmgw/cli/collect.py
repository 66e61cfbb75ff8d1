"""`llmgw collect`"""

from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.options import Admin, Json, Output, OutputFormat, State, state_root, wants_json

if TYPE_CHECKING:
    from llmgw.admin.shapes import CollectOutput


def collect(
    state: State = None,
    admin: Admin = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List only what --collect would delete.")] = False,
    delete: Annotated[bool, typer.Option("--collect", help="Delete it. Not supported yet.")] = False,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> None:
    """List weights on disk that the catalog does not want.

    Says of each whether it could be removed, or why it is kept. Deletes nothing.

    \b
    Example:
      llmgw collect
      llmgw collect --dry-run
    """
    from llmgw.admin.shapes import CollectOutput
    from llmgw.cli.client import connect
    from llmgw.cli.printing import print_json
    from llmgw.errors import TerminalError

    if delete and not dry_run:
        raise TerminalError(
            "deleting is not supported yet, and nothing was deleted; `llmgw collect --dry-run` lists what can go"
        )
    answer = connect(state_root(state), admin).get("collect", CollectOutput, {"dry_run": dry_run})
    if wants_json(output, as_json):
        print_json(answer)
    else:
        _print(answer)


def _print(answer: "CollectOutput") -> None:
    from llmgw.cli.printing import print_line, print_table
    from llmgw.cli.rows import WEIGHTS_HEADERS, weights_cells
    from llmgw.units import format_bytes

    if answer.stale:
        print_line(f"nothing is removable now: {answer.stale}")
    if answer.entries:
        print_table(WEIGHTS_HEADERS, [weights_cells(row) for row in answer.entries])
    if answer.dry_run:
        print_line(f"--collect would delete {format_bytes(answer.removable)}; nothing was deleted")
    elif not answer.entries:
        if not answer.stale:
            print_line("every cache entry is wanted by the catalog in force")
    else:
        print_line(f"{format_bytes(answer.removable)} removable, {format_bytes(answer.kept)} kept")
