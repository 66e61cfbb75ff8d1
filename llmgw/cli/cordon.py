"""`llmgw cordon`, `llmgw drain` and `llmgw uncordon`: the operator's word on a node."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.options import Admin, Json, Output, OutputFormat, State, state_root, user, wants_json

if TYPE_CHECKING:
    from llmgw.admin.shapes import CordonOutput

Node = Annotated[str, typer.Argument(metavar="NODE", help="Its name, as `llmgw nodes` has it.")]


def cordon(
    node: Node,
    state: State = None,
    admin: Admin = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> None:
    """Start nothing new on a node. What runs there stays.

    \b
    Example:
      llmgw cordon gpu-1
    """
    answer = _cordon(node, state, admin, drain=False)
    _print(answer, "cordoned: nothing new is started there; what runs there stays", output, as_json)


def drain(
    node: Node,
    state: State = None,
    admin: Admin = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> None:
    """Empty a node: what runs there moves to where it fits.

    Nothing new is started there. Requests under way are answered first; what fits nowhere else stops. It returns at
    once.

    \b
    Example:
      llmgw drain gpu-1
    """
    from llmgw.admin.views import count

    answer = _cordon(node, state, admin, drain=True)
    left = f"{count(answer.replicas, 'replica')} there" if answer.replicas else "nothing is there"
    moves = f"{left}; `llmgw events -f` shows how it goes" if answer.replicas else left
    _print(answer, f"being drained: {moves}", output, as_json)


def uncordon(
    node: Node,
    state: State = None,
    admin: Admin = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> None:
    """Take a node back into use after a cordon or a drain.

    \b
    Example:
      llmgw uncordon gpu-1
    """
    from llmgw.admin.shapes import CordonOutput, UncordonRequest
    from llmgw.cli.client import connect
    from llmgw.cli.printing import print_json, print_line

    answer = connect(state_root(state), admin).post("uncordon", CordonOutput, UncordonRequest(node=node, by=user()))
    if wants_json(output, as_json):
        print_json(answer)
    elif answer.changed:
        print_line(f"{answer.node} is in use again")
    else:
        print_line(f"{answer.node} was not cordoned: nothing to do")


def _cordon(node: str, state: Path | None, admin: str | None, *, drain: bool) -> "CordonOutput":
    from llmgw.admin.shapes import CordonOutput, CordonRequest
    from llmgw.cli.client import connect

    client = connect(state_root(state), admin)
    return client.post("cordon", CordonOutput, CordonRequest(node=node, by=user(), drain=drain))


def _print(answer: "CordonOutput", done: str, output: OutputFormat, as_json: bool) -> None:
    from llmgw.cli.printing import print_json, print_line
    from llmgw.cli.text import ago

    if wants_json(output, as_json):
        print_json(answer)
        return
    already = ""
    if not answer.changed and answer.cordon is not None:
        already = f" (since {ago(answer.cordon.at, time.time())}, by {answer.cordon.by})"
    print_line(f"{answer.node} is {done}{already}; `llmgw uncordon {answer.node}` takes it back into use")
