"""Nodes over the admin API: cordons, and memory as deciding counts it."""

from dataclasses import replace
from typing import Any

import daemon_seeds as seed
import httpx
import pytest

from llmgw.admin.app import create_app
from llmgw.catalog.spec import BudgetSpec, NodeSpec, ReserveSpec
from llmgw.facts import Cordon, DeviceFact, Footprint, MemoryFact
from llmgw.ids import NodeName, ReplicaId
from llmgw.plan import Want
from llmgw.store import keys
from llmgw.store.codec import decode
from llmgw.store.events import EventLog
from llmgw.units import GIB, Bytes, Instant, Mono, Wall


class SteppingClock:
    """A second later at each look."""

    def __init__(self) -> None:
        self._wall = float(seed.NOW)

    def now(self) -> Instant:
        self._wall += 1
        return Instant(Mono(self._wall), Wall(self._wall))

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here waits")


class Api:
    def __init__(self, seeds: seed.Seeds) -> None:
        self.seeds, self.events = seeds, EventLog()
        self.app = create_app(store=seeds.store, events=self.events, token="t", node=seed.NODE, clock=SteppingClock())

    async def ask(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as client:
            headers = {"Authorization": "Bearer t"}
            reply = await client.request(method, f"/api/v1/{path}", json=body, headers=headers)
        assert reply.status_code == status, reply.text
        return reply.json()

    async def cordon(self, node: str = "gpu-1", *, drain: bool = False, by: str = "ann", status: int = 200) -> Any:
        return await self.ask("POST", "cordon", {"node": node, "drain": drain, "by": by}, status=status)

    async def uncordon(self, node: str = "gpu-1", *, status: int = 200) -> Any:
        return await self.ask("POST", "uncordon", {"node": node, "by": "bob"}, status=status)

    async def stored(self, node: str = "gpu-1") -> Cordon | None:
        entry = await self.seeds.store.get(keys.cordon(NodeName(node)))
        return None if entry is None else decode(entry.value, Cordon)

    async def node(self) -> Any:
        (row,) = (await self.ask("GET", "nodes"))["nodes"]
        return row

    def told(self) -> list[tuple[str, str, str]]:
        return [(event.subject, event.reason, event.message) for event in self.events.recent()]


@pytest.fixture
async def api() -> Api:
    return Api(await seed.full())


async def test_a_cordon_is_kept_told_and_shown(api: Api) -> None:
    answer = await api.cordon()
    stored = await api.stored()
    assert stored is not None
    assert (stored.by, stored.drain) == ("ann", False)
    assert answer == {
        "version": 1,
        "changed": True,
        "node": "gpu-1",
        "cordon": {"at": stored.at, "by": "ann", "drain": False},
        "replicas": 2,
    }
    assert api.told() == [("node/gpu-1", "cordoned", "by ann")]
    assert (await api.node())["cordon"] == answer["cordon"]


async def test_a_cordon_again_changes_nothing_and_keeps_who_and_when(api: Api) -> None:
    await api.cordon()
    first = await api.stored()
    answer = await api.cordon(by="bob")
    assert answer["changed"] is False
    assert await api.stored() == first
    assert len(api.told()) == 1


async def test_a_drain_goes_beyond_a_cordon_and_a_cordon_ends_it(api: Api) -> None:
    await api.cordon()
    assert (await api.cordon(drain=True))["cordon"]["drain"] is True
    assert (await api.cordon())["cordon"]["drain"] is False
    assert [reason for _, reason, _ in api.told()] == ["cordoned", "drained", "cordoned"]


async def test_uncordon_takes_the_word_back_and_is_told_once(api: Api) -> None:
    await api.cordon(drain=True)
    assert (await api.uncordon())["changed"] is True
    assert await api.stored() is None
    assert (await api.node())["cordon"] is None
    again = await api.uncordon()
    assert (again["changed"], again["cordon"]) == (False, None)
    assert api.told()[1:] == [("node/gpu-1", "uncordoned", "by bob")]


async def test_an_unknown_node_is_refused_with_what_may_be_meant(api: Api) -> None:
    error = (await api.cordon("gpu-2", status=404))["error"]
    assert error == {"code": "not_there", "message": "no node 'gpu-2'; did you mean 'gpu-1'?"}
    assert "llmgw nodes" in (await api.uncordon("elsewhere", status=404))["error"]["message"]
    assert (await api.seeds.store.list(keys.CORDONS)).entries == ()


async def test_a_node_that_only_the_catalog_knows_yet_can_be_cordoned(api: Api) -> None:
    await api.seeds.settings(nodes=(NodeName("gpu-9"),))
    assert (await api.cordon("gpu-9"))["replicas"] == 0


async def test_the_cordon_of_a_node_that_is_gone_can_be_taken_back(api: Api) -> None:
    await api.seeds.put(keys.cordon(NodeName("old")), Cordon(at=seed.NOW, by="ann"))
    assert (await api.uncordon("old"))["changed"] is True


@pytest.mark.parametrize("body", [{}, {"node": 1}, [], {"node": "gpu-1", "drain": "yes"}])
async def test_a_body_that_is_no_such_request_is_refused(api: Api, body: Any) -> None:
    error = (await api.ask("POST", "cordon", body, status=400))["error"]
    assert "the body is not as it should be" in error["message"]


async def test_memory_is_told_as_deciding_counts_it(api: Api) -> None:
    policy = NodeSpec(
        pool="gpu",
        labels={"rack": "a"},
        budget=BudgetSpec(host=Bytes(20 * GIB), device=Bytes(30 * GIB)),
        reserve=ReserveSpec(host=Bytes(GIB), device=Bytes(GIB)),
    )
    await api.seeds.settings(policies={seed.NODE: policy})
    devices = (
        DeviceFact(uuid="A", name="L40S", index=0, total=Bytes(48 * GIB), used=Bytes(9 * GIB), foreign=Bytes(2 * GIB)),
        DeviceFact(uuid="B", name="L40S", index=1, total=Bytes(48 * GIB), used=Bytes(9 * GIB), foreign=None),
        DeviceFact(uuid="C", name="L40S", index=2, total=Bytes(48 * GIB), why="it fell off the bus"),
    )
    both = Footprint(host=Bytes(2 * GIB), device=Bytes(12 * GIB))
    running = replace(seed.ready("r1", seed.QWEN), footprint=both, devices=("A", "B"))
    report = replace(
        seed.report(running),
        memory=MemoryFact(total=Bytes(32 * GIB), available=Bytes(20 * GIB), foreign=Bytes(3 * GIB)),
        devices=devices,
    )
    await api.seeds.put(keys.report(seed.NODE), report)
    coming = replace(
        seed.assignment("r9", seed.SMOL), footprint=Footprint(host=Bytes(GIB), device=Bytes(GIB)), devices=("B",)
    )
    await api.seeds.store.delete(keys.assignment(seed.NODE, ReplicaId("r2")))
    await api.seeds.assign(coming)
    row = await api.node()
    assert (row["pool"], row["labels"], row["replicas"]) == ("gpu", {"rack": "a"}, 2)
    assert (row["memory_capacity"], row["memory_budget"], row["memory_counted"]) == (28 * GIB, 20 * GIB, 3 * GIB)
    assert [(d["capacity"], d["budget"], d["counted"]) for d in row["devices"]] == [
        (45 * GIB, 30 * GIB, 6 * GIB),
        (45 * GIB, 30 * GIB, 7 * GIB),  # what others use is what is used beyond what is counted
        (0, 30 * GIB, 0),
    ]


async def test_an_assignment_to_stop_that_nobody_runs_counts_no_memory(api: Api) -> None:
    await api.seeds.assign(seed.assignment("r8", seed.SMOL, Want.STOP))
    assert (await api.node())["replicas"] == 2
