"""The JSON objects of the admin API and of `llmgw ... --json`. A shape only ever gains fields, with defaults.

`schemas/output/` holds the JSON Schema of each; a test keeps the two alike. States and reasons are plain text here:
a reader must take a word it does not know yet.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import msgspec

Time = Annotated[float, msgspec.Meta(description="Seconds since the Unix epoch.")]
Size = Annotated[int, msgspec.Meta(description="Bytes.")]

VERSION: Final = 1

NOT_THERE: Final = "not_there"
"""`error.code` where the path is right, and what it was asked for does not exist: a model, say."""

NOT_NOW: Final = "not_now"
"""`error.code` where what was asked for cannot be done as things are; the message says what to do first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemRow:
    """One thing wrong in a catalog file. `line` and `column` count from 1; 0: the file as a whole."""

    file: str
    line: int
    column: int
    path: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionRow:
    """`Ready`, `Reconciling` or `Stalled`. `observed`: the newest revision that it takes into account."""

    type: str
    status: bool
    reason: str
    message: str
    since: Time
    observed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRow:
    """Why a valid revision is not put in force: one word, and what to do. `models`: those that it would remove."""

    reason: str
    message: str
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendedRow:
    """The operator's word: it stays as it is."""

    at: Time
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedRow:
    """The operator went back to that revision: it stays in force until `llmgw resume`."""

    revision: str
    at: Time
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogRow:
    """`attempted` differs from `applied` while the newest revision is not served: `problems`, `error` or `held` says
    why.

    `passed_at`: when what is wanted was last compared with what runs, to some seconds.
    """

    source: str | None
    attempted: str | None
    applied: str | None
    applied_at: Time | None
    error: str | None
    watcher: str | None
    problems: tuple[ProblemRow, ...]
    conditions: tuple[ConditionRow, ...]
    passed_at: Time | None = None
    held: HoldRow | None = None
    suspended: SuspendedRow | None = None
    pinned: PinnedRow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedRow:
    """The operator's switch, while it is thrown."""

    at: Time
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRow:
    """A fetch so far. `total` is null when nobody knows it. `rate`: bytes a second, smoothed; `left`: seconds that it
    takes yet at this rate; `waiting`: for what `waits_for` says, or, where that is empty, for its turn, while others
    are fetched."""

    done: Size
    total: Size | None
    rate: float | None = None
    left: float | None = None
    waiting: bool = False
    waits_for: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComingRow:
    """One file of a replica that its node fetches."""

    source: str
    progress: ProgressRow


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRow:
    """A replica whose files are fetched, and how far they are together."""

    node: str
    replica: str
    progress: ProgressRow


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """A model of the catalog in force and how it fares: `ready`, `loading`, `failed`, `unschedulable`, `inactive` or
    `stopped`. `level`: that its best replica is shrunk to, or that it is tried at next. `progress`: of the replica that
    is told of here; `fetching`: of every one whose files are fetched, by node. `retry_at`: never in the past."""

    name: str
    aliases: tuple[str, ...]
    description: str
    priority: int
    pinned: bool
    state: str
    reason: str
    wanted: int
    engine: str | None
    profile: str | None
    replica: str | None
    since: Time | None
    attempts: int
    retry_at: Time | None
    progress: ProgressRow | None
    revision: str | None
    footprint: Size | None = None
    footprint_source: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    level: str = "full"
    suspended: bool = False  #: by the catalog or by the operator
    suspension: SuspendedRow | None = None  #: the operator's word
    spec_revision: str | None = None  #: of the catalog by whose spec it is wanted
    rollout_failed: str | None = None  #: a newer revision whose spec failed, and why: it is wanted as before
    fetching: tuple[FetchRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRow:
    """A wanted or running engine process. `revision`: of the catalog that it was launched from.

    `footprint`: host memory that its placement counted, and `footprint_source` where that comes from: `declared`,
    `measured`, `estimate` or `guess`. `resident`: what it takes now; `resident_peak`: the most so far. `progress`: of
    all its files together; `coming`: of each that is not here yet.
    """

    id: str
    model: str
    profile: str
    engine: str
    node: str
    state: str
    level: str
    pid: int | None
    url: str | None
    revision: str
    reason: str
    since: Time | None
    adopted: bool
    footprint: Size | None
    resident: Size | None
    running: int | None
    waiting: int | None
    progress: ProgressRow | None
    footprint_source: str | None = None
    footprint_device: Size | None = None
    resident_peak: Size | None = None
    device_resident: Size | None = None
    device_peak: Size | None = None
    devices: tuple[str, ...] = ()  #: UUIDs of the accelerators it was placed on
    coming: tuple[ComingRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRow:
    """An engine on a node: usable when `why` is null. `path`: of the program or package that would run."""

    name: str
    version: str | None
    why: str | None
    path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcessRow:
    """A process on a device. `ours`: one of the node's engines."""

    pid: int
    memory: Size | None
    ours: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """An accelerator, or a MIG instance of the one that `parent` names: usable when `why` is null and not `divided`.

    `foreign`: used by what is not the node's engines; null where the driver does not tell, as are `processes`.
    `capacity`: what engines could have of it; `budget`: what the catalog allows them, null for all of that; `counted`:
    what placements took.
    """

    uuid: str
    name: str
    index: int
    total: Size
    used: Size
    free: Size
    foreign: Size | None
    processes: tuple[DeviceProcessRow, ...] | None
    parent: str | None
    divided: bool
    driver: str | None
    why: str | None
    capacity: Size = 0
    budget: Size | None = None
    counted: Size = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonRow:
    """The operator's word on a node: nothing new goes there. `drain`: what is there moves away."""

    at: Time
    by: str
    drain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A machine as its agent last reported it. `memory_capacity`, `memory_budget` and `memory_counted` as a device's.

    `replicas`: that hold memory there, those about to be started included. `silent`: its agent does not live, or cannot
    tell: all of this is what it said last.
    """

    name: str
    reported_at: Time
    memory_total: Size
    memory_available: Size
    memory_foreign: Size
    disk_total: Size
    disk_free: Size
    replicas: int
    engines: tuple[EngineRow, ...]
    devices: tuple[DeviceRow, ...] = ()
    disk_mount: str | None = None
    pool: str = "default"
    labels: Mapping[str, str] = field(default_factory=dict)
    cordon: CordonRow | None = None
    memory_capacity: Size = 0
    memory_budget: Size | None = None
    memory_counted: Size = 0
    silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """Something that happened or was decided. `number` counts from 1 since the daemon started."""

    at: Time
    subject: str
    reason: str
    message: str
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsRow:
    """A cache entry that the catalog in force does not want."""

    node: str
    entry: str
    source: str
    size: Size
    removable: bool
    reason: str
    outcome: str = ""  #: once its node was asked to remove it: `removed`, `refused`, or `unknown` where no answer came


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRow:
    """A process that lives: a `controller`, `agent`, `gateway`, or `up`, which is all three.

    `state`: of a controller, `leads` or `stands by`; `since`: of that, else as `started`. `serves`: a gateway's URL for
    clients.
    """

    role: str
    name: str
    state: str
    since: Time
    started: Time
    version: str
    host: str
    pid: int
    url: str
    serves: str
    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusOutput:
    """`llmgw status`"""

    version: int = VERSION
    llmgw: str
    node: str
    catalog: CatalogRow
    stopped: StoppedRow | None
    models: tuple[ModelRow, ...]
    nodes: tuple[NodeRow, ...]
    cluster: str | None = None  #: the name that the catalog in force gives the whole
    unknown_nodes: tuple[str, ...] = ()  #: those with settings in the catalog under whose name none has reported
    members: tuple[MemberRow, ...] = ()  #: the processes of a fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsOutput:
    """`llmgw models`"""

    version: int = VERSION
    models: tuple[ModelRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasOutput:
    """`llmgw replicas`"""

    version: int = VERSION
    replicas: tuple[ReplicaRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesOutput:
    """`llmgw nodes`"""

    version: int = VERSION
    nodes: tuple[NodeRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsOutput:
    """`llmgw events`: oldest first. `llmgw events -f --json` prints these objects one a line, as things happen."""

    version: int = VERSION
    events: tuple[EventRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchOutput:
    """`llmgw stop` and `llmgw start`. `changed`: false when it was so already."""

    version: int = VERSION
    changed: bool
    stopped: StoppedRow | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonOutput:
    """`llmgw cordon`, `llmgw drain` and `llmgw uncordon`. `changed`: false when it was so already; `replicas`: that are
    on the node."""

    version: int = VERSION
    changed: bool
    node: str
    cordon: CordonRow | None
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetRow:
    """What was forgotten of one model. `failures` 0: there was nothing. `ready`: it serves, and goes on as it is at its
    `level` until it is launched again."""

    model: str
    failures: int
    quarantined: bool
    nodes: tuple[str, ...]
    ready: bool = False
    level: str = "full"
    rollout: bool = False  #: that of a revision had failed, and is tried again


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOutput:
    """`llmgw reset`: the models that were asked about."""

    version: int = VERSION
    models: tuple[ResetRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectOutput:
    """`llmgw collect`. `stale`: why nothing is removable now, where the catalog's state is the reason. `dry_run`: only
    what would be removed is listed. `plan_id`: of exactly those entries; another list, another id. `collected`: the
    nodes were asked; then `removed` is in bytes, `refused` a number of entries, and `unreached` says why which nodes
    did not answer whole."""

    version: int = VERSION
    dry_run: bool
    stale: str | None
    removable: Size
    kept: Size
    entries: tuple[WeightsRow, ...]
    plan_id: str = ""
    collected: bool = False
    removed: Size = 0
    refused: int = 0
    unlisted: int = 0
    unreached: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRow:
    """A cache entry of a node, or a file that is served in place (`entry` null). `wanted`: by the catalog in force.

    `state`: `complete`, `incomplete`, `being fetched` (`size` is what came so far), `unfinished` where a download ended
    early and the next one goes on with it, or `corrupt` once it was set aside. `last_wanted`: seconds since the epoch.
    """

    node: str
    entry: str | None
    source: str
    size: Size
    state: str
    wanted: bool
    in_use: bool
    pinned: str | None
    last_wanted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsOutput:
    """`llmgw weights list`"""

    version: int = VERSION
    entries: tuple[HeldRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepRow:
    """What became of one entry. `done`: verified and sound, pinned, or unpinned; else `text` says why not."""

    node: str
    entry: str
    source: str
    size: Size
    done: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepOutput:
    """`llmgw weights verify`, `pin` and `unpin`. `unreached`: nodes that did not answer whole, and why."""

    version: int = VERSION
    action: str
    entries: tuple[UpkeepRow, ...]
    unreached: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateOutput:
    """`llmgw validate`"""

    version: int = VERSION
    valid: bool
    source: str
    revision: str | None
    models: int
    problems: tuple[ProblemRow, ...]
    warnings: tuple[ProblemRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowOutput:
    """`llmgw validate --show`: a model merged over its template, secrets hidden. `origins`: where each single value was
    written, `file:line:column`, by its JSON path."""

    version: int = VERSION
    name: str
    document: Mapping[str, Any]
    origins: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DownOutput:
    """`llmgw down`. `ended`: engines that were ended, beside the `daemon` where there was one."""

    version: int = VERSION
    ended: int
    daemon: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """Something that was looked at. `verdict`: ok, warn or fail; `advice`: what to do, where there is something."""

    name: str
    verdict: str
    message: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOutput:
    """`llmgw doctor`. `well`: nothing failed."""

    version: int = VERSION
    well: bool
    checks: tuple[CheckRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBody:
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginRow:
    """One installed plugin. `state`: ok, clash, broken or disabled; `failure`: its traceback.

    `engines`, `sources` (of weights, by scheme): those it brings; where it is not loaded, those it is known to bring.
    """

    name: str
    distribution: str
    version: str
    own: bool
    api_version: int | None
    engines: tuple[str, ...]
    state: str
    reason: str
    failure: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginsOutput:
    version: int = VERSION
    plugins: tuple[PluginRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginCheckRow:
    """One check of the conformance suite on one engine, or on one kind of source (`engine` is its scheme then, such as
    `oci://`). `outcome`: ok, failed or skipped."""

    engine: str
    check: str
    outcome: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginCheckOutput:
    version: int = VERSION
    ok: bool
    plugins: tuple[PluginRow, ...]
    checks: tuple[PluginCheckRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorOutput:
    """Every answer of the admin API that is not a success."""

    error: ErrorBody


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """The body of `POST /api/v1/stop`, which may be empty. `by`: who throws the switch."""

    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonRequest:
    """The body of `POST /api/v1/cordon`."""

    node: str
    by: str = ""
    drain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UncordonRequest:
    """The body of `POST /api/v1/uncordon`."""

    node: str
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetRequest:
    """The body of `POST /api/v1/reset`. `model`: a name or an alias; null: every model."""

    model: str | None
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectRequest:
    """The body of `POST /api/v1/collect`. `older_than` in seconds. `plan_id`: of the list that was agreed to; where the
    list is another now, nothing is removed."""

    older_than: float | None = None
    keep_revisions: int | None = None
    node: str | None = None
    model: str | None = None
    plan_id: str | None = None
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepRequest:
    """The body of `POST /api/v1/weights`. `action`: verify, pin, unpin; `what`: sources, entries, models; none: all."""

    action: str
    what: tuple[str, ...] = ()
    node: str | None = None
    by: str = ""


OUTPUTS: Final = {
    "status": StatusOutput,
    "models": ModelsOutput,
    "replicas": ReplicasOutput,
    "nodes": NodesOutput,
    "events": EventsOutput,
    "switch": SwitchOutput,
    "cordon": CordonOutput,
    "reset": ResetOutput,
    "collect": CollectOutput,
    "weights": WeightsOutput,
    "upkeep": UpkeepOutput,
    "validate": ValidateOutput,
    "show": ShowOutput,
    "down": DownOutput,
    "doctor": DoctorOutput,
    "plugins": PluginsOutput,
    "plugin-check": PluginCheckOutput,
    "error": ErrorOutput,
}
"""Every output by its schema's name: `schemas/output/<name>.v1.schema.json`."""
