"""The admin API over ASGI, on a store seeded with real values."""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import daemon_seeds as seed
import httpx
import pytest
from jsonschema import Draft202012Validator
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from llmgw.admin.app import create_app
from llmgw.admin.schemas import file_name
from llmgw.catalog.spec import ModelSpec
from llmgw.facts import Event
from llmgw.plan import ModelState, Stopped, Want
from llmgw.store import keys
from llmgw.store.codec import decode
from llmgw.store.events import EventLog
from llmgw.units import Instant, Mono, Wall

TOKEN = "the-token"
SCHEMAS = Path(__file__).parents[2] / "schemas" / "output"


class StillClock:
    def now(self) -> Instant:
        return Instant(Mono(1000.0), seed.NOW)

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here waits")


class Api:
    """The application over a seeded store, asked as the CLI asks it."""

    def __init__(self, seeds: seed.Seeds) -> None:
        self.seeds = seeds
        self.events = EventLog()
        self.app = create_app(
            store=seeds.store,
            events=self.events,
            token=TOKEN,
            node=seed.NODE,
            collect=[_of_the_gateway],
            clock=StillClock(),
            hosts=["gateway.example"],
        )

    async def ask(
        self, path: str, method: str = "GET", *, token: str | None = TOKEN, host: str = "127.0.0.1:8081", **more: Any
    ) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        headers = {"Host": host} | ({"Authorization": f"Bearer {token}"} if token is not None else {})
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8081") as client:
            return await client.request(method, path, headers=headers, **more)

    async def get(self, path: str, schema: str) -> Any:
        reply = await self.ask(path)
        assert reply.status_code == 200, reply.text
        assert reply.headers["content-type"] == "application/json"
        check(schema, reply.json())
        return reply.json()


def _of_the_gateway() -> Iterator[Metric]:
    family = CounterMetricFamily("llmgw_requests", "Requests.", labels=["model"])
    family.add_metric(["qwen"], 7)
    yield family


def check(schema: str, value: Any) -> None:
    Draft202012Validator(json.loads((SCHEMAS / file_name(schema)).read_text())).validate(value)


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    api = Api(await seed.full())
    yield api
    await api.seeds.store.close()


@pytest.fixture
async def bare() -> AsyncIterator[Api]:
    api = Api(seed.Seeds())
    yield api
    await api.seeds.store.close()


async def test_status_tells_the_catalog_every_model_and_every_node(api: Api) -> None:
    status = await api.get("/api/v1/status", "status")
    assert status["version"] == 1
    assert status["node"] == "gpu-1"
    assert (status["catalog"]["attempted"], status["catalog"]["applied"]) == (seed.GOOD, seed.GOOD)
    assert [(m["name"], m["state"]) for m in status["models"]] == [("qwen", "ready"), ("smol", "loading")]
    assert [node["name"] for node in status["nodes"]] == ["gpu-1"]
    assert status["stopped"] is None


async def test_an_invalid_revision_shows_attempted_applied_and_each_problem(api: Api) -> None:
    await api.seeds.status(applied=seed.GOOD, attempted=seed.BAD, problems=(seed.PROBLEM,))
    catalog = (await api.get("/api/v1/status", "status"))["catalog"]
    assert catalog["attempted"] != catalog["applied"]
    assert catalog["problems"] == [
        {
            "file": "models.yaml",
            "line": 3,
            "column": 5,
            "path": "$.profiles[0].engine",
            "message": "no engine 'vlm'; did you mean 'vllm'?",
        }
    ]


async def test_models_carry_aliases_engine_and_reason(api: Api) -> None:
    await api.seeds.explain(seed.told(seed.SMOL, ModelState.UNSCHEDULABLE, "host memory (need 9.0 GiB, have 1.0 GiB)"))
    qwen, smol = (await api.get("/api/v1/models", "models"))["models"]
    assert (qwen["aliases"], qwen["engine"], qwen["profile"]) == (["default"], "cpu", "main")
    assert smol["reason"] == "host memory (need 9.0 GiB, have 1.0 GiB)"


async def test_a_model_that_no_pass_has_looked_at_counts_as_loading(api: Api) -> None:
    await api.seeds.store.delete(keys.explain(seed.SMOL))
    models = (await api.get("/api/v1/models", "models"))["models"]
    assert (models[1]["name"], models[1]["state"]) == ("smol", "loading")


