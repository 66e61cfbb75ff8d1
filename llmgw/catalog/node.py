"""A value of a document, and where it stands. Pure."""

from dataclasses import dataclass, field
from typing import Any, Final

Place = tuple[int, int]

LEAF_ITEMS: Final[dict[str | int, "Node"]] = {}
LEAF_KEYS: Final[dict[str, Place]] = {}
"""Of every value that holds nothing: most are such, and two dicts for each would be half of a catalog's memory."""


@dataclass(slots=True)
class Node:
    """A value, where it stands (line and column from 1), and the same for what it holds."""

    value: Any
    place: Place
    items: dict[str | int, "Node"] = field(default_factory=dict)
    keys: dict[str, Place] = field(default_factory=dict)
    size: int = 1  #: how many nodes it would be written out in full
