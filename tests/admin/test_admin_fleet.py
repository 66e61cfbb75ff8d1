"""The admin API of a fleet's controller: its processes, and questions that others answer."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import daemon_seeds as seed
import httpx
import pytest

from llmgw.admin.app import create_app
from llmgw.admin.elsewhere import LARGEST
from llmgw.catalog.spec import ModelSpec, ProfileSpec
from llmgw.errors import RetryableError
from llmgw.ids import Digest, EngineName, ModelName, NodeName, ProfileName, Revision
from llmgw.store import keys
from llmgw.store.api import Put
from llmgw.store.codec import decode, encode
from llmgw.store.contents import contents_of
from llmgw.store.election import Leader
from llmgw.store.events import EventLog
from llmgw.store.memory import MemoryStore
from llmgw.store.values import Applied, Member, RestartOrder, Role
from llmgw.units import Wall

NOBODY = "http://127.0.0.1:1"  #: where nothing listens


def member(role: Role, name: str, **fields: Any) -> Member:
    known: dict[str, Any] = {"since": Wall(1), "version": "0", "host": "h", "pid": 1, "place": "p", "url": NOBODY}
    known["instance"] = f"{role}-{name}"
    return Member(role=role, name=name, **(known | fields))


@pytest.fixture
async def store() -> MemoryStore:
    made = MemoryStore()
    for one in (
        member(Role.CONTROLLER, "c1"),
        member(Role.CONTROLLER, "c2"),
        member(Role.GATEWAY, "g1", serves="http://g1:8080"),
        member(Role.AGENT, "n2"),
        member(Role.AGENT, "n1"),
    ):
        await made.put(keys.member(one.role, one.name), encode(one))
    await made.put(keys.LEADER, encode(Leader(name="c1", at=Wall(7))))
    return made


@pytest.fixture
async def standby(store: MemoryStore) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(
        store=store, events=EventLog(), token="t", node=NodeName("c2"), controller="c2", leads=lambda: False
    )
    headers = {"authorization": "Bearer t"}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client:
        yield client


async def test_processes_are_listed_in_the_order_of_restarts_the_leader_last(standby: httpx.AsyncClient) -> None:
    rows = (await standby.get("/api/v1/members")).json()["members"]
    assert [(row["role"], row["name"], row["state"]) for row in rows] == [
        ("agent", "n1", ""), ("agent", "n2", ""), ("gateway", "g1", ""),
        ("controller", "c2", "stands by"), ("controller", "c1", "leads"),
    ]  # fmt: skip
    assert [row["since"] for row in rows] == [1, 1, 1, 1, 7]
    assert (await standby.get("/api/v1/status")).json()["members"] == rows


async def test_a_node_whose_agent_does_not_live_is_told_to_be_silent_and_so_are_its_replicas(
    store: MemoryStore, standby: httpx.AsyncClient
) -> None:
    for node in ("n1", "n3"):  # no agent of n3 lives
        replica = replace(seed.ready(f"r-{node}", seed.QWEN), node=NodeName(node))
        await store.put(keys.report(NodeName(node)), encode(replace(seed.report(replica), node=NodeName(node))))
    nodes = (await standby.get("/api/v1/nodes")).json()["nodes"]
    assert {row["name"]: row["silent"] for row in nodes} == {"n1": False, "n3": True}
    replicas = (await standby.get("/api/v1/replicas")).json()["replicas"]
    assert {row["id"]: row["reason"] for row in replicas} == {
        "r-n1": "", "r-n3": "as n3 said last: its agent is silent"
    }  # fmt: skip


async def test_a_store_that_is_away_is_no_fault_of_the_daemons(standby: httpx.AsyncClient, store: MemoryStore) -> None:
    async def away(_: str) -> None:
        raise RetryableError("no etcd answers")

    store.list = away  # type: ignore[method-assign, assignment]
    answer = await standby.get("/api/v1/status")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "cannot_answer")


async def test_an_order_to_restart_names_the_instance_and_who_gave_it(
    store: MemoryStore, standby: httpx.AsyncClient
) -> None:
    order = {"role": "agent", "name": "n1", "instance": "agent-n1", "by": "me"}
    assert (await standby.post("/api/v1/restart", json=order)).status_code == 200
    entry = await store.get(keys.restart(Role.AGENT, "n1"))
    assert entry is not None
    written = decode(entry.value, RestartOrder)
    assert (written.instance, written.by) == ("agent-n1", "me")
    assert (await standby.post("/api/v1/restart", json=order | {"name": "n3"})).status_code == 404


@pytest.mark.parametrize("path", ["/api/v1/plan", "/api/v1/diff"])
async def test_what_only_the_leader_knows_is_not_made_up_where_it_cannot_be_asked(
    standby: httpx.AsyncClient, path: str
) -> None:
    answer = await standby.post(path, json={})
    assert answer.status_code == 502
    assert "cannot be asked" in answer.json()["error"]["message"]


async def test_without_the_token_nothing_is_passed_on(standby: httpx.AsyncClient) -> None:
    answer = await standby.post("/api/v1/plan", json={}, headers={"authorization": "Bearer wrong"})
    assert answer.status_code == 401


async def test_a_question_that_is_too_large_is_not_passed_on(standby: httpx.AsyncClient) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(LARGEST // 2**20 + 1):
            yield bytes(2**20)

    assert (await standby.post("/api/v1/plan", content=body())).status_code == 413


async def test_a_log_is_asked_of_agents_and_a_dead_one_is_named(store: MemoryStore, standby: httpx.AsyncClient) -> None:
    digest = Digest("d")
    profile = ProfileSpec(name=ProfileName("p"), engine=EngineName("e"))
    model = ModelSpec(name=ModelName("m"), profiles=(profile,))
    contents = contents_of({model.name: model})
    await store.txn([Put(key, value) for key, value in contents.values.items()])
    applied = Applied(revision=Revision("r"), digest=digest, at=Wall(1), parts=contents.parts)
    await store.put(keys.APPLIED, encode(applied))
    answer = await standby.get("/api/v1/logs?model=m")
    assert answer.status_code == 502
    assert NOBODY in answer.json()["error"]["message"]
    await store.delete(keys.member(Role.AGENT, "n1"))
    await store.delete(keys.member(Role.AGENT, "n2"))
    answer = await standby.get("/api/v1/logs?model=m")
    assert answer.status_code == 404
    assert "no engine of m was started yet" in answer.json()["error"]["message"]


async def test_a_standby_tells_no_metrics_of_nodes(standby: httpx.AsyncClient) -> None:
    text = (await standby.get("/metrics")).text
    assert "llmgw_info" in text
    assert "llmgw_models" not in text
