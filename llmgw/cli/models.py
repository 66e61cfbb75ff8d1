"""`llmgw models`"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import typer

from llmgw.cli.options import Admin, Json, Output, OutputFormat, State, state_root, wants_json


def models(
    state: State = None,
    admin: Admin = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", "-l", metavar="NAME[=VALUE]", help="Only those with this label; of several, with all."),
    ] = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> None:
    """List the catalog's models and how each fares.

    \b
    Example:
      llmgw models
      llmgw models --label team=search
      llmgw models --json | jq -r '.models[] | select(.state != "ready") | .name'
    """
    from llmgw.admin.shapes import ModelsOutput
    from llmgw.cli.client import connect
    from llmgw.cli.printing import print_json, print_line, print_table
    from llmgw.cli.rows import MODEL_HEADERS, model_cells

    answer = connect(state_root(state), admin).get("models", ModelsOutput)
    if label:
        answer = replace(answer, models=tuple(row for row in answer.models if _has(row.labels, label)))
    if wants_json(output, as_json):
        print_json(answer)
    elif not answer.models:
        print_line(
            "no model has that label" if label else "no models; `llmgw status` says which catalog is in force, if any"
        )
    else:
        print_table(MODEL_HEADERS, [model_cells(row, time.time()) for row in answer.models])


def _has(labels: Mapping[str, str], wanted: Sequence[str]) -> bool:
    """Whether every `NAME` or `NAME=VALUE` of `wanted` is there."""
    pairs = (each.partition("=") for each in wanted)
    return all(name in labels and (not equals or labels[name] == value) for name, equals, value in pairs)
