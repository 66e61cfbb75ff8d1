"""What is counted while a world runs: requests, loads, evictions, and memory over time."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from llmgw.ids import ModelName, NodeName
from llmgw.testing.world_node import Request

Series = list[tuple[float, float]]
HOST: Final = "host"


@dataclass(slots=True)
class ModelTally:
    """One model's. `refused` and `failed` by the gateway's code; `waits`: seconds, of those held and then sent on."""

    arrived: int = 0
    served: int = 0
    held: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)
    loads: int = 0
    evictions: int = 0
    failures: Counter[str] = field(default_factory=Counter)  #: of its engines, by kind


class Tally:
    """Of all models and nodes. Memory is noted when it changes, never in between."""

    def __init__(self) -> None:
        self.models: dict[ModelName, ModelTally] = {}
        self.memory: dict[tuple[NodeName, str], Series] = {}  #: bytes by (node, `host` or a device's UUID)
        self.passes = 0

    def of(self, model: ModelName) -> ModelTally:
        return self.models.setdefault(model, ModelTally())

    def arrived(self, model: ModelName) -> None:
        self.of(model).arrived += 1

    def served(self, request: Request) -> None:
        one = self.of(request.model)
        one.served += 1
        if request.held and request.routed is not None:
            one.waits.append(request.routed - request.arrived)

    def held(self, model: ModelName) -> None:
        self.of(model).held += 1

    def refused(self, model: ModelName, code: str) -> None:
        self.of(model).refused[code] += 1

    def failed(self, model: ModelName, code: str) -> None:
        self.of(model).failed[code] += 1

    def memory_is(self, at: float, node: NodeName, what: str, taken: int) -> None:
        series = self.memory.setdefault((node, what), [])
        if series and series[-1][1] == taken:
            return
        if series and series[-1][0] == at:
            series[-1] = (at, taken)
        else:
            series.append((at, taken))


def percentile(values: list[float], share: float) -> float | None:
    """The smallest value that at least that share of them does not exceed; None of none."""
    if not values:
        return None
    ranked = sorted(values)
    return ranked[max(0, min(len(ranked) - 1, -(-int(share * 1000) * len(ranked) // 1000) - 1))]
