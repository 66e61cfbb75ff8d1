"""`llmgw stop` and `llmgw start`: the operator's switch."""

import time

from llmgw.cli.options import Admin, Json, Output, OutputFormat, State, state_root, user, wants_json


def stop(state: State = None, admin: Admin = None, output: Output = OutputFormat.TABLE, as_json: Json = False) -> None:
    """Stop serving until `llmgw start`.

    Every engine ends and requests are answered 503. The daemon stays, and the switch outlives it.

    \b
    Example:
      llmgw stop
    """
    from llmgw.admin.shapes import StopRequest, SwitchOutput
    from llmgw.cli.client import connect
    from llmgw.cli.printing import print_json, print_line
    from llmgw.cli.text import ago

    answer = connect(state_root(state), admin).post("stop", SwitchOutput, StopRequest(by=user()))
    if wants_json(output, as_json):
        print_json(answer)
    elif answer.changed or answer.stopped is None:
        print_line("stopped: engines are ending, and every request is answered 503; `llmgw start` serves again")
    else:
        since = ago(answer.stopped.at, time.time())
        print_line(f"already stopped, {since} by {answer.stopped.by}; `llmgw start` serves again")


def start(state: State = None, admin: Admin = None, output: Output = OutputFormat.TABLE, as_json: Json = False) -> None:
    """Serve again after `llmgw stop`.

    \b
    Example:
      llmgw start
    """
    from llmgw.admin.shapes import SwitchOutput
    from llmgw.cli.client import connect
    from llmgw.cli.printing import print_json, print_line

    answer = connect(state_root(state), admin).post("start", SwitchOutput, {})
    if wants_json(output, as_json):
        print_json(answer)
    elif answer.changed:
        print_line("started: models are loading; `llmgw status` shows how far they are")
    else:
        print_line("not stopped: nothing to do")
