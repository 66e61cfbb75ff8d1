"""Schedule windows by the wall clock, nights of clock changes among them."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.catalog.spec import Window
from llmgw.catalog.windows import active, at, describe, minutes, next_change, spans, zone
from llmgw.units import Wall

BERLIN = ZoneInfo("Europe/Berlin")
EVERY_DAY = tuple(range(7))


def window(start: str, end: str, days: tuple[int, ...] = EVERY_DAY, least: int = 1) -> Window:
    return Window(days=days, start=minutes(start), end=minutes(end), min=least)


def berlin(text: str, fold: int = 0) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold)


def changes(windows: list[Window], start: datetime, count: int) -> list[str]:
    """The next changes, by the wall clock."""
    found, time = [], start
    for _ in range(count):
        upcoming = next_change(windows, time)
        assert upcoming is not None
        time = upcoming.astimezone(start.tzinfo)
        found.append(time.strftime("%d %H:%M %z"))
    return found


def test_a_window_holds_from_its_start_up_to_its_end() -> None:
    work = window("08:00", "19:00", days=(0, 1, 2, 3, 4))
    for text, holds in [
        ("2026-06-01T07:59:59", False), ("2026-06-01T08:00:00", True), ("2026-06-01T18:59:59", True),
        ("2026-06-01T19:00:00", False), ("2026-06-06T12:00:00", False),
    ]:  # fmt: skip
        assert (active([work], berlin(text)) is work) is holds, text


def test_a_window_over_midnight_belongs_to_the_day_on_which_it_begins() -> None:
    night = window("22:00", "06:00", days=(6,))  # Sunday night, into the next week
    assert active([night], berlin("2026-06-07T22:00")) is night
    assert active([night], berlin("2026-06-08T05:59")) is night
    assert active([night], berlin("2026-06-08T06:00")) is None
    assert active([night], berlin("2026-06-07T05:00")) is None


def test_24_00_is_the_end_of_the_day_and_two_days_meet_there() -> None:
    evening, morning = window("20:00", "24:00"), window("00:00", "04:00", least=2)
    assert changes([evening, morning], berlin("2026-06-01T12:00"), 4) == [
        "01 20:00 +0200", "02 00:00 +0200", "02 04:00 +0200", "02 20:00 +0200",
    ]  # fmt: skip


def test_a_whole_week_never_changes() -> None:
    assert next_change([window("00:00", "24:00")], berlin("2026-06-01T12:00")) is None
    assert next_change([], berlin("2026-06-01T12:00")) is None


def test_a_window_that_begins_in_the_hour_that_is_left_out_begins_at_the_next_minute_that_exists() -> None:
    early = window("02:30", "04:00")
    assert changes([early], berlin("2026-03-29T00:00"), 2) == ["29 03:00 +0200", "29 04:00 +0200"]


def test_a_window_within_the_hour_that_is_left_out_does_not_come_that_night() -> None:
    short = window("02:15", "02:45", days=(6,))
    assert changes([short], berlin("2026-03-28T12:00"), 1) == ["05 02:15 +0200"]


def test_an_hour_that_comes_twice_belongs_to_its_window_both_times() -> None:
    short = window("02:15", "02:45")
    assert changes([short], berlin("2026-10-25T00:00"), 4) == [
        "25 02:15 +0200", "25 02:45 +0200", "25 02:15 +0100", "25 02:45 +0100",
    ]  # fmt: skip
    assert active([short], berlin("2026-10-25T02:30", fold=1)) is short


def test_a_window_that_ends_within_the_hour_that_comes_twice_is_entered_again() -> None:
    assert changes([window("01:00", "02:30")], berlin("2026-10-25T00:00"), 4) == [
        "25 01:00 +0200", "25 02:30 +0200", "25 02:00 +0100", "25 02:30 +0100",
    ]  # fmt: skip


def test_the_next_change_can_be_subtracted_whatever_the_clocks_do() -> None:
    now = berlin("2026-10-25T01:00")
    upcoming = next_change([window("03:00", "04:00")], now)
    assert upcoming is not None
    assert upcoming - now == timedelta(hours=3)


def test_clocks_that_change_at_midnight() -> None:
    havana = ZoneInfo("America/Havana")  # 00:00 becomes 01:00, and 01:00 becomes 00:00
    late = window("23:30", "00:30", days=(5,))
    forward = datetime(2026, 3, 7, 12, tzinfo=havana)
    assert changes([late], forward, 2) == ["07 23:30 -0500", "08 01:00 -0400"]
    back = datetime(2026, 10, 31, 12, tzinfo=havana)
    assert changes([late], back, 4) == ["31 23:30 -0400", "01 00:30 -0400", "01 00:00 -0500", "01 00:30 -0500"]


def test_times_are_shown_by_the_wall_clock_of_the_zone() -> None:
    assert at(Wall(1780308000.0), "Europe/Berlin") == berlin("2026-06-01T12:00")
    assert at(Wall(1780308000.0), "Europe/Berlin").hour == 12


@pytest.mark.parametrize("name", ["Mars/Olympus", "Europe", "", "../etc/passwd", "Europe/Berlin\0"])
def test_an_unknown_zone_is_a_value_error(name: str) -> None:
    with pytest.raises(ValueError):
        zone(name)


@pytest.mark.parametrize(
    ("days", "text"),
    [
        ((0, 1, 2, 3, 4), "mon-fri"),
        (EVERY_DAY, "daily"),
        ((5, 6), "sat,sun"),
        ((0, 2, 4), "mon,wed,fri"),
        ((3,), "thu"),
    ],
)
def test_a_window_in_words(days: tuple[int, ...], text: str) -> None:
    assert describe(window("08:00", "24:00", days)) == f"{text} 08:00-24:00"


NIGHTS = [
    ("Europe/Berlin", datetime(2026, 3, 25, tzinfo=UTC)), ("Europe/Berlin", datetime(2026, 10, 21, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 3, 4, tzinfo=UTC)), ("America/New_York", datetime(2026, 10, 28, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 1, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 9, 30, tzinfo=UTC)),
]  # fmt: skip


def covers(one: Window, local: datetime) -> bool:
    """Told of the day's own windows and of yesterday's, by text: another way than the code's."""
    clock, start, end = local.hour * 60 + local.minute, one.start, one.end
    if end > start:
        return local.weekday() in one.days and start <= clock < end
    return (local.weekday() in one.days and clock >= start) or ((local.weekday() - 1) % 7 in one.days and clock < end)


