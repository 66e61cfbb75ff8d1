"""How often something is done: what tests of growth count, in place of time."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def calls_of(function: Callable[..., object]) -> Iterator[list[dict[str, Any]]]:
    """The arguments of each call meanwhile, by name; by whatever name it is called."""
    seen: list[dict[str, Any]] = []
    code = function.__code__  # type: ignore[attr-defined]

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is code:
            seen.append(dict(frame.f_locals))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(before)
