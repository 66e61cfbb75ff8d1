"""What a simulated world is made of: how engines behave, what traffic there is, what goes wrong and when. Values only.

Times are seconds since the world began, on its monotonic clock; what depends on the time of day goes by the wall clock
that the world began with, in its zone.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final
from zoneinfo import ZoneInfo

from llmgw.catalog.spec import Catalog
from llmgw.facts import FailureKind
from llmgw.ids import ModelName, NodeName
from llmgw.units import Bytes, Seconds, Wall

DAY: Final = 86400
HOUR: Final = 3600
ALL_DAYS: Final = (0, 1, 2, 3, 4, 5, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """How a model's engine really behaves, whatever the catalog says of it."""

    start: Seconds = Seconds(20)  #: from launch to ready
    stop: Seconds = Seconds(2)  #: from SIGTERM to gone
    takes: float = 1.0  #: memory it takes, as a share of what it is counted for
    crashes: Seconds | None = None  #: mean time between crashes while ready; None: never


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Requests for one model that come independently of one another."""

    model: str  #: name or alias
    per_hour: float
    length: Seconds  #: mean time that an engine decodes for one; exponential
    days: tuple[int, ...] = ALL_DAYS  #: 0 is Monday
    start: int = 0  #: minutes from midnight
    end: int = 1440  #: not after `start`: on the day after

    def rate_at(self, at: datetime) -> float:
        """Requests per second at a local time."""
        minute = at.hour * 60 + at.minute
        if self.start < self.end:
            inside = at.weekday() in self.days and self.start <= minute < self.end
        else:
            late = minute >= self.start and at.weekday() in self.days
            early = minute < self.end and (at.weekday() - 1) % 7 in self.days
            inside = late or early
        return self.per_hour / HOUR if inside else 0.0


class FaultKind(StrEnum):
    NODE_DOWN = "node_down"  #: the machine loses power, for `lasts`
    SILENT = "silent"  #: its reports do not arrive, for `lasts`; engines run on
    CRASH = "crash"  #: a ready engine of the model ends
    FAIL_STARTS = "fail_starts"  #: the next `count` starts of the model end with `failure`
    FOREIGN = "foreign"  #: other programs take `size` more, of host memory or of each of `devices`, for `lasts`
    DISK = "disk"  #: other files take `size` more, for `lasts`
    NETWORK = "network"  #: nothing can be fetched, for `lasts`
    CLOCK = "clock"  #: the wall clock jumps by `seconds`
    CONTROLLER = "controller"  #: the controller is restarted: what it does not store durably is gone
    DAEMON = "daemon"  #: all of llmgw is restarted: assignments are gone too, engines run on
    CORDON = "cordon"  #: by the operator, for `lasts`
    DRAIN = "drain"  #: likewise, with what is there moving away
    STOP = "stop"  #: the operator's switch, for `lasts`


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    at: Seconds
    kind: FaultKind
    node: NodeName | None = None
    model: ModelName | None = None
    lasts: Seconds = Seconds(60)
    size: Bytes = Bytes(0)
    on_devices: bool = False  #: `size` is of each device's memory, not the host's
    seconds: float = 0.0
    count: int = 1
    failure: FailureKind = FailureKind.CRASH


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """A catalog that comes into force."""

    at: Seconds
    catalog: Catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How the world runs. Seconds; bytes per second."""

    began: Wall = Wall(1_767_571_200)  #: a Monday, midnight UTC
    zone: ZoneInfo = field(default_factory=lambda: ZoneInfo("UTC"))
    fetch_rate: float = 100e6
    hears_after: Seconds = Seconds(0.2)  #: that an agent acts on an assignment
    pass_after: Seconds = Seconds(0.1)  #: that a pass follows on what triggers it
    looks_every: Seconds = Seconds(15)  #: between passes while requests come and go, at most
    resync: Seconds = Seconds(300)  #: between passes where nothing happens; the daemon, with less to lose, takes 15
    spread: float = 0.2  #: how far times to start differ from their mean, as a share
