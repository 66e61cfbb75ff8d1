"""The simulations that are shipped: each comes to what it is there to show, whatever the seed."""

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from llmgw.engine.manager import find_engines
from llmgw.ids import ModelName, NodeName
from llmgw.testing.scenario import Scenario, load_scenario
from llmgw.testing.simulation import play
from llmgw.testing.world import World
from llmgw.testing.world_tally import HOST, ModelTally, percentile
from llmgw.units import GIB

SIMULATIONS = Path(__file__).parents[2] / "simulations"
HOUR = 3600.0
ENGINES = find_engines()


@cache
def played(name: str, seed: int) -> tuple[Scenario, World]:
    scenario = load_scenario(SIMULATIONS / name, ENGINES.rules())
    return scenario, play(scenario, ENGINES, seed=seed, events=100_000)


def tally(world: World, model: str) -> ModelTally:
    return world.tally.of(ModelName(model))


def peak(world: World, node: str, what: str, after: float = 0, until: float = 1e9) -> float:
    """The most memory in use in a stretch of time."""
    series = [*world.tally.memory[NodeName(node), what], (float("inf"), 0.0)]
    held = [(taken, begin, end) for (begin, taken), (end, _) in pairwise(series)]
    return max(taken for taken, begin, end in held if begin < until and end > after)


@pytest.mark.parametrize("path", sorted(SIMULATIONS.glob("*.yaml")), ids=lambda path: path.name)
def test_a_simulation_is_valid_and_its_first_line_leads_editors_to_the_schema(path: Path) -> None:
    load_scenario(path, ENGINES.rules())
    first = path.read_text().splitlines()[0]
    target = (path.parent / first.partition("$schema=")[2]).resolve()
    assert target == (SIMULATIONS.parent / "schemas" / "scenario.v1.schema.json").resolve()


# -- more models than memory


@pytest.mark.parametrize("seed", [1, 2])
def test_more_models_than_memory_are_all_served_in_turns(seed: int) -> None:
    scenario, world = played("more-models-than-memory.yaml", seed)
    together = sum(profile.memory or 0 for model in scenario.catalog.models.values() for profile in model.profiles)
    assert together > 2 * 48 * GIB
    for name in scenario.catalog.models:
        one = tally(world, name)
        assert one.served >= 0.95 * one.arrived > 0, name
        assert not one.failed
        assert not one.failures, "nothing ever runs out of memory"
    assert peak(world, "box", "GPU-box-0") <= 48 * GIB


def test_more_models_than_memory_the_favourite_is_hardly_ever_waited_for() -> None:
    _, world = played("more-models-than-memory.yaml", 1)
    favourite, others = tally(world, "qwen3-8b"), tally(world, "coder-14b")
    assert favourite.evictions == 0
    assert favourite.held < 0.02 * favourite.arrived
    assert others.held > 0.1 * others.arrived
    assert others.evictions > 10
    waited = percentile(others.waits, 0.5)
    assert waited is not None
    assert 20 < waited < 60, "about as long as its engine takes to start"


# -- a Monday morning


@pytest.mark.parametrize("seed", [7, 8])
def test_on_a_monday_morning_replicas_are_there_before_people_come_and_more_as_they_do(seed: int) -> None:
    _, world = played("monday-morning.yaml", seed)
    assistant = tally(world, "assistant")
    assert assistant.held == 0, "one is always there"
    assert assistant.served == assistant.arrived
    ready = [(float(line.split()[0]), line) for line in world.story if "assistant" in line and "ready" in line]
    opening = 20 * HOUR  # Sunday noon to Monday at eight
    assert len([at for at, _ in ready if at < opening]) == 2, "the window's two, of which one had run all Sunday"
    assert any(opening <= at < opening + 2 * HOUR for at, _ in ready), "the rush has one more, or two"
    assert any("scaled up" in line for line in world.story)
    assert any("scaled down" in line for line in world.story)


def test_on_a_monday_morning_the_push_replaces_a_model_without_a_request_refused() -> None:
    _, world = played("monday-morning.yaml", 7)
    coder = tally(world, "coder")
    assert coder.served == coder.arrived > 500
    assert coder.loads == 2, "once at eight, once with the new context at ten"
    assert not coder.failed
    assert world.ready("coder") == 0, "its window has closed"
    minutes = tally(world, "minutes")
    assert minutes.loads > 3
    assert minutes.served == minutes.arrived


# -- a node that dies


@pytest.mark.parametrize("seed", [3, 4])
def test_a_node_dies_and_what_matters_is_served_on(seed: int) -> None:
    _, world = played("a-node-dies.yaml", seed)
    for name in ("chat", "search"):
        one = tally(world, name)
        assert one.served >= one.arrived - 20, "what was in flight on the dead node, and the first seconds of the day"
        assert sum(one.refused.values()) == 0
        assert world.ready(name) == 2
    assert world.ready("batch") == 1, "back, since the node is"


def test_a_node_dies_and_its_replicas_are_launched_elsewhere_within_two_minutes() -> None:
    _, world = played("a-node-dies.yaml", 3)
    dead = 10 * HOUR
    launched = [line for line in world.story if "launch" in line and dead < float(line.split()[0]) < dead + 120]
    assert any("chat" in line for line in launched)
    assert any("search" in line for line in launched)
    assert not any("gpu-1" in line for line in launched)
    assert peak(world, "gpu-1", HOST, dead + 1, dead + 2 * HOUR - 1) == 4 * GIB, "nothing of ours runs there"
    assert tally(world, "batch").evictions == 1, "the least important makes room"
