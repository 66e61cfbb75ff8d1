"""`llmgw status`"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.exits import ExitCode
from llmgw.cli.options import Admin, Json, Output, OutputFormat, State, duration, state_root, wants_json

if TYPE_CHECKING:
    from llmgw.admin.shapes import CatalogRow, StatusOutput
    from llmgw.cli.client import AdminClient


Wait = Annotated[
    str | None,
    typer.Option("--wait", metavar="REVISION", help="Wait until this revision is served, or will not be: then exit 1."),
]
Timeout = Annotated[str, typer.Option("--timeout", metavar="TIME", help="How long to wait at most.")]


def status(
    wait: Wait = None,
    timeout: Timeout = "10m",
    state: State = None,
    admin: Admin = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> int:
    """Show what is served, and why something is not.

    With --wait it is shown once the revision is in force and all its models are ready, or it is clear that they will
    not be: it is invalid or held, a model failed, or a newer revision came.

    \b
    Example:
      llmgw status
      llmgw status --wait HEAD --timeout 5m
      llmgw status --json | jq '.catalog | .attempted == .applied'
    """
    from llmgw.admin.shapes import StatusOutput
    from llmgw.cli.client import connect
    from llmgw.cli.printing import note, print_json
    from llmgw.cli.settling import settled

    seconds = duration(timeout, "--timeout")
    client = connect(state_root(state), admin)
    outcome = settled(client, _digits(client, wait), seconds) if wait is not None else None
    answer = outcome.status if outcome is not None else client.get("status", StatusOutput)
    if wants_json(output, as_json):
        print_json(answer)
    else:
        _print(answer, time.time())
    if outcome is None or outcome.trouble is None:
        return ExitCode.FINE
    note(f"llmgw: {outcome.trouble}")
    return ExitCode.ERROR


def _digits(client: "AdminClient", asked: str) -> str:
    """Of the revision to wait for; says which that is, where it was named otherwise."""
    from llmgw.admin.shapes import StatusOutput
    from llmgw.cli.printing import note
    from llmgw.cli.settling import meant

    digits = meant(asked, client.get("status", StatusOutput).catalog.source, Path.cwd())
    if digits != asked:
        note(f"llmgw: waiting for {digits[:12]}, which is {asked}")
    return digits


def _print(answer: "StatusOutput", now: float) -> None:
    from llmgw.cli.printing import print_line, print_table
    from llmgw.cli.rows import MODEL_HEADERS, NODE_HEADERS, missing_engines, model_cells, node_cells

    for line in _head(answer, now):
        print_line(line)
    if answer.models:
        print_line("")
        print_table(MODEL_HEADERS, [model_cells(row, now) for row in answer.models])
    if answer.nodes:
        print_line("")
        print_table(NODE_HEADERS, [node_cells(row, now) for row in answer.nodes])
    # An engine that no model uses is no news, however little of it there is.
    for line in missing_engines(answer.nodes, {row.engine for row in answer.models if row.engine}):
        print_line(line)


def _head(answer: "StatusOutput", now: float) -> Iterator[str]:
    from llmgw.catalog.spec import ClusterSpec
    from llmgw.cli.text import ago

    if answer.cluster not in (None, ClusterSpec().name):
        yield f"cluster      {answer.cluster}"
    yield from _member_lines(answer, now)
    yield from _catalog_lines(answer.catalog, now)
    if answer.stopped is not None:
        since = ago(answer.stopped.at, now)
        yield f"stopped      {since} by {answer.stopped.by}; `llmgw start` serves again"
    for condition in answer.catalog.conditions:
        why = ": ".join(filter(None, (condition.reason, condition.message)))
        holds = "yes" if condition.status else "no"
        yield f"{condition.type:<12} {holds:<3} {why}".rstrip()
    if answer.unknown_nodes:
        known = ", ".join(node.name for node in answer.nodes)
        names = ", ".join(answer.unknown_nodes)
        yield f"nodes        the catalog has settings for {names}, but only {known} reported: is a name misspelt?"
    if answer.catalog.applied is not None and not answer.models:
        yield "models       none in the catalog"


def _member_lines(answer: "StatusOutput", now: float) -> Iterator[str]:
    """The processes of a fleet; none of `llmgw up`, which is all of them."""
    from llmgw.cli.text import ago

    fleet = [row for row in answer.members if row.role != "up"]
    if not fleet:
        return
    controllers = [row for row in fleet if row.role == "controller"]
    leader = next((row for row in controllers if row.state == "leads"), None)
    if leader is None:
        yield "leader       none: nothing new is decided, and what serves goes on"
    else:
        yield f"leader       {leader.name} on {leader.host}, since {ago(leader.since, now)}"
    others = [
        ("standbys", [f"{row.name} on {row.host} ({ago(row.since, now)})" for row in controllers if row is not leader]),
        ("gateways", [f"{row.name} {row.serves} ({ago(row.since, now)})" for row in fleet if row.role == "gateway"]),
        ("agents", [f"{row.name} ({ago(row.since, now)})" for row in fleet if row.role == "agent"]),
    ]
    for what, names in others:
        yield f"{what:<12} {', '.join(names) or 'none'}"
    silent = sorted({node.name for node in answer.nodes} - {row.name for row in fleet if row.role == "agent"})
    if silent:
        yield f"silent       the agents of {', '.join(silent)} are gone: what they run is placed elsewhere later"


def _catalog_lines(catalog: "CatalogRow", now: float) -> Iterator[str]:
    from llmgw.cli.rows import problem_line
    from llmgw.cli.text import ago, short_revision

    yield f"catalog      {catalog.source or 'not read yet'}"
    if catalog.applied is None:
        yield "applied      none: no catalog is in force"
    else:
        yield f"applied      {short_revision(catalog.applied)} {ago(catalog.applied_at, now)}".rstrip()
    if catalog.error is not None:
        yield f"unreadable   {catalog.error}"
    if catalog.problems or catalog.attempted != catalog.applied:
        verdict = "invalid, so the applied one stays in force" if catalog.problems else "not applied"
        verdict = f"held: {catalog.held.message}" if catalog.held is not None else verdict
        if catalog.problems and catalog.applied is None:
            verdict = "invalid"
        yield f"attempted    {short_revision(catalog.attempted)} is {verdict}"
    for problem in catalog.problems:
        yield f"  {problem_line(problem)}"
    if catalog.pinned is not None:
        to, since = short_revision(catalog.pinned.revision), ago(catalog.pinned.at, now)
        yield f"rolled back  to {to}, {since} by {catalog.pinned.by}; `llmgw resume` follows the catalog again"
    if catalog.suspended is not None:
        since = ago(catalog.suspended.at, now)
        yield f"suspended    {since} by {catalog.suspended.by}; `llmgw resume` follows the catalog again"
    if catalog.watcher not in (None, "ok"):
        yield f"watcher      {catalog.watcher}"
