"""`llmgw events`"""

import time
from typing import Annotated

import typer

from llmgw.cli.options import Admin, Json, Output, OutputFormat, State, state_root, wants_json


def events(
    state: State = None,
    admin: Admin = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="At most so many, the newest.")] = 50,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> None:
    """Show what happened and what was decided, oldest first.

    Since the daemon started; the last 1000 are kept.

    \b
    Example:
      llmgw events -n 20
    """
    from llmgw.admin.shapes import EventsOutput
    from llmgw.cli.client import connect
    from llmgw.cli.printing import print_json, print_line, print_table
    from llmgw.cli.rows import EVENT_HEADERS, event_cells

    answer = connect(state_root(state), admin).get("events", EventsOutput, {"limit": limit})
    if wants_json(output, as_json):
        print_json(answer)
    elif not answer.events:
        print_line("nothing has happened since the daemon started")
    else:
        print_table(EVENT_HEADERS, [event_cells(row, time.time()) for row in answer.events])
