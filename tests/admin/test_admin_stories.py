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
from llmgw.admin.stories import FailureRow, HolderRow, PlaceDeviceRow, PlaceRow
from llmgw.catalog.spec import (
    BudgetSpec,
    Defaults,
    NodeSpec,
    ScalingSettings,
    ScalingSpec,
    WeightsSpec,
    Window,
    spec_digest,
)
from llmgw.facts import (
    Action,
    Ask,
    Concurrency,
    DeviceFact,
    Event,
    Failure,
    FailureKind,
    Footprint,
    Level,
    RecoveryRecord,
    ReplicaUse,
    ScalingState,
    Usage,
)
from llmgw.ids import ProfileName, ReplicaId, SpecDigest
from llmgw.plan import ModelState, Reason, Rejection, Stopped
from llmgw.statedir import StateDir
from llmgw.store import keys
from llmgw.store.events import EventLog
from llmgw.units import GIB, MIB, Bytes, Seconds, Wall


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
        "name": "main", "engine": "cpu", "engine_version": "1.0", "context": 4096, "parallel": 1, "devices": 0,
        "passed_over": None,
    }  # fmt: skip
    (place,) = told["places"]
    assert (place["node"], place["verdict"], place["held"]) == ("gpu-1", "placed", 300 * MIB)
    assert place["capacity"] == 29 * GIB, "32 in all, 2 used by others, 1 reserved"
    assert [holder["model"] for holder in place["holders"]] == ["smol"]
    assert [event["reason"] for event in told["events"]] == ["launched", "ready"]
    assert told["advice"] == ['ask it something: `llmgw run qwen "Hello"`']


async def test_the_story_of_a_model_whose_weights_are_there_has_their_licence(api: Api) -> None:
    told = await api.explain("smol")
    assert [place["holds_weights"] for place in told["places"]] == [True]
    (file,) = told["files"]
    assert file == {
        "role": "weights", "source": seed.SMOL_SOURCE, "node": "gpu-1", "here": True, "size": 93 * MIB,
        "licence": "Apache-2.0",
    }  # fmt: skip


async def test_the_story_of_a_model_whose_weights_are_nowhere_has_the_size_that_their_source_told(api: Api) -> None:
    wanted = WeightsSpec(source="https://models.example.org/a.gguf", found=Bytes(95 * MIB))
    profile = replace(seed.profile(), weights=wanted)
    await api.seeds.store.delete(keys.assignment(seed.NODE, ReplicaId("r2")))
    await api.seeds.catalog(replace(seed.model(seed.SMOL), profiles=(profile,)))
    told = await api.explain("smol")
    assert [place["holds_weights"] for place in told["places"]] == [False]
    (file,) = told["files"]
    assert (file["here"], file["size"]) == (False, 95 * MIB)


async def test_the_story_of_a_model_that_finds_no_room_names_who_has_it(api: Api) -> None:
    refusal = Rejection(node=seed.NODE, reason=Reason.HOST_MEMORY, need=Bytes(9 * GIB), have=Bytes(GIB))
    status = seed.told(
        seed.SMOL, ModelState.UNSCHEDULABLE, str(refusal), rejections=(refusal,), why="in the catalog",
        footprint=Footprint(host=Bytes(9 * GIB), source="guess"),
    )  # fmt: skip
    await api.seeds.explain(status)
    await api.seeds.report(seed.ready("r1", seed.QWEN))
    await api.seeds.store.delete(keys.assignment(seed.NODE, ReplicaId("r2")))
    await api.seeds.settings(policies={seed.NODE: NodeSpec(budget=BudgetSpec(host=Bytes(10 * GIB)))})
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
            "retry_at": None, "quarantined": True, "action": "quarantine", "level": "full", "delays": 0,
            "profile": None,
        }
    ]  # fmt: skip
    assert any("trying again as it is cannot help" in line for line in told["advice"])


