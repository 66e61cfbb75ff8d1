"""Sizes and durations as documents write them. Pure."""

from typing import Any, Final

from llmgw.units import Bytes, Seconds, format_bytes, format_seconds, parse_bytes, parse_seconds

MAX_BYTES: Final = 2**60  #: sizes stay well inside 64 bits, sums of them too
MAX_SECONDS: Final = 10**12


def to_bytes(value: Any) -> Bytes | None:
    """`parse_bytes` that also takes `1e9`, a float to YAML. None: not a size."""
    try:
        return parse_bytes(int(value) if isinstance(value, float) and value.is_integer() else value)
    except ValueError:
        return None


def to_seconds(value: Any) -> Seconds | None:
    """None: not a duration."""
    try:
        return parse_seconds(value)
    except ValueError:
        return None


def size_fault(value: Any, least: int) -> str | None:
    """What is wrong with how much a size comes to; None: nothing, or it is none."""
    size = to_bytes(value)
    if size is None or least <= size <= MAX_BYTES:
        return None
    return f"must be at least {format_bytes(least)}" if size < least else f"must be at most {format_bytes(MAX_BYTES)}"


def duration_fault(value: Any, least: float) -> str | None:
    """The same of a duration."""
    duration = to_seconds(value)
    if duration is None or least <= duration < MAX_SECONDS:
        return None
    if duration >= MAX_SECONDS:
        return "is too long"
    return "must be more than 0" if least < 0.1 else f"must be at least {format_seconds(least)}"
