"""`llmgw validate`"""

import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.exits import ExitCode
from llmgw.cli.options import Json

if TYPE_CHECKING:
    from llmgw.catalog.rules import EngineRules
    from llmgw.cli.checking import Checked


class ReportFormat(StrEnum):
    TEXT = "text"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


def validate(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH",
            readable=False,
            help="Directories, each a catalog; or files, parts of one. Default: this directory.",
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings make it invalid too.")] = False,
    engine_schemas: Annotated[
        Path | None,
        typer.Option(
            "--engine-schemas",
            metavar="DIR",
            readable=False,
            help="NAME.json, the options' schema of each engine whose plugin is not installed here.",
        ),
    ] = None,
    show: Annotated[
        str | None,
        typer.Option("--show", metavar="MODEL", help="Print that model, merged, with where each value was written."),
    ] = None,
    output: Annotated[
        ReportFormat, typer.Option("--output", "-o", help="What to print on stdout.")
    ] = ReportFormat.TEXT,
    as_json: Json = False,
) -> int:
    """Check catalogs as `llmgw up` would load them. Needs no daemon. Exit 3 when one is invalid.

    \b
    Example:
      llmgw validate ./catalog
      llmgw validate --strict -o github catalogs/*
      llmgw validate --show qwen3-8b ./catalog
    """
    from llmgw.cli import checking, logs
    from llmgw.cli.printing import note

    logs.configure()
    rules, canonical = _engine_rules(engine_schemas)
    found = checking.targets(paths or [Path()])
    if show is not None:
        return _show(paths or [Path()], show, ReportFormat.JSON if as_json else output)
    checked = [checking.check(target, rules, note, canonical=canonical) for target in found]
    _print(checked, ReportFormat.JSON if as_json else output)
    bad = any(each.report.problems or (strict and each.report.warnings) for each in checked)
    return ExitCode.INVALID_CATALOG if bad else ExitCode.FINE


def _show(paths: "Sequence[Path]", name: str, output: ReportFormat) -> int:
    """Raises TerminalError where there is no such model, UsageError where it cannot be said so."""
    from llmgw.admin.shapes import ShowOutput
    from llmgw.cli.checking import shown_model, targets
    from llmgw.cli.printing import print_json
    from llmgw.errors import UsageError

    if output not in (ReportFormat.TEXT, ReportFormat.JSON):
        raise UsageError("--show prints text, or JSON with -o json")
    found = targets(paths)
    if len(found) != 1:
        raise UsageError("--show is about one catalog: name one directory")
    shown = shown_model(found[0], name)
    if output is ReportFormat.JSON:
        print_json(ShowOutput(name=shown.name, document=shown.document, origins=shown.origins))
    else:
        sys.stdout.write(shown.text)
    return ExitCode.FINE


def _engine_rules(directory: Path | None) -> "tuple[Mapping[str, EngineRules], Callable[[str], str]]":
    """Of the engines installed here, and of those that are only described; and what spells sources. Where plugins are
    described that are not installed, sources of other kinds may be theirs."""
    from llmgw.cli.checking import described_engines
    from llmgw.cli.printing import note
    from llmgw.engine.manager import find_engines
    from llmgw.weights import naming

    engines = find_engines()
    for plugin in engines.plugins:
        if plugin.name in engines.broken:
            note(f"llmgw: plugin {plugin.name}: {plugin.reason} (`llmgw plugins list -v` tells more)")
    if directory is None:
        return engines.rules(), engines.canonical
    return {**described_engines(directory), **engines.rules()}, naming.canonical


def _print(checked: "Sequence[Checked]", output: ReportFormat) -> None:
    """Problems on stdout, where other checkers have theirs; the count on stderr."""
    import json

    from llmgw import __version__
    from llmgw.cli.checking import as_output
    from llmgw.cli.printing import print_json, print_line
    from llmgw.cli.reports import github_lines, sarif

    match output:
        case ReportFormat.JSON:
            print_json(as_output(checked))
        case ReportFormat.SARIF:
            print_line(json.dumps(sarif([each.report for each in checked], __version__)))
        case ReportFormat.GITHUB:
            for each in checked:
                for line in github_lines(each.report):
                    print_line(line)
        case ReportFormat.TEXT:
            for each in checked:
                _print_text(each, named=len(checked) > 1)


def _print_text(checked: "Checked", named: bool) -> None:
    """`named`: each line says of which catalog it is."""
    from llmgw.admin.views import count
    from llmgw.cli.printing import note, print_line
    from llmgw.cli.reports import text_lines
    from llmgw.cli.text import short_revision

    of = f"{checked.target}: " if named else ""
    for line in text_lines(checked.report):
        print_line(line)
    if not checked.report.problems:
        print_line(f"{of}ok: {count(checked.models, 'model')}, revision {short_revision(checked.revision)}")
    else:
        note(f"{of}{count(len(checked.report.problems), 'problem')}: `llmgw up` would not serve this catalog")
