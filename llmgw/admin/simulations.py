"""JSON objects of `llmgw simulate`. As in `shapes`: they only gain fields."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from llmgw.admin.shapes import VERSION, ProblemRow, Size, Time

Elapsed = Annotated[float, msgspec.Meta(description="Seconds since the simulation began.")]
Duration = Annotated[float, msgspec.Meta(description="Seconds.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedModelRow:
    """One model. `held`: of `arrived`, those that had to wait for a replica; `hold_*`: how long, of those sent on.

    `refused` and `failed` by the gateway's error code, `failures` of its engines by kind; `waiting`: at the end.
    """

    model: str
    arrived: int
    served: int
    held: int
    hold_p50: Duration | None
    hold_p95: Duration | None
    hold_max: Duration | None
    refused: Mapping[str, int]
    failed: Mapping[str, int]
    waiting: int
    loads: int
    evictions: int
    failures: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedMemoryRow:
    """Memory in use on one node over time, other programs' included. `device` null: host memory. `points`: at most 500,
    each the most from its time on until the next."""

    node: str
    device: str | None
    total: Size
    mean: Size
    peak: Size
    points: tuple[tuple[Elapsed, Size], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedEventRow:
    """Something that was decided or happened."""

    at: Elapsed
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOutput:
    """`llmgw simulate`. `passes`: decisions that were made. `events`: the last, where they were asked for."""

    valid: bool
    scenario: str
    version: int = VERSION
    description: str = ""
    seed: int = 0
    began: Time = 0.0
    duration: Duration = 0.0
    passes: int = 0
    problems: tuple[ProblemRow, ...] = ()
    models: tuple[SimulatedModelRow, ...] = ()
    memory: tuple[SimulatedMemoryRow, ...] = ()
    events: tuple[SimulatedEventRow, ...] = ()


SIMULATIONS: Final = {"simulate": SimulateOutput}
