"""`llmgw schema`"""

import json
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from llmgw.cli.exits import ExitCode


class Kind(StrEnum):
    CATALOG = "catalog"
    MODEL = "model"
    CLUSTER = "cluster"
    TEMPLATE = "template"
    FLEET = "fleet"
    SCENARIO = "scenario"


def schema(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="Of which documents; catalog: whichever kind.")] = (
        Kind.CATALOG
    ),
    engines: Annotated[
        bool, typer.Option("--engines", help="With the options of each installed engine, by a profile's engine.")
    ] = False,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="NAME", help="Instead, the schema of that engine's options alone.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", writable=False, help="Write it there, for editors to find.")
    ] = None,
) -> int:
    """Print the JSON Schema that editors check documents by. Needs no daemon.

    \b
    Example:
      llmgw schema --engines --to catalog.schema.json
      llmgw schema --engine vllm > schemas/vllm.json
    """
    from llmgw.catalog.bundle import bundled
    from llmgw.cli.printing import note

    if engine is not None:
        found = _options(engine)
    else:
        found = bundled(kind, _every_engines_options() if engines else None)
    text = json.dumps(found, indent=2) + "\n"
    if to is None:
        sys.stdout.write(text)
        return ExitCode.FINE
    to.write_text(text, "utf-8")
    note(f"written: {to}; in a document of the same directory: # yaml-language-server: $schema={to.name}")
    return ExitCode.FINE


def _every_engines_options() -> dict[str, Mapping[str, Any]]:
    from llmgw.engine.manager import find_engines

    return {name: rules.options_schema for name, rules in find_engines().rules().items() if rules.lost is None}


def _options(engine: str) -> Mapping[str, Any]:
    """Raises UsageError where no such engine is installed."""
    from llmgw.catalog.schemas import did_you_mean
    from llmgw.errors import UsageError

    known = _every_engines_options()
    if engine not in known:
        hint = did_you_mean(engine, known) or f" (installed: {', '.join(sorted(known)) or 'none'})"
        raise UsageError(f"--engine {engine}: no such engine is installed{hint}")
    return known[engine]
