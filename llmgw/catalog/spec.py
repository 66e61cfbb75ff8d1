"""The values of a loaded catalog: frozen, defaults filled in, units parsed. Nothing here does I/O.

Whatever a document may say is a field here, and nothing more: a key that is accepted works.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec

from llmgw.ids import (
    Digest,
    EngineName,
    ModelName,
    NodeName,
    ProfileName,
    Revision,
    SpecDigest,
    short_hash,
)
from llmgw.memo import Living, Once
from llmgw.units import GIB, MIB, Bytes, Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRef:
    """Where a value is read, on the node that uses it. Exactly one is set. Never echoed."""

    from_env: str | None = None
    from_file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSpec:
    """`source`: canonical, such as `https://...`, `pypi://...` or `file:///...`."""

    source: str
    sha256: str | None = None
    size: Bytes | None = None
    token: SecretRef | None = None  #: shown to the source's own server, on the node that fetches
    insecure: bool = False  #: `http://` to a machine other than the node itself is meant
    endpoint: str | None = None  #: the hub that is asked for it, where that is not the public one
    written: str | None = None  #: as the catalog names it, where `source` is the revision that was resolved to
    found: Bytes | None = None  #: its size as the source told it
    untold: str | None = None  #: why the source told nothing, when it was asked last

    @property
    def expected(self) -> Bytes | None:
        """Bytes: as the source tells, else as declared."""
        return self.size if self.found is None else self.found


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class ProfileSpec:
    """One way of running a model. `memory` and `host_memory` in bytes override the estimate."""

    name: ProfileName
    engine: EngineName
    weights: WeightsSpec | None = None
    draft: WeightsSpec | None = None  #: a small model for speculative decoding, loaded by the same process
    files: Mapping[str, WeightsSpec] = field(default_factory=dict)  #: whatever else the engine reads, by role
    draft_model: ModelName | None = None
    """A companion: the model of that name runs beside this one, as a process of its own, and drafts for it."""
    context: int = 4096  #: tokens per slot
    parallel: int = 1  #: requests decoded at once
    devices: int = 0  #: accelerators; 0: the CPU
    exclusive: bool = False  #: nothing else on its devices
    weight: float = 1.0  #: share of traffic among the endpoints of its tier
    tier: int = 0  #: used only while no lower one has a ready endpoint
    max_requests: int | None = None
    """Requests that a gateway sends to one replica at once; 0: what comes. None: as many as its engine has slots."""
    memory: Bytes | None = None
    host_memory: Bytes | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    wrapper: tuple[str, ...] = ()
    env: Mapping[str, str | SecretRef] = field(default_factory=dict)
    start_timeout: Seconds | None = None
    degraded: "ProfileSpec | None" = None
    """What it is shrunk to when it does not fit: the whole of it, with the block merged in. None: the engine's way."""
    minimal: "ProfileSpec | None" = None

    @property
    def roles(self) -> Mapping[str, WeightsSpec]:
        """Every file the engine reads, by role: `weights`, `draft`, and those of `files`."""
        found: dict[str, WeightsSpec] = {} if self.weights is None else {"weights": self.weights}
        if self.draft is not None:
            found["draft"] = self.draft
        found.update(self.files)
        return found

    @property
    def every_file(self) -> tuple[WeightsSpec, ...]:
        """What it reads at any level: a smaller one may have files of its own."""
        found: list[WeightsSpec] = []  # asked for every model at every change of a catalog: no dictionaries on the way
        for level in (self, self.degraded, self.minimal):
            if level is not None:
                found += [spec for spec in (level.weights, level.draft) if spec is not None]
                found += level.files.values()
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A time of the week with its own bounds. `days`: 0 is Monday; `start` and `end` in minutes from midnight by the
    cluster's zone, `end` up to 1440. One whose end is not after its start ends on the day after."""

    days: tuple[int, ...]
    start: int
    end: int
    min: int = 0
    max: int = 0  #: 0: the model's own


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSpec:
    """How many replicas. `on_demand`: none until asked for."""

    min: int = 1
    max: int = 1
    on_demand: bool = False
    idle_timeout: Seconds | None = None  #: of an on-demand model; None: the cluster's
    windows: tuple[Window, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementSpec:
    """Which nodes may run it: each part that is not empty must hold. `spread`: on different nodes where possible."""

    pools: tuple[str, ...] = ()
    nodes: tuple[NodeName, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    spread: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalSpec:
    """Where a model is that llmgw does not run. `url`: as an OpenAI client would be given it; without a path, `/v1`.
    `api_key`: read where the gateway runs. `model`: what it is called there; None: as here. `max_requests`: that a
    gateway sends there at once; None or 0: what comes."""

    url: str
    api_key: SecretRef | None = None
    model: str | None = None
    max_requests: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantSpec:
    """A further name, served by the same replicas with other request parameters: on top of the model's own."""

    name: str
    strip_params: tuple[str, ...] = ()
    set_params: Mapping[str, Any] = field(default_factory=dict)
    default_params: Mapping[str, Any] = field(default_factory=dict)


class Common(StrEnum):
    """What makes requests belong together."""

    SESSION = "session"  #: a header, or `prompt_cache_key`, `user` or `metadata.user_id` of the body
    PREFIX = "prefix"  #: how the conversation or the prompt begins


@dataclass(frozen=True, slots=True, kw_only=True)
class AffinitySpec:
    """Requests that belong together go to the same replica. `by`: the first of these that a request has.

    `prefix`: characters. `bound`: how much more than its share a replica may have to do before another takes over.
    """

    by: tuple[Common, ...] = (Common.SESSION, Common.PREFIX)
    header: str = "X-Session-Id"
    prefix: int = 256
    bound: float = 1.25


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class ModelSpec:
    """`external`: it is routed there and never placed; then there are no profiles."""

    name: ModelName
    profiles: tuple[ProfileSpec, ...]
    external: ExternalSpec | None = None
    variants: tuple[VariantSpec, ...] = ()
    strip_params: tuple[str, ...] = ()  #: of requests, taken away
    set_params: Mapping[str, Any] = field(default_factory=dict)  #: in place of what a client sent
    default_params: Mapping[str, Any] = field(default_factory=dict)  #: where a client sent none
    description: str = ""
    aliases: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    pinned: bool = False
    suspend: bool = False  #: left as it is: never launched, evicted, restarted or stopped
    protect: bool = False  #: a revision without it is held until it is approved
    fallback: ModelName | None = None  #: serves in its place when recovery gives up
    scaling: ScalingSpec = ScalingSpec()
    placement: PlacementSpec = PlacementSpec()
    stream_comments: bool = False  #: streams that wait begin with comments, unless a request says otherwise
    affinity: AffinitySpec | None = None  #: None: requests go where there is the least to do
    groups: tuple[str, ...] = ()  #: models that share one never reside together on a node

    @property
    def names(self) -> tuple[str, ...]:
        """Every name a client may use, the model's own first."""
        return (self.name, *self.aliases, *(variant.name for variant in self.variants))


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    cold_start_timeout: Seconds = Seconds(300)
    max_body: Bytes = Bytes(64 * MIB)
    queue_timeout: Seconds = Seconds(300)  #: for a free slot of a model that is ready
    max_waiting: int = 1000  #: requests that wait for one model, at each gateway
    slow_start: Seconds = Seconds(0)  #: in which a new endpoint's weight grows to its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    start_timeout: Seconds = Seconds(600)
    drain_timeout: Seconds = Seconds(120)
    idle_timeout: Seconds = Seconds(900)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSettings:
    """When a model gets a replica more or less, and how long one stays at least."""

    up_waiting: float = 1.0  #: requests waiting for each replica that make a model busy
    up_after: Seconds = Seconds(30)  #: busy for so long: one more
    down_after: Seconds = Seconds(300)  #: quiet for so long: one less
    min_residency: Seconds = Seconds(30)
    """An on-demand replica that was ready or used so recently gives way to no equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverySettings:
    backoff: Seconds = Seconds(2)
    backoff_cap: Seconds = Seconds(300)
    stable: Seconds = Seconds(300)
    quarantine_retry: Seconds = Seconds(1800)  #: 0: never


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisionSettings:
    """How long what is silent is believed to be well."""

    hang_after: Seconds = Seconds(120)  #: an engine, without an answer or progress
    probe_every: Seconds = Seconds(600)  #: between real requests to one that nobody uses; 0: never
    node_grace: Seconds = Seconds(60)  #: a node, before what it runs is placed elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Of all downloads of a node together."""

    bandwidth: Bytes | None = None  #: per second; None: as fast as it goes
    parallel: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSettings:
    keep_revisions: int = 3
    min_age: Seconds = Seconds(86400)
    collect_above: int | None = None  #: percent of a disk in use, above which a node is collected; None: never
    collect_below: int | None = None  #: percent of it down to which; None: 10 less
    bandwidth: Bytes | None = None  #: per second and node
    parallel: int = 2  #: downloads at once on a node
    mirror: bool = True  #: the nodes of a fleet give one another what they hold
    mirror_bandwidth: Bytes | None = None  #: per second, that one node sends to all others
    hub_endpoint: str | None = None  #: of `hf://` sources; None: the public hub, or what HF_ENDPOINT says on a node

    @property
    def limits(self) -> FetchLimits:
        return FetchLimits(bandwidth=self.bandwidth, parallel=self.parallel)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSpec:
    """Policy: what llmgw may use. None: as much as there is."""

    host: Bytes | None = None
    device: Bytes | None = None  #: of each device


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveSpec:
    """Physics: what stays free for others."""

    host: Bytes = Bytes(GIB)
    disk: Bytes = Bytes(GIB)
    device: Bytes = Bytes(512 * MIB)  #: of each device


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    pool: str = "default"
    labels: Mapping[str, str] = field(default_factory=dict)
    budget: BudgetSpec = BudgetSpec()
    reserve: ReserveSpec = ReserveSpec()


class Sync(StrEnum):
    """How a revision comes into force."""

    AUTO = "auto"
    MANUAL = "manual"  #: once the operator applies it


class NotifyKind(StrEnum):
    """Who is told, and so how."""

    GITHUB = "github"
    GITLAB = "gitlab"
    GITEA = "gitea"  #: and Forgejo
    WEBHOOK = "webhook"


class Occasion(StrEnum):
    """What is told of a revision."""

    APPLIED = "applied"  #: in force, and not all of it serves yet
    INVALID = "invalid"
    HELD = "held"
    READY = "ready"
    STALLED = "stalled"
    ROLLOUT_FAILED = "rollout_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifySpec:
    """One who is told how revisions fare. `url`: of a forge its root; None: the public one."""

    name: str
    kind: NotifyKind
    url: str | None = None
    repository: str | None = None  #: of a forge: `OWNER/NAME`, whose commits get the status
    token: SecretRef | None = None  #: read where the controller runs
    secret: SecretRef | None = None  #: that a webhook's body is signed with
    events: tuple[Occasion, ...] = tuple(Occasion)
    insecure: bool = False  #: `http://` to a machine other than the controller's is meant


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    name: str = "default"
    sync: Sync = Sync.AUTO
    protect: bool = False  #: a revision without one of the models, or without this document, is held
    time_zone: str = "UTC"  #: of schedule windows: an IANA name
    gateway: GatewaySettings = GatewaySettings()
    defaults: Defaults = Defaults()
    scaling: ScalingSettings = ScalingSettings()
    recovery: RecoverySettings = RecoverySettings()
    supervision: SupervisionSettings = SupervisionSettings()
    weights: WeightsSettings = WeightsSettings()
    notify: tuple[NotifySpec, ...] = ()
    nodes: Mapping[NodeName, NodeSpec] = field(default_factory=dict)

    def node(self, name: NodeName) -> NodeSpec:
        """A node not listed has no budget and the default reserve."""
        return self.nodes.get(name, NodeSpec())


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Catalog:
    """All documents at one revision; immutable. `models` in name order.

    Raises ValueError where one stands under another name than its own."""

    revision: Revision
    digest: Digest
    models: Mapping[ModelName, ModelSpec] = field(default_factory=dict)
    cluster: ClusterSpec = ClusterSpec()
    documents: Digest | None = field(default=None, compare=False)
    """Of the documents alone, where `digest` is also of what their moving sources were at."""

    def __post_init__(self) -> None:
        for name, model in self.models.items():
            if model.name != name:
                raise ValueError(f"the model {model.name!r} stands under the name {name!r}")


LAUNCH_FIELDS: Final = (
    "engine", "weights", "draft", "draft_model", "files", "context", "parallel", "devices", "options",
    "args", "wrapper", "env",
)  # fmt: skip
"""The fields of a profile that a running engine was launched from. The others (memory figures, time-outs) change
what is placed where, and restart nothing."""


_digests: Final[Living[ProfileSpec, tuple[ModelName, SpecDigest]]] = Living()
"""Every pass asks for that of every profile: that is twenty times as quick as to hash it anew."""


def spec_digest(model: ModelName, profile: ProfileSpec) -> SpecDigest:
    """Equal digests = the running engine is the wanted one. Holds secret references, never their values."""
    known = _digests.get(profile)
    if known is not None and known[0] == model:
        return known[1]
    launch = {name: _content(getattr(profile, name)) for name in LAUNCH_FIELDS}
    digest = SpecDigest(short_hash(canonical_json([model, launch]).decode()))
    _digests.put(profile, (model, digest))
    return digest


def _specs(catalog: Catalog) -> Mapping[SpecDigest, tuple[ModelSpec, ProfileSpec]]:
    return {spec_digest(model.name, one): (model, one) for model in catalog.models.values() for one in model.profiles}


specs_of: Final = Once(_specs)
"""Every profile of a catalog with its model, by what is launched of it. Once for each catalog."""


def _content(value: Any) -> Any:
    """Of files, what says which bytes they are: how they were fetched is nothing to the engine that runs."""
    if isinstance(value, WeightsSpec):
        return {"source": value.source, "sha256": value.sha256, "size": value.size}
    if isinstance(value, Mapping):
        return {key: _content(each) for key, each in value.items()}
    return value


def canonical_json(value: Any) -> bytes:
    """Sorted keys, no white space: equal values give equal bytes."""
    return msgspec.json.encode(value, order="deterministic")


model_json: Final[Once[ModelSpec, bytes]] = Once(canonical_json)
"""A model's canonical JSON, once for each object: digests and the last good catalog on disk are made of it."""
