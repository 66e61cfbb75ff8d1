"""How often engines are looked at, and how long one may be silent."""

import math
from dataclasses import dataclass, replace

from llmgw.catalog.spec import SupervisionSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds. The same for all profiles; the catalog's `supervision` sets some of them."""

    look_used: float = 1.0  #: between looks at an engine in use
    look_idle: float = 10.0  #: between looks at one that is not
    look_timeout: float = 10.0  #: for an answer to one
    hang_after: float = 120.0  #: without an answer or progress: a hang
    probe_every: float = 600.0
    """Between probes with real work of an engine that nobody uses. One takes a slot of it, and with the slot the prompt
    that it keeps of somebody's chat: hence no more often, and only so long after the last request."""
    bury_every: float = 10.0  #: between looks for dead children that nobody waits for, where orphans come to us
    probe_again: float = 10.0  #: between probes while they fail, or requests do

    def under(self, settings: SupervisionSettings) -> "Timing":
        """As the catalog has it."""
        return replace(self, hang_after=settings.hang_after, probe_every=settings.probe_every or math.inf)


class Times:
    """A node's, which change with the catalog."""

    def __init__(self, first: Timing) -> None:
        self._first = first
        self.now = first

    def follow(self, settings: SupervisionSettings | None) -> None:
        """None: nobody says."""
        self.now = self._first if settings is None else self._first.under(settings)
