"""Charts: an SVG file that needs nothing else, and text for a terminal. Pure.

Both take the same series: `{name: ((x, y), ...)}`, in any order of x. Infinite and undefined values are refused.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

from llmgw.cli.axes import MOST, Axis, Unit, axis_over
from llmgw.cli.text import clean

Points = Sequence[tuple[float, float]]

LIGHT: Final = ("#0062b1", "#c2410c", "#15803d", "#9333ea", "#a16207", "#be185d", "#0f766e", "#4b5563")
DARK: Final = ("#5cb3ff", "#ff9350", "#4ade80", "#c792ff", "#eab308", "#ff7ab8", "#2dd4bf", "#b6bec9")
_DASHES: Final = ("", "7 3", "2 3", "9 3 2 3")  #: told apart by a dash once the colours are used up
_FEW: Final = 40  #: points of a series that are each marked by a dot
_GLYPH: Final = 6.6  #: pixels that a character takes, about: there is nothing here that measures text
_LINE: Final = 18  #: pixels between lines of text
_LEFT: Final = 84  #: pixels for the labels of the y axis
_RIGHT: Final = 20


@dataclass(frozen=True, slots=True)
class Mark:
    """A line across the chart: at that y, or where `vertical` at that x."""

    at: float
    label: str = ""
    vertical: bool = False


def line_chart(
    series: Mapping[str, Points],
    *,
    title: str,
    x_label: str,
    y_label: str,
    width: int = 760,
    height: int = 420,
    marks: Sequence[Mark] = (),
    step: bool = False,
    x_unit: Unit = Unit.NUMBER,
    y_unit: Unit = Unit.NUMBER,
) -> str:
    """An SVG document. `step`: a value holds until the next one, else lines join the points.

    It follows the reader's light or dark setting. `width` and `height` are pixels; many series make it higher, for
    their names. Raises ValueError for values that cannot be drawn.
    """
    lines = _checked(series, marks)
    x, y = _axes(lines, marks, x_unit, y_unit, ticks=(max(2, width // 110), max(2, height // 70)))
    legend = _legend(list(lines), width)
    top = 34 + legend.height
    frame = _Frame(x, y, _LEFT, top, max(40, width - _LEFT - _RIGHT), max(40, height - 34 - 52))
    whole = frame.top + frame.height + 52
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {whole}" width="{width}" height="{whole}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="12">',
        f"<title>{_xml(title)}</title>",
        f"<style>{_style(len(lines))}</style>",
        f'<rect class="paper" width="{width}" height="{whole}" fill="#ffffff"/>',
        _text(width / 2, 21, title, anchor="middle", more=' font-size="15" font-weight="600"'),
        *legend.parts,
        *_grid(frame, x_label, y_label),
        *_mark_lines(frame, marks),
        *itertools.chain.from_iterable(
            _line(frame, index, name, points, step=step) for index, (name, points) in enumerate(lines.items())
        ),
        "</svg>",
    ]
    return "\n".join(body) + "\n"


@dataclass(frozen=True, slots=True)
class _Frame:
    """The plot's place in the picture, in pixels."""

    x: Axis
    y: Axis
    left: int
    top: int
    width: int
    height: int

    def across(self, value: float) -> float:
        return self.left + self.width * self.x.part(value)

    def down(self, value: float) -> float:
        return self.top + self.height * (1 - self.y.part(value))


@dataclass(frozen=True, slots=True)
class _Legend:
    parts: tuple[str, ...]
    height: int


def _checked(series: Mapping[str, Points], marks: Sequence[Mark]) -> dict[str, list[tuple[float, float]]]:
    """The series with their points by x. Raises ValueError."""
    for name, points in series.items():
        for value in itertools.chain.from_iterable(points):
            if not math.isfinite(value) or abs(value) > MOST:
                raise ValueError(f"{name}: {value} cannot be drawn")
    for mark in marks:
        if not math.isfinite(mark.at) or abs(mark.at) > MOST:
            raise ValueError(f"the mark at {mark.at} cannot be drawn")
    return {name: sorted(points, key=lambda point: point[0]) for name, points in series.items()}


def _axes(
    lines: Mapping[str, Points], marks: Sequence[Mark], x_unit: Unit, y_unit: Unit, *, ticks: tuple[int, int]
) -> tuple[Axis, Axis]:
    points = [point for line in lines.values() for point in line]
    across = [point[0] for point in points] + [mark.at for mark in marks if mark.vertical]
    down = [point[1] for point in points] + [mark.at for mark in marks if not mark.vertical]
    # Where x hardly varies beside its size (times of a day, say) an axis from 0 would show nothing.
    near_zero = bool(across) and 0 <= min(across) <= max(across) * 0.5
    return (
        axis_over(across, ticks=ticks[0], unit=x_unit, from_zero=near_zero),
        axis_over(down, ticks=ticks[1], unit=y_unit, from_zero=True, whole=True),
    )


