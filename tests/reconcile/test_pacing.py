"""Which news calls for a pass at once, and how passes leave the machine to others."""

import asyncio
from dataclasses import replace

from llmgw.facts import (
    DeviceFact,
    DiskFact,
    EngineFact,
    EngineLoad,
    Failure,
    FailureKind,
    MemoryFact,
    NodeReport,
    Phase,
    ReplicaFact,
)
from llmgw.ids import EngineName, ModelName, NodeName, ProfileName, ReplicaId, Revision, SpecDigest
from llmgw.reconcile.news import News
from llmgw.reconcile.workqueue import Trigger
from llmgw.store import keys
from llmgw.store.api import Change
from llmgw.store.codec import encode
from llmgw.units import GIB, Bytes, Wall

N1 = NodeName("n1")

REPLICA = ReplicaFact(
    id=ReplicaId("r1"),
    model=ModelName("m"),
    profile=ProfileName("p"),
    engine=EngineName("e"),
    node=N1,
    spec=SpecDigest("s"),
    revision=Revision("r"),
    phase=Phase.STARTING,
    since=Wall(1),
)

REPORT = NodeReport(
    node=N1,
    at=Wall(1),
    memory=MemoryFact(total=Bytes(GIB), available=Bytes(GIB), foreign=Bytes(0)),
    disk=DiskFact(total=Bytes(GIB), free=Bytes(GIB)),
    engines=(EngineFact(name=EngineName("e")),),
    devices=(DeviceFact(uuid="GPU-1", name="gpu", index=0, free=Bytes(GIB)),),
    replicas=(REPLICA,),
)


def told(report: NodeReport) -> Change:
    return Change(keys.report(N1), encode(report), 1)


def urgent_after_first(report: NodeReport) -> bool:
    news = News()
    assert news.is_urgent(told(REPORT)), "a node that nobody knew"
    return news.is_urgent(told(report))


def with_replica(**changes: object) -> NodeReport:
    return replace(REPORT, replicas=(replace(REPLICA, **changes),))  # type: ignore[arg-type]


def test_a_heartbeat_with_other_figures_can_wait() -> None:
    device = replace(REPORT.devices[0], free=Bytes(5))
    figures = replace(REPORT, at=Wall(6), memory=replace(REPORT.memory, available=Bytes(7)), devices=(device,))
    assert not urgent_after_first(figures)
    assert not urgent_after_first(with_replica(resident=Bytes(9), load=EngineLoad(running=3, waiting=1)))


def test_what_changes_what_runs_is_urgent() -> None:
    failure = Failure(kind=FailureKind.CRASH, reason="exit code 1", at=Wall(2))
    assert urgent_after_first(with_replica(phase=Phase.READY, since=Wall(2), url="http://n1:1"))
    assert urgent_after_first(with_replica(phase=Phase.STOPPING, failure=failure))
    assert urgent_after_first(with_replica(kept_serving=True))
    assert urgent_after_first(replace(REPORT, replicas=()))
    assert urgent_after_first(replace(REPORT, engines=(EngineFact(name=EngineName("e"), why="gone"),)))
    assert urgent_after_first(replace(REPORT, devices=(replace(REPORT.devices[0], why="fell off the bus"),)))


def test_reports_that_go_or_cannot_be_read_and_all_other_keys_are_urgent_but_for_use() -> None:
    news = News()
    assert news.is_urgent(Change(keys.report(N1), b"?", 1))
    assert news.is_urgent(told(REPORT))
    assert news.is_urgent(Change(keys.report(N1), None, 2))
    assert news.is_urgent(told(REPORT)), "it is back"
    assert news.is_urgent(Change(keys.assignment(N1, ReplicaId("r1")), b"{}", 1))
    assert news.is_urgent(Change(keys.ask(ModelName("m")), b"{}", 1))
    assert not news.is_urgent(Change(keys.usage("g"), b"{}", 1))


async def test_what_can_wait_waits_and_what_is_urgent_does_not() -> None:
    trigger, now = Trigger(), asyncio.get_running_loop().time
    begun = now()
    trigger.set(urgent=False)
    assert await trigger.wait(None, patience=0.1)
    assert now() - begun >= 0.1
    trigger.set(urgent=False)
    waiting = asyncio.create_task(trigger.wait(None, patience=600.0))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    trigger.set()
    async with asyncio.timeout(30):
        assert await waiting


async def test_nothing_is_so_urgent_that_there_is_no_rest() -> None:
    trigger, now = Trigger(), asyncio.get_running_loop().time
    begun = now()
    trigger.set()
    assert await trigger.wait(None, rest=0.1)
    assert now() - begun >= 0.1


async def test_a_trigger_that_nobody_sets_is_waited_for_until_the_time_is_over_and_is_clear_afterwards() -> None:
    trigger = Trigger()
    assert not await trigger.wait(0.01, rest=0.005, patience=600.0)
    trigger.set()
    assert await trigger.wait(None)
    assert not await trigger.wait(0.01)
