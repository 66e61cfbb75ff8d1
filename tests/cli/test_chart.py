"""Charts: what is drawn lies where it belongs, whatever the values; the axes are round; the terminal gets text."""

import math
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.cli.axes import Axis, Unit, axis_over
from llmgw.cli.chart import Mark, Points, line_chart, text_chart
from llmgw.units import GIB

NAME = "{http://www.w3.org/2000/svg}"
LABELS: Any = {"title": "a title", "x_label": "across", "y_label": "up"}

values = st.floats(-1e15, 1e15)
some_series = st.dictionaries(st.text(max_size=8), st.lists(st.tuples(values, values), max_size=60), max_size=12)


def svg(series: dict[str, Points], **more: Any) -> ElementTree.Element:
    return ElementTree.fromstring(line_chart(series, **LABELS, **more))


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{NAME}text")]


def strokes(root: ElementTree.Element) -> list[str]:
    """The paths of series, without those of the legend."""
    return [
        path.get("d", "") for path in root.iter(f"{NAME}path") if path.get("stroke-linejoin") or path.get("class") == ""
    ]


def dots(root: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(dot.get("cx", "")), float(dot.get("cy", ""))) for dot in root.iter(f"{NAME}circle")]


def test_a_chart_names_its_axes_its_title_and_every_series() -> None:
    root = svg({"first": [(0, 1), (1, 2)], "second": [(0, 2), (1, 1)]})
    assert {"a title", "across", "up", "first", "second"} <= set(texts(root))
    assert root.get("role") == "img"
    assert next(root.iter(f"{NAME}title")).text == "a title"


def test_larger_values_lie_higher_and_later_ones_further_right() -> None:
    (left, low), (middle, high), (right, lowest) = dots(svg({"s": [(1, 2.0), (2, 4.0), (3, 1.0)]}))
    assert left < middle < right
    assert high < low < lowest


def test_points_in_any_order_are_drawn_from_left_to_right() -> None:
    sorted_, mixed = ({"s": points} for points in ([(1, 5), (2, 6), (8, 7)], [(8, 7), (1, 5), (2, 6)]))
    assert line_chart(sorted_, **LABELS) == line_chart(mixed, **LABELS)


def test_a_step_holds_its_value_until_the_next_point() -> None:
    (line,) = strokes(svg({"s": [(0, 1), (10, 3)]}, step=True))
    assert re.fullmatch(r"M[\d.]+ [\d.]+H[\d.]+V[\d.]+", line)
    (straight,) = strokes(svg({"s": [(0, 1), (10, 3)]}))
    assert "L" in straight
    assert "H" not in straight


@pytest.mark.parametrize(
    "series",
    [
        {},
        {"empty": []},
        {"one": [(3, 5)]},
        {"nought": [(0, 0)]},
        {"alike": [(1, 7), (2, 7), (3, 7)]},
        {"same x": [(2, 1), (2, 9)]},
        {"huge": [(0, 1e15), (1, -1e15)]},
        {"tiny": [(0, 1e-12), (1, 2e-12)]},
        {"negative": [(0, -5), (4, -1)]},
    ],
)
def test_any_values_make_a_chart_in_its_frame_and_a_text(series: dict[str, Points]) -> None:
    root = svg(series)
    assert len(dots(root)) == sum(map(len, series.values()))
    for across, down in dots(root):
        assert 0 <= across <= 760
        assert 0 <= down <= 480
    assert text_chart(series, **LABELS).startswith("a title\n")


@given(some_series)
def test_nothing_is_drawn_outside_and_the_document_is_well_formed(series: dict[str, Points]) -> None:
    root = svg(series)
    high = float(root.get("height", ""))
    assert all(84 - 0.1 <= across <= 740.1 and 0 <= down <= high for across, down in dots(root))
    assert max(map(len, text_chart(series, **LABELS, width=60).splitlines()[1:]), default=0) <= 60 or any(
        len(name) > 40 for name in series
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e16])
def test_values_that_cannot_be_drawn_are_refused_by_the_name_of_their_series(value: float) -> None:
    with pytest.raises(ValueError, match=r"memory: .* cannot be drawn"):
        line_chart({"memory": [(0, value)]}, **LABELS)
    with pytest.raises(ValueError, match="cannot be drawn"):
        text_chart({"memory": [(value, 0)]}, **LABELS)
    with pytest.raises(ValueError, match="mark"):
        line_chart({}, **LABELS, marks=[Mark(value)])


def test_a_mark_is_within_the_axes_though_no_value_reaches_it() -> None:
    root = svg({"s": [(0, 1), (1, 1)]}, marks=[Mark(50, "the limit"), Mark(9, "here", vertical=True)])
    marks = [path.get("d", "") for path in root.iter(f"{NAME}path") if path.get("class") == "mark"]
    assert {"the limit", "here"} <= set(texts(root))
    assert all(0 <= float(number) <= 760 for mark in marks for number in re.findall(r"[\d.]+", mark))


def test_names_cannot_break_out_of_the_document() -> None:
    name = "</text><script>alert('&')</script>\x00\x1b[31m\ud800\uffff"
    root = svg({name: [(0, 0)]}, marks=[Mark(0, name)])
    assert not list(root.iter(f"{NAME}script"))
    assert any(text.startswith("</text><script>") for text in texts(root))


