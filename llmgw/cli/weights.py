"""`llmgw weights list`, `verify`, `pin`, `unpin`, and the group; `export` and `import` are `cli.archives`'."""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.archives import export, import_weights
from llmgw.cli.exits import ExitCode
from llmgw.cli.options import Admin, Json, Output, OutputFormat, State, state_root, user, wants_json

if TYPE_CHECKING:
    from llmgw.admin.shapes import HeldRow, UpkeepOutput

HOURS = 6 * 3600.0
"""Seconds that hashing may take: a node that stops telling of its work is given up on long before."""

Node = Annotated[str | None, typer.Option("--node", help="On this node alone.")]
What = Annotated[list[str], typer.Argument(metavar="WHAT...", help="Models, sources, or entries.")]


def make_app() -> typer.Typer:
    """The group."""
    app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    app.callback()(_group)
    app.command("list")(list_weights)
    app.command("verify")(verify)
    app.command("pin")(pin)
    app.command("unpin")(unpin)
    app.command("export")(export)
    app.command("import")(import_weights)
    return app


def _group() -> None:
    """List, verify, pin, export and import weights on disk.

    \b
    Example:
      llmgw weights list
      llmgw weights verify qwen
    """


def list_weights(
    state: State = None,
    admin: Admin = None,
    node: Node = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> None:
    """List the weights on every node's disk.

    \b
    Example:
      llmgw weights list --node gpu-1
    """
    from llmgw.admin.shapes import WeightsOutput
    from llmgw.cli.client import connect
    from llmgw.cli.printing import print_json, print_line, print_table

    params = {} if node is None else {"node": node}
    answer = connect(state_root(state), admin).get("weights", WeightsOutput, params)
    if wants_json(output, as_json):
        print_json(answer)
    elif not answer.entries:
        print_line("no weights lie on any node")
    else:
        headers = ("ENTRY", "NODE", "SIZE", "SOURCE", "STATE", "WANTED")
        print_table(headers, [_held(row, time.time()) for row in answer.entries])


def verify(
    what: Annotated[list[str] | None, typer.Argument(metavar="[WHAT...]", help="Models, sources or entries.")] = None,
    state: State = None,
    admin: Admin = None,
    node: Node = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> ExitCode | None:
    """Hash weights on disk and compare with what was fetched.

    Without WHAT: every cache entry. A corrupt one is set aside: nobody is served it any more, and it is fetched anew
    when it is next needed. Exit code 1: something is corrupt, or a node could not be asked.

    \b
    Example:
      llmgw weights verify
      llmgw weights verify qwen --node gpu-1
    """
    return _ask("verify", what or [], state, admin, node, output, as_json)


def pin(
    what: What,
    state: State = None,
    admin: Admin = None,
    node: Node = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> ExitCode | None:
    """Keep weights on disk, whatever the catalog says.

    \b
    Example:
      llmgw weights pin qwen
    """
    return _ask("pin", what, state, admin, node, output, as_json)


def unpin(
    what: What,
    state: State = None,
    admin: Admin = None,
    node: Node = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> ExitCode | None:
    """End `llmgw weights pin`.

    \b
    Example:
      llmgw weights unpin qwen
    """
    return _ask("unpin", what, state, admin, node, output, as_json)


def _ask(
    action: str,
    what: list[str],
    state: Path | None,
    admin: str | None,
    node: str | None,
    output: OutputFormat,
    as_json: bool,
) -> ExitCode | None:
    from llmgw.admin.shapes import UpkeepOutput, UpkeepRequest
    from llmgw.cli.client import connect
    from llmgw.cli.printing import print_json

    client = replace(connect(state_root(state), admin), timeout=HOURS)
    asked = UpkeepRequest(action=action, what=tuple(what), node=node, by=user())
    answer = client.post("weights", UpkeepOutput, asked)
    if wants_json(output, as_json):
        print_json(answer)
    else:
        _print(answer)
    fine = not answer.unreached and all(row.done for row in answer.entries)
    return None if fine else ExitCode.ERROR


def _print(answer: "UpkeepOutput") -> None:
    from llmgw.cli.printing import print_line, print_table
    from llmgw.cli.rows import short_entry
    from llmgw.cli.text import size

    done = {"verify": "as it was fetched", "pin": "pinned", "unpin": "not pinned"}[answer.action]
    if not answer.entries:
        print_line("there is no cache entry")
        return
    rows = [
        (short_entry(row.entry), row.node, size(row.size), row.source, done if row.done else row.text)
        for row in answer.entries
    ]
    print_table(("ENTRY", "NODE", "SIZE", "SOURCE", "RESULT"), rows)
    for node, why in answer.unreached.items():
        print_line(f"{node} could not be asked: {why}")


def _held(row: "HeldRow", now: float) -> tuple[str, ...]:
    from llmgw.cli.rows import short_entry
    from llmgw.cli.text import ago, size

    marks = [row.state, *(["in use"] if row.in_use else []), *([f"pinned by {row.pinned}"] if row.pinned else [])]
    if row.entry is None:
        marks[0] = "in place"
    entry = "" if row.entry is None else short_entry(row.entry)
    return (entry, row.node, size(row.size), row.source, ", ".join(marks), _wanted(row, ago(row.last_wanted, now)))


def _wanted(row: "HeldRow", last: str) -> str:
    return "now" if row.wanted else last
