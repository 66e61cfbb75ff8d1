"""Round ticks and their labels, for charts. Pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from llmgw.units import GIB, KIB, MIB

_LEAST: Final = 1e-15  #: differences under it are none
MOST: Final = 1e15  #: values beyond it, either way, cannot be drawn: neighbours would be one number


class Unit(StrEnum):
    """What an axis counts: where its ticks are round, and how they read."""

    NUMBER = "number"
    SECONDS = "seconds"
    BYTES = "bytes"


_ROUND_SECONDS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_DAY: Final = 86400.0


@dataclass(frozen=True, slots=True)
class Axis:
    """From `low` to `high`, which is more than `low`; `ticks` lie within."""

    low: float
    high: float
    ticks: tuple[float, ...]
    unit: Unit = Unit.NUMBER

    def part(self, value: float) -> float:
        """0 at `low`, 1 at `high`."""
        return (value - self.low) / (self.high - self.low)

    def label(self, value: float) -> str:
        step = self.ticks[1] - self.ticks[0] if len(self.ticks) > 1 else self.high - self.low
        return _LABELS[self.unit](value, step)


def axis_over(
    values: Sequence[float], *, ticks: int = 6, unit: Unit = Unit.NUMBER, from_zero: bool = False, whole: bool = False
) -> Axis:
    """An axis that all values fit on, with about `ticks` round marks.

    `from_zero`: it begins at 0, or holds it. `whole`: it ends on ticks, which leaves room above a line; else where the
    values do. No values: 0 to 1.
    """
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    size = max(abs(low), abs(high))
    if high - low <= max(size * 1e-12, _LEAST):  # all alike
        room = size if size > _LEAST else 1.0
        low, high = (low, high + room) if from_zero and low >= 0 else (low - room / 2, high + room / 2)
    step = _round_step((high - low) / max(1, ticks), unit)
    if whole:
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Axis(low, high, tuple(index * step for index in range(first, last + 1)), unit)


def _round_step(least: float, unit: Unit) -> float:
    """The least round step that is not under `least`."""
    if unit is Unit.SECONDS and least > 1:
        found = next((step for step in _ROUND_SECONDS if step >= least), None)
        return float(found) if found is not None else _DAY * _decimal(least / _DAY)
    if unit is Unit.BYTES:
        return float(2 ** max(0, math.ceil(math.log2(least) - 1e-9)))
    return _decimal(least)


def _decimal(least: float) -> float:
    scale = 10.0 ** math.floor(math.log10(least))
    return next(scale * digit for digit in (1, 2, 5, 10) if scale * digit >= least * (1 - 1e-9))


def _number(value: float, step: float) -> str:
    """`0.25`, `12`, `1,500`, `2.5M`: as many decimals as tell neighbours apart."""
    for size, name in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= size and step >= size / 1000:
            return _plain(value / size, step / size) + name
    return _plain(value, step)


def _plain(value: float, step: float) -> str:
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0
    if decimals > 6:
        return f"{value:g}"
    text = f"{value:,.{decimals}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def _seconds(value: float, step: float) -> str:
    """`250ms`, `1.5s`, `2m30s`, `18h`, `3d6h`"""
    sign, rest = ("-" if value < 0 else ""), abs(value)
    if rest == 0:
        return "0"
    if rest < 1:
        return f"{sign}{_plain(rest * 1000, step * 1000)}ms"
    if rest < 60:
        return f"{sign}{_plain(rest, step)}s"
    parts, left = [], round(rest)
    for name, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{name}")
    return sign + "".join(parts[:2])


def _bytes(value: float, step: float) -> str:
    """`512 MiB`, `1.5 GiB`"""
    for size, name in ((1024.0 * GIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(value) >= size:
            return f"{_plain(value / size, min(1.0, step / size))} {name}"
    return "0" if value == 0 else f"{value:.0f} B"


_LABELS: Final[dict[Unit, Callable[[float, float], str]]] = {
    Unit.NUMBER: _number,
    Unit.SECONDS: _seconds,
    Unit.BYTES: _bytes,
}
