"""JSON objects that tell what replicas hold: `llmgw bench`. As in `shapes`: they only gain fields."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from llmgw.admin.shapes import VERSION, Time

Duration = Annotated[float, msgspec.Meta(description="Seconds.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRow:
    """What one replica of a model's profile was measured to hold on a node: `requests` at once.

    `ttft` and `itl`: the 95th percentiles at that many, to the first token and between tokens.
    """

    model: str
    profile: str
    node: str
    requests: int
    ttft: Duration
    itl: Duration
    tokens_per_second: float
    at: Time


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacitiesOutput:
    """`llmgw bench --show`. `in_flight`: requests that gateways have at each replica now, by its id."""

    version: int = VERSION
    capacities: tuple[CapacityRow, ...]
    in_flight: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRequest:
    """The body of `POST /api/v1/capacities`: what was measured on a replica."""

    replica: str
    requests: Annotated[int, msgspec.Meta(ge=1)]
    ttft: Annotated[float, msgspec.Meta(ge=0)]
    itl: Annotated[float, msgspec.Meta(ge=0)]
    tokens_per_second: Annotated[float, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchStepRow:
    """So many requests at once. `verdict`: held, first token too late, tokens too slow, or errors.

    Times are null where nothing came. A step that could not be held any more was ended early: fewer `requests`.
    """

    at_once: int
    requests: int
    failed: int
    ttft_p50: Duration | None
    ttft_p95: Duration | None
    itl_p50: Duration | None
    itl_p95: Duration | None
    tokens_per_second: float
    verdict: str
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOutput:
    """`llmgw bench MODEL`. `holds`: requests at once within the target, 0 where not even one is; `at_most`: more were
    not tried. `stored`: scaling counts with it. `steps`: by requests at once."""

    version: int = VERSION
    model: str
    profile: str
    engine: str
    node: str
    replica: str
    level: str
    ttft: Duration
    itl: Duration
    prompt_tokens: int
    max_tokens: int
    holds: int
    at_most: bool
    tokens_per_second: float
    stored: bool
    warnings: tuple[str, ...]
    steps: tuple[BenchStepRow, ...]


CAPACITIES: Final = {"bench": BenchOutput, "capacities": CapacitiesOutput}
"""By schema's name, as `shapes.OUTPUTS`."""
