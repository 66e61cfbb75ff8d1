"""What replicas were measured to hold, over the admin API."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import daemon_seeds as seed
import httpx
import pytest
from test_admin_api import TOKEN, StillClock, check

from llmgw.admin.app import create_app
from llmgw.catalog.spec import spec_digest
from llmgw.facts import Concurrency, Level, Phase, ReplicaFact, ReplicaUse, Usage
from llmgw.ids import NodeName, ReplicaId, SpecDigest
from llmgw.store import keys
from llmgw.store.codec import decode
from llmgw.store.events import EventLog
from llmgw.units import Seconds, Wall

QWEN_SPEC = spec_digest(seed.QWEN, seed.profile())
MEASURED = {"replica": "r1", "requests": 13, "ttft": 1.5, "itl": 0.08, "tokens_per_second": 410.0}


class Api:
    def __init__(self, seeds: seed.Seeds) -> None:
        self.seeds = seeds
        self.events = EventLog()
        self.app = create_app(
            store=seeds.store, events=self.events, token=TOKEN, node=seed.NODE, clock=StillClock(), state=None
        )

    async def ask(self, method: str, token: str = TOKEN, **more: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8081") as client:
            return await client.request(method, "/api/v1/capacities", headers=headers, **more)

    async def told(self, **params: Any) -> Any:
        reply = await self.ask("GET", params=params)
        assert reply.status_code == 200, reply.text
        check("capacities", reply.json())
        return reply.json()

    async def replica(self, **fields: Any) -> None:
        fact: ReplicaFact = replace(seed.ready("r1", seed.QWEN), **{"spec": QWEN_SPEC, **fields})
        await self.seeds.report(fact)


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    api = Api(await seed.full())
    await api.replica()
    yield api
    await api.seeds.store.close()


async def test_what_was_measured_is_kept_for_the_profile_and_node_of_its_replica(api: Api) -> None:
    reply = await api.ask("POST", json=MEASURED)
    assert reply.status_code == 200, reply.text
    entry = await api.seeds.store.get(keys.concurrency(QWEN_SPEC, seed.NODE))
    assert entry is not None
    assert decode(entry.value, Concurrency) == Concurrency(
        requests=13, at=seed.NOW, ttft=Seconds(1.5), itl=Seconds(0.08), tokens_per_second=410.0
    )
    (row,) = (await api.told(model="default"))["capacities"]
    assert row == reply.json()["capacities"][0]
    assert (row["model"], row["profile"], row["node"], row["requests"]) == ("qwen", "main", "gpu-1", 13)
    (_, event) = api.events.numbered()[-1]
    assert (event.subject, event.reason) == ("model/qwen", "measured")
    assert "holds 13 requests at once on gpu-1: first token within 1.5s, 80ms between tokens" in event.message


async def test_measuring_again_replaces_what_was_kept(api: Api) -> None:
    await api.ask("POST", json=MEASURED)
    await api.ask("POST", json={**MEASURED, "requests": 4})
    assert [row["requests"] for row in (await api.told())["capacities"]] == [4]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"phase": Phase.DRAINING}, "is draining by now"),
        ({"level": Level.DEGRADED}, "runs degraded, shrunk to fit"),
        ({"spec": SpecDigest("0" * 16)}, "was changed meanwhile"),
    ],
)
async def test_what_says_nothing_of_the_profile_is_not_kept(api: Api, fields: dict[str, Any], why: str) -> None:
    await api.replica(**fields)
    reply = await api.ask("POST", json=MEASURED)
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "conflict")
    assert why in reply.json()["error"]["message"]
    assert (await api.told())["capacities"] == []


@pytest.mark.parametrize(
    "wrong", [{"requests": 0}, {"ttft": -1}, {"itl": "soon"}, {"replica": None}, {"tokens_per_second": None}]
)
async def test_figures_that_cannot_be_are_refused(api: Api, wrong: dict[str, Any]) -> None:
    reply = await api.ask("POST", json={**MEASURED, **wrong})
    assert reply.status_code == 400
    assert (await api.told())["capacities"] == []


async def test_a_replica_that_is_gone_is_named(api: Api) -> None:
    reply = await api.ask("POST", json={**MEASURED, "replica": "r9"})
    assert reply.status_code == 404
    assert "no replica 'r9'" in reply.json()["error"]["message"]


async def test_nothing_is_told_or_kept_without_the_token(api: Api) -> None:
    assert (await api.ask("GET", token="guessed")).status_code == 401
    assert (await api.ask("POST", token="guessed", json=MEASURED)).status_code == 401
    assert (await api.told())["capacities"] == []


async def test_what_the_catalog_has_no_more_is_not_listed_and_goes_at_the_next_measurement(api: Api) -> None:
    old = keys.concurrency(SpecDigest("e" * 16), NodeName("gpu-9"))
    await api.seeds.put(
        old, Concurrency(requests=2, at=seed.NOW, ttft=Seconds(1), itl=Seconds(0.1), tokens_per_second=9.0)
    )
    assert (await api.told())["capacities"] == []
    await api.ask("POST", json=MEASURED)
    assert await api.seeds.store.get(old) is None


async def test_only_the_model_asked_for_is_listed(api: Api) -> None:
    await api.ask("POST", json=MEASURED)
    assert (await api.told(model="smol"))["capacities"] == []
    reply = await api.ask("GET", params={"model": "quen"})
    assert reply.status_code == 404
    assert "did you mean" in reply.json()["error"]["message"]


async def test_requests_in_flight_are_summed_over_all_gateways(api: Api) -> None:
    for gateway, outstanding in (("a", 2), ("b", 3)):
        use = {ReplicaId("r1"): ReplicaUse(outstanding=outstanding, last_used=Wall(1)), ReplicaId("r2"): _idle()}
        await api.seeds.put(keys.usage(gateway), Usage(at=seed.NOW, seen=1, replicas=use))
    assert (await api.told())["in_flight"] == {"r1": 5}


def _idle() -> ReplicaUse:
    return ReplicaUse(outstanding=0, last_used=Wall(1))
