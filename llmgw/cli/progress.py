"""The reporter of `llmgw up`: shows on stderr what goes on, and says once on stdout that it is ready."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Final, Protocol

from rich.console import Console
from rich.progress import Progress, TaskID

from llmgw.admin.reading import look
from llmgw.cli.bars import columns
from llmgw.cli.narrate import Fetch, Narrator
from llmgw.cli.text import clean, fetched
from llmgw.clock import Clock, SystemClock
from llmgw.ids import ModelName
from llmgw.store import keys
from llmgw.store.api import Snapshot, Store
from llmgw.store.follow import follow
from llmgw.tasks import Tasks

_PREFIXES: Final = (keys.CATALOG_STATUS, keys.APPLIED, keys.STOPPED, keys.EXPLAIN, keys.NODES)
_SETTLE: Final = 0.1  #: seconds: a burst of changes is one look
_PLAIN_INTERVAL: Final = 2.0  #: seconds between progress lines where there is no terminal


class Screen(Protocol):
    """Where the story appears."""

    def say(self, line: str) -> None: ...

    def fetching(self, fetches: Sequence[Fetch], now: float) -> None: ...

    def close(self) -> None: ...


class Reporter:
    """Follows the store until cancelled, or until nobody can read what it writes."""

    def __init__(self, clock: Clock | None = None, screen: Screen | None = None) -> None:
        self._clock = clock or SystemClock()
        self._screen = screen or (TerminalScreen() if sys.stderr.isatty() else PlainScreen())

    async def __call__(self, store: Store, url: str) -> None:
        narrator, tasks, changed = Narrator(url), Tasks(), asyncio.Event()
        for prefix in _PREFIXES:
            seen = await store.list(prefix)
            tasks.start(_follow(store, prefix, seen, changed), f"report {prefix}")
        try:
            while True:
                changed.clear()
                await self._show(store, narrator)
                await changed.wait()
                await self._clock.sleep(_SETTLE)
        except OSError:  # the terminal or pipe is gone: that is no reason to stop serving
            return
        finally:
            await tasks.close()
            self._screen.close()

    async def _show(self, store: Store, narrator: Narrator) -> None:
        seen, now = await look(store), self._clock.now()
        # A bar that is done goes before the line that says what follows.
        self._screen.fetching(narrator.fetches(seen), now.mono)
        for line in narrator.lines(seen, now.wall):
            self._screen.say(clean(line))
        for line in narrator.ready(seen):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()


async def _follow(store: Store, prefix: str, seen: Snapshot, changed: asyncio.Event) -> None:
    async for _ in follow(store, prefix, seen):
        changed.set()


class PlainScreen:
    """Lines, for a log or a pipe."""

    def __init__(self) -> None:
        self._told: dict[ModelName, float] = {}

    def say(self, line: str) -> None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def fetching(self, fetches: Sequence[Fetch], now: float) -> None:
        for fetch in fetches:
            # That it began was said: the first figure comes an interval later.
            if now - self._told.setdefault(fetch.model, now) >= _PLAIN_INTERVAL:
                self._told[fetch.model] = now
                self.say(f"{fetch.model}: fetched {fetched(fetch.done, fetch.total, fetch.rate)}")

    def close(self) -> None:
        pass


class TerminalScreen:
    """Lines above a bar for each download."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bars: Progress | None = None
        self._tasks: dict[ModelName, TaskID] = {}

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def fetching(self, fetches: Sequence[Fetch], now: float) -> None:
        if not fetches:
            self.close()
            return
        bars = self._started()
        for fetch in fetches:
            if fetch.model not in self._tasks:
                self._tasks[fetch.model] = bars.add_task(fetch.model, total=fetch.total, told="")
            told = fetched(fetch.done, fetch.total, fetch.rate)
            bars.update(self._tasks[fetch.model], completed=fetch.done, total=fetch.total, told=told)
        for gone in self._tasks.keys() - {fetch.model for fetch in fetches}:
            bars.remove_task(self._tasks.pop(gone))

    def close(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars, self._tasks = None, {}

    def _started(self) -> Progress:
        """Bars take a thread that redraws them: only while there is something to draw."""
        if self._bars is None:
            self._bars = Progress(
                *columns(),
                console=self._console,
                transient=True,
                refresh_per_second=4,
                redirect_stdout=False,  # the ready line is for whoever reads stdout
            )
            self._bars.start()
        return self._bars
