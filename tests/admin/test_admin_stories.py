"""One model's story, and its log, over the admin API."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import daemon_seeds as seed
import httpx
import pytest
from test_admin_api import TOKEN, StillClock, check

from llmgw.admin.advice import advice
from llmgw.admin.app import create_app
from llmgw.admin.shapes import ModelRow
from llmgw.admin.stories import FailureRow, HolderRow, PlaceRow
from llmgw.catalog.spec import BudgetSpec, NodeSpec
from llmgw.facts import Action, Event, Failure, FailureKind, Footprint, RecoveryRecord
from llmgw.ids import ReplicaId, SpecDigest
from llmgw.plan import ModelState, Reason, Rejection, Stopped
from llmgw.statedir import StateDir
from llmgw.store import keys
from llmgw.store.events import EventLog
from llmgw.store.values import Applied
from llmgw.units import GIB, MIB, Bytes, Wall


class Api:
    """The application over a seeded store and a state directory."""

    def __init__(self, seeds: seed.Seeds, state: StateDir | None) -> None:
        self.seeds = seeds
        self.events = EventLog()
        self.app = create_app(
            store=seeds.store, events=self.events, token=TOKEN, node=seed.NODE, clock=StillClock(), state=state
        )

    async def ask(self, path: str, **params: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8081") as client:
            return await client.get(f"/api/v1/{path}", headers=headers, params=params)

    async def explain(self, model: str) -> Any:
        reply = await self.ask("explain", model=model)
        assert reply.status_code == 200, reply.text
        check("explain", reply.json())
        return reply.json()


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    state = StateDir(tmp_path)
    state.prepare()
    api = Api(await seed.full(), state)
    yield api
    await api.seeds.store.close()


async def test_the_story_of_a_model_that_serves(api: Api) -> None:
    api.events.record(Event(at=seed.NOW, subject="model/qwen", reason="launched", message="r1 on gpu-1"))
    api.events.record(Event(at=seed.NOW, subject="replica/r1", reason="ready", message="qwen"))
    api.events.record(Event(at=seed.NOW, subject="replica/r2", reason="fetching", message="smol: x"))
    api.events.record(Event(at=seed.NOW, subject="catalog", reason="catalog applied", message="qwen: no"))
    told = await api.explain("default")
    assert (told["asked"], told["model"]["name"], told["model"]["state"]) == ("default", "qwen", "ready")
    assert [replica["id"] for replica in told["replicas"]] == ["r1"]
    assert told["profile"] == {
        "name": "main", "engine": "cpu", "engine_version": "1.0", "context": 4096, "parallel": 1,
    }  # fmt: skip
    (place,) = told["places"]
    assert (place["node"], place["verdict"], place["held"]) == ("gpu-1", "placed", 300 * MIB)
    assert place["capacity"] == 29 * GIB, "32 in all, 2 used by others, 1 reserved"
    assert [holder["model"] for holder in place["holders"]] == ["smol"]
    assert [event["reason"] for event in told["events"]] == ["launched", "ready"]
    assert told["advice"] == ['ask it something: `llmgw run qwen "Hello"`']


async def test_the_story_of_a_model_whose_weights_are_there_has_their_licence(api: Api) -> None:
    told = await api.explain("smol")
    (file,) = told["files"]
    assert file == {
        "role": "weights", "source": seed.SMOL_SOURCE, "node": "gpu-1", "here": True, "size": 93 * MIB,
        "licence": "Apache-2.0",
    }  # fmt: skip


async def test_the_story_of_a_model_that_finds_no_room_names_who_has_it(api: Api) -> None:
    refusal = Rejection(node=seed.NODE, reason=Reason.HOST_MEMORY, need=Bytes(9 * GIB), have=Bytes(GIB))
    status = seed.told(
        seed.SMOL, ModelState.UNSCHEDULABLE, str(refusal), rejections=(refusal,), why="in the catalog",
        footprint=Footprint(host=Bytes(9 * GIB), source="guess"),
    )  # fmt: skip
    await api.seeds.explain(status)
    await api.seeds.report(seed.ready("r1", seed.QWEN))
    policies = {seed.NODE: NodeSpec(budget=BudgetSpec(host=Bytes(10 * GIB)))}
    applied = Applied(revision=seed.GOOD, digest=seed.DIGEST, at=seed.NOW, policies=policies)
    await api.seeds.put(keys.APPLIED, applied)
    told = await api.explain("smol")
    assert told["why"] == "in the catalog"
    assert (told["model"]["footprint"], told["model"]["footprint_source"]) == (9 * GIB, "guess")
    (place,) = told["places"]
    assert (place["verdict"], place["reason"], place["need"], place["have"]) == (
        "refused", "host memory", 9 * GIB, GIB,
    )  # fmt: skip
    assert (place["budget"], place["capacity"]) == (10 * GIB, 29 * GIB)
    assert [(holder["model"], holder["memory"]) for holder in place["holders"]] == [("qwen", 300 * MIB)]
    assert any("raise `budget.host`" in line for line in told["advice"])


async def test_the_story_of_a_model_that_fails_has_its_last_failure(api: Api) -> None:
    record = RecoveryRecord(
        model=seed.SMOL,
        attempts=3,
        last=Failure(kind=FailureKind.TERMINAL, reason="no such file", at=Wall(seed.NOW - 5)),
        last_replica=ReplicaId("r2"),
        retry_at=None,
        action=Action.QUARANTINE,
    )
    await api.seeds.put(keys.recovery(SpecDigest("5" * 16), seed.NODE), record)
    other = replace(record, model=seed.QWEN)
    await api.seeds.put(keys.recovery(SpecDigest("6" * 16), seed.NODE), other)
    await api.seeds.explain(seed.told(seed.SMOL, ModelState.FAILED, "no such file (failed 3 times in a row)"))
    told = await api.explain("smol")
    assert told["failures"] == [
        {
            "node": "gpu-1", "kind": "terminal", "reason": "no such file", "at": seed.NOW - 5, "attempts": 3,
            "retry_at": None, "quarantined": True,
        }
    ]  # fmt: skip
    assert any("trying again as it is cannot help" in line for line in told["advice"])


async def test_while_the_operators_switch_is_thrown_that_is_the_advice(api: Api) -> None:
    await api.seeds.put(keys.STOPPED, Stopped(at=seed.NOW, by="ann"))
    assert (await api.explain("qwen"))["advice"] == ["`llmgw start` serves again"]


@pytest.mark.parametrize("path", ["explain", "logs"])
async def test_a_model_that_is_not_there_is_404_with_what_may_be_meant(api: Api, path: str) -> None:
    reply = await api.ask(path, model="qwn")
    assert reply.status_code == 404
    assert reply.json()["error"] == {
        "code": "not_there", "message": "no model 'qwn' in the catalog; did you mean 'qwen'?",
    }  # fmt: skip


@pytest.mark.parametrize("params", [{}, {"model": ""}, {"model": "x" * 201}, {"model": "qwen", "lines": -1}])
async def test_bad_parameters_are_400(api: Api, params: dict[str, Any]) -> None:
    assert (await api.ask("logs", **params)).status_code == 400


async def test_logs_need_a_state_directory_and_a_token(api: Api) -> None:
    reply = await Api(api.seeds, None).ask("logs", model="qwen")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_there")
    transport = httpx.ASGITransport(api.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8081") as client:
        assert (await client.get("/api/v1/logs?model=qwen")).status_code == 401


def model(state: ModelState, **fields: Any) -> ModelRow:
    row: dict[str, Any] = {
        "name": "m", "aliases": (), "description": "", "priority": 5, "pinned": False, "state": state, "reason": "",
        "wanted": 1, "engine": "cpu", "profile": "p", "replica": None, "since": None, "attempts": 0, "retry_at": None,
        "progress": None, "revision": None,
    }  # fmt: skip
    return ModelRow(**(row | fields))


def place(reason: str, **fields: Any) -> PlaceRow:
    row: dict[str, Any] = {
        "node": "box", "verdict": "refused", "reason": reason, "need": 0, "have": 0, "detail": "", "capacity": 10 * GIB,
        "budget": None, "held": 0, "holders": (),
    }  # fmt: skip
    return PlaceRow(**(row | fields))


def holder(name: str, priority: int) -> HolderRow:
    return HolderRow(model=name, replica="r", state="ready", memory=4 * GIB, priority=priority, pinned=False)


def failure(kind: str) -> FailureRow:
    return FailureRow(node="box", kind=kind, reason="x", at=0.0, attempts=1, retry_at=None, quarantined=True)


@pytest.mark.parametrize(
    ("row", "places", "failures", "said"),
    [
        (model(ModelState.UNSCHEDULABLE), [], [], "no node has reported"),
        (model(ModelState.UNSCHEDULABLE), [place("disk", need=3 * GIB, have=GIB)], [], "free 2.0 GiB where weights"),
        (model(ModelState.UNSCHEDULABLE), [place("engine unavailable")], [], "how to get the engine cpu"),
        (model(ModelState.UNSCHEDULABLE), [place("size unknown", detail="declare `memory`")], [], "declare `memory`"),
        (
            model(ModelState.UNSCHEDULABLE),
            [place("host memory", need=8 * GIB, holders=(holder("low", 1), holder("high", 9)))],
            [],
            "held by high (4.0 GiB, priority 9): a higher `priority`",
        ),
        (model(ModelState.UNSCHEDULABLE), [place("host memory", need=20 * GIB)], [], "10.0 GiB there, whatever else"),
        (
            model(ModelState.UNSCHEDULABLE, footprint_source="declared"),
            [place("host memory", need=20 * GIB)],
            [],
            "declare less `memory`",
        ),
        (model(ModelState.FAILED), [], [failure("oom")], "it ran out of memory: lower its `context`"),
        (model(ModelState.FAILED), [], [failure("hang")], "raise its `start_timeout`"),
        (model(ModelState.LOADING), [], [failure("crash")], "`llmgw logs --previous m`"),
        (model(ModelState.LOADING), [], [], "`llmgw events -f`"),
        (model(ModelState.INACTIVE), [], [], "not wanted now"),
    ],
)
def test_there_is_advice_for_whatever_keeps_a_model_from_serving(
    row: ModelRow, places: list[PlaceRow], failures: list[FailureRow], said: str
) -> None:
    assert any(said in line for line in advice(row, (), places, failures, stopped=False))
