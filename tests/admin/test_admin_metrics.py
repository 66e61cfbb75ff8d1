"""Metrics of replicas, models and devices, from store values."""

from dataclasses import replace
from typing import Any

import daemon_seeds as seed

from llmgw.admin.capacities import CapacityRow
from llmgw.admin.metrics import families
from llmgw.admin.reading import Seen, look
from llmgw.facts import Cordon, DeviceFact, Footprint, Level, NodeReport, Progress
from llmgw.ids import ModelName, ReplicaId
from llmgw.plan import ModelState
from llmgw.store import keys
from llmgw.store.election import Leader
from llmgw.store.values import Member, Role
from llmgw.units import GIB, Bytes


def values(seen: Seen, name: str, **more: Any) -> dict[tuple[str, ...], float]:
    """One family's samples by the values of its labels, in the order that they are declared."""
    (family,) = (family for family in families(seen, **more) if family.name == name)
    return {tuple(sample.labels.values()): sample.value for sample in family.samples}


def device(uuid: str, **fields: Any) -> DeviceFact:
    sized = {"total": Bytes(24 * GIB), "used": Bytes(10 * GIB), "free": Bytes(14 * GIB), "foreign": Bytes(2 * GIB)}
    return DeviceFact(uuid=uuid, name="RTX", index=0, **{**sized, **fields})


async def seen(*reports: NodeReport, **puts: Any) -> Seen:
    seeds = await seed.full()
    for report in reports:
        await seeds.put(keys.report(report.node), report)
    for status in puts.get("told", ()):
        await seeds.explain(status)
    for node in puts.get("cordoned", ()):
        await seeds.put(keys.cordon(node), Cordon(at=seed.NOW, by="me"))
    found = await look(seeds.store)
    await seeds.store.close()
    return found


async def test_replicas_are_counted_by_phase_level_and_node() -> None:
    shrunk = replace(seed.ready("r3", seed.QWEN), level=Level.MINIMAL)
    found = values(await seen(seed.report(seed.ready("r1", seed.QWEN), shrunk)), "llmgw_replicas")
    assert found["ready", "full", "gpu-1"] == 1
    assert found["ready", "minimal", "gpu-1"] == 1
    assert found["failed", "full", "gpu-1"] == 0, "there before the first one fails"
    assert ("failed", "minimal", "gpu-1") not in found


async def test_models_tell_how_many_replicas_are_wanted_and_ready() -> None:
    told = replace(seed.told(seed.QWEN, ModelState.READY), wanted=3, ready=2, fallback=ModelName("smol"))
    found = await seen(told=[told])
    assert values(found, "llmgw_model_wanted") == {("qwen",): 3, ("smol",): 1}
    assert values(found, "llmgw_model_ready") == {("qwen",): 2, ("smol",): 0}
    assert values(found, "llmgw_model_on_fallback") == {("qwen",): 1, ("smol",): 0}


async def test_downloads_tell_how_far_and_how_fast_they_are() -> None:
    slow, unknown = seed.fetching("r1", seed.QWEN, 10, 100), seed.fetching("r2", seed.SMOL, 7, None)
    fast = replace(slow, id=ReplicaId("r3"), progress=Progress(done=Bytes(40), total=Bytes(100), rate=2.5))
    found = await seen(seed.report(slow, fast, unknown))
    assert values(found, "llmgw_fetch_bytes") == {("qwen", "gpu-1"): 40, ("smol", "gpu-1"): 7}
    assert values(found, "llmgw_fetch_size_bytes") == {("qwen", "gpu-1"): 100}
    assert values(found, "llmgw_fetch_bytes_per_second") == {("qwen", "gpu-1"): 2.5, ("smol", "gpu-1"): 0}


async def test_a_model_that_left_the_catalog_has_no_metrics_left() -> None:
    found = await seen(told=[seed.told(ModelName("gone"), ModelState.READY)])
    assert set(values(found, "llmgw_model_wanted")) == {("qwen",), ("smol",)}


async def test_devices_tell_what_engines_could_have_what_they_count_for_and_what_others_use() -> None:
    on = replace(
        seed.ready("r1", seed.QWEN),
        devices=("GPU-a", "GPU-b"),
        footprint=Footprint(host=Bytes(0), device=Bytes(9 * GIB)),
    )
    broken = device("GPU-c", why="it fell off the bus", foreign=None)
    report = replace(seed.report(on), devices=(device("GPU-a"), device("GPU-b"), broken))
    found = await seen(report)
    assert values(found, "llmgw_device_memory_counted_bytes")["gpu-1", "GPU-a"] == 4.5 * GIB
    assert values(found, "llmgw_device_memory_foreign_bytes") == {
        ("gpu-1", "GPU-a"): 2 * GIB,
        ("gpu-1", "GPU-b"): 2 * GIB,
    }, "what the driver does not tell is left out"
    capacity = values(found, "llmgw_device_memory_capacity_bytes")
    assert capacity["gpu-1", "GPU-a"] == (24 - 2 - 0.5) * GIB
    assert capacity["gpu-1", "GPU-c"] == 0
    usable = values(found, "llmgw_device_usable")
    assert (usable["gpu-1", "GPU-a", "RTX"], usable["gpu-1", "GPU-c", "RTX"]) == (1, 0)


async def test_devices_are_counted_by_whether_an_engine_has_them() -> None:
    held = replace(
        seed.ready("r1", seed.QWEN), devices=("GPU-a",), footprint=Footprint(host=Bytes(0), device=Bytes(8 * GIB))
    )
    mig = device("GPU-d", divided=True)
    devices = (device("GPU-a"), device("GPU-b"), device("GPU-c", why="fell off the bus"), mig)
    found = values(await seen(replace(seed.report(held), devices=devices)), "llmgw_devices")
    assert found == {("gpu-1", "free"): 1, ("gpu-1", "unusable"): 1, ("gpu-1", "used"): 1}, "a divided one is none"


async def test_processes_of_a_fleet_are_counted_and_the_leader_shows() -> None:
    assert values(await seen(), "llmgw_processes") == {}, "there are none of one that is all"
    roles = [(Role.CONTROLLER, "c1"), (Role.CONTROLLER, "c2"), (Role.AGENT, "n1")]
    members = [
        Member(
            role=role, name=name, instance="i", since=seed.NOW, version="1", host="h", pid=1, place="p", url="http://x"
        )
        for role, name in roles
    ]
    fleet = replace(await seen(), members=tuple(members), leader=Leader(name="c2", at=seed.NOW))
    processes = values(fleet, "llmgw_processes")
    assert processes == {("controller",): 2, ("agent",): 1, ("gateway",): 0, ("up",): 0}
    assert values(fleet, "llmgw_leads") == {("c1",): 0, ("c2",): 1}


async def test_a_node_that_is_cordoned_shows() -> None:
    assert values(await seen(), "llmgw_node_cordoned") == {("gpu-1",): 0}
    assert values(await seen(cordoned=[seed.NODE]), "llmgw_node_cordoned") == {("gpu-1",): 1}


async def test_what_was_measured_is_there_by_model_profile_and_node() -> None:
    row = CapacityRow(
        model="qwen", profile="main", node="gpu-1", requests=13, ttft=1.0, itl=0.1, tokens_per_second=9.0, at=1.0
    )
    found = values(await seen(), "llmgw_measured_requests", capacities=[row])
    assert found == {("qwen", "main", "gpu-1"): 13}
