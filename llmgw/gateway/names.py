"""Names that somebody may have meant who asked for one that nobody has. Pure."""

import difflib
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

_LENGTH: Final = 100
"""Longer names get no suggestions: comparing costs the square of the length."""
_FEW: Final = 64
"""As many names are compared each. To compare a thousand alike ones takes 50 ms, in which nobody else is served."""
_AROUND: Final = _FEW // 4


def near_names(name: str, known: Collection[str]) -> tuple[str, ...]:
    """Up to three of those known, the likeliest first; case does not count."""
    return () if len(name) > _LENGTH else _near(name, _index(tuple(known)))


@dataclass(frozen=True, slots=True, eq=False)
class _Index:
    """Names in small letters, and as they are written; in order, and in the order of how they end."""

    written: dict[str, str]
    forwards: Sequence[str]
    backwards: Sequence[str]

    def around(self, name: str) -> Collection[str]:
        """Those that begin or end most like it: where there is one mistake, what is before it is right, or what comes
        after it."""
        if len(self.written) <= _FEW:
            return self.written
        ends = (text[::-1] for text in _beside(self.backwards, name[::-1]))
        return dict.fromkeys((*_beside(self.forwards, name), *ends))


@lru_cache(maxsize=2)
def _index(known: tuple[str, ...]) -> _Index:
    written = {name.casefold(): name for name in known if len(name) <= 2 * _LENGTH}
    return _Index(written, sorted(written), sorted(name[::-1] for name in written))


@lru_cache(maxsize=256)  # who asks for a model that went asks again
def _near(name: str, index: _Index) -> tuple[str, ...]:
    name = name.casefold()
    return tuple(index.written[each] for each in difflib.get_close_matches(name, index.around(name), n=3, cutoff=0.6))


def _beside(names: Sequence[str], name: str) -> Sequence[str]:
    at = bisect_left(names, name)
    return names[max(0, at - _AROUND) : at + _AROUND]
