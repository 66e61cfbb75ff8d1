"""Which changes of the store call for a pass at once, and which can wait for a moment. Pure, but for what it remembers.

Of a thousand nodes two hundred report each second, and most say but that they live and how much memory is free. What
changes what runs (a replica's phase, an engine or a device that can be used or no more, weights that have come) must
not wait; figures may.
"""

from typing import Any

import msgspec

from llmgw.store import keys
from llmgw.store.api import Change


class _Replica(msgspec.Struct, frozen=True):
    id: str
    phase: str
    since: float
    url: str | None = None
    failure: Any = None
    kept_serving: bool = False


class _Engine(msgspec.Struct, frozen=True):
    name: str
    version: str | None = None
    why: str | None = None


class _Device(msgspec.Struct, frozen=True):
    uuid: str
    why: str | None = None
    divided: bool = False


class _Weights(msgspec.Struct, frozen=True):
    source: str
    entry: str | None = None
    complete: bool = True
    corrupt: bool = False


class _Vital(msgspec.Struct, frozen=True):
    """Of a node's report."""

    replicas: tuple[_Replica, ...] = ()
    engines: tuple[_Engine, ...] = ()
    devices: tuple[_Device, ...] = ()
    weights: tuple[_Weights, ...] = ()
    catalog: str | None = None


_decoder = msgspec.json.Decoder(_Vital)


class News:
    """Of what is fed to it. Remembers each node's last report, as far as it matters here."""

    def __init__(self) -> None:
        self._known: dict[str, _Vital] = {}

    def is_urgent(self, change: Change) -> bool:
        if change.key.startswith(keys.USAGE):
            return False  # who waits for a model that is not ready has asked for it besides
        if not keys.is_report(change.key):
            return True
        try:
            vital = None if change.value is None else _decoder.decode(change.value)
        except msgspec.MsgspecError:
            vital = None  # whoever reads it whole will say so
        if vital is None:
            self._known.pop(change.key, None)
            return True
        before, self._known[change.key] = self._known.get(change.key), vital
        return vital != before
