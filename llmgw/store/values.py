"""Values that only the store knows: what is in force, what was, and how the catalog's source fares."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from llmgw.catalog.holds import Held
from llmgw.catalog.spec import (
    Defaults,
    GatewaySettings,
    NodeSpec,
    NotifySpec,
    Occasion,
    RecoverySettings,
    ScalingSettings,
    SupervisionSettings,
    Sync,
    WeightsSettings,
)
from llmgw.errors import Problem
from llmgw.facts import Event
from llmgw.ids import ContentId, Digest, ModelName, NodeName, Revision
from llmgw.units import Bytes, Seconds, Wall


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The catalog in force. `parts`: lists of its models, in order; None: of an earlier llmgw, whose models lie under
    `catalog/models/<digest>/`."""

    revision: Revision
    digest: Digest
    at: Wall
    gateway: GatewaySettings = GatewaySettings()
    weights: WeightsSettings = WeightsSettings()
    cluster: str = ""  #: what the catalog calls the whole
    nodes: tuple[NodeName, ...] = ()  #: those that it has settings for
    policies: Mapping[NodeName, NodeSpec] = field(default_factory=dict)  #: those settings
    time_zone: str = "UTC"  #: of schedule windows
    scaling: ScalingSettings = ScalingSettings()
    defaults: Defaults = Defaults()
    recovery: RecoverySettings = RecoverySettings()
    supervision: SupervisionSettings | None = None  #: None: of a controller that knows of none
    sync: Sync = Sync.AUTO
    protect: bool = False
    notify: tuple[NotifySpec, ...] = ()
    parts: tuple[ContentId, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogPart:
    """Models that follow each other in a catalog, and the content of each: `contents` makes and reads them."""

    models: Mapping[ModelName, ContentId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """`settings/catalog/pinned`: the operator went back to that revision, and what is newer waits."""

    revision: Revision
    digest: Digest
    at: Wall
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """`settings/catalog/approved`: that revision may come into force. `removal`: though it removes much."""

    revision: Revision
    at: Wall
    by: str
    removal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One applied catalog: what the collector counts revisions by. `sources`: all that it wanted, canonical."""

    number: int
    revision: Revision
    digest: Digest
    at: Wall
    sources: tuple[str, ...] = ()
    models: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  #: the same, by the model that wanted them
    resolved: Mapping[str, str] = field(default_factory=dict)
    """What moving sources were at, by what the documents call them."""
    documents: Digest | None = None  #: of its documents, where sources moved: `digest` is of both then
    packed: str = ""  #: in place of those that are large: `histories.decode_entry`
    all_packed: bool = False  #: `resolved` too


class ConditionType(StrEnum):
    READY = "Ready"  #: every wanted model serves
    RECONCILING = "Reconciling"  #: on the way there
    STALLED = "Stalled"  #: will not get there by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    type: ConditionType
    status: bool
    reason: str = ""  #: one CamelCase word: `CatalogInvalid`, `Unschedulable`
    message: str = ""
    since: Wall = Wall(0)
    observed: Revision | None = None  #: the newest revision that it takes into account


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogStatus:
    """`attempted` != `applied`: the newest revision is not served, and `problems`, `error` or `held` says why."""

    source: str  #: the path, as the operator gave it
    attempted: Revision | None = None
    applied: Revision | None = None
    applied_at: Wall | None = None
    problems: tuple[Problem, ...] = ()
    error: str | None = None  #: the source cannot be read now
    watcher: str = "ok"  #: or "degraded: why" when only polling finds changes
    conditions: tuple[Condition, ...] = ()
    passed_at: Wall | None = None  #: of the controller's last pass, to some seconds
    held: Held | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Notified:
    """What was told last to one of the Cluster's `notify`. `place`: a hash of where; told there alone."""

    place: str
    revision: Revision
    occasion: Occasion
    reason: str
    at: Wall


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterIdentity:
    """Which cluster this store is of. `proof` is made from the cluster's secret: who has another is told so."""

    id: str
    proof: str
    at: Wall


class Role(StrEnum):
    CONTROLLER = "controller"
    AGENT = "agent"
    GATEWAY = "gateway"
    UP = "up"  #: all of them in one process


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A process that lives. `instance`: another after each restart; `url`: of its admin API."""

    role: Role
    name: str
    instance: str
    since: Wall
    version: str
    host: str
    pid: int
    place: str  #: which state directory of which host
    url: str
    serves: str = ""  #: a gateway's URL for clients


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """Who may ask the gateways. `id`: what its token begins with; `digest`: the token's SHA-256 in hex. The token
    itself is kept nowhere.

    `models`: names or aliases that it may ask for; empty: all. `concurrency`: requests under way at once. Limits are of
    each gateway; None: no limit. A revoked key is kept, so that the last one revoked does not open the gateways.
    """

    id: str
    name: str
    digest: str
    created: Wall
    by: str
    models: tuple[str, ...] = ()
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    expires: Wall | None = None
    revoked: Wall | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartOrder:
    """That instance is to begin anew; another of the same name has done so."""

    instance: str
    at: Wall
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldEvent:
    """`number`: counts a writer's events."""

    number: int
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldEvents:
    """One writer's last events, oldest first."""

    events: tuple[ToldEvent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchClaim:
    """A node downloads a cache entry from outside, so that no other has to. `done`: so far; `finished`: it holds it."""

    node: NodeName
    at: Wall
    done: Bytes = Bytes(0)
    finished: bool = False


class UpkeepAction(StrEnum):
    REMOVE = "remove"
    VERIFY = "verify"
    PIN = "pin"
    UNPIN = "unpin"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepOrder:
    """What a node is asked to do with entries of its cache; it looks for itself whether it may.

    `catalog`: in force as the asker saw it; `min_age`: seconds since an entry to be removed was last wanted.
    """

    action: UpkeepAction
    entries: tuple[str, ...]
    at: Wall
    by: str
    catalog: Digest | None = None
    revision: Revision | None = None
    min_age: Seconds = Seconds(0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepOutcome:
    """`done`: it is as was asked for; `text` says why not, or what was found."""

    entry: str
    done: bool
    text: str = ""
    size: Bytes = Bytes(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepAnswer:
    """Of one node to one order, growing until it is finished. `at`: another, while it is at work."""

    at: Wall
    outcomes: tuple[UpkeepOutcome, ...] = ()
    finished: bool = False
