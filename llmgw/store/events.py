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

    def record(self, event: Event) -> None:
        self._events.append(event)
        log.info(event.reason, subject=event.subject, message=event.message)

    def recent(self, limit: int = KEPT) -> tuple[Event, ...]:
        return tuple(self._events)[-limit:]
