"""What a document is: its `apiVersion` and `kind`, asked before any schema. A union would blame the wrong branch."""

import difflib
from collections.abc import Mapping
from typing import Any, Final

from llmgw.catalog import schemas
from llmgw.catalog.document import Document, quoted
from llmgw.catalog.source import IGNORE_FILE
from llmgw.errors import Problem

API_VERSION: Final = "llmgw/v1"
KINDS: Final = ("Cluster", "Model", "Template")
KINDS_ELSEWHERE: Final = ("Fleet", "Scenario")
"""Of files for `llmgw plan` and `llmgw simulate`."""


def kind_of(document: Document) -> tuple[str | None, list[Problem]]:
    """None: it has no usable kind, and goes no further."""
    value = document.value
    if value is None:
        return None, [document.problem((), "empty document: write one after the ---, or remove the ---")]
    if not isinstance(value, dict):
        message = f"a document is a mapping that starts with `apiVersion: {API_VERSION}`, found {schemas.found(value)}"
        return None, [document.problem((), message)]
    faults = [*_api_version(document, value), *_kind_faults(document, value)]
    return (None if faults else value["kind"]), faults


def _api_version(document: Document, value: Mapping[str, Any]) -> list[Problem]:
    version = value.get("apiVersion")
    if version == API_VERSION:
        return []
    if "apiVersion" not in value:
        close = _renamed(value, "apiVersion")
        # Another tool's file, most likely: compose files and pipelines live in repositories too.
        stray = "" if close or "kind" in value else f", or name the file in {IGNORE_FILE} if it is none of llmgw's"
        return [
            document.problem((), f"no apiVersion{close}: start the document with `apiVersion: {API_VERSION}`{stray}")
        ]
    if not isinstance(version, str):
        message = f"apiVersion must be {API_VERSION}, found {schemas.found(version)}"
    else:
        message = f"unknown apiVersion {quoted(version)}; this llmgw reads {API_VERSION}"
    return [document.problem(("apiVersion",), message)]


def _kind_faults(document: Document, value: Mapping[str, Any]) -> list[Problem]:
    kind = value.get("kind")
    choices = f"{', '.join(KINDS[:-1])} or {KINDS[-1]}"
    if "kind" not in value:
        return [document.problem((), f"no kind{_renamed(value, 'kind')}: write `kind: {choices}`")]
    if not isinstance(kind, str):
        return [document.problem(("kind",), f"kind must be {choices}, found {schemas.found(kind)}")]
    if kind in KINDS_ELSEWHERE:
        message = f"a {kind} is no part of a catalog: keep it elsewhere, or name the file in {IGNORE_FILE}"
        return [document.problem(("kind",), message)]
    if kind not in KINDS:
        hint = schemas.did_you_mean(kind.capitalize(), KINDS)
        return [document.problem(("kind",), f"unknown kind {quoted(kind)}{hint}")]
    return []


def _renamed(value: Mapping[str, Any], key: str) -> str:
    near = difflib.get_close_matches(key.lower(), [other.lower() for other in value if len(other) < 40], n=1)
    meant = [other for other in value if near and other.lower() == near[0]]
    return f" (found {quoted(meant[0])})" if meant else ""