async def test_the_story_tells_what_demand_windows_and_scaling_make_of_a_model(api: Api) -> None:
    monday = Window(days=(0,), start=0, end=1440, min=2, max=4)
    every_other = Window(days=(1, 2, 3, 4, 5, 6), start=0, end=1440, min=1, max=3)
    spec = seed.model(seed.QWEN, scaling=ScalingSpec(min=0, max=1, on_demand=True, windows=(monday, every_other)))
    await api.seeds.catalog(spec)
    await api.seeds.settings(
        time_zone="Europe/Berlin",
        scaling=ScalingSettings(up_after=Seconds(10)),
        defaults=Defaults(idle_timeout=Seconds(600)),
    )
    await api.seeds.put(keys.scaling(seed.QWEN), ScalingState(extra=1, busy_since=Wall(seed.NOW - 4)))
    await api.seeds.put(keys.ask(seed.QWEN), Ask(asked=Wall(seed.NOW - 60), used=Wall(seed.NOW - 20)))
    use = {ReplicaId("r1"): ReplicaUse(outstanding=3, last_used=seed.NOW)}
    await api.seeds.put(keys.usage("g"), Usage(at=seed.NOW, seen=1, replicas=use, held={seed.QWEN: 5}))
    held = Concurrency(requests=8, at=seed.NOW, ttft=Seconds(1), itl=Seconds(0.1), tokens_per_second=90.0)
    digest = spec_digest(spec.name, spec.profiles[0])
    await api.seeds.put(keys.concurrency(digest, seed.NODE), held)
    await api.seeds.put(keys.concurrency(SpecDigest("6" * 16), seed.NODE), replace(held, requests=99))
    demand = (await api.explain("qwen"))["demand"]
    # 1_800_000_000 is a Friday, 09:00 in Berlin
    assert (demand["base"], demand["ceiling"], demand["window"]) == (1, 3, "tue-sun 00:00-24:00")
    assert demand["changes_at"] == seed.NOW + (2 * 24 + 15) * 3600
    assert (demand["time_zone"], demand["extra"], demand["busy_since"]) == ("Europe/Berlin", 1, seed.NOW - 4)
    assert (demand["up_after"], demand["idle_timeout"], demand["measured"]) == (10, 600, 8)
    assert (demand["ready"], demand["running"], demand["waiting"], demand["held"]) == (1, 1, 7, 5)
    assert (demand["asked_at"], demand["used_at"], demand["unloads_at"]) == (seed.NOW - 60, seed.NOW - 20, None)


async def test_the_story_of_an_on_demand_model_tells_when_it_is_unloaded(api: Api) -> None:
    await api.seeds.catalog(seed.model(seed.QWEN, scaling=ScalingSpec(min=0, on_demand=True)))
    await api.seeds.put(keys.ask(seed.QWEN), Ask(asked=Wall(seed.NOW - 100)))
    demand = (await api.explain("qwen"))["demand"]
    assert (demand["base"], demand["on_demand"], demand["unloads_at"]) == (1, True, seed.NOW - 100 + 900)
    await api.seeds.put(keys.ask(seed.QWEN), Ask(asked=Wall(seed.NOW - 1000)))
    demand = (await api.explain("qwen"))["demand"]
    assert (demand["base"], demand["unloads_at"], demand["window"]) == (0, None, None)


async def test_the_story_tells_of_the_fallback_on_both_sides(api: Api) -> None:
    await api.seeds.catalog(seed.model(seed.QWEN, fallback=seed.SMOL), seed.model(seed.SMOL))
    assert (await api.explain("qwen"))["fallback"] == {"model": "smol", "serves": False}
    await api.seeds.explain(seed.told(seed.QWEN, ModelState.FAILED, "x", fallback=seed.SMOL))
    assert (await api.explain("qwen"))["fallback"] == {"model": "smol", "serves": True}
    assert (await api.explain("smol"))["stands_in_for"] == ["qwen"]
    assert (await api.explain("smol"))["fallback"] is None


