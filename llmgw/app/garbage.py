"""Collections of garbage that do not go through all that a large catalog consists of.

Ten thousand models are more than a million objects, none of which is ever garbage before it is replaced, and then at
once. Python's full collections look at each of them: a second in which nothing else runs, no request either, and every
second change of one model brought one about (measured on 3.11). So whatever survives a full collection is set aside
(`gc.freeze`), and only what came since is looked at by the next. What was set aside and forms a garbage cycle later
stays for the time being: when a quarter more lies there, all is looked at again.
"""

import contextlib
import gc
from collections.abc import Iterator, Mapping
from typing import Any, Final

GROWTH: Final = 1.25
"""By which what was set aside has grown when all is looked at again: so much may be garbage that nobody has found. As
in Python's own rule for full collections."""

SELDOM: Final = 8
"""Full collections after which that growth is asked for: counting what was set aside takes a tenth of a collection."""


@contextlib.contextmanager
def set_aside(*, seldom: int = SELDOM) -> Iterator[None]:
    """What survives full collections, in all of this process."""
    callback = _SettingAside(seldom)
    gc.callbacks.append(callback)
    try:
        yield
    finally:
        gc.callbacks.remove(callback)
        gc.unfreeze()


class _SettingAside:
    """As gc.callbacks have it; never called while it runs already."""

    def __init__(self, seldom: int) -> None:
        self._seldom = seldom
        self._collections = 0  #: full ones since that was asked last
        self._whole = 0  #: objects that were left then
        self._of_all = False

    def __call__(self, phase: str, info: Mapping[str, Any]) -> None:
        if info["generation"] != 2:
            return
        if phase == "start":
            self._of_all = self._is_time()
            if self._of_all:
                gc.unfreeze()
            return
        gc.freeze()
        if self._of_all:
            self._whole = gc.get_freeze_count()

    def _is_time(self) -> bool:
        """What there is when it is asked first counts as looked at: little of a start is garbage."""
        self._collections = (self._collections + 1) % self._seldom
        if self._collections > 0:
            return False
        count = gc.get_freeze_count()
        self._whole = self._whole or count
        return count > self._whole * GROWTH
