"""`llmgw bench` against a daemon's admin API and an engine whose answers are made up."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import daemon_seeds as seed
import pytest
from jsonschema import Draft202012Validator
from stub_engine import StubEngine

from llmgw.admin.schemas import schema_of
from llmgw.catalog.spec import spec_digest
from llmgw.engine.api import engine_key
from llmgw.facts import EngineLoad, Level, Phase, ReplicaUse, Usage
from llmgw.ids import ReplicaId
from llmgw.statedir import StateDir
from llmgw.store import keys
from llmgw.units import Wall

SPEC = spec_digest(seed.QWEN, seed.profile())
EASY = ("--ttft", "60s", "--itl", "30s")  #: on a machine that is busy with other things, too
FAST = (*EASY, "--requests", "3", "--max-tokens", "4", "--max-concurrency", "1")
TWO = (*FAST[:-1], "2")


@pytest.fixture
def engine(daemon: Any) -> Iterator[StubEngine]:
    state = StateDir(daemon.state)
    state.prepare()
    engine = StubEngine(engine_key(state.secret(), ReplicaId("r1")))
    ready(daemon, engine.url)
    yield engine
    engine.close()


def ready(daemon: Any, url: str, **fields: Any) -> None:
    """The model's replica, with nothing to do."""
    settled = {"url": url, "spec": SPEC, "load": EngineLoad(running=0, waiting=0), **fields}
    daemon.do(daemon.seeds.report(replace(seed.ready("r1", seed.QWEN), **settled)))


@pytest.fixture
def bench(cli: Any, daemon: Any) -> Any:
    def run(*args: object) -> Any:
        ran = cli("bench", *args, "--state", daemon.state)
        # The daemon runs in this process, and its log with it.
        own = [line for line in ran.out.splitlines() if "[info " not in line]
        return replace(ran, out="".join(f"{line}\n" for line in own))

    return run


def test_what_a_replica_holds_is_measured_kept_and_shown(bench: Any, engine: StubEngine, tmp_path: Path) -> None:
    chart = tmp_path / "chart.svg"
    ran = bench("default", *TWO, "--chart", chart)
    assert ran.code == 0, ran.err
    rows = [line.split() for line in ran.out.splitlines()]
    assert rows[0][:2] == ["AT", "ONCE"]
    assert [row[0] for row in rows[1:3]] == ["1", "2"]
    assert (
        "qwen holds 2 requests at once on gpu-1 within 60 s to the first token and 30000 ms between tokens" in ran.out
    )
    assert "(more were not tried: --max-concurrency)" in ran.out
    assert "scaling counts with it" in ran.out
    assert "1 at once: first token" in ran.err
    assert "qwen, profile main, on gpu-1" in (ElementTree.parse(chart).getroot()[0].text or "")
    shown = bench("--show")
    assert shown.code == 0
    assert shown.out.splitlines()[1].split()[:4] == ["qwen", "main", "gpu-1", "2"]


def test_the_json_has_every_step_and_follows_its_schema(bench: Any, engine: StubEngine) -> None:
    ran = bench("qwen", *TWO, "--json")
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    Draft202012Validator(schema_of("bench")).validate(told)
    assert [step["at_once"] for step in told["steps"]] == [1, 2]
    assert (told["holds"], told["stored"], told["replica"], told["warnings"]) == (2, True, "r1", [])
    shown = json.loads(bench("--show", "qwen", "--json").out)
    Draft202012Validator(schema_of("capacities")).validate(shown)
    assert shown["capacities"][0]["requests"] == 2


def test_each_request_is_one_that_the_gateway_might_send(bench: Any, engine: StubEngine) -> None:
    bench("qwen", *TWO)
    assert {path for path, _ in engine.requests} == {"/v1/chat/completions"}
    bodies = [body for _, body in engine.requests]
    assert all(body["stream"] and body["max_tokens"] == 4 and body["model"] == "qwen" for body in bodies)
    prompts = [body["messages"][0]["content"] for body in bodies]
    assert len({prompt[:6] for prompt in prompts}) == len(prompts), "a prefix cache must not help"


def test_prompts_are_fitted_to_the_engines_count(bench: Any, engine: StubEngine) -> None:
    bench("qwen", *FAST, "--prompt-tokens", "60")
    first, second, third = (len(body["messages"][0]["content"].split()) for _, body in engine.requests[:3])
    assert (second - first, third - second) == (10, 10), "it counts 50 whatever comes"


def test_nothing_is_kept_where_that_was_asked_for(bench: Any, engine: StubEngine) -> None:
    ran = bench("qwen", *FAST, "--no-store")
    assert ran.code == 0
    assert "not kept" in ran.out
    assert "nothing was measured yet" in bench("--show").out


def test_a_replica_that_was_shrunk_is_measured_and_not_kept(bench: Any, engine: StubEngine, daemon: Any) -> None:
    ready(daemon, engine.url, level=Level.DEGRADED)
    ran = bench("qwen", *FAST)
    assert ran.code == 0, ran.err
    assert "not kept: the replica is shrunk to level degraded, and scaling counts with full ones" in ran.out
    assert "nothing was measured yet" in bench("--show").out


