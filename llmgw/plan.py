"""What was decided. Decisions flow down: the core makes them, dispatch writes them, agents and gateways act."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from llmgw.catalog.spec import ExternalSpec, FetchLimits, ProfileSpec
from llmgw.facts import Action, Footprint, Level, Phase, Progress, ReplicaFact
from llmgw.ids import EngineName, ModelName, NodeName, ProfileName, ReplicaId, Revision, SpecDigest
from llmgw.units import Bytes, Seconds, Wall, format_bytes


class Reason(StrEnum):
    """Why a node was refused, a replica stopped, or a model is not up. The CLI prints it, tests assert it."""

    # refusals of a node
    PLACEMENT = "placement"  #: pool, node or label
    UNREACHABLE = "unreachable"
    CORDONED = "cordoned"
    ENGINE = "engine unavailable"
    QUARANTINED = "quarantined here"
    DEVICES = "too few devices"
    DEVICE_MEMORY = "device memory"
    HOST_MEMORY = "host memory"
    DISK = "disk"
    GROUP = "group"
    DRAFT = "draft"  #: its companion cannot be there
    NO_FILE = "file unusable"  #: one that is served in place is not there, or cannot be used
    SIZE_UNKNOWN = "size unknown"
    NO_NODE = "no node has reported"
    # why a replica is stopped
    REMOVED = "model removed"
    CHANGED = "spec changed"
    DRAFT_GONE = "its draft cannot run on its node any more"
    SYSTEM_STOPPED = "stopped by the operator"
    PRESSURE = "memory pressure"
    DUPLICATE = "one too many"
    NOT_WANTED = "wanted at 0"  #: outside its window, say
    IDLE = "idle"
    SCALED_DOWN = "fewer are wanted"
    NODE_DRAINED = "node drained"
    DRAFT_UNUSED = "drafts for nobody"
    FAILED = "failed"


Levels = Mapping[tuple[SpecDigest, Level], ProfileSpec]
"""What profiles are shrunk to, by the full one's digest: the levels that exist and take less than the one above."""


class Want(StrEnum):
    RUN = "run"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """How many replicas of a model should run now, and why."""

    model: ModelName
    count: int
    why: str
    reason: Reason = Reason.NOT_WANTED  #: that a replica too many is stopped for
    on_demand: bool = False  #: wanted only since it was asked for: makes room for an equal that is waited for
    waited: bool = False  #: a request waits for it, or for what was loaded for one to have served it
    held: bool = False  #: suspended: as it is, nothing launched or stopped
    asked: Wall | None = None  #: the last ask that was counted
    since: Wall | None = None  #: the first one since it was last used, while a request waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """One node's refusal. `need` and `have` in bytes; 0 where the reason is not about room."""

    node: NodeName
    reason: Reason
    need: Bytes = Bytes(0)
    have: Bytes = Bytes(0)
    freeable: Bytes = Bytes(0)  #: what there would be if all that may give way to it were evicted
    detail: str = ""
    profile: ProfileName | None = None  #: that was refused

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
    launched: SpecDigest | None = None  #: of `profile`, where its level is not full
    devices: tuple[str, ...] = ()  #: UUIDs
    why: str = ""  #: the node was chosen, and the model is wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A replica to drain and stop. An `eviction` that does not drain in time is given up. `detail`: for whom."""

    replica: ReplicaId
    model: ModelName
    node: NodeName
    reason: Reason
    eviction: bool = False
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unschedulable:
    """`rejections`: of each profile, of each node (of very many: of some)."""

    model: ModelName
    rejections: tuple[Rejection, ...]
    nodes: int = 1

    def __str__(self) -> str:
        """Profiles by name where there are several. Over several nodes a summary."""
        profiles: dict[ProfileName | None, list[Rejection]] = {}
        for rejection in self.rejections:
            profiles.setdefault(rejection.profile, []).append(rejection)
        tell = _summary if self.nodes > 1 else _one_by_one
        told = {profile: tell(rejections) for profile, rejections in profiles.items()}
        head = f"0/{self.nodes} nodes: " if self.nodes > 1 else ""
        if len(told) == 1:
            return head + next(iter(told.values()))
        return head + "; ".join(f"profile {profile}: {text}" if profile else text for profile, text in told.items())


def _one_by_one(rejections: Sequence[Rejection]) -> str:
    return "; ".join(map(str, rejections))


