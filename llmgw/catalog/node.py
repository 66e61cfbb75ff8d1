"""A value of a document, and where it stands. Pure."""

from dataclasses import dataclass, field
from typing import Any, Final

Place = tuple[int, int]
"""Line and column, from 1."""


class Elsewhere(tuple[int, int]):
    """A place in another file than the document's own: what a Model document has from a Template."""

    file: str

    @classmethod
    def of(cls, place: Place, file: str) -> "Elsewhere":
        made = cls(place)
        made.file = file
        return made


LEAF_ITEMS: Final[dict[str | int, "Node"]] = {}
LEAF_KEYS: Final[dict[str, Place]] = {}
"""Of every value that holds nothing: most are such, and two dicts for each would be half of a catalog's memory."""


@dataclass(slots=True)
class Node:
    """A value, where it stands, and the same for what it holds."""

    value: Any
    place: Place
    items: dict[str | int, "Node"] = field(default_factory=dict)
    keys: dict[str, Place] = field(default_factory=dict)
    size: int = 1  #: how many nodes it would be written out in full


def with_items(node: Node, changed: "dict[Any, Node]") -> Node:
    """A mapping with some of its values replaced."""
    items = {**node.items, **changed}
    return Node({key: inner.value for key, inner in items.items()}, node.place, items, node.keys, node.size)


def list_of(items: "list[Node]", like: Node) -> Node:
    """A list in the place of another."""
    return Node([item.value for item in items], like.place, dict(enumerate(items)), {}, like.size)
