"""`llmgw reset`: failures are forgotten, and what was given up is tried again."""

from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.options import Admin, Json, Output, OutputFormat, State, state_root, user, wants_json

if TYPE_CHECKING:
    from llmgw.admin.shapes import ResetRow

Model = Annotated[str | None, typer.Argument(metavar="MODEL", help="Its name or an alias of its.")]
All = Annotated[bool, typer.Option("--all", help="Every model of the catalog.")]


def reset(
    model: Model = None,
    every: All = False,
    state: State = None,
    admin: Admin = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> None:
    """Forget a model's failures: it is tried again at once.

    For when what it failed for was corrected. What runs goes on as it is, at its level, until it is launched again.

    \b
    Example:
      llmgw reset qwen3-8b
      llmgw reset --all
    """
    from llmgw.admin.shapes import ResetOutput, ResetRequest
    from llmgw.cli.client import connect
    from llmgw.cli.printing import print_json, print_line
    from llmgw.errors import UsageError

    if (model is None) is not every:
        raise UsageError("name a MODEL, or give --all")
    answer = connect(state_root(state), admin).post("reset", ResetOutput, ResetRequest(model=model, by=user()))
    if wants_json(output, as_json):
        print_json(answer)
        return
    failed = [row for row in answer.models if row.failures or row.rollout]
    for row in failed:
        print_line(_told(row))
    if not failed:
        print_line(f"{model or 'every model'}: no failures to forget, nothing to do")


def _told(row: "ResetRow") -> str:
    from llmgw.admin.views import count

    if row.rollout and not row.failures:
        return f"{row.model}: the newest revision is rolled out again"
    forgotten = f"{count(row.failures, 'failure')} forgotten ({', '.join(row.nodes)})"
    if row.ready:
        level = f" at level {row.level}" if row.level != "full" else ""
        out = "out of quarantine; " if row.quarantined else ""
        return f"{row.model}: {out}{forgotten}; what runs goes on as it is{level} until it is launched again"
    left = "out of quarantine and " if row.quarantined else ""
    return f"{row.model}: {left}tried again now; {forgotten}"
