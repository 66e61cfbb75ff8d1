"""A model as it is judged: its document merged over its template, and where each value of it was written."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from llmgw.catalog import yamldoc
from llmgw.catalog.document import Document, Path, as_mapping, json_path
from llmgw.catalog.leaves import HIDDEN, is_secret
from llmgw.catalog.member import Member
from llmgw.catalog.node import Node
from llmgw.catalog.schemas import did_you_mean
from llmgw.catalog.source import Source
from llmgw.catalog.templates import Templates

_WIDTH: Final = 10_000  #: a line is a value: nothing is folded
_COLUMN: Final = 50  #: where origins stand
_FIRST: Final = ("apiVersion", "kind", "name", "extends")
"""Keys that people expect at the top; after a merge those of the template would be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """`document`: secrets hidden, since it is for people's eyes. `origins`: `file:line:column` of each single value, by
    its JSON path."""

    name: str
    document: Mapping[str, Any]
    origins: Mapping[str, str]
    text: str  #: as YAML, with the origins as comments


def why_not(source: Source, name: str) -> str:
    """Why there is nothing to show of `name`, in words that follow it."""
    if name in (known := _names(source, "Model")):
        return ": the template that it extends is not there"
    if name in _names(source, "Template"):
        return ": it is a Template; name a model that extends it"
    unread = [file for file, data in sorted(source.files.items()) if yamldoc.parse(file, data)[1]]
    if unread:
        more = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
        return f": {unread[0]}{more} cannot be read whole; without --show it is said why"
    return did_you_mean(name, known)


def show(source: Source, name: str) -> Shown | None:
    """By its name, or by an alias or variant. None: there is no such model, or nothing to merge it with. Documents that
    have faults are shown as they are."""
    templates = Templates(_of_kind(source, "Template"))
    models = _of_kind(source, "Model")
    named = [document for document in models if document.value.get("name") == name]
    for document in named or [document for document in models if name in _further_names(document)]:
        merged = templates.merge(document)
        return _shown(str(document.value.get("name")), merged.document) if merged.found else None
    return None


def _names(source: Source, kind: str) -> list[str]:
    """So far as they can be read."""
    return [name for document in _of_kind(source, kind) if isinstance(name := document.value.get("name"), str)]


def _further_names(document: Document) -> set[str]:
    return {name for _, name in Member.of(document).aliases}


def _of_kind(source: Source, kind: str) -> Sequence[Document]:
    documents = [each for file, data in sorted(source.files.items()) for each in yamldoc.parse(file, data)[0]]
    return [document for document in documents if as_mapping(document.value).get("kind") == kind]


def _shown(name: str, document: Document) -> Shown:
    origins: dict[str, str] = {}
    told = _told(document, document.root, (), origins)
    out = io.StringIO()
    yaml = YAML()
    yaml.width = _WIDTH
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.dump(told, out)
    return Shown(name=name, document=_plain(told), origins=origins, text=out.getvalue())


def _told(document: Document, node: Node, path: Path, origins: dict[str, str]) -> Any:
    """A value for ruamel.yaml to write, each single one with a comment."""
    if not isinstance(node.value, dict | list) or not node.value:
        return HIDDEN if _may_be_secret(node, path) else node.value
    made: Any = CommentedMap() if isinstance(node.value, dict) else CommentedSeq()
    ordered = sorted(node.items.items(), key=lambda item: path != () or item[0] not in _FIRST)
    for key, inner in ordered:
        at = (*path, key)
        value = _told(document, inner, at, origins)
        made.append(value) if isinstance(made, CommentedSeq) else made.update({key: value})
        if not isinstance(inner.value, dict | list) or not inner.value:
            origins[json_path(at)] = document.where(at)
            made.yaml_add_eol_comment(document.where(at), key=key, column=_COLUMN)
    return made


def _may_be_secret(node: Node, path: Path) -> bool:
    if not isinstance(node.value, str) or not path or path[-1] in ("from_env", "from_file"):
        return False
    return "env" in path or any(is_secret(str(step)) for step in path if isinstance(step, str))


def _plain(value: Any) -> Any:
    """Without ruamel.yaml's own types."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value
