"""Macros: pieces of text and of command lines that the Cluster document names and profiles use as `${NAME}`. Pure.

They are resolved before a document is judged, so that whatever comes later, the spec digest included, sees what was
meant, and each problem still has the place where it was written. A text macro goes anywhere in a text; a list macro
stands alone as one item of a list and becomes its words. `$${` is a literal `${`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from llmgw.catalog.document import Document, Path, as_list, as_mapping, quoted
from llmgw.catalog.levels import LEVELS
from llmgw.catalog.node import Node, list_of, with_items
from llmgw.catalog.schemas import did_you_mean
from llmgw.errors import Problem

MAX_NESTED: Final = 16  #: macros within macros
MAX_TEXT: Final = 4 * 1024 * 1024
"""Characters that all uses in a catalog may come to: a few that use each other twice could fill the memory."""

PLACES: Final = ("options", "args", "wrapper")
"""The keys of a profile, and of its levels' blocks, in which macros are replaced. Never `env`: what is secret stays a
reference."""

ELSEWHERE: Final = ("env", "weights", "draft", "files")
"""Where people expect it as well."""

_USE: Final = re.compile(r"\$\$\{|\$\{(?:([A-Za-z][A-Za-z0-9_]*)\})?")
_ALONE: Final = re.compile(r"\$\{([A-Za-z][A-Za-z0-9_]*)\}")

Tell = Callable[[str], None]


class _TooMuch(Exception):
    """MAX_TEXT is spent."""


@dataclass(frozen=True, slots=True)
class _Value:
    """What a macro stands for. `depth`: of macros within it."""

    words: tuple[str, ...]
    is_list: bool
    depth: int


_FAULTY: Final = _Value(("",), False, 0)
"""For a macro that is at fault itself: its own place was blamed, those that use it are not."""


@dataclass(frozen=True, slots=True)
class Expanded:
    """A Model document with every macro replaced, what is wrong with their uses in it, and how many characters they
    came to."""

    document: Document
    problems: tuple[Problem, ...] = ()
    spent: int = 0


class Macros:
    """The macros of the Cluster document, each resolved once. `problems`: what is wrong with them."""

    def __init__(self, document: Document | None) -> None:
        self.problems: list[Problem] = []
        self._document = document
        self.plain = document is None or document.plain
        self._raw: Mapping[str, Any] = as_mapping(as_mapping(document.value).get("macros")) if document else {}
        self._known: dict[str, _Value] = {}
        self._left = MAX_TEXT
        for name in self._raw:
            self._value(name, ())
        self.spent = MAX_TEXT - self._left  #: characters, in resolving them

    def expand(self, document: Document) -> Expanded:
        """Replace every macro in a Model document."""
        self._left = MAX_TEXT
        expansion = _Expansion(document, self)
        try:
            done = expansion.document()
        except _TooMuch:
            return Expanded(document, (too_much(document),), MAX_TEXT)
        return Expanded(done, tuple(expansion.problems), MAX_TEXT - self._left)

    def doubts(self, document: Document) -> Iterator[Problem]:
        """Of a valid Model document: uses where nothing is replaced, which are passed on as they stand."""
        for index, profile in enumerate(document.value.get("profiles", ()) if self._raw else ()):
            for level, part in (((), profile), *(((key,), profile.get(key)) for key in LEVELS)):
                for key in ELSEWHERE:
                    for path, text in _texts(as_mapping(part).get(key), ("profiles", index, *level, key)):
                        if (name := next((each for each in _names([text]) if each in self._raw), None)) is not None:
                            message = f"the macro {quoted(name)} is not replaced here, but in {', '.join(PLACES)} alone"
                            yield document.problem(path, message)

    def text(self, text: str, tell: Tell, chain: tuple[str, ...] = ()) -> str:
        """`text` with its macros replaced. Raises _TooMuch."""
        parts: list[str] = []
        at = 0
        for use in _USE.finditer(text):
            parts.append(text[at : use.start()])
            at = use.end()
            parts.append("${" if use[0] == "$${" else self._used(use[1], tell, chain))
        parts.append(text[at:])
        self._spend(sum(map(len, parts)))
        return "".join(parts)

    def words(self, item: str, tell: Tell, chain: tuple[str, ...] = ()) -> tuple[str, ...]:
        """What an item of a list becomes: itself with its text macros replaced, or the words of a list macro."""
        alone = _ALONE.fullmatch(item)
        if alone is not None and alone[1] in self._raw and (value := self._value(alone[1], chain)).is_list:
            self._spend(sum(len(word) + 1 for word in value.words))
            return value.words
        return (self.text(item, tell, chain),)

    def _used(self, name: str | None, tell: Tell, chain: tuple[str, ...]) -> str:
        if name is None:
            tell("${ begins a macro: write its name and }, or $${ for a literal ${")
        elif name not in self._raw:
            hint = did_you_mean(name, self._raw) or " (the Cluster document names macros; $${ is a literal ${)"
            tell(f"unknown macro {quoted(name)}{hint}")
        else:
            value = self._value(name, chain)
            if not value.is_list:
                return value.words[0]
            tell(f"the macro {quoted(name)} is a list: it stands alone, as one item of a list")
        return ""

    def _value(self, name: str, chain: tuple[str, ...]) -> _Value:
        if name not in self._known:
            self._known[name] = self._resolve(name, chain)
        return self._known[name]

    def _resolve(self, name: str, chain: tuple[str, ...]) -> _Value:
        raw = self._raw[name]
        items = raw if isinstance(raw, list) else [raw]
        if not all(isinstance(item, str) for item in items):
            return _FAULTY  # the schema says so
        if name in chain:
            self._blame((name,), f"the macro uses itself: {' -> '.join((*chain[chain.index(name) :], name))}")
            return _FAULTY
        if len(chain) >= MAX_NESTED:
            self._blame((chain[0],), f"macros within macros, more than {MAX_NESTED} deep")
            return _FAULTY
        here = (*chain, name)
        words: list[str] = []
        try:
            if isinstance(raw, list):
                for index, item in enumerate(items):
                    words += self.words(item, self._teller((name, index)), here)
            else:
                words.append(self.text(raw, self._teller((name,)), here))
        except _TooMuch:
            self._blame((name,), f"macros come to more than {MAX_TEXT:,} characters")
            self._left = MAX_TEXT
            return _FAULTY
        depth = 1 + max((self._known[each].depth for each in _names(items) if each in self._known), default=0)
        if depth > MAX_NESTED:
            self._blame((name,), f"macros within macros, more than {MAX_NESTED} deep")
            return _FAULTY
        return _Value(tuple(words), isinstance(raw, list), depth)

    def _spend(self, characters: int) -> None:
        self._left -= characters
        if self._left < 0:
            raise _TooMuch

    def _teller(self, path: Path) -> Tell:
        return lambda message: self._blame(path, message)

    def _blame(self, path: Path, message: str) -> None:
        assert self._document is not None, "a macro stands in a document"
        self.problems.append(self._document.problem(("macros", *path), message))


def too_much(document: Document) -> Problem:
    """Of the document with which all uses came to more than MAX_TEXT."""
    return document.problem((), f"with this document, macros come to more than {MAX_TEXT:,} characters")


def _names(items: Sequence[str]) -> Iterator[str]:
    return (use[1] for item in items for use in _USE.finditer(item) if use[1])


def _texts(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, str):
        yield path, value
    for key, inner in as_mapping(value).items():
        yield from _texts(inner, (*path, key))


class _Expansion:
    """One Model document with its macros replaced. The document itself stays as it is."""

    def __init__(self, document: Document, macros: Macros) -> None:
        self.problems: list[Problem] = []
        self._document = document
        self._macros = macros

    def document(self) -> Document:
        root = self._document.root
        if not as_list(as_mapping(root.value).get("profiles")):
            return self._document
        profiles = root.items["profiles"]
        done = [self._profile(profiles.items[index], ("profiles", index)) for index in range(len(profiles.value))]
        expanded = with_items(root, {"profiles": list_of(done, profiles)})
        return self._document.with_root(expanded, plain=self._macros.plain)

    def _profile(self, profile: Node, path: Path) -> Node:
        if not isinstance(profile.value, dict):
            return profile
        changed = {
            key: self._node(profile.items[key], (*path, key)) for key in PLACES if key in profile.items
        }  # in `args` and `wrapper` only lists of texts are of the right shape, and others stay for the schema to blame
        blocks = {key: self._profile(profile.items[key], (*path, key)) for key in LEVELS if key in profile.items}
        return with_items(profile, changed | blocks)

    def _node(self, node: Node, path: Path) -> Node:
        match node.value:
            case str():
                return Node(self._macros.text(node.value, self._teller(path)), node.place)
            case dict():
                return with_items(node, {key: self._node(inner, (*path, key)) for key, inner in node.items.items()})
            case list():
                items = [each for index in range(len(node.value)) for each in self._item(node, path, index)]
                return list_of(items, node)
        return node

    def _item(self, node: Node, path: Path, index: int) -> Iterator[Node]:
        item, at = node.items[index], (*path, index)
        if not isinstance(item.value, str):
            yield self._node(item, at)
            return
        for word in self._macros.words(item.value, self._teller(at)):
            yield Node(word, item.place)

    def _teller(self, path: Path) -> Tell:
        return lambda message: self.problems.append(self._document.problem(path, message))