def _summary(rejections: Sequence[Rejection]) -> str:
    """`2 device memory (need 9.0 GiB, most free 6.2 GiB on gpu-1), 1 disk (...)`"""
    kinds: dict[Reason, list[Rejection]] = {}
    for rejection in rejections:
        kinds.setdefault(rejection.reason, []).append(rejection)
    return ", ".join(
        f"{len({one.node for one in kind})} {reason}{_best(kind)}"
        for reason, kind in sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0]))
    )


def _best(kind: Sequence[Rejection]) -> str:
    """Of refusals for one reason, the nearest miss."""
    best = max(kind, key=lambda one: (one.have - one.need, one.have))
    if best.need or best.have:
        return f" (need {format_bytes(best.need)}, most free {format_bytes(best.have)} on {best.node})"
    return f" ({best.detail})" if best.detail else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One pass's decision. `keep`: the replicas that serve (or will serve) each wish that has some; the best first."""

    launches: tuple[Launch, ...] = ()
    stops: tuple[Stop, ...] = ()
    unschedulable: tuple[Unschedulable, ...] = ()
    keep: Mapping[ModelName, tuple[ReplicaId, ...]] = field(default_factory=dict)
    waiting: Mapping[ModelName, str] = field(default_factory=dict)  #: launches held back this pass, and why
    gave_way: frozenset[ModelName] = frozenset()  #: kept warm for nobody, and not loaded while others need the memory
    against: Mapping[ModelName, tuple[Rejection, ...]] = field(default_factory=dict)
    """What each node has against models that wait for memory in use, or are in quarantine."""
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
    launched: SpecDigest | None = None  #: of `profile`, where its level is not full
    devices: tuple[str, ...] = ()  #: UUIDs of its accelerators
    draft_url: str | None = None  #: of its companion
    start_timeout: Seconds = Seconds(600)
    drain_timeout: Seconds = Seconds(120)
    disk_reserve: Bytes = Bytes(0)
    fetching: FetchLimits = FetchLimits()
    want: Want = Want.RUN
    why: str = ""  #: for want=stop
    eviction: bool = False

    def placing(self, since: Wall) -> ReplicaFact:
        """What it alone tells of its replica, before any agent does."""
        return ReplicaFact(
            id=self.replica,
            model=self.model,
            profile=self.profile.name,
            engine=self.profile.engine,
            node=self.node,
            spec=self.spec,
            revision=self.revision,
            phase=Phase.PLACING,
            since=since,
            level=self.level,
            launched=self.launched,
            parallel=self.profile.parallel,
            devices=self.devices,
            exclusive=self.profile.exclusive,
            draft=self.profile.draft_model,
            footprint=self.footprint,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """`catalog/rollouts/<model>`: a model on its way from profiles that served (`good`) to others, or back."""

    good: tuple[ProfileSpec, ...]
    good_revision: Revision  #: whose they are
    wanted: str  #: a digest of the profiles that it is on its way to
    revision: Revision  #: that brought those
    at: Wall
    ready: bool = False  #: a replica of them was, and none has failed
    failed: Wall | None = None  #: since when it is wanted as it was before
    why: str = ""


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
    external: ExternalSpec | None = None  #: it is not one of ours
    slots: int | None = None  #: requests that a gateway sends there at once; None: what comes
    surfaces: tuple[str, ...] | None = None  #: paths under /v1/ that it serves; None: nobody has said


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
    replicas: tuple[ReplicaId, ...] = ()  #: all that are kept; `replica` is the best of them
    ready: int = 0  #: of them
    level: Level = Level.FULL
    shrunk: ProfileSpec | None = None  #: what it is to be launched as, at a level that is not full, while nothing runs
    action: Action | None = None  #: of the last failure, while it counts
    fallback: ModelName | None = None  #: served in its place now
    asked: Wall | None = None  #: the last ask that this verdict knows of
    outdated: int = 0  #: replicas of those kept that serve until newer ones do; of a suspended model none
    spec_revision: Revision | None = None  #: whose spec it is wanted by, where the rollout of the newest failed
    rollout_failed: str = ""  #: that revision and why
    surfaces: tuple[str, ...] | None = None
    """Paths under /v1/ that it serves when it runs, whichever of its profiles that is of; None: nobody can say."""

    @property
    def explanation(self) -> str:
        """The reason, or each node's refusal where none was given."""
        return self.reason or "; ".join(map(str, self.rejections))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """`settings/stopped`: the operator's switch, present while it is thrown."""

    at: Wall
    by: str
