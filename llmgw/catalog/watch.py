"""Follow a catalog directory: each settled new state, once.

File events are hints that make it quick. What counts are looks, one at each hint and each poll: at every file's times,
and into those that changed or may have been written to again within what their times can tell. Now and then, and
whenever somebody asks for it, all are read, whatever their times say.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from watchfiles import Change, awatch

from llmgw.catalog import git
from llmgw.catalog.asks import Asks
from llmgw.catalog.looking import IGNORE_FILE, Look, look_at
from llmgw.catalog.mounts import why_silent
from llmgw.catalog.source import Checkout, Settling, Source
from llmgw.errors import CatalogUnreadable, LlmgwError
from llmgw.tasks import Tasks

POLL: Final = 2.0  #: seconds between two looks that no event asked for
REHASH: Final = 60.0  #: seconds after which all is read again, whatever the files' times say
SHARE: Final = 100  #: a poll that takes long is made rarer: it may use one part in so many of the time
STEP_MS: Final = 30  #: events this close together are one hint
REARM: Final = 1.0  #: seconds before a broken watch is tried again; doubled up to the cap
REARM_CAP: Final = 60.0

Events = Callable[..., AsyncGenerator[set[tuple[Change, str]], None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What is there now: a source, or why there is none. `watcher`: `ok`, or `degraded: why` while only polling.

    `asked`: the newest ask that the look came after.
    """

    source: Source | None = None
    error: LlmgwError | None = None
    watcher: str = "ok"
    asked: int = 0

    @property
    def told(self) -> tuple[object, ...]:
        """What there is to tell: equal for two that tell the same."""
        return (self.source, None if self.error is None else str(self.error), self.watcher)


async def follow(
    path: Path,
    *,
    poll: float = POLL,
    events: Events | None = awatch,
    asks: Asks | None = None,
    silent: Callable[[Path], str | None] = why_silent,
) -> AsyncGenerator[Observation, None]:
    """Yield the state of `path` now, and then each settled one that differs (in files, commit, dirtiness, error or
    watcher). Never ends by itself.

    `poll`: seconds between looks when no event says to look. `events` None: only they find changes, as is wanted;
    `silent`: why there can be no events of the directory, which is told. `path` is resolved anew each time: it may be a
    link that is swapped, and may vanish and come back. Blocking work runs in threads. Each of the `asks` is answered by
    a state that was read after it, whether or not that differs.
    """
    tasks, asks = Tasks(), asks or Asks()
    hints = _Hints(events, tasks, asks.event)
    told: tuple[object, ...] | None = None
    reader = _Reader(path)
    try:
        while True:
            asked = asks.number
            if await reader.look_again(anew=asked != reader.asked):
                hints.arm(reader.places(), await asyncio.to_thread(silent, path))
            reader.asked = asked
            seen = reader.observation(_watcher(hints.why, poll, wanted=events is None))
            if (key := (*seen.told, asked)) != told:
                told = key
                yield seen
            await hints.wait(reader.pause(poll))
    finally:
        await tasks.close()


def _watcher(why: str | None, poll: float, *, wanted: bool) -> str:
    """In a line. `wanted`: that only polling finds changes."""
    if wanted:
        return f"ok (polling every {poll:g} s)"
    return "ok" if why is None else f"degraded: polling every {poll:g} s: {why}"


