"""How much a node downloads at once: a bandwidth that all downloads share, and turns."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from llmgw.catalog.spec import FetchLimits
from llmgw.weights.sources import Stopped

_BURST: Final = 0.1
"""Seconds of the bandwidth that may be caught up on after a pause, and that are taken at once."""

_LOOK: Final = 0.2
"""Seconds after which who waits for a slow bandwidth looks whether it still is."""


class Pacing:
    """What was asked for last holds for all downloads, those under way too."""

    def __init__(self) -> None:
        self._limits = FetchLimits()
        self._lock = threading.Lock()
        self._free_at = 0.0  #: when the bytes taken so far will have been due
        self._running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def limit(self, limits: FetchLimits) -> None:
        with self._lock:
            if limits.bandwidth != self._limits.bandwidth:
                self._free_at = 0.0  # what was taken under the old one is not waited for under the new
            self._limits = limits
        self._call()

    def portion(self, most: int) -> int:
        """How many bytes to take at once: fewer than `most` where they would come as a burst and a long silence."""
        bandwidth = self._limits.bandwidth
        return most if bandwidth is None else max(1, min(most, int(bandwidth * _BURST)))

    def take(self, count: int, stop: threading.Event) -> None:
        """Wait, in a thread, until `count` bytes are due, or other limits hold. Raises Stopped."""
        with self._lock:
            bandwidth = self._limits.bandwidth
            if bandwidth is None:
                return
            now = time.monotonic()
            due = self._free_at = max(self._free_at, now - _BURST) + count / bandwidth
        while (wait := due - time.monotonic()) > 0 and self._limits.bandwidth == bandwidth:
            if stop.wait(min(wait, _LOOK)):
                raise Stopped

    @asynccontextmanager
    async def turn(self, waiting: Callable[[], None]) -> AsyncIterator[None]:
        """First come, first served. `waiting` is called where the turn does not come at once."""
        if self._running >= self._limits.parallel or self._waiting:
            mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(mine)
            waiting()
            try:
                await mine
            except asyncio.CancelledError:
                if mine.done() and not mine.cancelled():  # it was called just now: the next one is
                    self._leave()
                elif mine in self._waiting:
                    self._waiting.remove(mine)
                raise
        else:
            self._running += 1
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        self._running -= 1
        self._call()

    def _call(self) -> None:
        while self._waiting and self._running < self._limits.parallel:
            called = self._waiting.popleft()
            if not called.done():
                self._running += 1
                called.set_result(None)
