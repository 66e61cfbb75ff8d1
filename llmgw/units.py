"""Sizes, durations and instants, and how people write them ("24GiB", "15m")."""

import re
from typing import Final, NamedTuple, NewType

Bytes = NewType("Bytes", int)
Seconds = NewType("Seconds", float)
Mono = NewType("Mono", float)  #: seconds on a monotonic clock: durations inside one process
Wall = NewType("Wall", float)  #: seconds since the Unix epoch: whatever is stored or sent

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3
TIB: Final = 1024**4

_BYTES: Final = {
    "": 1, "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

BYTES_PATTERN: Final = r"^(\d{1,15})(\.\d{1,6})? ?(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)$(?!\n)"
SECONDS_PATTERN: Final = r"^(\d{1,9}(\.\d{1,6})?(ms|s|m|h|d))+$(?!\n)"


class Instant(NamedTuple):
    """Now, on both clocks. Durations inside one process use `mono`; anything stored or sent uses `wall`."""

    mono: Mono
    wall: Wall

    def since(self, then: Wall) -> Seconds:
        """Wall time since a stored stamp, never negative: a stamp from a clock ahead of ours counts as now."""
        return Seconds(max(0.0, self.wall - then))


def parse_bytes(text: str | int) -> Bytes:
    """`24GiB`, `4.7 GiB`, `500MB`, or a plain number of bytes.

    Raises ValueError, saying what a size looks like.
    """
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        return Bytes(text)
    match = re.match(BYTES_PATTERN, text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"not a size: {text!r}; write a number and a unit, such as 24GiB or 500MB")
    whole, fraction, unit = match.groups()
    return Bytes(int(float(whole + (fraction or "")) * _BYTES[unit]))


def parse_seconds(text: str | float) -> Seconds:
    """`15m`, `1h30m`, `500ms`, or a plain number of seconds.

    Raises ValueError, saying what a duration looks like.
    """
    if isinstance(text, int | float) and not isinstance(text, bool) and 0 <= text < 10**12:
        return Seconds(float(text))
    if not isinstance(text, str) or re.match(SECONDS_PATTERN, text) is None:
        raise ValueError(f"not a duration: {text!r}; write a number and a unit, such as 30s, 15m or 24h")
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", text)
    return Seconds(sum(float(number) * _SECONDS[unit] for number, unit in parts))


def format_bytes(size: int) -> str:
    """Binary units, one decimal: `9.0 GiB`, `512.0 MiB`, `0 B`."""
    value, negative = float(abs(size)), "-" if size < 0 else ""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{negative}{value:.0f} B" if unit == "B" else f"{negative}{value:.1f} {unit}"
        value /= 1024
    return f"{negative}{value:.1f} TiB"


def format_seconds(duration: float) -> str:
    """Two significant units at most: `1h30m`, `2m5s`, `0.3s`."""
    if duration < 10:
        return f"{duration:.1f}s"
    rest, parts = round(duration), []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])
