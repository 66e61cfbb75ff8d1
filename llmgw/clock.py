"""Time, owned by the shell. The core is handed `Instant`s and never asks."""

import asyncio
import time
from typing import Protocol

from llmgw.units import Instant, Mono, Wall


class Clock(Protocol):
    """Where the shell gets the time. Tests use one that they move by hand."""

    def now(self) -> Instant: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> Instant:
        return Instant(Mono(time.monotonic()), Wall(time.time()))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
