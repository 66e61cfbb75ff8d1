"""`llmgw down`"""

from llmgw.cli.options import Json, Output, OutputFormat, State, state_root, wants_json


def down(state: State = None, output: Output = OutputFormat.TABLE, as_json: Json = False) -> None:
    """End the daemon and every engine of a state directory.

    Works without a running daemon.

    \b
    Example:
      llmgw down
      llmgw down --state /var/lib/llmgw
    """
    from llmgw.admin.shapes import DownOutput
    from llmgw.agent.owned import end_owned, has_daemon
    from llmgw.cli import logs
    from llmgw.cli.printing import note, print_json, print_line
    from llmgw.statedir import StateDir

    logs.configure()
    root = state_root(state)
    daemon = root.is_dir() and has_daemon(StateDir(root))
    ended = end_owned(StateDir(root), note) if root.is_dir() else 0
    if wants_json(output, as_json):
        print_json(DownOutput(ended=ended, daemon=daemon))
    elif ended:
        print_line(f"ended {ended} {'engine' if ended == 1 else 'engines'} of {root}")
    elif daemon:
        print_line(f"ended the daemon of {root}; no engine of it was left running")
    else:
        print_line(f"nothing of {root} was running")