async def test_a_model_that_left_the_catalog_is_not_listed_while_its_replica_still_is(api: Api) -> None:
    await api.seeds.catalog(seed.model(seed.QWEN), digest=seed.Digest("e" * 64))
    assert [m["name"] for m in (await api.get("/api/v1/models", "models"))["models"]] == ["qwen"]
    assert {r["model"] for r in (await api.get("/api/v1/replicas", "replicas"))["replicas"]} == {"qwen", "smol"}


async def test_replicas_carry_what_the_design_promises(api: Api) -> None:
    row = (await api.get("/api/v1/replicas", "replicas"))["replicas"][0]
    promised = ("id", "model", "profile", "engine", "node", "state", "level", "pid", "url", "revision", "reason")
    assert {name: row[name] for name in promised} == {
        "id": "r1",
        "model": "qwen",
        "profile": "main",
        "engine": "cpu",
        "node": "gpu-1",
        "state": "ready",
        "level": "full",
        "pid": 4242,
        "url": "http://127.0.0.1:18001",
        "revision": seed.GOOD,
        "reason": "",
    }
    assert (row["running"], row["waiting"]) == (1, 2)


async def test_a_replica_that_no_agent_reported_is_placing(api: Api) -> None:
    await api.seeds.assign(seed.assignment("r9", seed.SMOL))
    rows = (await api.get("/api/v1/replicas", "replicas"))["replicas"]
    assert [(r["id"], r["state"], r["pid"]) for r in rows if r["id"] == "r9"] == [("r9", "placing", None)]


async def test_a_replica_says_why_it_failed_or_is_being_stopped(api: Api) -> None:
    await api.seeds.report(seed.ready("r1", seed.QWEN), seed.failed("r2", seed.SMOL, "out of memory"))
    await api.seeds.assign(seed.assignment("r1", seed.QWEN, Want.STOP, "memory pressure"))
    rows = (await api.get("/api/v1/replicas", "replicas"))["replicas"]
    assert [row["reason"] for row in rows] == ["memory pressure", "out of memory"]


async def test_nodes_tell_memory_disk_and_which_engines_cannot_be_used(api: Api) -> None:
    (node,) = (await api.get("/api/v1/nodes", "nodes"))["nodes"]
    assert node["memory_total"] == 32 * 1024**3
    assert node["replicas"] == 2
    assert [(e["name"], e["why"]) for e in node["engines"]] == [
        ("cpu", None),
        ("vllm", "not installed: pip install vllm"),
    ]


async def test_events_are_the_newest_ones_oldest_first(api: Api) -> None:
    for number in range(5):
        api.events.record(Event(at=Wall(float(number)), subject="catalog", reason=f"r{number}"))
    events = (await api.get("/api/v1/events?limit=2", "events"))["events"]
    assert [event["reason"] for event in events] == ["r3", "r4"]
    newest = events[-1]["number"]
    assert (await api.get(f"/api/v1/events?after={newest}", "events"))["events"] == []
    api.events.record(Event(at=Wall(5.0), subject="catalog", reason="r5"))
    (after,) = (await api.get(f"/api/v1/events?after={newest}", "events"))["events"]
    assert (after["reason"], after["number"]) == ("r5", newest + 1)


@pytest.mark.parametrize("limit", ["0", "1001", "many"])
async def test_a_limit_that_makes_no_sense_is_a_bad_request(api: Api, limit: str) -> None:
    reply = await api.ask(f"/api/v1/events?limit={limit}")
    assert reply.status_code == 400
    check("error", reply.json())
    assert "limit" in reply.json()["error"]["message"]


async def test_collect_lists_what_the_catalog_does_not_want(api: Api) -> None:
    listing = await api.get("/api/v1/collect", "collect")
    assert [(e["source"], e["removable"], e["node"]) for e in listing["entries"]] == [(seed.OLD_SOURCE, True, "gpu-1")]
    assert (listing["removable"], listing["kept"]) == (listing["entries"][0]["size"], 0)


async def test_collect_keeps_what_an_earlier_revision_wanted(api: Api) -> None:
    await api.seeds.history(1, seed.OLD_SOURCE, digest="c" * 64)
    listing = await api.get("/api/v1/collect", "collect")
    assert [(e["removable"], e["reason"]) for e in listing["entries"]] == [(False, "revision aaaaaaaaaaaa is 1 of 3")]
    assert (await api.get("/api/v1/collect?dry_run=true", "collect"))["entries"] == []


async def test_collect_keeps_what_a_smaller_level_reads(api: Api) -> None:
    full = seed.profile(seed.SMOL_SOURCE)
    smaller = replace(full, minimal=seed.profile(seed.OLD_SOURCE))
    await api.seeds.catalog(ModelSpec(name=seed.SMOL, profiles=(smaller,)))
    assert (await api.get("/api/v1/collect", "collect"))["entries"] == []


