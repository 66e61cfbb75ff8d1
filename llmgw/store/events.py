"""The last things that happened, for `llmgw events` and the log."""

from collections import deque
from typing import Final

import structlog

from llmgw.facts import Event

log = structlog.get_logger("llmgw.events")

KEPT: Final = 1000


class EventLog:
    """A bounded record of events, oldest first. Each is also a log line."""

    def __init__(self, kept: int = KEPT) -> None:
        self._events: deque[Event] = deque(maxlen=kept)
        self._count = 0

    def record(self, event: Event) -> None:
        self.hear(event)
        log.info(event.reason, subject=event.subject, message=event.message)

    def hear(self, event: Event) -> None:
        """Keep an event that another process recorded, and logged."""
        self._events.append(event)
        self._count += 1

    def recent(self, limit: int = KEPT) -> tuple[Event, ...]:
        return tuple(self._events)[-limit:]

    def numbered(self, limit: int = KEPT, *, after: int = 0) -> tuple[tuple[int, Event], ...]:
        """The newest events beyond number `after`, each with its own: they count from 1 since the daemon started."""
        first = self._count - len(self._events) + 1
        return tuple(pair for pair in enumerate(self._events, first) if pair[0] > after)[-limit:]
