"""`llmgw suspend` and `llmgw resume`: the catalog, or a model, is left as it is."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.options import Admin, Json, Output, OutputFormat, State, state_root, user, wants_json

if TYPE_CHECKING:
    from llmgw.admin.orders import OrderOutput
    from llmgw.admin.shapes import CatalogRow

Model = Annotated[
    str | None, typer.Argument(metavar="MODEL", help="Its name or an alias of its. Default: the whole catalog.")
]


def suspend(
    model: Model = None,
    state: State = None,
    admin: Admin = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> None:
    """Leave the catalog, or a model, as it is until `llmgw resume`.

    Catalog: newer revisions are read and validated, and wait; models are looked after as ever. Model: nothing of it is
    launched, restarted, evicted or stopped. Both hold across restarts.

    \b
    Example:
      llmgw suspend
      llmgw suspend qwen3-8b
    """
    answer = _order("suspend", model, state, admin)
    catalog = answer.catalog.suspended
    if answer.model is not None:
        name = answer.model
        told = f"{name} is left as it is" if answer.changed else f"{name} is suspended already"
        _print(answer, f"{told}; `llmgw resume {name}` ends that", output, as_json)
    elif answer.changed or catalog is None:
        _print(answer, "newer revisions wait; `llmgw resume` follows the catalog again", output, as_json)
    else:
        from llmgw.cli.text import ago

        since = ago(catalog.at, time.time())
        _print(answer, f"suspended already, {since} by {catalog.by}; `llmgw resume` ends that", output, as_json)


def resume(
    model: Model = None,
    state: State = None,
    admin: Admin = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> None:
    """Follow the catalog, or look after a model, again.

    It ends `llmgw suspend` and `llmgw rollback`. The newest revision comes into force at once.

    \b
    Example:
      llmgw resume
      llmgw resume qwen3-8b
    """
    answer = _order("resume", model, state, admin)
    if not answer.changed:
        told = f"{answer.model or 'the catalog'} was not suspended: nothing to do"
    elif answer.model is not None:
        told = f"{answer.model} is looked after again"
    else:
        told = f"the catalog is followed again{follows(answer.catalog)}"
    _print(answer, told, output, as_json)


def follows(catalog: "CatalogRow") -> str:
    """What comes of following the catalog again."""
    from llmgw.cli.text import short_revision

    applied, newest = short_revision(catalog.applied), short_revision(catalog.attempted)
    if catalog.error:
        return f"; {applied} stays in force while it cannot be read: {catalog.error}"
    if catalog.problems:
        return f"; {applied} stays in force, since {newest} is invalid: `llmgw status` says why"
    if catalog.attempted == catalog.applied:
        return f"; {applied} stays in force"
    return f": {newest} is next; `llmgw status` shows how it comes into force"


def _order(what: str, model: str | None, state: Path | None, admin: str | None) -> "OrderOutput":
    from llmgw.admin.orders import OrderOutput, SuspendRequest
    from llmgw.cli.client import connect

    return connect(state_root(state), admin).post(what, OrderOutput, SuspendRequest(model=model, by=user()))


def _print(answer: "OrderOutput", told: str, output: OutputFormat, as_json: bool) -> None:
    from llmgw.cli.printing import print_json, print_line

    if wants_json(output, as_json):
        print_json(answer)
    else:
        print_line(told)
