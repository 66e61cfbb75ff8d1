"""What must hold in a model's `scaling`, and what in it will hardly do what was meant. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from llmgw.catalog.document import Document, as_list, as_mapping
from llmgw.catalog.member import Member
from llmgw.catalog.spec import Window
from llmgw.catalog.windows import DAYS, WEEK, describe, minutes, spans
from llmgw.errors import Problem

_TIME: Final = re.compile(r"(?:[01]\d|2[0-3]):[0-5]\d|24:00")
_AT: Final = ("scaling", "schedule")


@dataclass(frozen=True, slots=True)
class _Placed:
    """A window and which of the schedule it is."""

    index: int
    window: Window


def check(document: Document) -> Iterator[Problem]:
    """The rules of one Model document. What is not of its shape is passed over."""
    scaling = _scaling(document)
    least, most = _count(scaling.get("min")), _count(scaling.get("max"))
    if least is not None and most is not None and most < least:
        yield document.problem(("scaling", "max"), f"must be at least `min` ({least})")
    windows: list[_Placed] = []
    for index, each in enumerate(as_list(scaling.get("schedule"))):
        yield from _window(document, index, as_mapping(each))
        window = _read(as_mapping(each))
        if window is not None:
            yield from _overlaps(document, _Placed(index, window), windows)
            windows.append(_Placed(index, window))


def doubts(document: Document) -> Iterator[Problem]:
    """Of a document without a fault: what will happen where something else was probably meant."""
    scaling = _scaling(document)
    on_demand, schedule = scaling.get("on_demand", False), scaling.get("schedule", ())
    least = scaling.get("min", 0 if on_demand else 1)
    if on_demand and least > 0:
        yield document.problem(
            ("scaling", "on_demand"),
            f"`min` keeps {least} loaded whether anyone asks or not: on_demand only counts in windows whose min is 0",
        )
    if not on_demand and not any(each.get("min", least) > 0 for each in schedule) and least == 0:
        message = "nothing of it is ever loaded: `min` is 0, without `on_demand` and without a window that wants one"
        yield document.problem(("scaling", "min"), message)
    if not on_demand and scaling.get("idle_timeout"):
        yield document.problem(("scaling", "idle_timeout"), "has no effect without `on_demand: true`")
    for index, each in enumerate(schedule):
        if each.get("min", least) == least and not each.get("max"):
            yield document.problem((*_AT, index), "changes nothing: its figures are those that hold without it")


def unzoned(models: Sequence[Member], clusters: Sequence[Document]) -> Iterator[Problem]:
    """Windows where nobody said by which clock: told once."""
    if any("time_zone" in document.value for document in clusters):
        return
    for member in models:
        if member.windows:
            message = "is by UTC: name a `time_zone` in the Cluster document, `UTC` if that is meant"
            yield member.document.problem(_AT, message)
            return


def _scaling(document: Document) -> Mapping[str, Any]:
    return as_mapping(as_mapping(document.value).get("scaling"))


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _window(document: Document, index: int, window: Mapping[str, Any]) -> Iterator[Problem]:
    least, most = _count(window.get("min")), _count(window.get("max"))
    if least is not None and most and most < least:
        yield document.problem((*_AT, index, "max"), f"must be at least `min` ({least}), or 0 for the model's own")
    if "from" in window and window["from"] == window.get("to"):
        yield document.problem((*_AT, index, "to"), 'must differ from `from`; a whole day is from "00:00" to "24:00"')


def _read(window: Mapping[str, Any]) -> Window | None:
    """None: not of its shape, or without a length."""
    start, end, days = window.get("from"), window.get("to"), window.get("days", list(DAYS))
    if not all(isinstance(time, str) and _TIME.fullmatch(time) for time in (start, end)) or start == end:
        return None
    if not isinstance(days, list) or not all(day in DAYS for day in days):
        return None
    return Window(days=tuple(map(DAYS.index, days)), start=minutes(str(start)), end=minutes(str(end)))


def _overlaps(document: Document, new: _Placed, earlier: list[_Placed]) -> Iterator[Problem]:
    for other in earlier:
        common = _common(new.window, other.window)
        if common is not None:
            day, minute = divmod(common % WEEK, 1440)
            message = (
                f"overlaps the window at {document.where((*_AT, other.index))} ({describe(other.window)}): "
                f"both hold on {DAYS[day]} at {minute // 60:02}:{minute % 60:02}"
            )
            yield document.problem((*_AT, new.index), message)
            return


def _common(one: Window, other: Window) -> int | None:
    """A minute of the week that both cover, if there is one."""
    for start, end in spans(one):
        for begin, finish in spans(other):
            for shift in (-WEEK, 0, WEEK):
                if max(start, begin + shift) < min(end, finish + shift):
                    return max(start, begin + shift)
    return None
