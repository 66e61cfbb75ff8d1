"""Random worlds: 200 steps of whatever may happen to a small fleet, then calm. What must hold, holds at every decision,
and at rest. A failure prints its story, what runs where, the last plan, and the command that shows it again."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from llmgw.plan import Plan
from llmgw.schedule.think import Known, Thought, think
from llmgw.testing.world_checks import Violation
from llmgw.testing.world_controller import Mind
from llmgw.testing.world_proof import STEPS, Outcome, main, prove
from llmgw.units import Bytes, Instant

FEW, MANY, AT_ONCE = 300, 2300, 20


@cache
def outcome(seed: int) -> Outcome:
    return prove(seed)


@pytest.mark.parametrize("first", range(0, FEW, AT_ONCE))
def test_random_worlds_keep_every_rule_and_come_to_rest(first: int) -> None:
    told = [outcome(seed) for seed in range(first, first + AT_ONCE)]
    assert sum(one.loads for one in told) > AT_ONCE
    assert sum(one.served for one in told) > AT_ONCE


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FEW, MANY, AT_ONCE))
def test_two_thousand_more_random_worlds(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        prove(seed)


def test_random_worlds_are_no_idylls() -> None:
    """Models are evicted, and some worlds take a while to come to rest."""
    told = [outcome(seed) for seed in range(40)]
    assert sum(one.evictions for one in told) > 10
    assert max(one.busy_passes for one in told) > 3


def test_a_seed_is_one_world_and_no_other() -> None:
    assert prove(3) == outcome(3)
    assert prove(3) != outcome(4)


# -- what they are for: a mind with a fault does not get through


def spoilt(change: Callable[[Known, Plan], Plan], see: Callable[[Known], Known] = lambda known: known) -> Mind:
    def mind(known: Known, now: Instant) -> Thought:
        thought = think(see(known), now)
        return replace(thought, plan=change(known, thought.plan))

    return mind


def roomy(known: Known) -> Known:
    """As if every device had twice its memory."""
    nodes = {
        name: replace(report, devices=tuple(replace(one, total=Bytes(2 * one.total)) for one in report.devices))
        for name, report in known.observed.nodes.items()
    }
    return replace(known, observed=replace(known.observed, nodes=nodes))


def as_it_is(_: Known, plan: Plan) -> Plan:
    return plan


def no_launches(_: Known, plan: Plan) -> Plan:
    return replace(plan, launches=())


def no_stops(_: Known, plan: Plan) -> Plan:
    return replace(plan, stops=())


def no_evictions(_: Known, plan: Plan) -> Plan:
    return replace(plan, stops=tuple(stop for stop in plan.stops if not stop.eviction))


def never_the_second(_: Known, plan: Plan) -> Plan:
    """All but the first of its launches are forgotten, pass after pass: the last of them never come."""
    return replace(plan, launches=tuple(launch for launch in plan.launches if launch.node == "n1"))


@pytest.mark.parametrize(
    "mind",
    [
        spoilt(as_it_is, roomy),
        spoilt(no_launches),
        spoilt(no_stops),
        spoilt(no_evictions),
        spoilt(never_the_second),
    ],
    ids=["overcommits devices", "never launches", "never stops", "never evicts", "uses one node"],
)
def test_a_mind_with_a_fault_is_found_out_within_a_few_worlds(mind: Mind) -> None:
    with pytest.raises(Violation):
        proven(60, mind)


def proven(count: int, mind: Mind, steps: int = STEPS) -> None:
    for seed in range(count):
        prove(seed, mind, steps=steps)


def test_a_failure_tells_its_story_and_how_to_see_it_again() -> None:
    with pytest.raises(Violation) as told:
        proven(10, spoilt(no_launches), steps=20)
    text = str(told.value)
    assert text.startswith("seed ")
    assert "python -m llmgw.testing.world_proof" in text
    assert "n1: " in text, "what runs where"
    assert " calm" in text, "the story's end"


def test_the_command_shows_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["3", "10"]) == 0
    assert capsys.readouterr().out.startswith("Outcome(passes=")


@pytest.mark.parametrize("args", [[], ["seven"], ["-1"], ["1", "2", "3"]])
def test_the_command_tells_how_it_is_called(capsys: pytest.CaptureFixture[str], args: list[str]) -> None:
    assert main(args) == 64
    told = capsys.readouterr()
    assert (told.out, "SEED [STEPS]" in told.err) == ("", True)
    assert main(["--help"]) == 0
    assert "SEED [STEPS]" in capsys.readouterr().out
