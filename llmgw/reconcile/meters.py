"""What passes did: plain counts while they are made, Prometheus families when somebody scrapes.

Counted since the process started. Labels are the core's own words, so there are few; events tell which model it was.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from llmgw.clock import Clock
from llmgw.facts import FailureKind, Level
from llmgw.plan import Plan, Reason
from llmgw.schedule.think import Thought

BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds."""

_STEPS: Final = {"scaled up": "up", "scaled down": "down"}
"""Scaling's events, by reason."""


class Outcome(StrEnum):
    DONE = "done"
    FAILED = "failed"


class Meters:
    """One for each controller."""

    def __init__(self) -> None:
        self._passes: Counter[Outcome] = Counter()
        self._durations = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0
        self._launches: Counter[Level] = Counter()
        self._stops: Counter[Reason] = Counter()
        self._evictions = 0
        self._failures: Counter[FailureKind] = Counter()
        self._steps: Counter[str] = Counter()

    @contextmanager
    def timing(self, clock: Clock) -> Iterator[None]:
        """Around one pass. One that is cancelled was neither done nor did it fail."""
        began = clock.now().mono
        try:
            yield
        except Exception:  # whatever it is, it goes on up: only counted here
            self._passes[Outcome.FAILED] += 1
            raise
        self._passes[Outcome.DONE] += 1
        took = max(0.0, clock.now().mono - began)
        self._durations[bisect_left(BUCKETS, took)] += 1
        self._seconds += took

    def did(self, thought: Thought) -> None:
        """Once a pass's plan was carried out."""
        self._planned(thought.plan)
        self._steps.update(_STEPS[event.reason] for event in thought.events if event.reason in _STEPS)

    def failed(self, kind: FailureKind) -> None:
        """A replica failed, and that was counted."""
        self._failures[kind] += 1

    def _planned(self, plan: Plan) -> None:
        self._launches.update(launch.level for launch in plan.launches)
        self._stops.update(stop.reason for stop in plan.stops if not stop.eviction)
        self._evictions += sum(stop.eviction for stop in plan.stops)

    def collect(self) -> Iterator[Metric]:
        passes = ((outcome, self._passes[outcome]) for outcome in Outcome)
        yield _counter("llmgw_passes", "Passes of the controller, by how they ended.", "outcome", passes)
        durations = HistogramMetricFamily("llmgw_pass_duration_seconds", "Time that passes took, those that were done.")
        durations.add_metric([], self._cumulative(), self._seconds)
        yield durations
        launches = ((level, self._launches[level]) for level in Level)
        yield _counter("llmgw_launches", "Replicas launched, by level.", "level", launches)
        stops = sorted(self._stops.items())
        yield _counter("llmgw_stops", "Replicas stopped for good, by reason.", "reason", stops)
        yield CounterMetricFamily("llmgw_evictions", "Replicas told to make room for others.", self._evictions)
        failures = ((kind, self._failures[kind]) for kind in FailureKind)
        yield _counter("llmgw_failures", "Failures of replicas, by kind.", "kind", failures)
        steps = ((way, self._steps[way]) for way in _STEPS.values())
        yield _counter("llmgw_scaling_steps", "Replicas more, or fewer, by scaling.", "direction", steps)

    def _cumulative(self) -> list[tuple[str, float]]:
        found, running = [], 0
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), self._durations, strict=True):
            running += count
            found.append((bound, float(running)))
        return found


def _counter(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for word, value in values:
        family.add_metric([word], value)
    return family
