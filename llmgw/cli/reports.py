"""What a check found, in the forms that people, pipelines and code hosts read: text, GitHub annotations, SARIF."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from llmgw.catalog.excerpts import excerpt
from llmgw.errors import Problem

SARIF_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"

_RULES: Final = {
    "invalid": ("error", "The catalog would not be served."),
    "doubtful": ("warning", "What is allowed and probably not meant."),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Of one catalog. `data`: the bytes of its files, which problems name as they are seen from here."""

    data: Mapping[str, bytes]
    problems: Sequence[Problem] = ()
    warnings: Sequence[Problem] = ()

    def found(self) -> Iterator[tuple[str, Problem]]:
        """Each with the rule that it is of."""
        yield from (("invalid", problem) for problem in self.problems)
        yield from (("doubtful", problem) for problem in self.warnings)


def text_lines(report: Report) -> Iterator[str]:
    """`file:line:column: path: message`, then the line with a caret."""
    for rule, problem in report.found():
        yield f"{problem} (warning)" if rule == "doubtful" else str(problem)
        shown = excerpt(report.data.get(problem.file, b""), problem.line, problem.column) if problem.line else None
        if shown is not None:
            yield from shown.lines(problem.line)


def _in_repository(file: str) -> str:
    """As code hosts find it: from the root of the repository, where a runner of GitHub says what that is."""
    root = os.environ.get("GITHUB_WORKSPACE")
    if not root:
        return file
    path = Path(os.path.abspath(file))
    return str(path.relative_to(root)) if path.is_relative_to(root) else file


def github_lines(report: Report) -> Iterator[str]:
    """Workflow commands: GitHub shows each as an annotation at its line."""
    for rule, problem in report.found():
        place = {"file": _in_repository(problem.file)}
        if problem.line:
            place |= {"line": str(problem.line), "col": str(problem.column)}
        place["title"] = "llmgw catalog"
        properties = ",".join(f"{key}={_escaped(value, ':,')}" for key, value in place.items())
        told = f"{problem.path}: {problem.message}" if problem.path not in ("", "$") else problem.message
        yield f"::{_RULES[rule][0]} {properties}::{_escaped(told)}"


def _escaped(text: str, more: str = "") -> str:
    """As GitHub's runner undoes it."""
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def sarif(reports: Sequence[Report], version: str) -> dict[str, Any]:
    """One run over all catalogs: SARIF 2.1.0."""
    rules = [
        {"id": name, "shortDescription": {"text": text}, "defaultConfiguration": {"level": level}}
        for name, (level, text) in _RULES.items()
    ]
    run = {
        "tool": {"driver": {"name": "llmgw", "semanticVersion": version, "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "results": [_result(rule, problem) for report in reports for rule, problem in report.found()],
    }
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(rule: str, problem: Problem) -> dict[str, Any]:
    file = Path(_in_repository(problem.file))
    uri = file.as_uri() if file.is_absolute() else quote(file.as_posix())
    place: dict[str, Any] = {"artifactLocation": {"uri": uri}}
    if problem.line:
        place["region"] = {"startLine": problem.line, "startColumn": problem.column}
    location: dict[str, Any] = {"physicalLocation": place}
    if problem.path not in ("", "$"):
        location["logicalLocations"] = [{"fullyQualifiedName": problem.path}]
    return {
        "ruleId": rule,
        "ruleIndex": list(_RULES).index(rule),
        "level": _RULES[rule][0],
        "message": {"text": problem.message},
        "locations": [location],
    }
