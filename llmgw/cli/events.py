"""`llmgw events`"""

import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from llmgw.cli.options import Admin, Json, Output, OutputFormat, State, state_root, wants_json

if TYPE_CHECKING:
    from llmgw.admin.shapes import EventRow
    from llmgw.cli.client import AdminClient

POLL: Final = 0.5  #: seconds between looks while following


def events(
    state: State = None,
    admin: Admin = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="At most so many, the newest.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as things happen, until Ctrl-C.")] = False,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> None:
    """Show what happened and what was decided, oldest first.

    Since the daemon started; the last 1000 are kept.

    \b
    Example:
      llmgw events -n 20
      llmgw events -f --json | jq -r 'select(.reason == "failed") | .message'
    """
    from llmgw.admin.shapes import EventsOutput
    from llmgw.cli.client import connect
    from llmgw.cli.printing import print_json, print_line, print_table
    from llmgw.cli.rows import EVENT_HEADERS, event_cells

    client = connect(state_root(state), admin)
    if follow:
        _follow(client, limit, as_json=wants_json(output, as_json))
        return
    answer = client.get("events", EventsOutput, {"limit": limit})
    if wants_json(output, as_json):
        print_json(answer)
    elif not answer.events:
        print_line("nothing has happened since the daemon started")
    else:
        print_table(EVENT_HEADERS, [event_cells(row, time.time()) for row in answer.events])


def _follow(client: "AdminClient", limit: int, *, as_json: bool) -> None:
    """The last `limit`, then each new one. Ends with the daemon: raises DaemonUnreachable."""
    from llmgw.admin.shapes import EventsOutput

    newest = 0
    while True:
        answer = client.get("events", EventsOutput, {"limit": limit, "after": newest})
        for row in answer.events:
            _print_one(row, as_json=as_json)
        newest, limit = max([newest, *(row.number for row in answer.events)]), 1000
        time.sleep(POLL)


def _print_one(row: "EventRow", *, as_json: bool) -> None:
    """A line that is true for ever: a time of day, not an age."""
    import sys

    from llmgw.cli.printing import print_json_line, print_line

    if as_json:
        print_json_line(row)
    else:
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.at))
        print_line(f"{clock}  {row.subject}  {row.reason}" + (f": {row.message}" if row.message else ""))
    sys.stdout.flush()
