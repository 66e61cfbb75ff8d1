"""A faster reading of the YAML that people mostly write. It accepts, and never judges.

libyaml (through PyYAML) reads a file some fifty times faster than ruamel.yaml, and differs from it in places. What is
accepted here means the same to both, which a differential fuzz holds it to: printable text without backslashes, tabs
and lone carriage returns; plain and quoted scalars of one line; no anchors, tags, directives, empty values or
duplicate keys. Whatever a plain scalar stands for is resolved by ruamel's own resolver, or is so simple that it is
plain. Everything else is for `yamldoc` to judge, and to blame.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.nodes import ScalarNode
from yaml import YAMLError
from yaml.events import (
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from llmgw.catalog.node import LEAF_ITEMS, LEAF_KEYS, Node

try:
    from yaml import cyaml
except ImportError:  # a PyYAML that was built without libyaml: every file goes to the judge
    LIBYAML: Any = None
else:
    LIBYAML = cyaml.CParser  # type: ignore[attr-defined]

MAX_DEPTH: Final = 32  #: the judge allows more
MAX_NODES: Final = 20_000
MAX_BRACKETS: Final = 4_000
"""Opening ones in a file: libyaml takes time that grows with the square of how deep they are nested."""
MAX_KEY: Final = 100

_TEXT: Final = re.compile(r"[\n -\[\]-~\u00a1-\u00ac\u00ae-\u02ff\u0370-\u052f\u3041-\u9fff\uac00-\ud7a3]*")
_NOT_HERE: Final = re.compile(r"^(?:%|\.\.\.|---(?!$))|[\"']:(?![ \n])", re.MULTILINE)
"""Directives, ends of documents, content beside `---`; a colon right between a quoted key and its value."""

_WORD: Final = re.compile(r"[A-Za-z/_$\u00a1-\ud7a3][^:#]*(?:(?::(?=[^\s:#])|(?<=[^\s:])#)[^:#]*)*")
"""Text for sure, unless it is one of the words below. No space follows a colon in it, or comes before a #."""
_SPECIAL: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,17}")
_OTHER: Final = re.compile(r"[0-9.+-][A-Za-z0-9._+-]*")
"""Sizes, durations, versions, flags: the judge's resolver says what they are."""
_DECIMAL: Final = re.compile(r"-?[0-9]{1,9}\.[0-9]{1,9}")

_MOST_KNOWN: Final = 20_000


class _NotAccepted(Exception):
    """For the judge to read."""


def roots(text: str) -> list[Node] | None:
    """The documents of a file; None: the judge must read it."""
    if LIBYAML is None or _TEXT.fullmatch(text) is None or _NOT_HERE.search(text) is not None:
        return None
    if text.count("[") + text.count("{") > MAX_BRACKETS:
        return None
    parser = LIBYAML(text)
    try:
        return _Reader(parser.get_event).documents() or None
    except (_NotAccepted, YAMLError):
        return None
    finally:
        parser.dispose()


class _Reader:
    def __init__(self, next_event: Callable[[], Any]) -> None:
        self._next = next_event
        self._left = MAX_NODES

    def documents(self) -> list[Node]:
        found: list[Node] = []
        self._next()  # the stream's start
        while (event := self._next()).__class__ is not StreamEndEvent:
            if event.__class__ is not DocumentStartEvent or event.version or event.tags:
                raise _NotAccepted
            found.append(self._node(self._next(), 1, False))
            if self._next().explicit:
                raise _NotAccepted
        return found

    def _node(self, event: Any, depth: int, in_flow: bool) -> Node:
        kind = event.__class__
        if kind is ScalarEvent:
            mark = event.start_mark
            return Node(_scalar(event, in_flow), (mark.line + 1, mark.column + 1), LEAF_ITEMS, LEAF_KEYS, 1)
        self._left -= 1
        if depth > MAX_DEPTH or self._left < 0:
            raise _NotAccepted
        if kind is MappingStartEvent:
            return self._mapping(event, depth, in_flow)
        if kind is SequenceStartEvent:
            return self._sequence(event, depth, in_flow)
        raise _NotAccepted  # an alias

    def _mapping(self, start: Any, depth: int, in_flow: bool) -> Node:
        if start.anchor is not None or start.tag is not None:
            raise _NotAccepted
        mark, in_flow = start.start_mark, in_flow or start.flow_style
        value: dict[str, Any] = {}
        items: dict[str | int, Node] = {}
        keys: dict[str, tuple[int, int]] = {}
        size = 1
        while (event := self._next()).__class__ is not MappingEndEvent:
            if event.__class__ is not ScalarEvent:
                raise _NotAccepted
            key = _scalar(event, in_flow)
            if key.__class__ is not str or key in items or len(key) > MAX_KEY or key == "<<":
                raise _NotAccepted
            at: Any = event.start_mark
            item = self._node(self._next(), depth + 1, in_flow)
            items[key], keys[key], value[key] = item, (at.line + 1, at.column + 1), item.value
            size += 1 + item.size
        self._left -= len(items)
        return Node(value, (mark.line + 1, mark.column + 1), items, keys, size)

    def _sequence(self, start: Any, depth: int, in_flow: bool) -> Node:
        if start.anchor is not None or start.tag is not None:
            raise _NotAccepted
        mark, in_flow = start.start_mark, in_flow or start.flow_style
        value: list[Any] = []
        items: dict[str | int, Node] = {}
        size = 1
        while (event := self._next()).__class__ is not SequenceEndEvent:
            item = self._node(event, depth + 1, in_flow)
            items[len(value)] = item
            value.append(item.value)
            size += item.size
        self._left -= len(value)
        return Node(value, (mark.line + 1, mark.column + 1), items, LEAF_KEYS, size)


def _scalar(event: Any, in_flow: bool) -> Any:
    if event.anchor is not None or event.tag is not None or event.start_mark.line != event.end_mark.line:
        raise _NotAccepted
    text: str = event.value
    if event.style:
        if event.style in "|>":
            raise _NotAccepted
        return text
    known = _known.get(text, _known)
    if known is _known:
        known = _plain(text)
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[text] = known
    if known is _REFUSED or (in_flow and ":" in text):
        raise _NotAccepted
    return known


_REFUSED: Final = object()
_known: dict[str, Any] = {}
"""What plain scalars stand for: most of them come again and again."""


def _plain(text: str) -> Any:
    """The value of a plain scalar, or _REFUSED."""
    if _WORD.fullmatch(text) is not None and text.lower() not in _SPECIAL:
        return text
    if _INTEGER.fullmatch(text) is not None:
        return int(text)
    if text in ("true", "false"):
        return text == "true"
    if text == "null":
        return None
    if _WORD.fullmatch(text) is None and _OTHER.fullmatch(text) is None:
        return _REFUSED
    tag = str(_resolver().resolve(ScalarNode, text, (True, False))).rpartition(":")[2]
    if tag == "str":
        return text
    return float(text) if tag == "float" and _DECIMAL.fullmatch(text) is not None else _REFUSED


@cache
def _resolver() -> Any:
    """The judge's own, for YAML 1.2."""
    return YAML(typ="safe", pure=True).resolver
