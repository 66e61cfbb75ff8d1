"""Which nodes are silent, and from when on what they ran counts for nothing."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from llmgw.facts import DiskFact, MemoryFact, NodeReport, Phase, ReplicaFact
from llmgw.ids import EngineName, ModelName, NodeName, ProfileName, ReplicaId, Revision, SpecDigest
from llmgw.reconcile.liveness import GRACE, LOST, Liveness, Reach
from llmgw.units import GIB, Bytes, Instant, Mono, Wall

NODES = [NodeName(name) for name in ("a", "b", "c")]


def report(node: NodeName, at: float) -> NodeReport:
    memory = MemoryFact(total=Bytes(GIB), available=Bytes(GIB), foreign=Bytes(0))
    return NodeReport(node=node, at=Wall(at), memory=memory, disk=DiskFact(total=Bytes(GIB), free=Bytes(GIB)))


def replica(id: str, node: NodeName) -> ReplicaFact:
    return ReplicaFact(
        id=ReplicaId(id),
        model=ModelName("m"),
        profile=ProfileName("p"),
        engine=EngineName("e"),
        node=node,
        spec=SpecDigest("s"),
        revision=Revision("r"),
        phase=Phase.READY,
        since=Wall(0),
    )


def instant(at: float) -> Instant:
    return Instant(Mono(at), Wall(at))


def looked(
    liveness: Liveness, silent: Sequence[NodeReport], begin: int, end: int, living: Sequence[NodeName] = (), **more: Any
) -> Reach:
    """What the last of the looks says, every ten seconds from after `begin` until `end`. The living report on."""
    reach = None
    for at in [*range(begin + 10, end, 10), end]:
        reach = liveness.look([*silent, *(report(node, at) for node in living)], instant(at), **more)
    assert reach is not None
    return reach


def test_a_node_whose_agent_is_gone_gets_nothing_at_once_and_is_lost_after_the_patience() -> None:
    liveness = Liveness(patience=10, presence=True)
    reports = [report(node, 0) for node in NODES]
    assert liveness.look(reports, instant(0), alive=NODES).unreachable == frozenset()
    gone = liveness.look(reports, instant(1), alive=NODES[1:])
    assert gone.unreachable == {"a"}
    assert gone.lost == frozenset()
    assert liveness.look(reports, instant(10.5), alive=NODES[1:]).lost == {"a"}
    assert liveness.look(reports, instant(11), alive=NODES).lost == frozenset(), "its agent is back"


def test_between_two_heartbeats_a_living_node_is_not_lost_however_short_the_patience() -> None:
    liveness = Liveness(patience=0.1, presence=True)
    reports = [report(node, 0) for node in NODES]
    liveness.look(reports, instant(0), alive=NODES)
    assert liveness.look(reports, instant(GRACE - 1), alive=NODES).lost == frozenset()


def test_a_new_controller_gives_a_node_that_is_gone_its_whole_time_again() -> None:
    liveness = Liveness(presence=True)
    reports = [report(node, 0) for node in NODES]
    first = liveness.look(reports, instant(1000), alive=NODES[1:])
    assert first.unreachable == {"a"}
    assert first.lost == frozenset()
    later = looked(liveness, reports[:1], 1000, 1001 + int(LOST), NODES[1:], alive=NODES[1:])
    assert later.lost == {"a"}


def test_a_node_that_has_just_reported_first_is_not_gone_though_its_agent_has_not_said_that_it_lives() -> None:
    liveness = Liveness(presence=True)
    liveness.look([], instant(0), alive=[])
    assert liveness.look([report(NODES[0], 1)], instant(1), alive=[]) == Reach(frozenset(), frozenset())
    assert liveness.look([report(NODES[0], 7)], instant(7), alive=[]).unreachable == {NODES[0]}


@pytest.mark.parametrize("alive", [None, []])
def test_where_more_than_half_are_silent_nothing_is_given_up(alive: list[NodeName] | None) -> None:
    liveness = Liveness()
    reports = [report(node, 0) for node in NODES]
    liveness.look(reports, instant(0), alive=alive)
    later = looked(liveness, reports, 0, int(LOST) + 1, alive=alive)
    assert later.braked
    assert later.unreachable == set(NODES)
    assert later.lost == frozenset()


def test_what_a_lost_node_ran_counts_as_replaced_when_it_is_back_until_it_is_gone() -> None:
    liveness = Liveness(patience=5)
    others = [report(node, 0) for node in NODES[1:]]
    old = replace(report(NODES[0], 0), replicas=(replica("old", NODES[0]),))
    assert liveness.look([old, *others], instant(0)).replaced == frozenset()
    fresh = [report(node, 30) for node in NODES[1:]]
    lost = looked(liveness, [old], 0, 30, NODES[1:])
    assert (lost.lost, lost.replaced) == ({"a"}, frozenset())
    back = replace(old, at=Wall(31), replicas=(replica("old", NODES[0]), replica("new", NODES[0])))
    assert liveness.look([back, *fresh], instant(31)).replaced == {"old"}
    gone = replace(old, at=Wall(32), replicas=(replica("new", NODES[0]),))
    assert liveness.look([gone, *fresh], instant(32)).replaced == frozenset()


def test_time_in_which_nobody_looked_is_held_against_nobody() -> None:
    liveness = Liveness()
    liveness.look([report(node, 0) for node in NODES], instant(0))
    later = [report(NODES[0], 0), *(report(node, LOST + 5) for node in NODES[1:])]  # the store was away for a minute
    assert liveness.look(later, instant(LOST + 5)) == Reach(frozenset(), frozenset()), "it reports in a moment"
    assert looked(liveness, later[:1], 65, 65 + int(GRACE) + 1, NODES[1:]).unreachable == {"a"}
    assert looked(liveness, later[:1], 86, 65 + int(LOST) + 1, NODES[1:]).lost == {"a"}
