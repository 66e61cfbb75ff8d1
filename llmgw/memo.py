"""What was worked out before, kept for as long as what it was worked out of is the same. Pure.

Most of a large catalog is, from one revision to the next and from pass to pass, what it was: what is made of each model
is made once, and what changed costs what changed. Nothing here makes an answer depend on the past: forgetting all of it
at any moment changes no answer, only what the next one costs. What is kept is shared: nobody may change it.
"""

import weakref
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
H = TypeVar("H", bound=Hashable)

_MOST: Final = 32_768


class Living(Generic[K, V]):
    """What is known of objects, by their identity and for as long as they live: of values that nobody changes, and that
    cannot be hashed. What is known of one must not hold it, or neither would ever go."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[_Reference[K], V]] = {}

    def get(self, one: K) -> V | None:
        known = self._known.get(id(one))
        return None if known is None else known[1]

    def put(self, one: K, value: V) -> None:
        reference = _Reference(one, self._forget)
        reference.identity = id(one)
        self._known[reference.identity] = reference, value

    def _forget(self, reference: "_Reference[K]") -> None:
        """Called before its identity can be another's."""
        self._known.pop(reference.identity, None)

    def __len__(self) -> int:
        return len(self._known)


class _Reference(weakref.ref[K]):
    """`identity`: of the object, which cannot be asked once it is gone."""

    __slots__ = ("identity",)

    identity: int


class Once(Generic[K, V]):
    """`make`, remembered by the identity of its argument for as long as that lives. The answer must not hold it."""

    def __init__(self, make: Callable[[K], V]) -> None:
        self._make = make
        self._known: Living[K, tuple[V]] = Living()

    def __call__(self, value: K) -> V:
        known = self._known.get(value)
        if known is None:
            known = (self._make(value),)
            self._known.put(value, known)
        return known[0]


class Kept(Generic[H, V]):
    """The last answer of `make` for each key, as long as all that it is made of is equal; the same object is.

    `most`: answers that are kept; with one more all are forgotten. Few, where the values are large.
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
