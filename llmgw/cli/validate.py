"""`llmgw validate`"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.exits import ExitCode
from llmgw.cli.options import Json, Output, OutputFormat, wants_json

if TYPE_CHECKING:
    from llmgw.admin.shapes import ValidateOutput
    from llmgw.engine.manager import Engines


def validate(
    path: Annotated[Path, typer.Argument(metavar="CATALOG", readable=False, help="The catalog's directory.")] = Path(),
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> int:
    """Check a catalog as `llmgw up` would load it. Needs no daemon. Exit 3 when it is invalid.

    \b
    Example:
      llmgw validate ./catalog
    """
    from llmgw.cli import logs
    from llmgw.cli.printing import note, print_json
    from llmgw.engine.manager import find_engines

    logs.configure()
    engines = find_engines()
    for plugin in engines.plugins:
        if plugin.name in engines.broken:
            note(f"llmgw: plugin {plugin.name}: {plugin.reason} (`llmgw plugins list -v` tells more)")
    answer = _check(path, engines, note)
    if wants_json(output, as_json):
        print_json(answer)
    else:
        _print(answer)
    return ExitCode.FINE if answer.valid else ExitCode.INVALID_CATALOG


def _check(path: Path, engines: "Engines", say: Callable[[str], None]) -> "ValidateOutput":
    """Raises CatalogUnreadable when there is nothing to check."""
    from llmgw.admin.shapes import ValidateOutput
    from llmgw.admin.views import problem_rows
    from llmgw.catalog.load import load_catalog, revision_of
    from llmgw.catalog.source import read_source
    from llmgw.errors import CatalogInvalid
    from llmgw.weights.naming import canonical

    revision = None
    try:
        source = read_source(path)
        revision = revision_of(source)
        if source.note:
            say(source.note)
        loaded = load_catalog(
            source,
            engines.rules(),
            canonical=canonical,
        )
    except CatalogInvalid as error:
        return ValidateOutput(
            valid=False,
            source=str(path),
            revision=revision,
            models=0,
            problems=problem_rows(error.problems),
            warnings=(),
        )
    return ValidateOutput(
        valid=True,
        source=str(path),
        revision=loaded.catalog.revision,
        models=len(loaded.catalog.models),
        problems=(),
        warnings=problem_rows(loaded.warnings),
    )


def _print(answer: "ValidateOutput") -> None:
    """Problems on stdout, where other checkers have theirs; the count on stderr."""
    from llmgw.admin.views import count
    from llmgw.cli.printing import note, print_line
    from llmgw.cli.rows import problem_line
    from llmgw.cli.text import short_revision

    for problem in answer.problems:
        print_line(problem_line(problem))
    for warning in answer.warnings:
        print_line(f"{problem_line(warning)} (warning)")
    if answer.valid:
        print_line(f"ok: {count(answer.models, 'model')}, revision {short_revision(answer.revision)}")
    else:
        note(f"{count(len(answer.problems), 'problem')}: `llmgw up` would not serve this catalog")
