"""Which window of a model's schedule holds at a time, and when that changes. Pure.

A window is by the wall clock of its zone. In the night when clocks go forward, one that begins at a minute that does
not exist begins at the next that does; when they go back, an hour that comes twice belongs to its window both times.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from llmgw.catalog.spec import Window
from llmgw.units import Wall

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY: Final = 1440  #: minutes
WEEK: Final = 7 * DAY

_HORIZON: Final = 22
"""Days in which a change must come, if ever: a week, and more where a zone's change of clocks left out a window."""


def zone(name: str) -> ZoneInfo:
    """The IANA zone of that name. Raises ValueError when this machine knows none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # a directory of zones, `Europe`, is an OSError
        raise ValueError(f"no time zone {name!r}") from error


def at(now: Wall, zone_name: str) -> datetime:
    """A time as the wall clock of a zone shows it. Raises ValueError for an unknown zone."""
    return datetime.fromtimestamp(now, zone(zone_name))


def minutes(text: str) -> int:
    """`08:30` in minutes from midnight; `24:00` is the end of the day."""
    hours, _, rest = text.partition(":")
    return int(hours) * 60 + int(rest)


def spans(window: Window) -> Iterator[tuple[int, int]]:
    """What it covers, in minutes from Monday's midnight: [start, end), of which `end` may lie in the next week."""
    length = window.end - window.start if window.end > window.start else DAY - window.start + window.end
    for day in sorted(window.days):
        start = day * DAY + window.start
        yield start, start + length


def active(windows: Sequence[Window], at: datetime) -> Window | None:
    """The window that holds at `at`, which is aware and shows its zone's wall clock."""
    minute = at.weekday() * DAY + at.hour * 60 + at.minute
    for window in windows:
        if any(start <= minute < end or start <= minute + WEEK < end for start, end in spans(window)):
            return window
    return None


def next_change(windows: Sequence[Window], at: datetime) -> datetime | None:
    """The first time after `at` when another window holds, or none any more; None: never.

    In UTC, so that it may be compared with and subtracted from other times: datetimes of one zone are compared by
    their wall clocks, which is an hour wrong across a change of clocks.
    """
    if not windows or at.tzinfo is None:
        return None
    now, before = at.astimezone(UTC), active(windows, at)
    for time in _moments(windows, at.date(), at.tzinfo):
        if time > now and active(windows, time.astimezone(at.tzinfo)) != before:
            return time
    return None


def describe(window: Window) -> str:
    """`mon-fri 08:00-19:00`"""
    return f"{_days(sorted(window.days))} {_clock(window.start)}-{_clock(window.end)}"


def _moments(windows: Sequence[Window], first: date, its: tzinfo) -> Iterator[datetime]:
    """In order, in UTC: each time at which something may change, from the day before `first` on."""
    edges = sorted({edge % DAY for window in windows for edge in (window.start, window.end)})
    pending: list[datetime] = []
    for offset in range(-1, _HORIZON):
        midnight = _midnight(first + timedelta(days=offset), its)
        pending += [_at(midnight, edge, fold) for edge in edges for fold in (0, 1)]
        pending += _clock_change(midnight)
        # Where clocks change near midnight a day's times lie some hours into its neighbours.
        settled = midnight.astimezone(UTC) + timedelta(hours=18)
        yield from sorted(time for time in pending if time < settled)
        pending = [time for time in pending if time >= settled]


def _midnight(day: date, its: tzinfo) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=its)


def _at(midnight: datetime, minute: int, fold: int) -> datetime:
    return midnight.replace(hour=minute // 60, minute=minute % 60, fold=fold).astimezone(UTC)


def _clock_change(midnight: datetime) -> Iterator[datetime]:
    """The time, in UTC and to the second, when clocks change on the day that begins at `midnight`, if they do."""
    its = midnight.tzinfo
    assert its is not None
    low, high = midnight.astimezone(UTC), _midnight(midnight.date() + timedelta(days=1), its).astimezone(UTC)
    before = low.astimezone(its).utcoffset()
    if high.astimezone(its).utcoffset() == before:
        return
    while high - low > timedelta(seconds=1):
        middle = low + timedelta(seconds=(high - low) // timedelta(seconds=2))
        if middle.astimezone(its).utcoffset() == before:
            low = middle
        else:
            high = middle
    yield high


def _days(days: Sequence[int]) -> str:
    """`daily`, `mon-fri` or `mon,wed,fri`."""
    if len(days) == len(DAYS):
        return "daily"
    if len(days) > 2 and days[-1] - days[0] == len(days) - 1:
        return f"{DAYS[days[0]]}-{DAYS[days[-1]]}"
    return ",".join(DAYS[day] for day in days)


def _clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"
