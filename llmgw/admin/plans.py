"""JSON objects of `llmgw plan`. As in `shapes`: they only gain fields."""

from dataclasses import dataclass
from typing import Final

from llmgw.admin.shapes import VERSION, HoldRow, ProblemRow, Size, Time
from llmgw.catalog.spec import Catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRow:
    """A file that a node lacks. `size` null: nobody knows it yet. `local`: it is served in place, fetched by nobody."""

    source: str
    size: Size | None
    local: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRef:
    """An accelerator of a node."""

    uuid: str
    name: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRow:
    """A replica to start. `host` and `device`: memory that it is counted for, `device` in total over its `devices`."""

    node: str
    profile: str
    engine: str
    level: str
    devices: tuple[DeviceRef, ...]
    host: Size
    device: Size
    footprint_source: str
    fetch: tuple[FetchRow, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneRow:
    """A replica to stop."""

    replica: str
    node: str
    profile: str
    level: str
    host: Size
    device: Size
    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRow:
    """What is done for a model, in the pass of that number.

    `launch` has only `starts`; `replace`, `move` and `drain` have `stops` and, where it goes on, `starts`; `evict` and
    `stop` have only `stops`. `start_first`: what is stopped serves on until the other is ready.
    """

    kind: str
    model: str
    number: int
    starts: PlacedRow | None
    stops: GoneRow | None
    start_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRow:
    """A model that is served under other names or with other shares of traffic, and whose engines go on; or one that
    comes or goes and has none now: an external one, or one on demand."""

    model: str
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectionRow:
    """Why a node is not taken. `freeable`: what there would be if all that may give way were evicted."""

    node: str
    reason: str
    need: Size
    have: Size
    freeable: Size
    detail: str
    profile: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRow:
    """A model, or one more replica of it, that fits nowhere. `summary`: in one line."""

    model: str
    summary: str
    rejections: tuple[RejectionRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRow:
    """A launch that is held back, and why."""

    model: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRow:
    """A model once all of it is done. `outdated`: replicas of an older version that go on nonetheless, of a `suspended`
    model, say; `drafts_for`: models that it is a companion of, which launch and stop it. `rollout_failed`: a revision
    whose spec failed, and why: it is wanted by that of `spec_revision`, as before."""

    model: str
    state: str
    reason: str
    wanted: int
    ready: int
    why: str
    outdated: int = 0
    suspended: bool = False
    drafts_for: tuple[str, ...] = ()
    rollout_failed: str | None = None
    spec_revision: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomRow:
    """Memory of a node or of one accelerator: `capacity` for engines, the catalog's `budget` (null: all of that), and
    what is counted `before` and `after`."""

    capacity: Size
    budget: Size | None
    before: Size
    after: Size


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEndRow:
    uuid: str
    name: str
    index: int
    memory: RoomRow


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEndRow:
    """A node before and after. `disk_after`: files of unknown size not counted."""

    node: str
    pool: str
    cordoned: bool
    replicas_before: int
    replicas_after: int
    memory: RoomRow
    devices: tuple[DeviceEndRow, ...]
    disk_before: Size
    disk_after: Size


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOutput:
    """`llmgw plan`. `valid` false: `problems` says why, and there is nothing else.

    `revision`: of the catalog that is planned; `in_force`: of the one that is served now. `offline`: against a fleet
    that is described. `stopped`: by the operator: nothing is wanted. `under_way`: replicas that are starting or ending
    already, taken as done. `settled`: false where so many passes did not come to rest. `due`: when waiting launches are
    looked at again. `held`: why all that would wait for a person first. `fetch`: bytes in all; `fetch_unknown`: files
    whose size nobody knows.
    """

    version: int = VERSION
    valid: bool
    problems: tuple[ProblemRow, ...] = ()
    warnings: tuple[ProblemRow, ...] = ()
    source: str | None = None
    revision: str | None = None
    in_force: str | None = None
    offline: bool = False
    stopped: bool = False
    changes: bool = False
    settled: bool = True
    passes: int = 0
    under_way: int = 0
    due: Time | None = None
    fetch: Size = 0
    fetch_unknown: int = 0
    actions: tuple[ActionRow, ...] = ()
    routes: tuple[RouteRow, ...] = ()
    refused: tuple[RefusedRow, ...] = ()
    waiting: tuple[WaitingRow, ...] = ()
    models: tuple[EndRow, ...] = ()
    nodes: tuple[NodeEndRow, ...] = ()
    held: HoldRow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The body of `POST /api/v1/plan`. `catalog` null: the daemon's own, as it stands on disk. `asked`: models, by name
    or alias, that requests are taken to have come for. Of commits that are not here yet: `approved` where they say that
    what the catalog removes is meant, and the newest as git keeps it (`commit`), for its signature."""

    catalog: Catalog | None = None
    source: str | None = None
    asked: tuple[str, ...] = ()
    approved: bool = False
    commit: bytes | None = None


PLANS: Final = {"plan": PlanOutput}
"""By schema's name, as `shapes.OUTPUTS`."""
