"""What was observed. Facts flow up: agents and gateways report them, the core reads them. Pure values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from llmgw.ids import Digest, EngineName, ModelName, NodeName, ProfileName, ReplicaId, Revision, SpecDigest
from llmgw.units import Bytes, Seconds, Wall


class Level(StrEnum):
    """How far a launch is shrunk to fit."""

    FULL = "full"
    DEGRADED = "degraded"
    MINIMAL = "minimal"

    @property
    def depth(self) -> int:
        """0 for full, growing as it shrinks."""
        return _DEPTH[self]


_DEPTH: Final = {level: depth for depth, level in enumerate(Level)}


class Phase(StrEnum):
    """Where a replica stands; `agent.lifecycle` has the legal transitions."""

    PLACING = "placing"
    FETCHING = "fetching"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def occupies_memory(self) -> bool:
        """A resident: assigned or running, and not yet proven gone."""
        return self not in (Phase.STOPPED, Phase.FAILED)


class FailureKind(StrEnum):
    CRASH = "crash"  #: it ended, and may do better when started again
    OOM = "oom"  #: for want of memory, the host's or an accelerator's
    HANG = "hang"  #: it runs, and does not answer in time
    DETACHED = "detached"  #: a wrapper exited 0 and left a daemon elsewhere
    FETCH = "fetch"  #: weights could not be had; no engine was started
    NODE = "node"  #: the node could not start it now: no free port, a full disk
    TERMINAL = "terminal"  #: trying again cannot help until something changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    kind: FailureKind
    reason: str  #: one line, for the operator
    at: Wall


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a process ended. Both None: unknown (an adopted process has no exit status)."""

    code: int | None = None
    signal: int | None = None

    def __str__(self) -> str:
        if self.signal is not None:
            return f"signal {self.signal}"
        return "unknown exit status" if self.code is None else f"exit code {self.code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Memory a replica takes, and where the figure comes from: `declared`, `measured`, `estimate` or `guess`."""

    host: Bytes
    device: Bytes = Bytes(0)  #: in total over its devices
    source: str = "estimate"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    running: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Bytes of a fetch so far. `total` None: nobody knows."""

    done: Bytes
    total: Bytes | None = None
    rate: float | None = None  #: bytes a second, smoothed; None: not known yet
    waiting: bool = False
    waits_for: str = ""  #: while it waits; empty: for its turn, since others are fetched and no more at once

    @property
    def left(self) -> float | None:
        """Seconds that it takes yet, at this rate; None: nobody knows."""
        return (self.total - self.done) / self.rate if self.total is not None and self.rate else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComingFile:
    """One of the files that a replica's node fetches for it: the canonical source, and how far it is."""

    source: str
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFact:
    """One engine process as its agent (or, for `placing`, the controller's own assignment) knows it."""

    id: ReplicaId
    model: ModelName
    profile: ProfileName
    engine: EngineName
    node: NodeName
    spec: SpecDigest
    revision: Revision  #: of the catalog that it was launched from
    phase: Phase
    since: Wall  #: when it entered the phase
    level: Level = Level.FULL
    launched: SpecDigest | None = None  #: of the profile as shrunk to its level; None: as `spec`
    devices: tuple[str, ...] = ()  #: UUIDs of the accelerators it was placed on
    exclusive: bool = False  #: it has them for itself
    draft: ModelName | None = None  #: its companion
    parallel: int = 1  #: requests that it decodes at once
    slots: int | None = None  #: requests that gateways send it at once, by its engine's word; None: what comes
    surfaces: tuple[str, ...] | None = None  #: paths under /v1/ that its engine serves; None: it does not say
    pid: int | None = None
    url: str | None = None
    footprint: Footprint | None = None  #: what the placement counted for it
    resident: Bytes | None = None  #: measured now: anonymous memory plus mapped pages of its processes
    resident_peak: Bytes | None = None  #: the most of it seen so far; kept when it has ended
    device_resident: Bytes | None = None  #: on accelerators, in total, as the driver tells by process
    device_peak: Bytes | None = None
    served: bool = False  #: a request was answered since it was ready
    load: EngineLoad | None = None  #: None: unreadable, or not yet read
    failure: Failure | None = None  #: set in phase FAILED, and in STOPPING where it ended by itself
    progress: Progress | None = None  #: of all its files together; set in phase FETCHING
    coming: tuple[ComingFile, ...] = ()  #: in phase FETCHING: those that are not here yet
    adopted: bool = False
    kept_serving: bool = False  #: an eviction did not drain in time and was given up: decide afresh


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFact:
    """Host memory: the machine's, or the tightest control group's around llmgw. Swap is not counted.

    `foreign`: used by processes that are not this node's engines.
    """

    total: Bytes
    available: Bytes
    foreign: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFact:
    """The file system that holds the weights cache."""

    total: Bytes
    free: Bytes
    mount: str | None = None  #: where that file system is mounted


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """A process on a device. `memory` None: the driver does not tell."""

    pid: int  #: as the driver has it; in a container it may be the host's number
    memory: Bytes | None
    ours: bool = False  #: one of this node's engines


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFact:
    """An accelerator, or one MIG instance of it: a device of its own with a memory of its own.

    Usable when `why` is None and not `divided`. Addressed by UUID: indexes change across boots.
    """

    uuid: str
    name: str
    index: int  #: the driver's; of a MIG instance, the one within its parent
    total: Bytes = Bytes(0)
    used: Bytes = Bytes(0)  #: by anyone, the driver's own share included
    free: Bytes = Bytes(0)
    foreign: Bytes | None = None
    """Used by what is not this node's engines, the driver included. None: the driver does not say how much each
    process uses (WSL, say, or a container with pids of its own), and only what engines were counted for tells."""
    processes: tuple[DeviceProcess, ...] | None = ()  #: None: the driver does not list them
    parent: str | None = None  #: of a MIG instance: its GPU's UUID
    divided: bool = False  #: a GPU in MIG mode: only its instances can be used
    driver: str | None = None
    why: str | None = None  #: why it cannot be used: it fell off the bus, the driver does not answer

    @property
    def healthy(self) -> bool:
        return self.why is None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFact:
    """An engine on a node: usable when `why` is None."""

    name: EngineName
    version: str | None = None
    path: str | None = None  #: of the program or package that would run
    why: str | None = None  #: why it cannot be used, and how to get it
    own_program: tuple[str, ...] = ()
    """Options by which a profile names a program of its own: `why` is of the default one, and does not concern it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsFact:
    """One cache entry of a node, or a file served in place.

    `metadata` holds the scalars of a GGUF header (`general.architecture`, `llama.block_count`, ...), or what
    `weights.folder` tells of a directory: enough to estimate memory without the file.
    """

    source: str  #: canonical
    entry: str | None  #: the entry's directory name; None when served in place
    size: Bytes
    last_wanted: Wall
    complete: bool = True
    in_use: bool = False
    licence: str | None = None
    sha256: str | None = None  #: of the entry's file, in hex; None when served in place
    metadata: Mapping[str, str | int | float] = field(default_factory=dict)
    pinned: str | None = None  #: by whom: it is kept, whatever the catalog says
    corrupt: bool = False  #: set aside, because its content is not what was fetched; never served
    unfinished: bool = False  #: a download that ended early, put aside for the next one to go on with


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """All that an agent knows of its node, written whole."""

    node: NodeName
    at: Wall
    memory: MemoryFact
    disk: DiskFact
    engines: tuple[EngineFact, ...] = ()
    replicas: tuple[ReplicaFact, ...] = ()
    weights: tuple[WeightsFact, ...] = ()
    unlisted: int = 0  #: cache entries that nobody wants and that have no room here
    catalog: Digest | None = None  #: the catalog whose files `weights` was looked up for
    devices: tuple[DeviceFact, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaUse:
    """A gateway's own count for one endpoint."""

    outstanding: int
    last_used: Wall
    heard: Wall | None = None  #: when bytes of an answer came from it last; None: never yet
    failures: int = 0  #: answers of 5xx, losses, and clients that gave up waiting for a first byte, since it is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """One gateway's snapshot. `seen`: the store revision of the last endpoint change it acts on."""

    at: Wall
    seen: int
    replicas: Mapping[ReplicaId, ReplicaUse] = field(default_factory=dict)
    held: Mapping[ModelName, int] = field(default_factory=dict)
    """Requests that wait at the gateway: for an endpoint of the model, or for a free slot of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """When an on-demand model was last asked for while it was not ready, and last used. Stamps only move forward."""

    asked: Wall
    used: Wall | None = None
    since: Wall | None = None  #: the first ask since it was last used: who has waited longest comes first

    @property
    def last(self) -> Wall:
        return self.asked if self.used is None else max(self.asked, self.used)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoad:
    """What a model has to do, over all its replicas; `waiting` counts the engines' queues and the gateways'."""

    ready: int = 0  #: replicas
    starting: int = 0  #: replicas placed and not ready yet
    running: int = 0  #: requests
    waiting: int = 0  #: requests
    known: bool = True  #: False: no replica's load could be read


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingState:
    """Replicas beyond the base, and since when the model is busy or quiet."""

    extra: int = 0
    busy_since: Wall | None = None
    quiet_since: Wall | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """What one replica of a spec was measured to hold on one node: requests at once within the latency target."""

    requests: int
    at: Wall
    ttft: Seconds  #: time to the first token, 95th percentile, at that concurrency
    itl: Seconds  #: time between tokens, 95th percentile
    tokens_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """The operator's word on a node: nothing new goes there. `drain`: what is there moves away."""

    at: Wall
    by: str
    drain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """The operator's word on a model, or on the whole catalog: it stays as it is."""

    at: Wall
    by: str