async def test_the_story_tells_of_accelerators_and_what_evicting_could_free(api: Api) -> None:
    device = DeviceFact(uuid="A", name="L40S", index=0, total=Bytes(48 * GIB), used=Bytes(20 * GIB), foreign=Bytes(GIB))
    both = Footprint(host=Bytes(GIB), device=Bytes(18 * GIB))
    running = replace(seed.ready("r1", seed.QWEN), footprint=both, devices=("A",))
    await api.seeds.put(keys.report(seed.NODE), replace(seed.report(running), devices=(device,)))
    await api.seeds.store.delete(keys.assignment(seed.NODE, ReplicaId("r2")))
    refusals = (
        Rejection(
            node=seed.NODE, reason=Reason.DEVICE_MEMORY, need=Bytes(40 * GIB), have=Bytes(28 * GIB),
            freeable=Bytes(46 * GIB),
        ),
        Rejection(node=seed.NODE, reason=Reason.HOST_MEMORY, need=Bytes(9 * GIB), have=Bytes(GIB)),
    )  # fmt: skip
    await api.seeds.explain(seed.told(seed.SMOL, ModelState.UNSCHEDULABLE, "x", rejections=refusals))
    told = await api.explain("smol")
    (place,) = told["places"]
    assert [(each["reason"], each["freeable"]) for each in place["refusals"]] == [
        ("device memory", 46 * GIB), ("host memory", 0),
    ]  # fmt: skip
    (row,) = place["devices"]
    assert (row["name"], row["counted"], row["budget"]) == ("L40S", 18 * GIB, None)
    assert row["capacity"] == 48 * GIB - GIB - 512 * MIB
    (holder,) = place["holders"]
    assert (holder["device"], holder["devices"]) == (18 * GIB, ["A"])
    assert (await api.explain("qwen"))["replicas"][0]["devices"] == ["A"]


async def test_the_profile_is_told_as_it_was_launched(api: Api) -> None:
    shrunk = replace(seed.profile(seed.SMOL_SOURCE), context=2048)
    await api.seeds.assign(replace(seed.assignment("r2", seed.SMOL), profile=shrunk, level=Level.DEGRADED))
    status = seed.told(
        seed.SMOL, ModelState.LOADING, replica=ReplicaId("r2"), profile=shrunk.name, level=Level.DEGRADED
    )
    await api.seeds.explain(status)
    told = await api.explain("smol")
    assert (told["level"], told["profile"]["context"], told["profiles"][0]["context"]) == ("degraded", 2048, 4096)


async def test_failures_are_told_with_what_they_led_to_and_of_which_profile(api: Api) -> None:
    spec = seed.model(seed.SMOL)
    await api.seeds.catalog(spec)
    digest = spec_digest(spec.name, spec.profiles[0])
    record = RecoveryRecord(
        model=seed.SMOL, attempts=1, last=Failure(kind=FailureKind.OOM, reason="killed", at=Wall(seed.NOW - 5)),
        last_replica=ReplicaId("r2"), retry_at=Wall(seed.NOW + 4), action=Action.DEGRADE, level=Level.DEGRADED,
        delays=2,
    )  # fmt: skip
    await api.seeds.put(keys.recovery(digest, seed.NODE), record)
    (failure,) = (await api.explain("smol"))["failures"]
    assert (failure["action"], failure["level"], failure["delays"], failure["profile"]) == (
        "degrade", "degraded", 2, "main",
    )  # fmt: skip


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


def holder(name: str, priority: int, **fields: Any) -> HolderRow:
    row: dict[str, Any] = {"memory": 4 * GIB, "pinned": False, **fields}
    return HolderRow(model=name, replica=f"r-{name}", state="ready", priority=priority, **row)


def device(capacity: int, *, budget: int | None = None) -> PlaceDeviceRow:
    return PlaceDeviceRow(uuid="A", name="L40S", index=0, capacity=capacity, budget=budget, counted=0)


def failure(kind: str) -> FailureRow:
    return FailureRow(node="box", kind=kind, reason="x", at=0.0, attempts=1, retry_at=None, quarantined=True)