def test_a_target_that_is_never_met_is_an_error_with_the_figures(bench: Any, engine: StubEngine) -> None:
    engine.between = 0.05
    ran = bench("qwen", *FAST, "--itl", "10ms")
    assert ran.code == 1
    assert "tokens too slow" in ran.out
    assert "between tokens, and 0.01 s are allowed (--itl); nothing was kept" in ran.err
    assert "nothing was measured yet" in bench("--show").out


def test_an_engine_without_chat_is_measured_by_plain_text(bench: Any, engine: StubEngine) -> None:
    engine.plain_only = True
    ran = bench("qwen", *FAST)
    assert ran.code == 0, ran.err
    assert engine.requests[-1][0] == "/v1/completions"
    assert isinstance(engine.requests[-1][1]["prompt"], str)


def test_an_engine_that_knows_no_further_fields_gets_none(bench: Any, engine: StubEngine) -> None:
    engine.strict = True
    ran = bench("qwen", *FAST)
    assert ran.code == 0, ran.err
    assert "ignore_eos" not in engine.requests[-1][1]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"status": 500, "error": "no kernel\nfor it"}, "replica r1 cannot be measured: no kernel for it"),
        ({"status": 400, "error": "too long"}, "cannot be measured: too long"),
        ({"whole": True}, "the engine does not stream: it answered with application/json"),
        ({"event": True}, "out of memory"),
        ({"cut": True}, "cut off"),
        ({"tokens": 0}, "an answer without any text"),
        ({"tokens": 1}, "in one piece"),
    ],
)
def test_an_engine_that_cannot_be_measured_says_why(
    bench: Any, engine: StubEngine, change: dict[str, Any], why: str
) -> None:
    for name, value in change.items():
        setattr(engine, name, value)
    ran = bench("qwen", *FAST)
    assert (ran.code, ran.out) == (1, "")
    assert why in ran.err
    assert "nothing was measured yet" in bench("--show").out


def test_a_replica_that_nobody_can_reach_is_no_traceback(bench: Any, engine: StubEngine, daemon: Any) -> None:
    ready(daemon, "http://127.0.0.1:1")
    ran = bench("qwen", *FAST)
    assert ran.code == 1
    assert "the engine cannot be reached" in ran.err
    assert "Traceback" not in ran.err


def test_a_replica_that_is_stopped_meanwhile_ends_the_measuring(bench: Any, engine: StubEngine, daemon: Any) -> None:
    def stopped() -> None:
        if len(engine.requests) == 5:
            ready(daemon, engine.url, phase=Phase.DRAINING)

    engine.heard = stopped
    ran = bench("qwen", *FAST)
    assert ran.code == 1
    assert "replica r1 is draining: nothing was kept" in ran.err
    assert "nothing was measured yet" in bench("--show").out


def test_others_requests_are_warned_about(bench: Any, engine: StubEngine, daemon: Any) -> None:
    ready(daemon, engine.url, load=EngineLoad(running=2, waiting=1))
    ran = bench("qwen", *FAST, "--json")
    assert "warning: 3 other requests are in flight on the replica" in ran.err
    assert len(json.loads(ran.out)["warnings"]) == 1


def test_requests_that_come_through_the_gateway_meanwhile_are_warned_about(
    bench: Any, engine: StubEngine, daemon: Any
) -> None:
    use = {ReplicaId("r1"): ReplicaUse(outstanding=1, last_used=Wall(1))}
    daemon.do(daemon.seeds.put(keys.usage("g"), Usage(at=seed.NOW, seen=1, replicas=use)))
    ran = bench("qwen", *FAST)
    assert ran.err.count("warning: another request is in flight") == 1


def test_the_engines_key_is_never_shown(bench: Any, engine: StubEngine, daemon: Any) -> None:
    key = engine_key(StateDir(daemon.state).secret(), ReplicaId("r1"))
    for args in (("qwen", *FAST, "--json"), ("qwen", *FAST)):
        ran = bench(*args)
        assert key not in ran.out + ran.err


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("smol",), "smol is loading: fetching its weights; it has to be ready"),
        (("quen",), "no model 'quen' in the catalog"),
        (("qwen", "--replica", "r7"), "qwen has no replica r7"),
        (("qwen", "--profile", "gpu"), "no replica of qwen runs profile gpu; there is main"),
    ],
)
def test_what_cannot_be_measured_is_said(bench: Any, engine: StubEngine, args: tuple[str, ...], why: str) -> None:
    ran = bench(*args)
    assert (ran.code, ran.out) == (1, "")
    assert why in ran.err


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ((), "name the model"),
        (("qwen", "--ttft", "soon"), "--ttft: not a duration"),
        (("qwen", "--itl", "0s"), "--itl 0s: it must be more than 0"),
        (("qwen", "--max-tokens", "1"), "--max-tokens"),
        (("qwen", "--chart", "/no/such/directory/x.svg"), "there is no directory /no/such/directory"),
        (("qwen", "--admin", "gpu-1:8081"), "without --admin"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_loaded(
    bench: Any, engine: StubEngine, args: tuple[str, ...], why: str
) -> None:
    ran = bench(*args)
    assert ran.code == 64
    assert why in ran.err
    assert engine.requests == []
