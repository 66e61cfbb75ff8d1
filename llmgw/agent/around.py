"""What all replicas of a node share."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from llmgw.agent.cgroups import Counts
from llmgw.agent.ports import Ports
from llmgw.agent.scopes import Scopes
from llmgw.agent.timing import Times, Timing
from llmgw.agent.traffic import Traffic
from llmgw.catalog.spec import FetchLimits, WeightsSpec
from llmgw.clock import Clock
from llmgw.engine.manager import Engines
from llmgw.facts import DeviceFact, Event, Progress, WeightsFact
from llmgw.ids import NodeName, ReplicaId
from llmgw.statedir import StateDir
from llmgw.store.events import EventLog
from llmgw.units import MIB, Bytes, Wall
from llmgw.weights.doubt import Doubt

LOG_SIZE: Final = Bytes(8 * MIB)
"""Above which an engine's log is cut, and what is kept of it afterwards. While it is written it takes twice that."""


class WeightsCache(Protocol):
    """As much of `weights.cache.Cache` as the agent needs."""

    @property
    def root(self) -> Path: ...

    @property
    def unlisted(self) -> int: ...

    def limit(self, limits: FetchLimits, /) -> None: ...

    def locate(self, spec: WeightsSpec, /) -> Path | None: ...

    async def fetch(
        self, spec: WeightsSpec, /, *, reserve: Bytes, progress: Callable[[Progress], None], limits: FetchLimits
    ) -> Path: ...

    def facts(self, wanted: Iterable[WeightsSpec], /) -> tuple[WeightsFact, ...]: ...

    def mark_wanted(self, specs: Iterable[WeightsSpec], now: Wall, /) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    node: NodeName
    state: StateDir
    cache: WeightsCache
    engines: Engines
    clock: Clock
    events: EventLog
    secret: bytes
    host: str  #: that engines listen on
    grace: float  #: seconds between SIGTERM and SIGKILL
    ports: Ports
    traffic: Traffic
    changed: Callable[[], None]  #: something that the report tells is different now
    times: Times = field(default_factory=lambda: Times(Timing()))
    log_size: Bytes = LOG_SIZE
    scopes: Scopes = Scopes()
    counts: Counts = field(default_factory=Counts)
    devices: Callable[[], Sequence[DeviceFact]] = tuple  #: as they were when last looked at
    doubt: Doubt | None = None  #: looks at weights that an engine found damaged

    @property
    def timing(self) -> Timing:
        return self.times.now

    def tell(self, replica: ReplicaId, reason: str, message: str) -> None:
        self.events.record(
            Event(at=self.clock.now().wall, subject=f"replica/{replica}", reason=reason, message=message)
        )