async def test_collect_keeps_what_a_running_replica_was_assigned(api: Api) -> None:
    await api.seeds.assign(seed.assignment("r3", seed.QWEN, source=seed.OLD_SOURCE))
    listing = await api.get("/api/v1/collect", "collect")
    assert [e["reason"] for e in listing["entries"]] == ["in use"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"problems": (seed.PROBLEM,), "attempted": seed.BAD}, "the newest catalog is invalid"),
        ({"error": "gone", "attempted": seed.GOOD}, "the catalog's source cannot be read"),
        ({"attempted": seed.BAD}, "the newest catalog is not applied"),
    ],
)
async def test_nothing_is_removable_while_the_catalog_is_not_surely_the_latest(
    api: Api, fields: dict[str, Any], reason: str
) -> None:
    await api.seeds.status(applied=seed.GOOD, **fields)
    listing = await api.get("/api/v1/collect", "collect")
    assert listing["stale"] == reason
    assert [e["removable"] for e in listing["entries"]] == [False]


async def test_without_a_catalog_everything_answers_and_nothing_is_removable(bare: Api) -> None:
    await bare.seeds.report(weights=(seed.cached(seed.OLD_SOURCE, age=1e9),))
    status = await bare.get("/api/v1/status", "status")
    assert (status["catalog"]["source"], status["models"]) == (None, [])
    assert (await bare.get("/api/v1/collect", "collect"))["removable"] == 0
    assert (await bare.ask("/metrics")).status_code == 200


async def test_stop_and_start_are_idempotent_and_say_whether_they_changed_anything(api: Api) -> None:
    first = (await api.ask("/api/v1/stop", "POST", json={"by": "alice"})).json()
    check("switch", first)
    assert first == {"version": 1, "changed": True, "stopped": {"at": seed.NOW, "by": "alice"}}
    again = (await api.ask("/api/v1/stop", "POST", json={"by": "bob"})).json()
    assert again == {"version": 1, "changed": False, "stopped": {"at": seed.NOW, "by": "alice"}}
    entry = await api.seeds.store.get(keys.STOPPED)
    assert entry is not None
    assert decode(entry.value, Stopped) == Stopped(at=seed.NOW, by="alice")
    assert (await api.get("/api/v1/status", "status"))["stopped"]["by"] == "alice"
    assert (await api.ask("/api/v1/start", "POST")).json() == {"version": 1, "changed": True, "stopped": None}
    assert (await api.ask("/api/v1/start", "POST")).json()["changed"] is False
    assert await api.seeds.store.get(keys.STOPPED) is None


async def test_stop_needs_no_body(api: Api) -> None:
    assert (await api.ask("/api/v1/stop", "POST")).json()["stopped"]["by"] == "someone"


@pytest.mark.parametrize(("body", "status"), [(b"{", 400), (b'{"by": 1}', 400), (b" " * 70_000, 413)])
async def test_a_body_that_makes_no_sense_is_refused_and_changes_nothing(api: Api, body: bytes, status: int) -> None:
    reply = await api.ask("/api/v1/stop", "POST", content=body)
    assert reply.status_code == status
    check("error", reply.json())
    assert await api.seeds.store.get(keys.STOPPED) is None


async def test_ready_only_once_a_catalog_is_in_force(bare: Api) -> None:
    reply = await bare.ask("/readyz", token=None)
    assert reply.status_code == 503
    assert reply.json()["error"]["code"] == "not_ready"
    await bare.seeds.status(applied=None, attempted=seed.BAD, problems=(seed.PROBLEM,))
    assert "1 problem" in (await bare.ask("/readyz", token=None)).json()["error"]["message"]
    await bare.seeds.catalog()
    assert (await bare.ask("/readyz", token=None)).status_code == 200


async def test_a_bad_revision_over_a_good_one_is_still_ready(api: Api) -> None:
    await api.seeds.status(applied=seed.GOOD, attempted=seed.BAD, problems=(seed.PROBLEM,))
    assert (await api.ask("/readyz", token=None)).status_code == 200


