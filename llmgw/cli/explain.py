"""`llmgw explain`"""

import time
from typing import Annotated

import typer

from llmgw.cli.options import Admin, Json, Output, OutputFormat, State, state_root, wants_json


def explain(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Its name or an alias.")],
    state: State = None,
    admin: Admin = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> None:
    """Tell a model's whole story, and what to do.

    What it is wanted for and how often, where it runs and on each other node why not, its memory, weights, failures and
    what they led to.

    \b
    Example:
      llmgw explain qwen3-8b
      llmgw explain default --json | jq -r '.advice[]'
    """
    from llmgw.admin.stories import ExplainOutput
    from llmgw.cli.client import connect
    from llmgw.cli.printing import print_json, print_line
    from llmgw.cli.story import story

    answer = connect(state_root(state), admin).get("explain", ExplainOutput, {"model": model})
    if wants_json(output, as_json):
        print_json(answer)
        return
    for line in story(answer, time.time()):
        print_line(line)
