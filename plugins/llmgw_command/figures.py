"""How busy a program is, out of its own metrics: Prometheus text, or JSON. Pure."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from llmgw.engine import EngineLoad

DEFAULT_PATH: Final = "/metrics"
_SAMPLE: Final = re.compile(
    rb"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?:[^\"}]|\"(?:[^\"\\]|\\.)*\")*\})?[ \t]+([0-9.eE+-]+)", re.MULTILINE
)


def read(where: Mapping[str, str], status: int, body: bytes) -> EngineLoad | None:
    """`where` names the figures: a metric's name, summed over its labels, or a JSON pointer (RFC 6901), which starts
    with a slash, to a number, a true or false, or a list, whose length counts. None: one of them is not there."""
    if status != 200:
        return None
    running = _figure(where["running"], body)
    waiting = _figure(where["waiting"], body) if "waiting" in where else 0
    if running is None or waiting is None:
        return None
    return EngineLoad(running=running, waiting=waiting)


def _figure(name: str, body: bytes) -> int | None:
    value = _pointed_at(name, body) if name.startswith("/") else _metric(name.encode(), body)
    return None if value is None or not 0 <= value < 1e9 else int(value)


def _metric(name: bytes, body: bytes) -> float | None:
    found = [number for each, number in _SAMPLE.findall(body) if each == name]
    try:
        return sum(map(float, found)) if found else None
    except ValueError:
        return None


def _pointed_at(pointer: str, body: bytes) -> float | None:
    try:
        value: Any = json.loads(body)
        for step in pointer[1:].split("/"):
            step = step.replace("~1", "/").replace("~0", "~")
            value = value[int(step)] if isinstance(value, list) else value[step]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    if isinstance(value, list):
        return float(len(value))
    return float(value) if isinstance(value, int | float) else None
