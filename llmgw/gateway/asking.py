"""Asking for on-demand models: a request that finds none ready leaves word in the store, and waits."""

import asyncio
from collections.abc import Callable, Container
from typing import Final

import structlog

from llmgw.clock import Clock
from llmgw.errors import LlmgwError, NewerFormat, RetryableError, StaleRevision, TerminalError
from llmgw.facts import Ask
from llmgw.ids import ModelName
from llmgw.store import codec, keys
from llmgw.store.api import Entry, Store
from llmgw.units import Instant, Wall

log = structlog.get_logger("llmgw.gateway")

PACE: Final = 1.0
"""Seconds between two asks for one model, and until one that could not be written is tried again."""
SKEW: Final = 60.0
"""Seconds that another gateway's clock may be ahead of ours. A stamp further ahead is of a clock that was wrong."""


class Asking:
    """Writes `asks/<model>`: at once, and at most once a second for each model."""

    def __init__(self, store: Store, clock: Clock, waited_for: Callable[[ModelName], bool]) -> None:
        self._store = store
        self._clock = clock
        self._waited_for = waited_for  #: whether a request still waits for the model
        self._asked: dict[ModelName, Instant] = {}
        self._unwritten: dict[ModelName, Wall] = {}
        self._wake = asyncio.Event()
        self._failing = False

    def want(self, model: ModelName) -> tuple[Wall, bool]:
        """The ask that a request makes now, and whether it is a new one. On the request path: cheap."""
        now = self._clock.now()
        last = self._asked.get(model)
        if last is not None and 0 <= now.mono - last.mono < PACE:
            return last.wall, False
        self._asked[model] = now
        self._unwritten[model] = now.wall
        self._wake.set()
        return now.wall, True

    def forget(self, keep: Container[ModelName]) -> None:
        """Models that left the catalog are not asked for any more."""
        for known in (self._asked, self._unwritten):
            for model in [model for model in known if model not in keep]:
                del known[model]

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._write_all()
            if self._unwritten:
                await asyncio.sleep(PACE)
                self._wake.set()

    async def _write_all(self) -> None:
        failed: LlmgwError | None = None
        for model, stamp in tuple(self._unwritten.items()):
            try:
                await self._write(model, stamp)
            except RetryableError as error:
                failed = error
                self._asked.pop(model, None)  # the next request asks anew
                if self._waited_for(model):
                    continue
            except NewerFormat as error:
                failed = error
            if self._unwritten.get(model) == stamp:
                del self._unwritten[model]
        if failed is not None and not self._failing:
            log.error("ask_not_written", error=str(failed))
        self._failing = failed is not None

    async def _write(self, model: ModelName, stamp: Wall) -> None:
        """Raises RetryableError when the store cannot take it now, NewerFormat when what is there is not for us."""
        key = keys.ask(model)
        while True:
            entry = await self._store.get(key)
            known = None if entry is None else _decode(entry)
            value = codec.encode(_later(known, stamp), keep=entry.value if entry and known else None)
            try:
                await self._store.put(key, value, if_revision=entry.revision if entry else 0)
            except StaleRevision:  # another gateway's ask, or the controller's note of its use
                continue
            return


def _decode(entry: Entry) -> Ask | None:
    """A damaged one is as good as none."""
    try:
        return codec.decode(entry.value, Ask, where=entry.key)
    except NewerFormat:
        raise
    except TerminalError:
        return None


def _later(known: Ask | None, stamp: Wall) -> Ask:
    """Whoever else writes it, stamps only move forward."""
    if known is None:
        return Ask(asked=stamp)
    ahead = stamp < known.asked <= stamp + SKEW
    return Ask(asked=known.asked if ahead else stamp, used=known.used, since=known.since)
