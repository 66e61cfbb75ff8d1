"""`llmgw plan`"""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from llmgw.cli.exits import ExitCode
from llmgw.cli.followed import ask_for, is_here, read_here
from llmgw.cli.options import Admin, Json, Output, OutputFormat, State, state_root, wants_json

if TYPE_CHECKING:
    from llmgw.admin.plans import PlanOutput
    from llmgw.catalog.load import Loaded
    from llmgw.engine.manager import Engines

PATIENCE: Final = 120.0
"""Seconds for an answer: thousands of replicas take some to think through."""

FleetFile = Annotated[
    Path | None,
    typer.Option(
        "--fleet", metavar="FILE", readable=False, help="Ask no daemon: plan for the machines that FILE describes."
    ),
]


def plan(
    catalog: Annotated[
        str | None,
        typer.Argument(
            metavar="CATALOG",
            help="A directory, or a revision of the daemon's catalog. Default: the daemon's, as it stands on disk.",
        ),
    ] = None,
    fleet: FleetFile = None,
    asked: Annotated[
        list[str] | None,
        typer.Option("--asked", metavar="MODEL", help="As if a request for MODEL had just come. May be given again."),
    ] = None,
    state: State = None,
    admin: Admin = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> int:
    """Tell what a catalog would change, and change nothing.

    What would start where, what it would fetch, what would stop or make room, what cannot be placed and why, and what
    that leaves of memory and disk. Exit 2 when there is something to do, 3 when the catalog is invalid.

    \b
    Example:
      llmgw plan
      llmgw plan ./catalog
      llmgw plan HEAD~1
      llmgw plan --asked qwen3-8b
      llmgw plan ./catalog --fleet fleet.yaml
    """
    from llmgw.admin.plans import PlanOutput
    from llmgw.admin.views import problem_rows
    from llmgw.cli import logs
    from llmgw.cli.printing import note, print_json
    from llmgw.errors import CatalogInvalid

    logs.configure()
    try:
        names = tuple(asked or ())
        answer = _offline(catalog, fleet, state_root(state), names) if fleet else _live(catalog, state, admin, names)
    except CatalogInvalid as error:
        answer = PlanOutput(valid=False, source=catalog, problems=problem_rows(error.problems))
    if wants_json(output, as_json):
        print_json(answer)
    else:
        _print(answer)
        if not answer.valid:
            note("nothing is planned: correct what is listed above")
    if not answer.valid:
        return ExitCode.INVALID_CATALOG
    return ExitCode.CHANGES if answer.changes else ExitCode.FINE


def _live(catalog: str | None, state: Path | None, admin: str | None, asked: tuple[str, ...]) -> "PlanOutput":
    """The daemon plans: it knows what runs."""
    from llmgw.admin.plans import PlanOutput, PlanRequest
    from llmgw.admin.shapes import StatusOutput
    from llmgw.cli.client import connect

    client = replace(connect(state_root(state), admin), timeout=PATIENCE)
    if catalog is None:
        followed = client.get("status", StatusOutput).catalog.source
        if followed is not None:
            _tell_of_lock(Path(followed))
        return client.post("plan", PlanOutput, PlanRequest(asked=asked))
    from llmgw.engine.manager import find_engines

    source = None if Path(catalog).exists() else client.get("status", StatusOutput).catalog.source
    if source is not None and not is_here(source) and not catalog.startswith((".", "/", "~")):
        there = ask_for(client, catalog)
        return client.post("plan", PlanOutput, PlanRequest(catalog=there, source=catalog, asked=asked))
    loaded = _load(catalog, None if source is None else Path(source), find_engines())
    return client.post("plan", PlanOutput, PlanRequest(catalog=loaded.catalog, source=catalog, asked=asked))


def _offline(catalog: str | None, fleet: Path, root: Path, asked: tuple[str, ...]) -> "PlanOutput":
    from llmgw.cli.offline import plan_offline
    from llmgw.engine.manager import find_engines

    engines = find_engines()
    return plan_offline(_load(catalog or ".", Path(), engines).catalog, fleet, engines, root / "weights", asked)


def _load(catalog: str, checkout: Path | None, engines: "Engines") -> "Loaded":
    """A directory's catalog, else that of a revision of `checkout`. Raises CatalogInvalid, CatalogUnreadable."""
    from llmgw.catalog.load import load_catalog
    from llmgw.catalog.revisions import read_revision
    from llmgw.errors import CatalogUnreadable

    path = Path(catalog)
    if path.exists():
        _tell_of_lock(path)
        source = read_here(path)
    elif checkout is None or catalog.startswith((".", "/", "~")):
        raise CatalogUnreadable(f"cannot read {catalog}: name the directory that holds the catalog, or a revision")
    else:
        source = read_revision(checkout, catalog)
    return load_catalog(source, engines.rules(), canonical=engines.canonical)


def _tell_of_lock(path: Path) -> None:
    """Say what is waited for, where a git command is at work in the checkout."""
    from llmgw.catalog.source import STALE_LOCK, held_by_git
    from llmgw.cli.printing import note

    if (lock := held_by_git(path)) is not None:
        note(f"{lock} is there: waiting for git to finish, for {STALE_LOCK:.0f} s at most")


def _print(answer: "PlanOutput") -> None:
    from llmgw.cli.planned import style_of, told
    from llmgw.cli.printing import print_styled

    for line in told(answer, time.time()):
        print_styled(line, style_of(line))
