"""Bytes to documents whose every key and value knows its line and column.

ruamel.yaml (pure, YAML 1.2) is the judge of what the text means. Its events are composed here, so that bounds hold
before anything is built and each problem has a place. Messages never echo a value: it may be a secret.
"""

import math
from collections.abc import Iterator
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.reader import ReaderError

from llmgw.catalog import yamlfast
from llmgw.catalog.blame import PLACEHOLDER, blamed, unmerged
from llmgw.catalog.document import Document as Document
from llmgw.catalog.document import Path as Path
from llmgw.catalog.document import as_list as as_list
from llmgw.catalog.document import as_mapping as as_mapping
from llmgw.catalog.document import is_utf16
from llmgw.catalog.document import json_path as json_path
from llmgw.catalog.document import lines_of as lines_of
from llmgw.catalog.document import quoted as quoted
from llmgw.catalog.node import Node, Place
from llmgw.errors import Problem

MAX_DEPTH: Final = 64
MAX_NODES: Final = 50_000  #: values in one file, each use of an alias counted as if written out
_INT_LIMIT: Final = 2**63
HEAD: Final = frozenset({"apiVersion", "kind"})
"""What a document begins with."""

_PARSER_FAULTS: Final = (ValueError, LookupError, AttributeError, TypeError, AssertionError, RecursionError)
"""What a parser written for well-meant text may raise on other text, besides its own errors."""


def parse(file: str, data: bytes) -> tuple[list[Document], list[Problem]]:
    """The documents of one file, and all that is wrong with its YAML. Raises nothing.

    A fault of syntax ends the file; others (a duplicate key, a date) are noted and the rest is still read.
    """
    if is_utf16(data):
        return [], [Problem(file, 1, 1, "$", "this is UTF-16: save the file as UTF-8")]
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return [], [_not_utf8(file, data, error.start)]
    if (conflict := unmerged(text)) is not None:
        place, message = conflict
        return [], [Problem(file, *place, "$", message)]
    if (accepted := yamlfast.roots(text)) is not None:
        return [Document(file, root, plain=True) for root in accepted], []
    return judge(file, text)


def judge(file: str, text: str) -> tuple[list[Document], list[Problem]]:
    """As `parse`, by ruamel.yaml alone."""
    composer = _Composer(file, text)
    return composer.documents(), composer.problems


def _not_utf8(file: str, data: bytes, offset: int) -> Problem:
    start = data.rfind(b"\n", 0, offset) + 1
    line, column = data.count(b"\n", 0, offset) + 1, len(data[start:offset].decode("utf-8-sig", "replace")) + 1
    return Problem(file, line, column, "$", f"not UTF-8 at byte {offset}; save the file as UTF-8")


class _Stop(Exception):
    """The rest of the file cannot be judged; the problem is noted."""


