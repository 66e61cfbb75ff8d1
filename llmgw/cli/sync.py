"""`llmgw sync`"""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.exits import ExitCode
from llmgw.cli.options import Admin, Json, Output, OutputFormat, State, duration, state_root, wants_json

if TYPE_CHECKING:
    from llmgw.admin.syncs import SyncOutput


def sync(
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="How long to wait for it. 0: not at all.")
    ] = "60s",
    weights: Annotated[
        bool, typer.Option("--weights", help="Also take up what branches and tags of weights are at now.")
    ] = False,
    state: State = None,
    admin: Admin = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> int:
    """Look at the catalog's source now, and tell what came of it.

    Waits until what the daemon finds there is in force, or refused. Exit 1 when the source cannot be read or the time
    is up, 3 when the catalog there is invalid.

    \b
    Example:
      llmgw sync
      llmgw sync --timeout 5m
      llmgw sync --weights
    """
    from llmgw.admin.syncs import SyncOutput, SyncRequest
    from llmgw.cli.client import connect
    from llmgw.cli.printing import print_json

    patience = duration(timeout, "--timeout")
    client = connect(state_root(state), admin)
    client = replace(client, timeout=client.timeout + patience)
    answer = client.post("sync", SyncOutput, SyncRequest(patience=patience, weights=weights))
    if wants_json(output, as_json):
        print_json(answer)
    else:
        _print(answer, asked_only=patience == 0)
    if answer.done and answer.problems:
        return ExitCode.INVALID_CATALOG
    failed = answer.error is not None if answer.done else patience > 0
    return ExitCode.ERROR if failed else ExitCode.FINE


def _print(answer: "SyncOutput", *, asked_only: bool) -> None:
    """What is wrong on stdout, as `llmgw status` has it; what to do about it on stderr."""
    from llmgw.admin.views import count
    from llmgw.cli.printing import note, print_line
    from llmgw.cli.rows import problem_line
    from llmgw.cli.text import short_revision

    if asked_only:
        print_line(f"asked: {answer.source} is looked at now")
        return
    if not answer.done:
        note(f"{answer.source} is still being looked at: `llmgw status` shows what comes of it")
        return
    if answer.error is not None:
        print_line(answer.error)
        return
    for problem in answer.problems:
        print_line(problem_line(problem))
    if answer.problems:
        note(f"{count(len(answer.problems), 'problem')}: {short_revision(answer.applied)} stays in force")
    elif answer.held is not None:
        print_line(f"held: {short_revision(answer.attempted)}: {answer.held.message}")
    elif answer.attempted == answer.applied:
        print_line(f"in force: {short_revision(answer.applied)}")
    else:
        print_line(f"not in force yet: {short_revision(answer.attempted)}; `llmgw status` says why")
