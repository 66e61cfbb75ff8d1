"""JSON objects that tell of one model: `llmgw explain` and `llmgw logs`. As in `shapes`: they only gain fields."""

from dataclasses import dataclass
from typing import Final

from llmgw.admin.shapes import VERSION, EventRow, ModelRow, ReplicaRow, Size, Time


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """A file that the model's profile wants. `here`: it is on the node, and `size` its own; else `size` is the declared
    one, null where none was."""

    role: str
    source: str
    node: str | None
    here: bool
    size: Size | None
    licence: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderRow:
    """Another model's replica that holds memory of a node."""

    model: str
    replica: str
    state: str
    memory: Size
    priority: int
    pinned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRow:
    """A node as the model sees it. `verdict`: `placed`, `refused` or `open`.

    `reason`, `need`, `have` and `detail` tell of a refusal. `capacity`: host memory for engines; `budget`: what the
    catalog allows them, null for all of it; `held`: what engines hold now, the model's own included; `holders`: who
    else does.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRow:
    """The last of `attempts` failures in a row, on a node. `retry_at` null: not before something changes.

    `quarantined`: given up, but for a try now and then.
    """

    node: str
    kind: str
    reason: str
    at: Time
    attempts: int
    retry_at: Time | None
    quarantined: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRow:
    """The profile that it is run as. `engine_version`: on the node that it is on, null where that is not known."""

    name: str
    engine: str
    engine_version: str | None
    context: int
    parallel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainOutput:
    """`llmgw explain MODEL`. `asked`: as it was asked for, a name or an alias; `why`: it is wanted so often.

    `events`: the last ones about the model, oldest first. `advice`: what to do, a line for each thing.
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