def _style(count: int) -> str:
    """Colours for dark pages; those for light ones are attributes, which readers without style sheets know too."""
    shown = "".join(
        f".s{index}{{stroke:{colour}}}.d{index}{{fill:{colour}}}"
        for index, colour in enumerate(DARK[: min(count, len(DARK))])
    )
    return (
        "@media (prefers-color-scheme: dark){.paper{fill:#16191d}text{fill:#e6e8eb}"
        f".grid{{stroke:#343a41}}.frame{{stroke:#8b949e}}.mark{{stroke:#c9d1d9}}{shown}}}"
    )


def _legend(names: Sequence[str], width: int) -> _Legend:
    """Names beside a bit of their line, in rows that fit the width. One series alone needs none but its name."""
    parts, across, row = [], float(_LEFT), 0
    for index, name in enumerate(names):
        shown = _cut(name, 48)
        wide = 34 + len(shown) * _GLYPH + 16
        if across > _LEFT and across + wide > width - _RIGHT:
            across, row = float(_LEFT), row + 1
        middle = 42 + row * _LINE
        parts.append(f'<path d="M{across:.0f} {middle}h26" {_stroke(index)}/>')
        parts.append(_text(across + 32, middle + 4, shown))
        across += wide
    return _Legend(tuple(parts), (row + 1) * _LINE + 4 if names else 0)


def _grid(frame: _Frame, x_label: str, y_label: str) -> Iterator[str]:
    bottom = frame.top + frame.height
    for tick in frame.y.ticks:
        down = frame.down(tick)
        yield f'<path class="grid" d="M{frame.left} {down:.1f}h{frame.width}" stroke="#d9dde2"/>'
        yield _text(frame.left - 8, down + 4, frame.y.label(tick), anchor="end")
    for tick in frame.x.ticks:
        across = frame.across(tick)
        yield f'<path class="frame" d="M{across:.1f} {bottom}v5" stroke="#57606a"/>'
        yield _text(across, bottom + 18, frame.x.label(tick), anchor="middle")
    yield f'<path class="frame" d="M{frame.left} {frame.top}V{bottom}h{frame.width}" fill="none" stroke="#57606a"/>'
    yield _text(frame.left + frame.width / 2, bottom + 40, x_label, anchor="middle")
    middle = frame.top + frame.height / 2
    yield _text(14, middle, y_label, anchor="middle", more=f' transform="rotate(-90 14 {middle:.0f})"')


def _mark_lines(frame: _Frame, marks: Iterable[Mark]) -> Iterator[str]:
    for mark in marks:
        if mark.vertical:
            across, late = frame.across(mark.at), frame.x.part(mark.at) > 0.5
            line, anchor = f"M{across:.1f} {frame.top}v{frame.height}", "end" if late else "start"
            at = (across - 5 if late else across + 5, frame.top + 12.0)
        else:
            down = frame.down(mark.at)
            line, at, anchor = f"M{frame.left} {down:.1f}h{frame.width}", (frame.left + 6, down - 5), "start"
        yield f'<path class="mark" d="{line}" stroke="#24292f" stroke-dasharray="4 4" opacity="0.7"/>'
        if mark.label:
            yield _text(*at, mark.label, anchor=anchor)


def _line(frame: _Frame, index: int, name: str, points: Points, *, step: bool) -> Iterator[str]:
    if not points:
        return
    placed = [(frame.across(x), frame.down(y)) for x, y in points]
    drawn = list(_thinned(placed))
    (x, y), *rest = drawn
    path = [f"M{x:.1f} {y:.1f}"]
    for across, down in rest:
        path.append(f"H{across:.1f}V{down:.1f}" if step else f"L{across:.1f} {down:.1f}")
    yield f'<path d="{"".join(path)}" stroke-linejoin="round" {_stroke(index)}/>'
    if len(points) > _FEW:
        return
    colour = index % len(LIGHT)
    for (across, down), (x, y) in zip(placed, points, strict=True):
        told = _xml(f"{name}: {frame.y.label(y)} at {frame.x.label(x)}")
        dot = f'<circle class="d{colour}" cx="{across:.1f}" cy="{down:.1f}" r="3" fill="{LIGHT[colour]}">'
        yield f"{dot}<title>{told}</title></circle>"


