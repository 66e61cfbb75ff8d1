"""Counts of what passes did."""

from typing import Any

import pytest

from llmgw.catalog.spec import ProfileSpec
from llmgw.facts import Event, FailureKind, Footprint, Level
from llmgw.ids import EngineName, ModelName, NodeName, ProfileName, ReplicaId, SpecDigest
from llmgw.plan import Launch, Plan, Reason, Stop
from llmgw.reconcile.meters import Meters
from llmgw.schedule.think import Thought
from llmgw.units import Bytes, Instant, Mono, Wall


class Ticking:
    """A clock that takes `step` seconds from one look to the next."""

    def __init__(self, step: float) -> None:
        self.step, self.time = step, 0.0

    def now(self) -> Instant:
        self.time += self.step
        return Instant(Mono(self.time), Wall(self.time))

    async def sleep(self, seconds: float) -> None: ...


def samples(meters: Meters) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value for family in meters.collect() for sample in family.samples
    }


def launch(level: Level) -> Launch:
    return Launch(
        model=ModelName("m"),
        profile=ProfileSpec(name=ProfileName("p"), engine=EngineName("e")),
        spec=SpecDigest("s"),
        node=NodeName("n"),
        footprint=Footprint(host=Bytes(1)),
        level=level,
    )


def stop(reason: Reason, *, eviction: bool = False) -> Stop:
    return Stop(replica=ReplicaId("r"), model=ModelName("m"), node=NodeName("n"), reason=reason, eviction=eviction)


def thought(*events: str, **plan: Any) -> Thought:
    told = tuple(Event(at=Wall(0), subject="model/m", reason=reason) for reason in events)
    return Thought(plan=Plan(**plan), wishes=(), statuses=(), events=told)


def test_passes_are_counted_by_how_they_end_and_timed() -> None:
    meters = Meters()
    for step in (0.004, 0.2):
        with meters.timing(Ticking(step)):
            pass
    with pytest.raises(ZeroDivisionError), meters.timing(Ticking(9)):
        raise ZeroDivisionError
    found = samples(meters)
    assert (found["llmgw_passes_total", "done"], found["llmgw_passes_total", "failed"]) == (2, 1)
    assert found["llmgw_pass_duration_seconds_bucket", "0.005"] == 1
    assert found["llmgw_pass_duration_seconds_bucket", "0.1"] == 1
    assert found["llmgw_pass_duration_seconds_bucket", "+Inf"] == 2
    assert found["llmgw_pass_duration_seconds_sum",] == pytest.approx(0.204)


def test_a_pass_that_is_cancelled_was_neither_done_nor_did_it_fail() -> None:
    meters = Meters()
    with pytest.raises(KeyboardInterrupt), meters.timing(Ticking(1)):
        raise KeyboardInterrupt
    found = samples(meters)
    assert (found["llmgw_passes_total", "done"], found["llmgw_passes_total", "failed"]) == (0, 0)


def test_launches_stops_and_evictions_are_told_apart() -> None:
    meters = Meters()
    meters.did(thought(launches=(launch(Level.FULL), launch(Level.DEGRADED), launch(Level.FULL))))
    meters.did(thought(stops=(stop(Reason.IDLE), stop(Reason.PRESSURE, eviction=True), stop(Reason.IDLE))))
    found = samples(meters)
    assert [found["llmgw_launches_total", level] for level in Level] == [2, 1, 0]
    assert found["llmgw_stops_total", "idle"] == 2
    assert ("llmgw_stops_total", "memory pressure") not in found
    assert found["llmgw_evictions_total",] == 1


def test_failures_are_counted_by_kind_and_each_kind_is_there_before_its_first() -> None:
    meters = Meters()
    meters.failed(FailureKind.OOM)
    found = samples(meters)
    assert {kind: found["llmgw_failures_total", kind] for kind in FailureKind} == {
        **dict.fromkeys(FailureKind, 0),
        FailureKind.OOM: 1,
    }


def test_scaling_steps_are_counted_by_direction_and_other_events_are_not() -> None:
    meters = Meters()
    meters.did(thought("scaled up", "scaled up", "scaled down", "launched"))
    found = samples(meters)
    assert (found["llmgw_scaling_steps_total", "up"], found["llmgw_scaling_steps_total", "down"]) == (2, 1)
