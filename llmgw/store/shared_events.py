"""Events of all processes in one log: each writes its own last ones into the store, and reads the others'."""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final

import structlog

from llmgw.errors import LlmgwError, RetryableError
from llmgw.facts import Event
from llmgw.store import keys
from llmgw.store.api import Snapshot, Store
from llmgw.store.codec import decode, encode
from llmgw.store.events import KEPT, EventLog
from llmgw.store.follow import follow
from llmgw.store.values import Role, ToldEvent, ToldEvents
from llmgw.tasks import Tasks

log = structlog.get_logger("llmgw.events")

TOLD: Final = 200
"""Events of a writer that the store keeps."""

PACE: Final = 1.0
"""Seconds between two writes."""


class SharedEvents(EventLog):
    """What is recorded here is told the others within about a second; `read`: theirs are here too."""

    def __init__(self, store: Store, role: Role, name: str, *, read: bool) -> None:
        super().__init__()
        self._store = store
        self._key = keys.events(role, name)
        self._read = read
        self._own: deque[ToldEvent] = deque(maxlen=TOLD)
        self._next = 1
        self._unwritten = asyncio.Event()
        self._seen: dict[str, int] = {}  # writer's key -> number of its last event that is here

    def record(self, event: Event) -> None:
        super().record(event)
        self._own.append(ToldEvent(number=self._next, event=event))
        self._next += 1
        self._unwritten.set()

    def numbered(self, limit: int = KEPT, *, after: int = 0) -> tuple[tuple[int, Event], ...]:
        """In the order of their time: word of others' comes a second late."""
        return tuple(sorted(super().numbered(limit, after=after), key=lambda pair: pair[1].at))

    async def run(self) -> None:
        """Until cancelled."""
        snapshot = await self._list()
        found = {entry.key: _decode(entry.key, entry.value) for entry in snapshot.entries}
        past = found.pop(self._key, ())
        self._resume(past)
        tasks = Tasks()
        try:
            if self._read:
                self._merge([*past, *self._new(found.items())])
                tasks.start(self._follow(snapshot), "events of others", essential=True)
            tasks.start(self._tell(), "events told", essential=True)
            await tasks.wait()
        finally:
            await tasks.close()

    async def flush(self) -> None:
        """Tell what was not told yet. Raises RetryableError."""
        if self._unwritten.is_set():
            self._unwritten.clear()
            await self._store.put(self._key, encode(ToldEvents(events=tuple(self._own))))

    async def _tell(self) -> None:
        while True:
            await self._unwritten.wait()
            try:
                await self.flush()
            except RetryableError:
                self._unwritten.set()
            await asyncio.sleep(PACE)

    async def _list(self) -> Snapshot:
        while True:
            try:
                return await self._store.list(keys.EVENTS if self._read else self._key)
            except RetryableError:
                await asyncio.sleep(PACE)

    def _resume(self, past: tuple[ToldEvent, ...]) -> None:
        """What this writer told in an earlier life stays told, and its numbers go on."""
        if past:
            offset, new = past[-1].number, tuple(self._own)
            self._own.clear()
            self._own.extend([*past, *(ToldEvent(number=each.number + offset, event=each.event) for each in new)])
            self._next += offset

    async def _follow(self, snapshot: Snapshot) -> None:
        async for changes in follow(self._store, keys.EVENTS, snapshot):
            told = [(each.key, _decode(each.key, each.value)) for each in changes if each.value is not None]
            self._merge(self._new((key, events) for key, events in told if key != self._key))

    def _new(self, told: Iterable[tuple[str, tuple[ToldEvent, ...]]]) -> list[ToldEvent]:
        new: list[ToldEvent] = []
        for key, events in told:
            last = self._seen.get(key, 0)
            if events and events[-1].number < last:  # its history was lost: it counts anew
                last = 0
            new += [each for each in events if each.number > last]
            self._seen[key] = max((each.number for each in events), default=last)
        return new

    def _merge(self, told: Iterable[ToldEvent]) -> None:
        for each in sorted(told, key=lambda each: each.event.at):
            self.hear(each.event)


def _decode(key: str, value: bytes) -> tuple[ToldEvent, ...]:
    try:
        return decode(value, ToldEvents, where=key).events
    except LlmgwError as error:
        log.warning("events_unreadable", key=key, error=str(error))
        return ()
