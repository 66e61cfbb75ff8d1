"""Loading a catalog, or some files of one, to say what is wrong with it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jsonschema import Draft202012Validator, SchemaError

from llmgw.admin.shapes import ValidateOutput
from llmgw.admin.views import problem_rows
from llmgw.catalog.document import quoted
from llmgw.catalog.here import named_from_here, seen_from_here
from llmgw.catalog.load import load_catalog, revision_of
from llmgw.catalog.looking import MAX_FILE, shown
from llmgw.catalog.rules import EngineRules
from llmgw.catalog.showing import Shown, show, why_not
from llmgw.catalog.source import Source, read_source
from llmgw.cli.reports import Report
from llmgw.errors import CatalogInvalid, CatalogUnreadable, TerminalError
from llmgw.units import format_bytes

_SCHEMA_ENDS: Final = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A directory, which is a catalog; or files, which are parts of one."""

    directory: Path | None = None
    files: tuple[Path, ...] = ()

    def __str__(self) -> str:
        return str(self.directory) if self.directory is not None else ", ".join(map(str, self.files))


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    target: Target
    report: Report
    models: int = 0
    revision: str | None = None


def targets(paths: Sequence[Path]) -> list[Target]:
    """Each directory for itself; all files together. What is not there is taken for a directory, to be told so."""
    files = tuple(path for path in paths if path.is_file())
    found = [Target(directory=path) for path in paths if path not in files]
    return [*found, Target(files=files)] if files else found


def _source(target: Target) -> Source:
    """Raises CatalogUnreadable when there is nothing to check."""
    return _files(target.files) if target.directory is None else read_source(target.directory)


def _seen(target: Target, source: Source) -> Source:
    return source if target.directory is None else seen_from_here(target.directory, source)


def shown_model(target: Target, name: str) -> Shown:
    """Raises CatalogUnreadable, and TerminalError where there is no such model."""
    source = _seen(target, _source(target))
    shown = show(source, name)
    if shown is None:
        raise TerminalError(f"no model {quoted(name)} to show{why_not(source, name)}")
    return shown


def check(
    target: Target,
    engines: Mapping[str, EngineRules],
    say: Callable[[str], None],
    *,
    canonical: Callable[[str], str],
) -> Checked:
    """Raises CatalogUnreadable when there is nothing to check."""
    source = _source(target)
    if source.note:
        say(source.note)
    here = _seen(target, source)
    try:
        loaded = load_catalog(here, engines, canonical=canonical, partial=target.directory is None)
    except CatalogInvalid as error:
        report = Report(data=here.files, problems=error.problems)
        return Checked(target=target, report=report, revision=revision_of(source))
    report = Report(data=here.files, warnings=loaded.warnings)
    return Checked(target=target, report=report, models=len(loaded.catalog.models), revision=loaded.catalog.revision)


def _files(paths: Sequence[Path]) -> Source:
    data = {}
    for path in paths:
        name = shown(named_from_here(path))
        try:
            with path.open("rb") as file:
                data[name] = file.read(MAX_FILE + 1)
        except OSError as error:
            raise CatalogUnreadable(f"cannot read {path}: {error.strerror}") from error
        if len(data[name]) > MAX_FILE:
            raise CatalogUnreadable(f"{path} is too large: a catalog file has at most {format_bytes(MAX_FILE)}")
    return Source(files=data)


def as_output(checked: Sequence[Checked]) -> ValidateOutput:
    """One answer over all."""
    return ValidateOutput(
        valid=not any(part.report.problems for part in checked),
        source=", ".join(str(part.target) for part in checked),
        revision=None if len(checked) > 1 else checked[0].revision,
        models=sum(part.models for part in checked),
        problems=problem_rows(problem for part in checked for problem in part.report.problems),
        warnings=problem_rows(warning for part in checked for warning in part.report.warnings),
    )


def described_engines(directory: Path) -> dict[str, EngineRules]:
    """The engines whose options a directory describes: `NAME.json` is the schema of NAME's. Raises TerminalError."""
    if not directory.is_dir():
        raise TerminalError(f"--engine-schemas {directory}: no such directory")
    found = {}
    for file in sorted(directory.glob(f"*{_SCHEMA_ENDS}")):
        # What an engine needs besides its options only its plugin knows: roles and weights are not judged.
        found[file.name.removesuffix(_SCHEMA_ENDS)] = EngineRules(options_schema=_schema(file), roles=None)
    return found


def _schema(file: Path) -> dict[str, Any]:
    try:
        schema = json.loads(file.read_bytes())
        Draft202012Validator.check_schema(schema)
    except OSError as error:
        raise TerminalError(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise TerminalError(f"{file} is not JSON: {error}") from error
    except SchemaError as error:
        raise TerminalError(f"{file} is no JSON Schema: {error.message}") from error
    if not isinstance(schema, dict):
        raise TerminalError(f"{file}: an engine's options need a schema that is an object")
    return schema