@st.composite
def schedules(draw: st.DrawFn) -> list[Window]:
    """Windows whose edges lie close to where clocks change, and do not overlap."""
    chosen: list[Window] = []
    for least in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, 1439) | st.integers(55, 200))
        end = draw(st.integers(1, 1440) | st.integers(55, 200))
        days = tuple(sorted(draw(st.sets(st.integers(0, 6), min_size=1))))
        new = Window(days=days, start=start, end=end, min=least)
        taken = {minute % 10080 for each in chosen for low, high in spans(each) for minute in range(low, high)}
        if start != end and not any(minute % 10080 in taken for low, high in spans(new) for minute in range(low, high)):
            chosen.append(new)
    return chosen


@given(schedules(), st.sampled_from(NIGHTS), st.integers(0, 7 * 1440 - 1))
@settings(max_examples=60, deadline=None)
def test_a_walk_minute_by_minute_over_a_week_with_a_clock_change_finds_the_same(
    windows: list[Window], night: tuple[str, datetime], offset: int
) -> None:
    its = ZoneInfo(night[0])
    start = night[1] + timedelta(minutes=offset)

    def held(time: datetime) -> Window | None:
        local = time.astimezone(its)
        return next((one for one in windows if covers(one, local)), None)

    before = held(start)
    assert active(windows, start.astimezone(its)) == before
    walk = (start + timedelta(minutes=minute) for minute in range(1, 9 * 1440))
    expected = next((time for time in walk if held(time) != before), None)
    found = next_change(windows, start.astimezone(its))
    assert found == expected or (expected is None and (found is None or found - start >= timedelta(days=9)))
