"""An event loop whose time is made up: what waits is due at once, and hours take no time. For code that only sleeps."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from llmgw.units import Instant, Mono, Wall

T = TypeVar("T")


class _Skipping(selectors.SelectSelector):
    """Waiting makes the time pass, and takes none."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everything waits, and nothing will ever happen")
        self.now += timeout
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now


class LoopClock:
    """The running loop's time."""

    def now(self) -> Instant:
        now = asyncio.get_running_loop().time()
        return Instant(Mono(now), Wall(now))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(work)
