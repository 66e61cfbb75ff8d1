"""How things read on a terminal. Pure."""

import re
import unicodedata

from llmgw.units import format_bytes, format_seconds

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
"""Colours and other control sequences, titles of windows."""
_LONG_HEX = re.compile(r"[0-9a-f]{13,}")


def clean(text: str) -> str:
    """Without control characters: names, reasons and log lines must not steer the reader's terminal."""
    return "".join(" " if c in "\n\r\t" else c for c in text if c in "\n\r\t" or unicodedata.category(c) != "Cc")


def log_line(text: str) -> str:
    """A line of a program's log as a terminal would show it in the end: without colours, a progress bar at its last."""
    return clean(_ESCAPES.sub("", text).rstrip("\r").rpartition("\r")[2])


def short_revision(revision: str | None) -> str:
    """Commits and digests cut to twelve digits, as git shows them."""
    return "none" if revision is None else _LONG_HEX.sub(lambda match: match[0][:12], revision)


def ago(then: float | None, now: float) -> str:
    """`3m ago`; a moment ahead of our clock counts as now."""
    return "" if then is None else f"{format_seconds(max(0.0, now - then))} ago"


def size(value: int | None) -> str:
    return "" if value is None else format_bytes(value)


def waits(what: str) -> str:
    """`what`: as Progress.waits_for has it."""
    return f"waiting for {what or 'its turn'}"


def fetched(done: int, total: int | None, rate: float | None) -> str:
    """`12.3 MiB of 93.8 MiB (13 %), 4.1 MiB/s, 19s left`"""
    text = format_bytes(done)
    if total:
        text += f" of {format_bytes(total)} ({min(100, 100 * done // total)} %)"
    if rate is None:
        return text
    left = f", {format_seconds(round((total - done) / rate))} left" if total is not None and rate >= 1 else ""
    return f"{text}, {format_bytes(round(rate))}/s{left if total != done else ''}"
