"""One pass's thinking: everything known in, everything decided out. The daemon, `plan` and simulations all call this."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmgw.catalog.spec import Catalog
from llmgw.facts import Ask, Concurrency, Event, Observed, RecoveryRecord, ScalingState
from llmgw.ids import ModelName, NodeName, SpecDigest
from llmgw.plan import Levels, ModelStatus, Plan, Stopped, Wish
from llmgw.units import Wall

RecoveryKey = tuple[SpecDigest, NodeName]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """All that one pass decides from."""

    catalog: Catalog
    observed: Observed
    levels: Levels = field(default_factory=dict)
    asks: Mapping[ModelName, Ask] = field(default_factory=dict)
    scaling: Mapping[ModelName, ScalingState] = field(default_factory=dict)
    held: Mapping[ModelName, int] = field(default_factory=dict)  #: requests that gateways hold, by model
    concurrency: Mapping[tuple[SpecDigest, NodeName], Concurrency] = field(default_factory=dict)
    stopped: Stopped | None = None
    settled: bool = True  #: False: nodes may be missing that are about to report: nothing is launched or evicted


@dataclass(frozen=True, slots=True, kw_only=True)
class Thought:
    """All that follows. Of `recovery`, `asks` and `scaling` only what changes; None: to be forgotten."""

    plan: Plan
    wishes: tuple[Wish, ...]
    statuses: tuple[ModelStatus, ...]
    recovery: Mapping[RecoveryKey, RecoveryRecord | None] = field(default_factory=dict)
    asks: Mapping[ModelName, Ask | None] = field(default_factory=dict)
    scaling: Mapping[ModelName, ScalingState | None] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    due: Wall | None = None  #: when the next pass is worth making though nothing changes
