"""The bounded record of events."""

from llmgw.facts import Event
from llmgw.store.events import EventLog
from llmgw.units import Wall


def test_numbers_go_on_counting_when_old_events_are_forgotten() -> None:
    log = EventLog(kept=3)
    for number in range(1, 6):
        log.record(Event(at=Wall(0.0), subject="s", reason=f"r{number}"))
    assert [(number, event.reason) for number, event in log.numbered()] == [(3, "r3"), (4, "r4"), (5, "r5")]
    assert [number for number, _ in log.numbered(after=4)] == [5]
    assert [number for number, _ in log.numbered(1)] == [5]
    assert log.numbered(after=9) == ()