class Action(StrEnum):
    """What recovery does about a failure, from mild to severe."""

    RETRY = "retry"
    DEGRADE = "degrade"
    MINIMAL = "minimal"
    FALLBACK = "fallback"
    QUARANTINE = "quarantine"

    @property
    def severity(self) -> int:
        return tuple(Action).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryRecord:
    """Consecutive failures of one spec on one node. A success deletes it."""

    model: ModelName
    attempts: int  #: failures that the model may be to blame for
    last: Failure
    last_replica: ReplicaId  #: the failure already counted, so that a pass counts none twice
    retry_at: Wall | None  #: None: not until something changes
    action: Action = Action.RETRY
    level: Level = Level.FULL  #: that the next attempt is made at
    delays: int = 0  #: failures in a row that it is not to blame for: weights that could not be had, a full disk
    facts: str = ""  #: of the node when it was quarantined: when they change, it is tried anew

    @property
    def quarantined(self) -> bool:
        return self.action is Action.QUARANTINE

    @property
    def exhausted(self) -> bool:
        """The ladder has ended: the next profile's turn, and the fallback's."""
        return self.action.severity >= Action.FALLBACK.severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The most memory that replicas of one spec were seen to take on one node. Stored: it counts at the next launch."""

    host: Bytes
    device: Bytes | None = None  #: None: the driver does not tell
    at: Wall  #: when a replica last vouched for it, to the day
    samples: int = 1  #: replicas that it was taken from
    replicas: tuple[ReplicaId, ...] = ()  #: the last few of them
    warned_for: Bytes | None = None  #: the declaration that the operator was told it exceeds


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The world as one pass sees it. Assignments no agent reported yet appear as `placing` replicas."""

    nodes: Mapping[NodeName, NodeReport]
    replicas: Mapping[ReplicaId, ReplicaFact]
    recovery: Mapping[tuple[SpecDigest, NodeName], RecoveryRecord]
    footprints: Mapping[tuple[SpecDigest, Level], Footprint]
    """By spec and level, as declared or estimated from weights that some node has. Absent: unknown, never 0."""
    measured: Mapping[tuple[SpecDigest, NodeName], Footprint] = field(default_factory=dict)
    """What a full-level replica was seen to take on that node: wins over `footprints` there."""
    unreachable: frozenset[NodeName] = frozenset()  #: nodes whose reports stopped coming: nothing new goes there
    lost: frozenset[NodeName] = frozenset()  #: of them, those whose replicas count for nothing any more
    replaced: frozenset[ReplicaId] = frozenset()  #: that were lost with their node, which is back
    cordons: Mapping[NodeName, Cordon] = field(default_factory=dict)
    outstanding: Mapping[ReplicaId, int] = field(default_factory=dict)
    last_used: Mapping[ReplicaId, Wall] = field(default_factory=dict)

    def footprint(self, spec: SpecDigest, node: NodeName, level: Level = Level.FULL) -> Footprint | None:
        """What a replica is counted for there; None: nobody can tell yet."""
        if level is Level.FULL and (seen := self.measured.get((spec, node))) is not None:
            return seen
        return self.footprints.get((spec, level))

    def active(self, replica: ReplicaFact) -> bool:
        """A request is in flight there: by the engine's count or by a gateway's."""
        running = replica.load.running if replica.load else 0
        return running > 0 or self.outstanding.get(replica.id, 0) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened or was decided. `subject`: `model/qwen`, `replica/ab12`, `node/gpu-1`, `catalog`."""

    at: Wall
    subject: str
    reason: str  #: one word or two, stable: `launched`, `evicted`, `ready`, `failed`, `catalog applied`
    message: str = ""  #: for a person, with the figures


def idle_for(last_used: Wall | None, now: Wall) -> Seconds | None:
    """Time since the last request, or None when nobody has said: unknown is not idle."""
    return None if last_used is None else Seconds(max(0.0, now - last_used))