class _Composer:
    def __init__(self, file: str, text: str) -> None:
        self.problems: list[Problem] = []
        self._file = file
        self._lines = lines_of(text)
        self._text = text
        # One per file: a directive or a fault in one file must not colour how the next is read.
        self._yaml = YAML(typ="safe", pure=True)
        self._anchors: dict[str, Node | None] = {}
        self._count = 0
        self._last: Place = (1, 1)
        self._quoted: tuple[Place, int] | None = None  #: the last quoted text of several lines, and where it ends

    def documents(self) -> list[Document]:
        found: list[Document] = []
        try:
            for document in self._read():
                found.append(document)  # noqa: PERF402 - those before a fault are kept
        except _Stop:
            return found
        except MarkedYAMLError as error:
            self._note(*blamed(error, self._lines, self._last, self._quoted))
        except ReaderError as error:
            self._note(self._place_of(error.position), "a control character: remove it, or write it as an escape")
        except YAMLError:
            self._note(self._last, "not valid YAML from here on")
        except _PARSER_FAULTS as error:
            self._note(self._last, f"not valid YAML after this ({type(error).__name__} in the parser)")
        else:
            if not found and not self.problems:
                self._note((0, 0), "empty file: write a document, or remove the file")
        return found

    def _read(self) -> Iterator[Document]:
        events = self._yaml.parse(self._text)
        ended = 0
        try:
            for event in events:
                if isinstance(event, DocumentStartEvent):
                    self._refuse_directives(ended, event.start_mark.line)
                    self._anchors = {}
                    yield Document(self._file, self._node(next(events), events, 1))
                elif isinstance(event, DocumentEndEvent):
                    ended = event.end_mark.line
                elif isinstance(event, StreamEndEvent):
                    self._refuse_directives(ended, len(self._lines))
        finally:
            events.close()

    def _refuse_directives(self, start: int, end: int) -> None:
        # Between two documents only comments, blank lines and directives can stand; ruamel's events leave out those
        # it does not know, and %YAML 1.1 would change what `no` means.
        for number in range(start, min(end, len(self._lines))):
            if self._lines[number].startswith("%"):
                self._note((number + 1, 1), "directives are not supported: remove this line; files are YAML 1.2")
                raise _Stop

    def _node(self, event: Any, events: Iterator[Any], depth: int) -> Node:
        place = self._last = self._mark(event.start_mark)
        if isinstance(event, AliasEvent):
            return self._alias(event.anchor, place)
        self._spend(1, place)
        if depth > MAX_DEPTH:
            self._note(place, f"nested more than {MAX_DEPTH} deep")
            raise _Stop
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if event.ctag is not None:
            self._note(place, "tags (!...) are not supported: remove it; put quotes around a value that is text")
        if isinstance(event, MappingStartEvent):
            node = self._mapping(place, events, depth)
        elif isinstance(event, SequenceStartEvent):
            node = self._sequence(place, events, depth)
        else:
            node = Node(self._scalar(event, place), place)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _alias(self, anchor: str, place: Place) -> Node:
        if anchor not in self._anchors:
            self._note(place, "an alias (*...) without an anchor; put quotes around a value that starts with *")
            return Node(None, place)
        node = self._anchors[anchor]
        if node is None:
            self._note(place, "an alias (*...) to the value that holds it")
            raise _Stop
        self._spend(node.size, place)
        return node

    def _spend(self, nodes: int, place: Place) -> None:
        self._count += nodes
        if self._count > MAX_NODES:
            self._note(place, f"more than {MAX_NODES:,} values in one file, aliases (*...) written out")
            raise _Stop

    def _sequence(self, place: Place, events: Iterator[Any], depth: int) -> Node:
        node = Node([], place)
        while not isinstance(event := next(events), SequenceEndEvent):
            item = self._node(event, events, depth + 1)
            node.items[len(node.value)] = item
            node.value.append(item.value)
            node.size += item.size
        return node

    def _mapping(self, place: Place, events: Iterator[Any], depth: int) -> Node:
        node = Node({}, place)
        another = False  #: the next document, for want of a --- before it
        while not isinstance(event := next(events), MappingEndEvent):
            before, at = len(self.problems), self._mark(event.start_mark)
            key = self._node(event, events, depth + 1)
            plain_merge = isinstance(event, ScalarEvent) and event.value == "<<" and event.implicit[0]
            item = self._node(value := next(events), events, depth + 1)
            if isinstance(value, ScalarEvent) and value.implicit[0] and not value.value:
                item.place = at  # left out: its own mark is that of whatever comes next
            node.size += key.size + item.size
            if plain_merge:
                del self.problems[before:]  # of a value that goes with its key
                self._note(at, "merge keys (<<) are not supported: write the keys out")
            elif isinstance(key.value, dict) and at == (place[0], place[1] + 1):
                del self.problems[before:]
                self._note(place, PLACEHOLDER)
            elif not isinstance(key.value, str):
                self._note(at, "a key must be text: put quotes around it")
            elif key.value in node.items:
                if not another:
                    another = depth == 1 and key.value in HEAD and len(node.items) > len(HEAD)
                    self._duplicate(key.value, at, node.keys[key.value], another=another)
            else:
                node.items[key.value], node.keys[key.value] = item, at
                node.value[key.value] = item.value
        return node

    def _duplicate(self, key: str, at: Place, first: Place, *, another: bool) -> None:
        """`another`: most likely a whole document, whose other keys come twice as well."""
        told = f"duplicate key {quoted(key)}: the first is at {self._file}:{first[0]}:{first[1]}"
        self._note(at, f"{told}; where another document begins, write `---` in a line before it" if another else told)

    def _scalar(self, event: Any, place: Place) -> Any:
        """The value as ruamel reads it. A value that is refused becomes None, its problem noted."""
        if event.style in ("'", '"') and event.end_mark.line + 1 > place[0]:
            self._quoted = (place, event.end_mark.line + 1)
        tag = str(self._yaml.resolver.resolve(ScalarNode, event.value, event.implicit)).rpartition(":")[2]
        if tag == "str" or event.ctag is not None:
            return self._text_value(event.value, place)
        if tag == "null":
            return None
        if tag == "bool":
            return str(event.value).lower() == "true"
        if tag in ("int", "float"):
            return self._number(event, place)
        reads_as = "a date" if tag == "timestamp" else "something special in YAML"
        self._note(place, f"this reads as {reads_as}: put quotes around it if it is text")
        return None

    def _text_value(self, text: str, place: Place) -> str:
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            self._note(place, "holds a NUL or half a surrogate pair: neither can be used in text")
            return ""
        return text

    def _number(self, event: Any, place: Place) -> int | float | None:
        resolved = self._yaml.resolver.resolve(ScalarNode, event.value, event.implicit)
        try:
            number: int | float = self._yaml.constructor.construct_object(ScalarNode(resolved, event.value))
        except (ValueError, OverflowError, YAMLError):
            number = math.inf
        if not math.isfinite(number) or (isinstance(number, int) and abs(number) >= _INT_LIMIT):
            self._note(place, "not a number that can be used (too large, infinite or NaN); quote it if it is text")
            return None
        return number

    def _note(self, place: Place, message: str) -> None:
        self.problems.append(Problem(self._file, *place, "$", message))

    def _mark(self, mark: Any) -> Place:
        return self._last if mark is None else (mark.line + 1, mark.column + 1)

    def _place_of(self, position: int) -> Place:
        before = self._text[:position]
        return before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1