@pytest.mark.parametrize(
    ("row", "places", "failures", "said"),
    [
        (model(ModelState.UNSCHEDULABLE), [], [], "no node has reported"),
        (model(ModelState.UNSCHEDULABLE), [place("disk", need=3 * GIB, have=GIB)], [], "free 2.0 GiB where weights"),
        (model(ModelState.UNSCHEDULABLE), [place("disk", need=3 * GIB)], [], "free more than 3.0 GiB where weights"),
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
        (model(ModelState.UNSCHEDULABLE), [place("cordoned")], [], "`llmgw uncordon box`"),
        (model(ModelState.UNSCHEDULABLE), [place("unreachable")], [], "box: it stopped reporting"),
        (model(ModelState.UNSCHEDULABLE), [place("too few devices")], [], "fewer `devices`"),
        (model(ModelState.UNSCHEDULABLE), [place("placement", detail="pool")], [], "`placement` rules it out (pool)"),
        (model(ModelState.UNSCHEDULABLE), [place("quarantined here")], [], "`llmgw reset m`"),
        (model(ModelState.UNSCHEDULABLE), [place("group", detail="with x")], [], "never share a node (with x)"),
        (model(ModelState.UNSCHEDULABLE), [place("draft", detail="d")], [], "its draft model has to be there too"),
        (
            model(ModelState.UNSCHEDULABLE),
            [place("device memory", need=50 * GIB, devices=(device(44 * GIB),))],
            [],
            "an accelerator has 44.0 GiB for engines, whatever else is stopped",
        ),
        (
            model(ModelState.UNSCHEDULABLE),
            [place("device memory", need=40 * GIB, devices=(device(44 * GIB, budget=30 * GIB),))],
            [],
            "raise `budget.device`",
        ),
        (
            model(ModelState.UNSCHEDULABLE),
            [
                place(
                    "device memory",
                    need=40 * GIB,
                    devices=(device(44 * GIB),),
                    holders=(holder("host", 9), replace(holder("high", 9), device=20 * GIB)),
                )
            ],
            [],
            "accelerators are held by high (20.0 GiB, priority 9): a higher `priority`",
        ),
        (model(ModelState.FAILED), [], [failure("crash")], "`llmgw reset m` has it tried anew"),
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


def test_nodes_that_a_model_is_kept_from_are_no_news_where_others_could_take_it() -> None:
    nodes = [place("placement", detail="pool"), place("cordoned")]
    said = list(advice(model(ModelState.UNSCHEDULABLE), (), nodes, (), stopped=False))
    assert said == ["box: `llmgw uncordon box` takes it back into use"]


def advised(row: ModelRow, *holders: HolderRow, need: int = 8 * GIB) -> list[str]:
    return list(advice(row, (), [place("host memory", need=need, holders=holders)], (), stopped=False))


def test_no_priority_moves_what_is_pinned_or_suspended_and_that_is_not_advised() -> None:
    row = model(ModelState.UNSCHEDULABLE)
    assert advised(row, holder("firm", 1, pinned=True), holder("still", 0, suspended=True)) == [
        "box: memory is held by firm (4.0 GiB, priority 1, pinned), still (4.0 GiB, priority 0, suspended), which give "
        "way to nothing, whatever the priority: lift `pinned` or `suspend`, or place one of them elsewhere"
    ]
    (line,) = advised(row, holder("firm", 1, pinned=True), holder("high", 9))
    assert "held by firm" in line
    assert "a higher `priority`" not in line, "without what is pinned there would be too little still"


def test_what_is_lower_and_busy_is_waited_for() -> None:
    (line,) = advised(model(ModelState.LOADING), holder("low", 1, busy=True), need=8 * GIB)[1:]
    assert line == (
        "box: memory is held by low (4.0 GiB, priority 1, busy), which gives way once idle: nothing needs doing"
    )
    (line,) = advised(model(ModelState.UNSCHEDULABLE), holder("equal", 5, on_demand=True))
    assert "gives way once idle" in line


def test_an_equal_that_is_always_on_gives_way_to_a_higher_priority_alone() -> None:
    (line,) = advised(model(ModelState.UNSCHEDULABLE), holder("equal", 5))
    assert line == (
        "box: memory is held by equal (4.0 GiB, priority 5): a higher `priority` than theirs has it served in their "
        "place"
    )
    (line,) = advised(model(ModelState.UNSCHEDULABLE), holder("equal", 5, busy=True))
    assert line.endswith("in their place once they are idle")


def test_the_log_of_an_engine_that_left_none_is_not_advised() -> None:
    for state in (ModelState.FAILED, ModelState.LOADING):
        said = list(advice(model(state), (), (), [failure("crash")], stopped=False, ended=False))
        assert not any("llmgw logs" in line for line in said)


async def test_a_log_is_advised_once_there_is_one(api: Api, tmp_path: Path) -> None:
    record = RecoveryRecord(
        model=seed.SMOL, attempts=1, last=Failure(kind=FailureKind.CRASH, reason="x", at=seed.NOW),
        last_replica=ReplicaId("r2"), retry_at=None, action=Action.QUARANTINE,
    )  # fmt: skip
    await api.seeds.put(keys.recovery(SpecDigest("5" * 16), seed.NODE), record)
    await api.seeds.explain(seed.told(seed.SMOL, ModelState.FAILED, "x"))
    assert not any("llmgw logs" in line for line in (await api.explain("smol"))["advice"])
    folder = StateDir(tmp_path).logs / "smol"
    folder.mkdir(parents=True)
    (folder / "r2.log").write_text("it died\n")
    assert any("llmgw logs --previous smol" in line for line in (await api.explain("smol"))["advice"])


async def test_a_node_that_cannot_take_the_model_is_told_though_the_controller_was_not_asked(api: Api) -> None:
    profile = seed.profile(seed.SMOL_SOURCE)
    wanting = replace(profile, name=ProfileName("gpu"), devices=2)
    await api.seeds.catalog(replace(seed.model(seed.SMOL), profiles=(wanting,)))
    await api.seeds.store.delete(keys.assignment(seed.NODE, ReplicaId("r2")))
    await api.seeds.report(seed.ready("r1", seed.QWEN))
    await api.seeds.explain(seed.told(seed.SMOL, ModelState.INACTIVE, "on demand, and not asked for"))
    (place,) = (await api.explain("smol"))["places"]
    assert (place["verdict"], place["reason"], place["detail"]) == (
        "refused", "too few devices", "0 usable, 2 asked for",
    )  # fmt: skip


async def test_a_preferred_profile_that_is_not_used_tells_why(api: Api) -> None:
    profile = seed.profile(seed.SMOL_SOURCE)
    first, failing = (
        replace(profile, name=ProfileName("gpu"), devices=2),
        replace(profile, name=ProfileName("big"), context=9),
    )
    spec = replace(seed.model(seed.SMOL), profiles=(first, failing, profile))
    await api.seeds.catalog(spec)
    record = RecoveryRecord(
        model=seed.SMOL, attempts=3, last=Failure(kind=FailureKind.OOM, reason="no memory", at=seed.NOW),
        last_replica=ReplicaId("r2"), retry_at=None, action=Action.QUARANTINE,
    )  # fmt: skip
    await api.seeds.put(keys.recovery(spec_digest(spec.name, failing), seed.NODE), record)
    status = seed.told(seed.SMOL, ModelState.LOADING, "starting", replica=ReplicaId("r2"), profile=profile.name)
    await api.seeds.explain(status)
    told = await api.explain("smol")
    assert [(each["name"], each["passed_over"]) for each in told["profiles"]] == [
        ("gpu", "too few devices on gpu-1: 0 usable, 2 asked for"),
        ("big", "given up on gpu-1: no memory"),
        ("main", None),
    ]


async def test_a_companion_tells_for_whom_it_drafts(api: Api) -> None:
    primary = replace(seed.profile(seed.SMOL_SOURCE), draft_model=seed.SMOL)
    await api.seeds.catalog(replace(seed.model(seed.QWEN), profiles=(primary,)), seed.model(seed.SMOL))
    assert (await api.explain("smol"))["drafts_for"] == ["qwen"]
    assert (await api.explain("qwen"))["drafts_for"] == []


async def test_between_tries_the_figures_are_those_of_the_level_to_be_tried(api: Api) -> None:
    shrunk = replace(seed.profile(seed.SMOL_SOURCE), context=1024)
    status = seed.told(seed.SMOL, ModelState.LOADING, "restarting", level=Level.MINIMAL, shrunk=shrunk)
    await api.seeds.explain(status)
    told = await api.explain("smol")
    assert (told["level"], told["profile"]["context"], told["profiles"][0]["context"]) == ("minimal", 1024, 4096)
