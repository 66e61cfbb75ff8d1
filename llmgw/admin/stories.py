"""JSON objects that tell of one model: `llmgw explain` and `llmgw logs`. As in `shapes`: they only gain fields."""

from dataclasses import dataclass
from typing import Final

from llmgw.admin.plans import RejectionRow
from llmgw.admin.shapes import VERSION, CordonRow, EventRow, ModelRow, ReplicaRow, Size, Time


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """A file that the model's profile wants. `here`: it is on the node, and `size` its own; else `size` is what its
    source told, or the catalog declares, null where nobody does."""

    role: str
    source: str
    node: str | None
    here: bool
    size: Size | None
    licence: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderRow:
    """Another model's replica that holds memory of a node. `suspended`, `on_demand`: as the catalog has its model;
    `busy`: requests run or wait in it."""

    model: str
    replica: str
    state: str
    memory: Size
    priority: int
    pinned: bool
    device: Size = 0  #: memory of accelerators, in total
    devices: tuple[str, ...] = ()  #: their UUIDs
    suspended: bool = False
    on_demand: bool = False
    busy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceDeviceRow:
    """An accelerator that can be used: memory for engines, the catalog's budget (null: all of it), what is counted."""

    uuid: str
    name: str
    index: int
    capacity: Size
    budget: Size | None
    counted: Size


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRow:
    """A node as the model sees it. `verdict`: `placed`, `refused` or `open` (nothing is known against it).

    `reason`, `need`, `have` and `detail` tell of a refusal, `refusals` of each profile's. `capacity`: host memory for
    engines; `budget`: what the catalog allows them, null for all of it; `held`: what engines hold now, the model's own
    included; `holders`: who else does; `holds_weights`: every file of one of the model's profiles lies there.
    """

    node: str
    verdict: str
    reason: str
    need: Size
    have: Size
    detail: str
    capacity: Size
    budget: Size | None
    held: Size
    holders: tuple[HolderRow, ...]
    pool: str = "default"
    cordon: CordonRow | None = None
    refusals: tuple[RejectionRow, ...] = ()
    devices: tuple[PlaceDeviceRow, ...] = ()
    holds_weights: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRow:
    """The last of `attempts` failures in a row, on a node. `retry_at` null: not before something changes.

    `quarantined`: given up, but for a try now and then. `action`: what it led to, and `level` that the next try is made
    at. `delays`: failures in a row that the model is not to blame for. `profile` null: one that it has no more.
    """

    node: str
    kind: str
    reason: str
    at: Time
    attempts: int
    retry_at: Time | None
    quarantined: bool
    action: str = "retry"
    level: str = "full"
    delays: int = 0
    profile: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRow:
    """The profile that it is run as. `engine_version`: on the node that it is on, null where that is not known.
    `passed_over`: why it is not used though it is preferred to the one that is; null of others."""

    name: str
    engine: str
    engine_version: str | None
    context: int
    parallel: int
    devices: int = 0
    passed_over: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandRow:
    """How many replicas are wanted, and by what.

    `base` and `ceiling`: the bounds now, by the `window` that holds (null: none does) until `changes_at`. `extra`:
    beyond the base, by load; busy or quiet since those times, which lead to one more or one less after `up_after` and
    `down_after` seconds. `held`: requests that wait at gateways; `waiting`: those and the engines' queues; `measured`:
    requests at once that one replica was measured to hold. Of an on-demand model: when it was last asked for and used,
    and when it is unloaded if nobody asks again.
    """

    base: int
    ceiling: int
    window: str | None
    changes_at: Time | None
    time_zone: str
    extra: int
    busy_since: Time | None
    quiet_since: Time | None
    up_after: float
    down_after: float
    ready: int
    starting: int
    running: int
    waiting: int
    held: int
    measured: int | None
    on_demand: bool
    asked_at: Time | None
    used_at: Time | None
    idle_timeout: float
    unloads_at: Time | None
    suspended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackRow:
    """The model that stands in when recovery gives up. `serves`: it does so now."""

    model: str
    serves: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalRow:
    """Where a model is that others run. `model`: what it is called there; `key`: where its key is read."""

    url: str
    model: str
    key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainOutput:
    """`llmgw explain MODEL`. `asked`: as it was asked for, a name or an alias; `why`: it is wanted so often.

    `profile`: that it runs as, or would first; `profiles`: all, by preference. `level`: it is shrunk to. `places`:
    nodes, those that it is on first. `events`: the last ones about the model, oldest first. `advice`: what to do, a
    line for each thing. `stands_in_for`: models that this one serves in the place of now. `drafts_for`: those that it
    is a companion of, launched and stopped with them. `external`: others run it, and most of the rest says nothing.
    """

    version: int = VERSION
    asked: str
    model: ModelRow
    why: str
    profile: ProfileRow | None
    replicas: tuple[ReplicaRow, ...]
    places: tuple[PlaceRow, ...]
    files: tuple[FileRow, ...]
    failures: tuple[FailureRow, ...]
    events: tuple[EventRow, ...]
    advice: tuple[str, ...]
    profiles: tuple[ProfileRow, ...] = ()
    level: str = "full"
    demand: DemandRow | None = None
    fallback: FallbackRow | None = None
    stands_in_for: tuple[str, ...] = ()
    drafts_for: tuple[str, ...] = ()
    external: ExternalRow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsOutput:
    """`llmgw logs MODEL`. `running`: the replica still writes it; `path`: on the machine of the replica; `whole`:
    nothing stands before `lines`. Bytes that are no UTF-8 are written as backslash, x and two hex digits."""

    version: int = VERSION
    model: str
    replica: str
    running: bool
    path: str
    whole: bool
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """`llmgw logs -f --json` prints one of these a line. With a `note`, which says what became of the log, `text` is
    empty."""

    model: str
    replica: str
    text: str
    note: str | None


STORIES: Final = {"explain": ExplainOutput, "logs": LogsOutput, "log-line": LogLine}
"""By schema's name, as `shapes.OUTPUTS`."""
