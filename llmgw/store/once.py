"""What is worked out of a value once for each object: most models of a catalog that changes are those before."""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_MOST: Final = 32_768


class Once(Generic[K, V]):
    """`make`, remembered by identity: for values that nobody changes, and that cannot be hashed."""

    def __init__(self, make: Callable[[K], V]) -> None:
        self._make = make
        self._known: dict[int, tuple[K, V]] = {}  # values are kept, so that no id is used again

    def __call__(self, value: K) -> V:
        known = self._known.get(id(value))
        if known is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            known = self._known[id(value)] = (value, self._make(value))
        return known[1]