class _Reader:
    """Looks at the directory, and waits until it rests where that says that it changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._look = Look(error="not looked at yet")
        self._checkout = Checkout()
        self._cost = 0.0
        self._read_at = float("-inf")  #: when all was read
        self._changed = False
        self._source: Source | None = None
        self._error: LlmgwError | None = None
        self.asked = 0

    async def look_again(self, *, anew: bool = False) -> bool:
        """Whether anything had changed. It has settled, then; `anew`: all is read, in any case."""
        started = time.monotonic()
        anew = anew or started - self._read_at >= REHASH
        look = await asyncio.to_thread(look_at, self._path, contents=True, known=None if anew else self._look)
        if anew:
            self._read_at = started
        else:
            self._cost = time.monotonic() - started
        self._changed = look != self._look or look.torn
        self._look = look
        if self._changed or anew:
            await self._settle(look)
        return self._changed

    async def _settle(self, look: Look) -> None:
        settling = Settling(self._path, first=look, checkout=self._checkout)
        try:
            while (wait := await asyncio.to_thread(settling.step)) is not None:  # noqa: ASYNC110 - rest has no event
                await asyncio.sleep(wait)
            self._source, self._error = settling.source, None
        except CatalogUnreadable as error:
            self._source, self._error = None, error
        # The look that was believed is no news to the next. Where none was, what is there then is.
        self._look = settling.look or look

    def observation(self, watcher: str) -> Observation:
        if self._source is not None and self._source.note:
            watcher = f"{watcher} ({self._source.note})"
        return Observation(source=self._source, error=self._error, watcher=watcher, asked=self.asked)

    def pause(self, poll: float) -> float:
        # A change between the look and the watch's arming raised no event: look once more, soon.
        return 0.2 if self._changed else max(poll, self._cost * SHARE)

    def places(self) -> "_Places":
        return _places(self._path, self._look)


@dataclass(frozen=True, slots=True)
class _Places:
    """Directories to watch (never a file or a link: those lose what replaces them), and what in them matters."""

    directories: frozenset[str]
    whole: frozenset[str]  #: directories of the catalog itself: everything in them that is no dot-name
    exact: frozenset[str]

    def matter(self, _: Change, text: str) -> bool:
        parent, name = os.path.split(text)
        if text in self.exact:
            return True
        return parent in self.whole and (not name.startswith(".") or name == IGNORE_FILE)


def _places(path: Path, look: Look) -> _Places:
    exact = {str(link) for link in _links(path)} | {os.path.abspath(path)}
    whole: set[str] = set()
    if look.root is not None:
        exact.add(str(look.root))
        whole = {str(look.root / directory) for directory in look.directories}
        repository = git.find(look.root)
        if repository is not None:
            exact |= {str(file) for file in (*repository.refs(), repository.lock)}
    directories = whole | {os.path.dirname(file) for file in exact}
    return _Places(frozenset(filter(os.path.isdir, directories)), frozenset(whole), frozenset(exact))


def _links(path: Path) -> Iterable[Path]:
    """Every symbolic link on the way to `path`, links to links too."""
    pending, seen = [Path(os.path.abspath(path))], set[Path]()
    while pending and len(seen) < 40:
        at = pending.pop()
        for step in (at, *at.parents):
            if step not in seen and os.path.islink(step):
                seen.add(step)
                with contextlib.suppress(OSError):
                    pending.append(Path(os.path.normpath(step.parent / os.readlink(step))))
    return seen


class _Hints:
    """Says when to look sooner than the next poll. `why`: what keeps it from knowing."""

    def __init__(self, events: Events | None, tasks: Tasks, hint: asyncio.Event) -> None:
        self._events = events
        self._tasks = tasks
        self._task: asyncio.Task[Any] | None = None
        self._hint = hint
        self._silent = False
        self.why: str | None = None

    def arm(self, places: _Places, silent: str | None) -> None:
        """Watch these from now on. Also where they are the same: a directory made anew is another one. `silent`: why
        that would be of no use."""
        if self._task is not None:
            self._task.cancel()
        if self._events is None:
            return
        if silent is not None or self._silent:
            self.why = silent
        self._silent = silent is not None
        if not self._silent:
            self._task = self._tasks.start(self._watch(places), "catalog-events")

    async def wait(self, seconds: float) -> None:
        """Until a hint, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # not wait_for, which before 3.12 may swallow a cancellation
                await self._hint.wait()
        self._hint.clear()

    async def _watch(self, places: _Places) -> None:
        pause, failed = REARM, False
        while True:
            try:
                async with contextlib.aclosing(self._open(places)) as batches:
                    async for batch in batches:
                        # An empty batch is a time-out, which shows that the watch stands.
                        self._say(None, look=bool(batch))
                        pause, failed = REARM, False
                why = "the watch ended"
            except (OSError, RuntimeError, ExceptionGroup) as error:
                why = _reason(error)
            if failed:  # one failure may be a file's odd name; a second at once is the system's
                self._say(why, look=True)
            self._hint.set()
            await asyncio.sleep(pause if failed else 0.1)
            pause, failed = min(pause * 2, REARM_CAP) if failed else pause, True

    def _open(self, places: _Places) -> AsyncGenerator[set[tuple[Change, str]], None]:
        assert self._events is not None, "armed only with events"
        return self._events(
            *sorted(filter(os.path.isdir, places.directories)),
            watch_filter=places.matter,
            debounce=200,
            step=STEP_MS,
            rust_timeout=1000,
            yield_on_timeout=True,
            recursive=False,
            force_polling=False,
        )

    def _say(self, why: str | None, *, look: bool) -> None:
        if look or why != self.why:
            self._hint.set()
        self.why = why


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{error}"[:200] or type(error).__name__
