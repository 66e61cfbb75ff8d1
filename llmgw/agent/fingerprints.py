"""Which engines the node can run: asked at start, now and then, and after a launch that failed."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from llmgw.agent.bounded import Bounded
from llmgw.clock import Clock
from llmgw.engine.api import Engine
from llmgw.engine.manager import Engines
from llmgw.facts import EngineFact
from llmgw.ids import EngineName

TIMEOUT: Final = 10.0  #: seconds
REFRESH: Final = 300.0
"""Seconds between two looks when nothing happens: a program may have been installed, replaced or removed meanwhile."""

GAP: Final = 10.0  #: seconds between two looks at least: engines that fail in a loop must not have programs run in one


class Fingerprints:
    """Every engine's word on this node. `facts` is empty until the first look."""

    def __init__(
        self, engines: Engines, *, timeout: float = TIMEOUT, refresh: float = REFRESH, gap: float = GAP
    ) -> None:
        self._engines = engines
        self._timeout = timeout
        self._refresh = refresh
        self._gap = gap
        self._askers: dict[EngineName, Bounded[EngineFact]] = {
            name: Bounded(f"fingerprint {name}") for name in engines.by_name
        }
        self._doubted = asyncio.Event()
        self.facts: tuple[EngineFact, ...] = ()

    def doubt(self) -> None:
        """Something failed that may have to do with an engine: look again soon."""
        self._doubted.set()

    async def look(self) -> tuple[EngineFact, ...]:
        """Ask every engine, in name order. One that raises or hangs is unusable, and says why."""
        found = [self._ask(name, engine) for name, engine in self._engines.by_name.items()]
        facts = {fact.name: fact for fact in await asyncio.gather(*found)}
        for name, why in self._engines.lost.items():
            facts.setdefault(name, EngineFact(name=name, why=why))
        self.facts = tuple(facts[name] for name in sorted(facts))
        return self.facts

    async def run(self, clock: Clock, changed: Callable[[], None]) -> None:
        """Look again and again, until cancelled; `changed` is called when an answer differs."""
        while True:
            await clock.sleep(self._gap)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._refresh):
                    await self._doubted.wait()
            self._doubted.clear()
            before = self.facts
            if await self.look() != before:
                changed()

    async def _ask(self, name: EngineName, engine: Engine) -> EngineFact:
        try:
            fact = await self._askers[name].call(engine.fingerprint, self._timeout)
            if not isinstance(fact, EngineFact) or fact.name != name:
                raise TypeError(f"it returned {fact!r:.80}")
            return fact
        except TimeoutError:
            return EngineFact(name=name, why=f"its fingerprint did not return within {self._timeout:.0f} s")
        except Exception as error:  # noqa: BLE001 - a plugin's failure, whatever it is, stays its own
            return EngineFact(name=name, why=f"its fingerprint failed: {type(error).__name__}: {error}")