async def test_health_and_metrics_need_no_token(api: Api) -> None:
    assert (await api.ask("/healthz", token=None)).status_code == 200
    assert (await api.ask("/metrics", token=None)).status_code == 200


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x", "ü"])
@pytest.mark.parametrize("path", ["/api/v1/status", "/api/v1/stop", "/api/v1/nothing", "/docs", "/openapi.json", "/"])
async def test_everything_else_needs_the_token(api: Api, path: str, token: str | None) -> None:
    headers = [(b"host", b"localhost")]
    if token is not None:
        headers.append((b"authorization", f"Bearer {token}".encode()))
    transport = httpx.ASGITransport(api.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        reply = await client.post(path, headers=headers)
    assert reply.status_code == 401
    check("error", reply.json())
    assert await api.seeds.store.get(keys.STOPPED) is None


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8081", "127.0.0.1:8081", "127.9.9.9", "[::1]:8081", "localhost.:1", "gateway.example:80"],
)
async def test_loopback_names_and_those_given_are_served(api: Api, host: str) -> None:
    assert (await api.ask("/api/v1/status", host=host)).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "192.168.1.9", "", "[::1", "localhost.evil"]
)
@pytest.mark.parametrize("path", ["/api/v1/status", "/metrics"])
async def test_a_page_under_another_name_is_turned_away_even_with_the_token(api: Api, path: str, host: str) -> None:
    reply = await api.ask(path, host=host)
    assert reply.status_code == 421
    assert reply.json()["error"]["code"] == "wrong_host"


async def test_the_address_that_the_connection_came_in_on_is_served(api: Api) -> None:
    transport = httpx.ASGITransport(api.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://192.168.1.9:8081") as client:
        reply = await client.get("/api/v1/status", headers={"Authorization": f"bearer {TOKEN}"})
    assert reply.status_code == 200


async def test_unknown_paths_and_methods_answer_with_the_error_object(api: Api) -> None:
    missing, method = await api.ask("/api/v1/nothing"), await api.ask("/api/v1/stop")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert (method.status_code, method.json()["error"]["code"]) == (405, "method_not_allowed")
    assert method.headers["allow"] == "POST"


async def test_a_value_from_a_newer_llmgw_is_reported_as_such(api: Api) -> None:
    await api.seeds.store.put(keys.APPLIED, b'{"v": 99}')
    reply = await api.ask("/api/v1/status")
    assert reply.status_code == 500
    assert "upgrade llmgw" in reply.json()["error"]["message"]


async def test_a_bug_answers_with_the_error_object_and_no_details(api: Api) -> None:
    def broken() -> Iterator[Metric]:
        raise ZeroDivisionError("secret detail")

    api.app = create_app(store=api.seeds.store, events=api.events, token=TOKEN, node=seed.NODE, collect=[broken])
    reply = await api.ask("/metrics")
    assert reply.status_code == 500
    check("error", reply.json())
    assert "secret" not in reply.text


async def test_metrics_tell_models_apart_and_include_what_other_parts_collect(api: Api) -> None:
    reply = await api.ask("/metrics")
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }
    assert samples["llmgw_model_state", (("model", "qwen"), ("state", "ready"))] == 1
    assert samples["llmgw_model_state", (("model", "smol"), ("state", "ready"))] == 0
    assert samples["llmgw_models", (("state", "loading"),)] == 1
    place = (("level", "full"), ("node", "gpu-1"))
    assert samples["llmgw_replicas", (*place, ("phase", "fetching"))] == 1
    assert samples["llmgw_replicas", (*place, ("phase", "failed"))] == 0
    assert samples["llmgw_model_wanted", (("model", "qwen"),)] == 1
    assert samples["llmgw_node_memory_counted_bytes", (("node", "gpu-1"),)] == 300 * 1024**2
    assert samples["llmgw_node_cordoned", (("node", "gpu-1"),)] == 0
    assert samples["llmgw_model_resident_memory_bytes", (("model", "qwen"), ("node", "gpu-1"))] == 254 * 1024**2
    assert samples["llmgw_node_memory_total_bytes", (("node", "gpu-1"),)] == 32 * 1024**3
    assert samples["llmgw_catalog_info", (("applied", seed.GOOD), ("attempted", seed.GOOD))] == 1
    assert samples["llmgw_condition", (("type", "Ready"),)] == 0
    assert samples["llmgw_stopped", ()] == 0
    assert samples["llmgw_requests_total", (("model", "qwen"),)] == 7


async def test_metrics_come_as_openmetrics_when_asked(api: Api) -> None:
    reply = await api.ask("/metrics")
    assert reply.headers["content-type"].startswith("text/plain")
    transport = httpx.ASGITransport(api.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        reply = await client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert reply.headers["content-type"].startswith("application/openmetrics-text")
    assert reply.text.endswith("# EOF\n")
