"""What a document is: its `apiVersion` and `kind`, asked before any schema. A union would blame the wrong branch.

A document whose head is misspelt is judged as what was surely meant, so that its other problems come at once.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from llmgw.catalog import schemas
from llmgw.catalog.document import Document, quoted
from llmgw.catalog.looking import IGNORE_FILE
from llmgw.catalog.node import Node
from llmgw.errors import Problem

API_VERSION: Final = "llmgw/v1"
KINDS: Final = ("Cluster", "Model", "Template")
KINDS_ELSEWHERE: Final = ("Fleet", "Scenario")
"""Of files for `llmgw plan` and `llmgw simulate`."""

_CHOICES: Final = f"{', '.join(KINDS[:-1])} or {KINDS[-1]}"
_STRAY: Final = f"or name the file in {IGNORE_FILE} if it is none of llmgw's"
_LFS: Final = "version https://git-lfs"

_SURELY: Final = 0.75
"""How alike a word must be to a kind to be judged as it; what is less alike is only asked about."""
_THIS_VERSION: Final = frozenset({API_VERSION, "llmgw/1", "llmgw/v1.0", "v1"})
"""Spellings of the version, in lower case: each of these means it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Headed:
    """A document and what it is. `kind` None: nobody can tell, and it goes no further. `document`: as it was meant,
    where its head has `faults`."""

    document: Document
    kind: str | None
    faults: tuple[Problem, ...] = ()


def headed(document: Document) -> Headed:
    """Read the head of a document."""
    value = document.value
    if value is None:
        message = "empty document: write one after the ---, or remove the ---"
        return Headed(document=document, kind=None, faults=(document.problem((), message),))
    if isinstance(value, str) and value.startswith(_LFS):
        message = "a pointer of Git LFS, where the file itself belongs: keep the catalog's files out of LFS"
        return Headed(document=document, kind=None, faults=(document.problem((), message),))
    if not isinstance(value, dict):
        message = f"a document is a mapping that starts with `apiVersion: {API_VERSION}`, found {schemas.found(value)}"
        return Headed(document=document, kind=None, faults=(document.problem((), message),))
    if (stranger := _of_another_tool(document, value)) is not None:
        return Headed(document=document, kind=None, faults=(stranger,))
    faults = (*_api_version(document, value), *_kind_faults(document, value))
    if not faults:
        return Headed(document=document, kind=value["kind"])
    kind = _meant_kind(value) if _is_this_version(value) else None
    return Headed(document=document if kind is None else _as_meant(document, kind), kind=kind, faults=faults)


def _of_another_tool(document: Document, value: Mapping[str, Any]) -> Problem | None:
    """Manifests, compose files and pipelines live in repositories too: one mistake, to have them in the catalog."""
    if _key(value, "apiVersion") is None and _key(value, "kind") is None:
        start = f"start the document with `apiVersion: {API_VERSION}` and `kind: {_CHOICES}`"
        return document.problem((), f"no apiVersion and no kind: {start}, {_STRAY}")
    version, kind = value.get("apiVersion"), value.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str) or "llmgw" in version.lower():
        return None
    if kind in (*KINDS, *KINDS_ELSEWHERE) or schemas.did_you_mean(kind.capitalize(), KINDS):
        return None
    what = f"{quoted(kind)} of {quoted(version)} is a document of another tool"
    return document.problem(("apiVersion",), f"{what}: keep it elsewhere, {_STRAY}")


def _is_this_version(value: Mapping[str, Any]) -> bool:
    """Whether the document is surely one of this version: one that names another may well mean it."""
    version = value.get(_key(value, "apiVersion") or "apiVersion", API_VERSION)
    return isinstance(version, str) and version.strip().lower() in _THIS_VERSION


def _meant_kind(value: Mapping[str, Any]) -> str | None:
    kind = value.get(_key(value, "kind") or "kind")
    if kind in KINDS:
        return str(kind)
    if not isinstance(kind, str) or kind in KINDS_ELSEWHERE:
        return None
    near = difflib.get_close_matches(kind[:100].capitalize(), KINDS, n=1, cutoff=_SURELY)
    return near[0] if near else None


def _as_meant(document: Document, kind: str) -> Document:
    """With the head that it should have, each part where the document says something of it."""
    root, items, keys = document.root, dict(document.root.items), dict(document.root.keys)
    for key, meant in ("apiVersion", API_VERSION), ("kind", kind):
        written = _key(document.value, key)
        place = root.place if written is None else items[written].place
        if written is not None and written != key:
            del items[written]
            keys[key] = keys.pop(written)
        items[key] = Node(meant, place)
    return document.with_root(
        Node({key: node.value for key, node in items.items()}, root.place, items, keys, root.size)
    )


def _api_version(document: Document, value: Mapping[str, Any]) -> list[Problem]:
    version = value.get("apiVersion")
    if version == API_VERSION:
        return []
    if "apiVersion" not in value:
        close = _renamed(value, "apiVersion")
        stray = "" if close or "kind" in value else f", {_STRAY}"
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
    if "kind" not in value:
        return [document.problem((), f"no kind{_renamed(value, 'kind')}: write `kind: {_CHOICES}`")]
    if not isinstance(kind, str):
        return [document.problem(("kind",), f"kind must be {_CHOICES}, found {schemas.found(kind)}")]
    if kind in KINDS_ELSEWHERE:
        message = f"a {kind} is no part of a catalog: keep it elsewhere, or name the file in {IGNORE_FILE}"
        return [document.problem(("kind",), message)]
    if kind not in KINDS:
        hint = schemas.did_you_mean(kind.capitalize(), KINDS) or f": write {_CHOICES}"
        return [document.problem(("kind",), f"unknown kind {quoted(kind)}{hint}")]
    return []


def _renamed(value: Mapping[str, Any], key: str) -> str:
    written = _key(value, key)
    return f" (found {quoted(written)})" if written else ""


def _key(value: Mapping[str, Any], key: str) -> str | None:
    """The key itself, or the one that was written for it."""
    if key in value:
        return key
    near = difflib.get_close_matches(key.lower(), [other.lower() for other in value if len(other) < 40], n=1)
    return next((other for other in value if near and other.lower() == near[0]), None)
