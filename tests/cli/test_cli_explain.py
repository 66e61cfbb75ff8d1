"""`llmgw explain`: one model's whole story in words."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import daemon_seeds as seed
import msgspec
import pytest
from jsonschema import Draft202012Validator

from llmgw.admin.stories import ExplainOutput, FailureRow, FileRow, HolderRow, PlaceRow, ProfileRow
from llmgw.cli.explain import story
from llmgw.units import GIB, MIB

SCHEMA = Path(__file__).parents[2] / "schemas" / "output" / "explain.v1.schema.json"
NOW = 1_800_000_000.0


@pytest.fixture
def ask(cli: Any, daemon: Any) -> Any:
    return lambda *args: cli(*args, "--state", daemon.state)


def test_the_story_is_told_in_words(ask: Any) -> None:
    ran = ask("explain", "default")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0].startswith("qwen (asked for as default): ready since ")
    for start in ("wanted       1", "profile      main: engine cpu 1.0", "replica      r1 on gpu-1: ready"):
        assert any(line.startswith(start) for line in lines), start
    assert any("pid 4242, http://127.0.0.1:18001, level full" in line for line in lines)
    assert any(line.startswith("memory       300.0 MiB counted: the engine's estimate; 254.0 MiB") for line in lines)
    assert "ready: in 3.2s" in ran.out
    assert 'llmgw run qwen "Hello"' in ran.out


def test_json_is_one_object_as_its_schema_has_it(ask: Any) -> None:
    ran = ask("explain", "smol", "--json")
    value = json.loads(ran.out)
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(value)
    assert value["model"]["name"] == "smol"


def test_an_unknown_model_is_one_line_with_what_may_be_meant(ask: Any) -> None:
    ran = ask("explain", "qwem")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "llmgw: no model 'qwem' in the catalog; did you mean 'qwen'?\n"


def told(ask: Any, **fields: Any) -> str:
    """The story of `qwen`, with some of it replaced."""
    base = msgspec.json.decode(ask("explain", "qwen", "--json").out, type=ExplainOutput)
    return "\n".join(story(replace(base, **fields), NOW))


def test_refusals_files_and_failures_are_told_with_their_figures(ask: Any) -> None:
    holder = HolderRow(model="big", replica="r", state="ready", memory=8 * GIB, priority=9, pinned=True)
    place = PlaceRow(
        node="box", verdict="refused", reason="host memory", need=9 * GIB, have=2 * GIB, detail="budget 10.0 GiB",
        capacity=29 * GIB, budget=10 * GIB, held=8 * GIB, holders=(holder,),
    )  # fmt: skip
    files = (
        FileRow(role="weights", source="pypi://a==1/a", node=None, here=False, size=93 * MIB, licence=None),
        FileRow(role="draft", source="file:///d", node="box", here=True, size=5 * MIB, licence="MIT"),
    )
    failure = FailureRow(
        node="box", kind="oom", reason="out of memory", at=NOW - 60, attempts=2, retry_at=NOW + 5, quarantined=False
    )
    failures = (failure, replace(failure, node="den", kind="terminal", attempts=1, retry_at=None, quarantined=True))
    text = told(
        ask, places=(place,), files=files, failures=failures, replicas=(), events=(), advice=(), why="in the catalog",
        profile=ProfileRow(name="main", engine="cpu", engine_version=None, context=512, parallel=2),
    )  # fmt: skip
    assert "wanted       1: in the catalog" in text
    assert "replica      none" in text
    assert "box          refused: host memory (needs 9.0 GiB, has 2.0 GiB): budget 10.0 GiB" in text
    assert "engines hold 8.0 GiB of the budget of 10.0 GiB" in text
    assert "8.0 GiB by big (ready, priority 9, pinned)" in text
    assert "weights      pypi://a==1/a: on no node yet; declared as 93.0 MiB" in text
    assert "draft        file:///d: on box, 5.0 MiB, licence MIT" in text
    assert "failed 2 times in a row on box, last 1m ago (oom)" in text
    assert "next try in 5.0s" in text
    assert "failed once on den" in text
    assert "not tried again before something changes" in text


def test_text_from_elsewhere_cannot_steer_the_terminal(ask: Any, daemon: Any) -> None:
    daemon.do(daemon.seeds.explain(seed.told(seed.QWEN, seed.ModelState.LOADING, "died\x1b[2J\nnext")))
    out = ask("explain", "qwen").out
    assert "\x1b" not in out
    assert any("died[2J next" in line for line in out.splitlines())
