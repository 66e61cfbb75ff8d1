"""What was worked out before, kept for as long as what it was worked out of is the same. Pure.

Most of a large catalog is, from one revision to the next and from pass to pass, what it was: what is made of each model
is made once, and what changed costs what changed. Nothing here makes an answer depend on the past: forgetting all of it
at any moment changes no answer, only what the next one costs. What is kept is shared: nobody may change it.
"""

from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
H = TypeVar("H", bound=Hashable)

_MOST: Final = 32_768


class Once(Generic[K, V]):
    """`make`, remembered by the identity of its argument: for values that nobody changes, and that cannot be hashed.

    `most`: answers that are kept; with one more all are forgotten. Few, where the values are large.
    """

    def __init__(self, make: Callable[[K], V], *, most: int = _MOST) -> None:
        self._make = make
        self._most = most
        self._known: dict[int, tuple[K, V]] = {}  # values are kept, so that no id is used again

    def __call__(self, value: K) -> V:
        known = self._known.get(id(value))
        if known is None:
            made = self._make(value)
            if len(self._known) >= self._most:
                self._known.clear()
            known = self._known[id(value)] = (value, made)
        return known[1]


class Kept(Generic[H, V]):
    """The last answer of `make` for each key, as long as all that it is made of is equal; the same object is.

    `most` as in `Once`.
    """

    def __init__(self, make: Callable[..., V], *, most: int = _MOST) -> None:
        self._make = make
        self._most = most
        self._known: dict[H, tuple[tuple[Any, ...], V]] = {}

    def of(self, key: H, *made_of: Any) -> V:
        known = self._known.get(key)
        if known is None or known[0] != made_of:
            made = self._make(*made_of)
            if len(self._known) >= self._most and key not in self._known:
                self._known.clear()
            known = self._known[key] = (made_of, made)
        return known[1]
