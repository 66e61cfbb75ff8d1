"""A scenario played to its end."""

from collections import deque
from collections.abc import Callable
from typing import Final

from llmgw.engine.manager import Engines
from llmgw.fleet import reports
from llmgw.testing.scenario import Scenario
from llmgw.testing.world import World
from llmgw.testing.world_sizes import sizing

SLICES: Final = 200
"""How often progress is told."""


def play(
    scenario: Scenario,
    engines: Engines,
    *,
    seed: int | None = None,
    progress: Callable[[float], None] = lambda _: None,
    events: int = 0,
) -> World:
    """The world at the scenario's end. `progress` hears the share that is done; the last `events` are kept."""
    fleet = reports(scenario.fleet, engines=engines.by_name, at=scenario.rules.began)
    world = World(
        fleet.values(),
        scenario.catalog,
        seed=scenario.seed if seed is None else seed,
        rules=scenario.rules,
        behaviours=scenario.behaviour,
        traffic=scenario.traffic,
        faults=scenario.faults,
        pushes=scenario.pushes,
        sizes=sizing(engines),
    )
    world.story = deque(maxlen=events)
    for number in range(1, SLICES + 1):
        world.run(until=scenario.duration * number / SLICES)
        progress(number / SLICES)
    return world