def test_a_long_series_is_thinned_without_losing_its_peaks() -> None:
    points = [(float(second), 1.0) for second in range(200_000)]
    points[123_456] = (123_456.0, 99.0)
    text = line_chart({"s": points}, **LABELS)
    assert len(text) < 60_000
    (line,) = strokes(ElementTree.fromstring(text))
    downs = [float(down) for _, down in re.findall(r"[ML]([\d.]+) ([\d.]+)", line)]
    assert min(downs) < 60 < max(downs)


def test_many_series_make_the_picture_higher_and_are_told_apart() -> None:
    few, many = (svg({f"node-{n:03}": [(0, n), (1, n)] for n in range(count)}) for count in (2, 30))
    assert float(many.get("height", "")) > float(few.get("height", ""))
    looks = {
        (path.get("stroke"), path.get("stroke-dasharray"))
        for path in many.iter(f"{NAME}path")
        if path.get("stroke-linejoin")
    }
    assert len(looks) == 30


def test_dark_pages_get_colours_of_their_own() -> None:
    assert "@media (prefers-color-scheme: dark){.paper{fill:#16191d}" in line_chart({"s": [(0, 1)]}, **LABELS)


def test_nothing_is_loaded_from_elsewhere() -> None:
    text = line_chart({"s": [(0, 1)]}, **LABELS).replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert "http" not in text
    assert "href" not in text
    assert "url(" not in text


@pytest.mark.parametrize(
    ("top", "unit", "labels"),
    [
        (17, Unit.NUMBER, ["0", "5", "10", "15"]),
        (0.9, Unit.NUMBER, ["0", "0.2", "0.4", "0.6", "0.8"]),
        (2600, Unit.NUMBER, ["0", "1,000", "2,000"]),
        (7e6, Unit.NUMBER, ["0", "2M", "4M", "6M"]),
        (86400, Unit.SECONDS, ["0", "6h", "12h", "18h", "1d"]),
        (100, Unit.SECONDS, ["0", "30s", "1m", "1m30s"]),
        (3, Unit.SECONDS, ["0", "1s", "2s", "3s"]),
        (0.4, Unit.SECONDS, ["0", "100ms", "200ms", "300ms", "400ms"]),
        (86400 * 28, Unit.SECONDS, ["0", "10d", "20d"]),
        (24 * GIB, Unit.BYTES, ["0", "8 GiB", "16 GiB", "24 GiB"]),
        (1.5 * GIB, Unit.BYTES, ["0", "512 MiB", "1 GiB", "1.5 GiB"]),
    ],
)
def test_ticks_are_round_in_the_axis_unit(top: float, unit: Unit, labels: list[str]) -> None:
    axis = axis_over([0.0, top], ticks=5, unit=unit)
    assert [axis.label(tick) for tick in axis.ticks] == labels


@given(st.lists(values, max_size=20), st.sampled_from(Unit), st.booleans(), st.booleans(), st.integers(1, 12))
def test_an_axis_holds_all_values_and_few_ticks(
    found: list[float], unit: Unit, zero: bool, whole: bool, ticks: int
) -> None:
    axis = axis_over(found, ticks=ticks, unit=unit, from_zero=zero, whole=whole)
    assert axis.low < axis.high
    assert all(-1e-9 <= axis.part(value) <= 1 + 1e-9 for value in found)
    assert all(-1e-6 <= axis.part(tick) <= 1 + 1e-6 for tick in axis.ticks)
    assert len(axis.ticks) <= ticks + 3
    if zero:
        assert len({axis.label(tick) for tick in axis.ticks}) == len(axis.ticks)


def test_an_axis_of_equal_values_is_around_them() -> None:
    axis = axis_over([7.0, 7.0])
    assert axis.low < 7 < axis.high
    assert axis_over([]) == Axis(0.0, 1.0, axis_over([0.0, 1.0]).ticks)


def test_a_text_chart_has_a_panel_for_each_series_on_one_scale() -> None:
    told = text_chart({"low": [(0, 1), (9, 1)], "high": [(0, 10), (9, 10)]}, **LABELS, width=40, height=10)
    low, high = told.split("low\n")[1].split("high\n")
    assert high.count("█") > 5 * low.count("█")
    assert "up, by across" in told


def test_a_text_chart_rises_where_the_values_do() -> None:
    told = text_chart({"s": [(0, 0), (10, 10)]}, **LABELS, width=40, height=5).splitlines()
    filled = [line.partition("│")[2].count("█") for line in told if "│" in line]
    assert filled == sorted(filled)
    assert filled[0] < 8 < filled[-1]


def test_a_terminal_without_blocks_gets_ascii() -> None:
    told = text_chart({"s": [(0, 1), (5, 9)]}, **LABELS, marks=[Mark(5, "limit")], encoding="ascii")
    assert told.isascii()
    assert "#" in told
    assert "~ limit" in told
    assert text_chart({"s": [(0, 1)]}, **LABELS, encoding="no-such-encoding").isascii()
    assert text_chart({"s": [(0, 1)]}, **LABELS, encoding=None).isascii()


def test_a_text_chart_says_when_there_is_nothing_to_show() -> None:
    assert text_chart({"s": []}, **LABELS) == "a title\nnothing to show\n"


def test_a_text_chart_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in text_chart({"\x1b[2Js": [(0, 1)]}, title="\x1bt", x_label="\x1bx", y_label="\x1by")
