"""Terms of leadership: while this controller leads, it follows the catalog and makes passes; otherwise it stands by."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

import structlog
from prometheus_client.core import Metric

from llmgw.app.parts import Deciding
from llmgw.catalog.commits import Lineage, Pushed
from llmgw.catalog.holds import Held
from llmgw.catalog.live import CatalogState
from llmgw.catalog.load import Loaded
from llmgw.catalog.spec import Catalog
from llmgw.clock import Clock
from llmgw.errors import RetryableError, TerminalError
from llmgw.facts import Event
from llmgw.schedule.forecast import Forecast
from llmgw.store import keys
from llmgw.store.api import Store
from llmgw.store.damage import refuse_newer
from llmgw.store.election import Fenced, Leadership, elected
from llmgw.store.mirror import Mirror
from llmgw.tasks import Tasks

log = structlog.get_logger("llmgw.app")

RETRY: Final = 0.5
"""Seconds after a term that the store's absence ended, before the next is stood for."""

AT_HAND: Final = (
    keys.NODES,
    keys.MEMBERS,
    keys.ASKS,
    keys.USAGE,
    keys.RECOVERY,
    keys.MEASURED,
    keys.CONCURRENCY,
    keys.SCALING,
    keys.EXPLAIN,
    keys.ENDPOINTS,
    keys.CATALOG_STATUS,
)
"""What passes read again and again. Not `settings/`: that each pass reads it from the store itself has none decide
while the store is away."""


class Leading:
    """One controller's part in the election. `make`: what decides, over the store that it is given."""

    def __init__(
        self,
        store: Store,
        name: str,
        clock: Clock,
        record: Callable[[Event], None],
        make: Callable[[Store], Deciding],
    ) -> None:
        self._store = store
        self._name = name
        self._clock = clock
        self._record = record
        self._make = make
        self._deciding: Deciding | None = None

    @property
    def leads(self) -> bool:
        return self._deciding is not None

    async def run(self) -> None:
        """Until cancelled. Raises what ended a term, unless the store was but away; NewerFormat where a newer llmgw
        decided before: this one would go back to what it remembers itself."""
        while True:
            leadership = await elected(self._store, self._name, self._clock)
            self._tell("leads")
            try:
                await self._term(leadership)
            except RetryableError as error:
                log.error("term_ended", error=str(error))
                await self._clock.sleep(RETRY)
            finally:
                self._deciding = None
                await leadership.resign()
            self._tell("stands by")

    async def _term(self, leadership: Leadership) -> None:
        """Until the leadership is lost. A term's parts know nothing of an earlier one: they read all anew."""
        await refuse_newer(self._store)
        mirror = Mirror(Fenced(self._store, leadership), AT_HAND)
        deciding = self._make(mirror)
        tasks = Tasks()
        try:
            tasks.start(mirror.run(), "mirror", essential=True)
            tasks.start(deciding.sync.run(), "sync", essential=True)
            tasks.start(deciding.controller.run(), "controller", essential=True)
            tasks.start(deciding.pressure.run(), "disk pressure", essential=True)
            tasks.start(deciding.notifier.run(), "notifications", essential=True)
            self._deciding = deciding
            lost = tasks.start(_lost(leadership), "leadership")
            failing = tasks.start(tasks.wait(), "term")
            await asyncio.wait({lost, failing}, return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                _raise_one(failing)
        finally:
            with suppress(Exception):
                await tasks.close()

    # what the admin API asks

    async def foresee(
        self, catalog: Catalog | None, asked: Sequence[str] = ()
    ) -> tuple[Forecast, Loaded, Catalog | None]:
        return await self._leader().foresight.foresee(catalog, asked)

    async def compare(self, catalog: Catalog | None) -> tuple[Catalog | None, Catalog]:
        return await self._leader().comparing.sides(catalog)

    async def verdict(self, catalog: Catalog, pushed: Pushed | None = None) -> Held | None:
        return await self._leader().sync.verdict(catalog, pushed)

    async def find(self, revision: str | None) -> Catalog:
        return await self._leader().sync.find(revision)

    async def read(self, revision: str | None) -> Catalog:
        return await self._leader().comparing.read(revision)

    async def lineage(self, revision: str) -> Lineage | None:
        return await self._leader().comparing.lineage(revision)

    async def refresh(self, patience: float, weights: bool = False) -> tuple[CatalogState, bool]:
        return await self._leader().sync.refresh(patience, weights)

    def collect(self) -> Iterable[Metric]:
        """The leader's metrics of passes and notifications."""
        if self._deciding is None:
            return ()
        return (*self._deciding.controller.meters.collect(), *self._deciding.notifier.collect())

    def _leader(self) -> Deciding:
        if self._deciding is None:
            raise TerminalError("this controller stands by, and no leader could be asked: try again in a few seconds")
        return self._deciding

    def _tell(self, reason: str) -> None:
        now = self._clock.now().wall
        self._record(Event(at=now, subject=f"controller/{self._name}", reason=reason))


async def _lost(leadership: Leadership) -> None:
    await leadership.lost.wait()


def _raise_one(task: "asyncio.Task[None]") -> None:
    """What a part raised; RetryableError where all of it is that."""
    failure = task.exception()
    while isinstance(failure, BaseExceptionGroup):
        rest = failure.split(RetryableError)[1]
        failure = failure.exceptions[0] if rest is None else rest.exceptions[0]
    if failure is not None:
        raise failure
