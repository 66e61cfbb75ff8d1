"""What was decided. Decisions flow down: the core makes them, dispatch writes them, agents and gateways act."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from llmgw.catalog.spec import ProfileSpec
from llmgw.facts import Footprint, Level, Progress
from llmgw.ids import EngineName, ModelName, NodeName, ProfileName, ReplicaId, Revision, SpecDigest
from llmgw.units import Bytes, Seconds, Wall, format_bytes


class Reason(StrEnum):
    """Why a node was refused, a replica stopped, or a model is not up. The CLI prints it, tests assert it."""

    # refusals of a node
    ENGINE = "engine unavailable"
    HOST_MEMORY = "host memory"
    DISK = "disk"
    SIZE_UNKNOWN = "size unknown"
    NO_NODE = "no node has reported"
    # why a replica is stopped
    REMOVED = "model removed"
    CHANGED = "spec changed"
    SYSTEM_STOPPED = "stopped by the operator"
    PRESSURE = "memory pressure"
    DUPLICATE = "one too many"
    FAILED = "failed"


class Want(StrEnum):
    RUN = "run"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """How many replicas of a model should run now, and why."""

    model: ModelName
    count: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """One node's refusal. `need` and `have` in bytes; 0 where the reason is not about room."""

    node: NodeName
    reason: Reason
    need: Bytes = Bytes(0)
    have: Bytes = Bytes(0)
    detail: str = ""

    def __str__(self) -> str:
        if self.need or self.have:
            room = f"{self.reason} (need {format_bytes(self.need)}, have {format_bytes(self.have)} on {self.node})"
            return f"{room}: {self.detail}" if self.detail else room
        return f"{self.reason} on {self.node}" + (f": {self.detail}" if self.detail else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A replica to start. It has no id: dispatch mints one when it writes the assignment."""

    model: ModelName
    profile: ProfileSpec
    spec: SpecDigest
    node: NodeName
    footprint: Footprint
    level: Level = Level.FULL


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A replica to drain and stop. An `eviction` that does not drain in time is given up."""

    replica: ReplicaId
    model: ModelName
    node: NodeName
    reason: Reason
    eviction: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unschedulable:
    model: ModelName
    rejections: tuple[Rejection, ...]

    def __str__(self) -> str:
        return "; ".join(map(str, self.rejections))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One pass's decision. `keep`: the replica that serves (or will serve) each wish that has one."""

    launches: tuple[Launch, ...] = ()
    stops: tuple[Stop, ...] = ()
    unschedulable: tuple[Unschedulable, ...] = ()
    keep: Mapping[ModelName, ReplicaId] = field(default_factory=dict)
    waiting: Mapping[ModelName, str] = field(default_factory=dict)  #: launches held back this pass, and why
    due: Wall | None = None  #: when the next pass is worth making though nothing changes

    @property
    def is_empty(self) -> bool:
        return not (self.launches or self.stops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A replica the controller decided on, addressed to one node. All an agent needs to run it, secrets aside."""

    replica: ReplicaId
    model: ModelName
    profile: ProfileSpec
    spec: SpecDigest
    node: NodeName
    revision: Revision
    footprint: Footprint
    level: Level = Level.FULL
    start_timeout: Seconds = Seconds(600)
    drain_timeout: Seconds = Seconds(120)
    disk_reserve: Bytes = Bytes(0)
    want: Want = Want.RUN
    why: str = ""  #: for want=stop
    eviction: bool = False


class EndpointState(StrEnum):
    READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A ready replica as the gateway sees it. `url` has no trailing slash; `names` are what clients may ask for."""

    id: ReplicaId
    model: ModelName
    url: str
    names: tuple[str, ...]
    engine: EngineName
    pool: str = "default"
    weight: float = 1.0
    tier: int = 0
    state: EndpointState = EndpointState.READY


class ModelState(StrEnum):
    """A model in one word, for status and for the gateway's answer when no endpoint is ready."""

    READY = "ready"
    LOADING = "loading"  #: placing, fetching, starting, restarting, being replaced
    FAILED = "failed"  #: quarantined
    UNSCHEDULABLE = "unschedulable"
    INACTIVE = "inactive"  #: wanted at 0
    STOPPED = "stopped"  #: by the operator's switch


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """One model's story in short, written by the controller each time it changes."""

    model: ModelName
    state: ModelState
    reason: str = ""
    wanted: int = 0
    replica: ReplicaId | None = None
    profile: ProfileName | None = None
    since: Wall = Wall(0)
    progress: Progress | None = None
    retry_at: Wall | None = None
    attempts: int = 0
    revision: Revision | None = None
    rejections: tuple[Rejection, ...] = ()
    why: str = ""  #: it is wanted so often
    footprint: Footprint | None = None  #: what its placement counts; None: not known yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """`settings/stopped`: the operator's switch, present while it is thrown."""

    at: Wall
    by: str
