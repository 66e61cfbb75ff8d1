"""A document of a catalog, and problems at the places of its values. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from llmgw.catalog.node import Elsewhere, Node, Place
from llmgw.errors import Problem

Path = Sequence[str | int]

_LINE_BREAK: Final = re.compile(r"\r\n|\r|\n")

EXTENDING: Final = "; so in the model "
"""Before the name of the model that a problem in a Template shows in."""


class Document:
    """One YAML document. Never changed once composed. `plain`: read by the faster way, so of simple text.

    Once it is judged, its values and their places are only looked at where there is something to say of them. `forget`
    drops them, for `again` to work them out once more then: of ten thousand models they would take more memory than all
    else, and every full collection of garbage would go through them.
    """

    __slots__ = ("_again", "_root", "_value", "file", "plain")

    def __init__(self, file: str, root: Node, plain: bool = False, again: Callable[[], Node] | None = None) -> None:
        self.file = file
        self.plain = plain
        self._value: Any = root.value
        self._root: Node | None = root
        self._again = again

    @property
    def value(self) -> Any:
        return self._value if self._root is not None else self.root.value

    @property
    def root(self) -> Node:
        if self._root is None:
            assert self._again is not None, "only what can be had again is forgotten"
            self._root = self._again()
            self._value = self._root.value
        return self._root

    def forget(self, again: Callable[[], Node]) -> None:
        """`again` gives a root that equals this one."""
        self._root, self._value, self._again = None, None, again

    def with_root(self, root: Node, *, plain: bool = True) -> "Document":
        """The document with something worked out in it. `plain`: whatever came from elsewhere is."""
        return Document(self.file, root, self.plain and plain)

    def problem(self, path: Path, message: str, *, at_key: bool = False) -> Problem:
        """A problem at the value that `path` leads to, or at its key.

        A path that leaves the document ends at its last value that is there.
        """
        place = self.place(path, at_key=at_key)
        if isinstance(place, Elsewhere):
            name = as_mapping(self.value).get("name")
            known = f"{EXTENDING}{quoted(name)}" if isinstance(name, str) else ""
            return Problem(place.file, *place, json_path(path), f"{message}{known}")
        return Problem(self.file, *place, json_path(path), message)

    def place(self, path: Path, *, at_key: bool = False) -> Place:
        node, place = self.root, self.root.place
        for step in path:
            if step not in node.items:
                return node.keys.get(str(step), node.place)
            place = node.keys.get(str(step), node.items[step].place)
            node = node.items[step]
        return place if at_key else node.place

    def where(self, path: Path, *, at_key: bool = False) -> str:
        """`file:line:column`, to name another place in a message."""
        place = self.place(path, at_key=at_key)
        return f"{place.file if isinstance(place, Elsewhere) else self.file}:{place[0]}:{place[1]}"


def json_path(path: Path) -> str:
    """`$.profiles[0].engine`; a key that is no plain word is quoted: `$.labels["a.b"]`."""
    parts = ["$"]
    for step in path:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        else:
            parts.append(f".{step}" if step.isidentifier() else "[" + quoted(step, mark='"') + "]")
    return "".join(parts)


def quoted(text: str, *, mark: str = "'", limit: int = 60) -> str:
    """A key or name for a message: control characters escaped, long ones cut."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: limit + 1])
    return f"{mark}{shown[:limit]}{'…' if len(text) > limit else ''}{mark}"


def lines_of(text: str) -> list[str]:
    """As YAML 1.2 and editors count them. To `str.splitlines` a few more characters end one."""
    return _LINE_BREAK.split(text)


def is_utf16(data: bytes) -> bool:
    """By its byte order mark, or by the zero beside its first character: some editors and shells write such files."""
    return data.startswith((b"\xff\xfe", b"\xfe\xff")) or (len(data) > 1 and (data[0] == 0) != (data[1] == 0))


def as_mapping(value: Any) -> Mapping[str, Any]:
    """`value`, or an empty mapping where a document has something else: for rules that run on faulty documents."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