def _thinned(placed: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """The points that can be told apart: of each pixel's column the first, the lowest, the highest and the last."""
    for _, column in itertools.groupby(placed, key=lambda point: round(point[0])):
        group = list(column)
        picked = {0, len(group) - 1}
        picked.add(min(range(len(group)), key=lambda at: group[at][1]))
        picked.add(max(range(len(group)), key=lambda at: group[at][1]))
        yield from (group[at] for at in sorted(picked))


def _stroke(index: int) -> str:
    colour, dash = index % len(LIGHT), _DASHES[index // len(LIGHT) % len(_DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'class="s{colour}" fill="none" stroke="{LIGHT[colour]}" stroke-width="2"{dashed}'


def _text(x: float, y: float, text: str, *, anchor: str = "start", more: str = "") -> str:
    aligned = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="#24292f"{aligned}{more}>{_xml(text)}</text>'


def _xml(text: str) -> str:
    """Escaped, and without what no XML document may hold."""
    allowed = (c for c in clean(text) if not ("\ud800" <= c <= "\udfff" or c in "\ufffe\uffff"))
    return escape("".join(allowed))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def text_chart(
    series: Mapping[str, Points],
    *,
    title: str,
    x_label: str,
    y_label: str,
    width: int = 78,
    height: int = 12,
    marks: Sequence[Mark] = (),
    step: bool = False,
    x_unit: Unit = Unit.NUMBER,
    y_unit: Unit = Unit.NUMBER,
    encoding: str | None = "utf-8",
) -> str:
    """Columns of blocks, one panel below the other for each series, all on the same axes; a mark across is dotted.

    `width` and `height` are characters and lines, of all panels together. `encoding`: the terminal's; one that has no
    blocks gets ASCII. Raises ValueError for values that cannot be drawn.
    """
    lines = {name: points for name, points in _checked(series, marks).items() if points}
    glyphs = _BLOCKS if _encodes(encoding, _BLOCKS.eighths + _BLOCKS.axis) else _ASCII
    rows = max(3, height // max(1, len(lines)))
    x, y = _axes(lines, marks, x_unit, y_unit, ticks=(max(2, width // 14), 2 if rows < 8 else 4))
    margin = max((len(y.label(tick)) for tick in y.ticks), default=1)
    columns = max(10, width - margin - 2)
    told = [clean(title), *(f"{glyphs.dots} {clean(mark.label)}" for mark in marks if mark.label and not mark.vertical)]
    for name, points in lines.items():
        told.append(" " * (margin + 2) + clean(name))
        told += _panel(_columns(points, x, columns, step=step), y, rows, margin, marks, glyphs)
    if not lines:
        told.append("nothing to show")
        return "\n".join(told) + "\n"
    told.append(" " * (margin + 1) + glyphs.axis[1] + glyphs.axis[2] * columns)
    told.append(" " * (margin + 2) + _tick_labels(x, columns))
    told.append(" " * (margin + 2) + clean(f"{y_label}, by {x_label}"))
    return "\n".join(line.rstrip() for line in told) + "\n"


@dataclass(frozen=True, slots=True)
class _Glyphs:
    eighths: str  #: from empty to full, in equal steps
    axis: str  #: upright, corner, along
    dots: str


_BLOCKS: Final = _Glyphs(" ▁▂▃▄▅▆▇█", "│└─", "┈")
_ASCII: Final = _Glyphs(" .:#", "|+-", "~")


def _encodes(encoding: str | None, text: str) -> bool:
    try:
        text.encode(encoding or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True


def _columns(points: Points, x: Axis, count: int, *, step: bool) -> list[float | None]:
    """The highest value in each column; between points what joins them; None before the first and after the last."""
    found: list[float | None] = [None] * count
    places = [min(count - 1, int(x.part(across) * count)) for across, _ in points]
    for place, (_, value) in zip(places, points, strict=True):
        before = found[place]
        found[place] = value if before is None else max(before, value)
    for (left, start), (right, end) in itertools.pairwise(zip(places, (value for _, value in points), strict=True)):
        for place in range(left + 1, right):
            found[place] = start if step else start + (end - start) * (place - left) / (right - left)
    return found


def _panel(
    values: Sequence[float | None], y: Axis, rows: int, margin: int, marks: Sequence[Mark], glyphs: _Glyphs
) -> Iterator[str]:
    full = len(glyphs.eighths) - 1
    heights = [None if value is None else y.part(value) * rows for value in values]
    labels = {min(rows - 1, int(y.part(tick) * rows)): y.label(tick) for tick in reversed(y.ticks)}
    dotted = {min(rows - 1, int(y.part(mark.at) * rows)) for mark in marks if not mark.vertical}
    for row in reversed(range(rows)):
        empty = glyphs.dots if row in dotted else " "
        cells = []
        for height in heights:
            part = 0 if height is None else max(0, min(full, math.ceil((height - row) * full)))
            if height is not None and row == 0:
                part = max(1, part)  # there is a value, though it is the least
            cells.append(glyphs.eighths[part] if part else empty)
        yield f"{labels.get(row, ''):>{margin}} {glyphs.axis[0]}{''.join(cells)}"


def _tick_labels(x: Axis, columns: int) -> str:
    line = ""
    for tick in x.ticks:
        label = x.label(tick)
        start = max(0, min(columns - len(label), int(x.part(tick) * columns) - len(label) // 2))
        if start > len(line) or not line:
            line = line.ljust(start) + label
    return line
