"""Documents of an earlier `apiVersion`, rewritten as the newest: comments, order and quotes stay.

A step takes a document from one version to the next. What comes of a file is read once more and must be exactly what
the steps made of it: else the file is left alone.
"""

import copy
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from llmgw.catalog import yamldoc
from llmgw.catalog.document import Document, as_mapping
from llmgw.catalog.kinds import API_VERSION


@dataclass(frozen=True, slots=True)
class Step:
    """`change` works on a document in place; what it does not touch keeps its comments. `apiVersion` is set for it."""

    before: str
    after: str
    change: Callable[[Any], None]


STEPS: Final[tuple[Step, ...]] = ()
"""None so far: llmgw/v1 is the first version, and the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrated:
    """What would become of a file. `text`: None where nothing is to be done. `documents`: those that change, as
    `file:line:column: llmgw/v1 -> llmgw/v2`. `refused`: why the file is left alone although it would have to change."""

    text: str | None = None
    documents: tuple[str, ...] = ()
    refused: str | None = None


def migrate(file: str, data: bytes, steps: Sequence[Step] = STEPS, newest: str = API_VERSION) -> Migrated:
    """Never raises: what is no document of ours, or cannot be read, is left for `llmgw validate` to tell of."""
    documents, problems = yamldoc.parse(file, data)
    routes = [_route(document, steps, newest) for document in documents]
    if problems or not any(routes):
        return Migrated()
    told = tuple(
        f"{document.where(('apiVersion',))}: {route[0].before} -> {newest}"
        for document, route in zip(documents, routes, strict=True)
        if route
    )
    wanted = [_stepped(copy.deepcopy(document.value), route) for document, route in zip(documents, routes, strict=True)]
    text = _rewritten(data.decode("utf-8-sig"), routes)
    if text is None or [each.value for each in yamldoc.parse(file, text.encode())[0]] != wanted:
        return Migrated(documents=told, refused="it cannot be rewritten without changing more: edit it by hand")
    return Migrated(text=text, documents=told)


def _route(document: Document, steps: Sequence[Step], newest: str) -> list[Step]:
    """From the document's version to the newest; empty where it is that, or no way leads there."""
    version = as_mapping(document.value).get("apiVersion")
    by_version = {step.before: step for step in steps}
    route: list[Step] = []
    while version != newest:
        if not isinstance(version, str) or version not in by_version:
            return []
        step = by_version.pop(version)
        route.append(step)
        version = step.after
    return route


def _stepped(value: Any, route: Sequence[Step]) -> Any:
    for step in route:
        step.change(value)
        value["apiVersion"] = step.after
    return value


def _rewritten(text: str, routes: Sequence[Sequence[Step]]) -> str | None:
    """By ruamel.yaml's round trip. None: it cannot write what it read."""
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 10_000
    yaml.indent(mapping=2, sequence=4, offset=2)
    out = io.StringIO()
    try:
        documents = list(yaml.load_all(text))
        for document, route in zip(documents, routes, strict=True):
            _stepped(document, route)
        yaml.dump_all(documents, out)
    except (YAMLError, ValueError, TypeError, AttributeError, KeyError):
        return None
    return out.getvalue()
