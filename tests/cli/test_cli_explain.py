"""`llmgw explain`: one model's whole story in words."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import daemon_seeds as seed
import msgspec
import pytest
from jsonschema import Draft202012Validator

from llmgw.admin.plans import RejectionRow
from llmgw.admin.shapes import CordonRow
from llmgw.admin.stories import (
    DemandRow,
    ExplainOutput,
    FailureRow,
    FallbackRow,
    FileRow,
    HolderRow,
    PlaceDeviceRow,
    PlaceRow,
    ProfileRow,
)
from llmgw.cli.story import story
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
    assert "weights      pypi://a==1/a: on no node yet; 93.0 MiB to fetch" in text
    assert "draft        file:///d: on box, 5.0 MiB, licence MIT" in text
    assert "failed 2 times in a row on box, last 1m ago (oom)" in text
    assert "next try in 5.0s" in text
    assert "failed once on den" in text
    assert "not tried again before something changes" in text


DEMAND = DemandRow(
    base=1, ceiling=3, window="mon-fri 08:00-19:00", changes_at=NOW + 3600, time_zone="Europe/Berlin", extra=1,
    busy_since=NOW - 4, quiet_since=None, up_after=30.0, down_after=300.0, ready=1, starting=1, running=4, waiting=2,
    held=1, measured=8, on_demand=False, asked_at=None, used_at=None, idle_timeout=900.0, unloads_at=None,
    suspended=False,
)  # fmt: skip


def test_demand_windows_and_scaling_are_told(ask: Any) -> None:
    text = told(ask, demand=DEMAND)
    assert (
        "replicas     1 to 3 by the window mon-fri 08:00-19:00, until that changes in 1h (Europe/Berlin); 1 ready, "
        "1 on the way\n" in text
    )
    assert (
        "load         4 requests running, 2 waiting, 1 of them at the gateway; one replica holds 8 at once, as measured"
        in text
    )
    assert "scaling      1 beyond the least; busy since 4.0s ago: one more when that lasted 30s" in text
    assert "asked for" not in text
    quiet = told(ask, demand=replace(DEMAND, busy_since=None, quiet_since=NOW - 60, suspended=True))
    assert "quiet since 1m ago: one less when that lasted 5m" in quiet
    assert "suspended: as it is, nothing is launched or stopped" in quiet


def test_an_on_demand_model_tells_when_it_was_asked_for_and_when_it_goes(ask: Any) -> None:
    demand = replace(DEMAND, on_demand=True, window=None, changes_at=None, base=0, ceiling=1, extra=0)
    assert "asked for    never: it is loaded for the first request" in told(ask, demand=demand)
    asked = replace(demand, asked_at=NOW - 60, used_at=NOW - 20, unloads_at=NOW + 880)
    assert "asked for    last 1m ago, last used 20s ago; unloaded when idle for 15m: in 14m40s" in told(
        ask, demand=asked
    )
    assert "last 1m ago, last used 20s ago; loaded for the next request" in told(
        ask, demand=replace(asked, unloads_at=None, ready=0, starting=0)
    )
    going = replace(asked, unloads_at=None, ready=1, starting=0)
    assert "last used 20s ago; idle for more than 15m: it is unloaded" in told(ask, demand=going)
    steady = replace(asked, unloads_at=None, base=1)
    assert "last 1m ago, last used 20s ago; kept by its window, asked for or not" in told(ask, demand=steady)


def test_fallbacks_and_levels_are_told(ask: Any) -> None:
    first = ProfileRow(name="gpu", engine="vllm", engine_version="0.11", context=8192, parallel=4, devices=2)
    second = replace(first, name="cpu", engine="cpu", engine_version=None, devices=0)
    text = told(
        ask, fallback=FallbackRow(model="gemma", serves=True), stands_in_for=("other",), level="degraded",
        profile=first, profiles=(first, second),
    )  # fmt: skip
    assert "fallback     gemma serves in its place now" in text
    assert "serves for   other, which cannot be had now" in text
    assert (
        "profile      gpu: engine vllm 0.11, 2 accelerators, context of 8192 tokens, 4 at once, level degraded" in text
    )
    assert "             or cpu: engine cpu, context of 8192 tokens, 4 at once" in text
    idle = told(ask, fallback=FallbackRow(model="gemma", serves=False))
    assert "fallback     gemma would serve in its place if recovery gave up" in idle


def test_accelerators_and_what_evicting_could_free_are_told(ask: Any) -> None:
    refusals = (
        RejectionRow(node="box", reason="device memory", need=9 * GIB, have=6 * GIB, freeable=8 * GIB, detail=""),
        RejectionRow(
            node="box", reason="engine unavailable", need=0, have=0, freeable=0, detail="no cpu", profile="cpu"
        ),
    )
    place = PlaceRow(
        node="box", verdict="refused", reason="device memory", need=9 * GIB, have=6 * GIB, detail="",
        capacity=29 * GIB, budget=None, held=8 * GIB, refusals=refusals,
        devices=(PlaceDeviceRow(uuid="A", name="L40S", index=1, capacity=44 * GIB, budget=40 * GIB, counted=34 * GIB),),
        holders=(
            HolderRow(
                model="big", replica="r", state="ready", memory=GIB, priority=0, pinned=False, device=34 * GIB,
                devices=("A",),
            ),
        ),
    )  # fmt: skip
    text = told(ask, places=(place,))
    assert "box          refused; engines hold 8.0 GiB of the 29.0 GiB there is for them" in text
    assert (
        "            refused: device memory (needs 9.0 GiB, has 6.0 GiB; evicting what may give way would make 8.0 GiB)"
        in text
    )
    assert "             refused as profile cpu: engine unavailable: no cpu" in text
    assert "             L40S #1: 34.0 GiB counted of 40.0 GiB for engines" in text
    assert "             34.0 GiB of accelerators' and 1.0 GiB by big (ready, priority 0)" in text
    here = told(ask, places=(replace(place, verdict="placed", refusals=refusals[:1]),))
    assert "box          placed here; engines hold" in here
    assert "             no further one: device memory (needs 9.0 GiB" in here
    cordoned = replace(place, verdict="open", refusals=(), cordon=CordonRow(at=NOW, by="ann", drain=True))
    assert "box          being drained by ann; engines hold" in told(ask, places=(cordoned,))


def test_what_a_refusal_means_depends_on_how_the_model_fares(ask: Any) -> None:
    base = msgspec.json.decode(ask("explain", "qwen", "--json").out, type=ExplainOutput)
    memory = RejectionRow(node="box", reason="host memory", need=9 * GIB, have=2 * GIB, freeable=2 * GIB, detail="")
    place = PlaceRow(
        node="box", verdict="refused", reason="host memory", need=9 * GIB, have=2 * GIB, detail="", capacity=29 * GIB,
        budget=None, held=0, holders=(), refusals=(memory,),
    )  # fmt: skip

    def said(state: str, place: PlaceRow = place) -> str:
        return told(ask, model=replace(base.model, state=state), places=(place,))

    assert "box          not now: host memory (needs 9.0 GiB, has 2.0 GiB); engines hold" in said("loading")
    assert "box          would be refused: host memory (needs" in said("inactive")
    gave_up = replace(memory, reason="quarantined here", need=0, have=0, detail="no such file")
    there = replace(place, reason="quarantined here", refusals=(gave_up,))
    assert "box          quarantined here: no such file; engines hold" in said("failed", there)
    silent = said("inactive", replace(place, verdict="open", refusals=()))
    assert "box          engines hold 0 B of the 29.0 GiB" in silent
    assert "nothing against it" not in silent


def test_profiles_come_in_the_catalogs_order_with_why_preferred_ones_are_not_used(ask: Any) -> None:
    first = ProfileRow(
        name="gpu", engine="vllm", engine_version=None, context=8192, parallel=4, passed_over="too few devices on box"
    )
    second, third = replace(first, name="cpu", passed_over=None), replace(first, name="tiny", passed_over=None)
    text = told(ask, profile=second, profiles=(first, second, third))
    lines = [line for line in text.splitlines() if "engine vllm" in line]
    assert lines == [
        "profile      gpu: engine vllm, context of 8192 tokens, 4 at once; not used: too few devices on box",
        "             used: cpu: engine vllm, context of 8192 tokens, 4 at once",
        "             or tiny: engine vllm, context of 8192 tokens, 4 at once",
    ]


def test_a_companion_tells_for_whom_it_drafts(ask: Any) -> None:
    text = told(ask, drafts_for=("big", "huge"))
    assert "drafts for   big, huge: beside each of theirs, also while none is wanted itself" in text


def test_a_suspended_model_is_kept_by_that_and_not_by_its_priority(ask: Any) -> None:
    text = told(ask, demand=replace(DEMAND, suspended=True))
    assert "kept by      its suspension, whatever its priority" in text


def test_of_many_nodes_some_are_told_and_the_rest_counted(ask: Any) -> None:
    place = PlaceRow(
        node="n", verdict="open", reason="", need=0, have=0, detail="", capacity=GIB, budget=None, held=0, holders=()
    )
    text = told(ask, places=tuple(replace(place, node=f"n{number:02}") for number in range(23)))
    assert "n19" in text
    assert "n20" not in text
    assert "and 3 more nodes; -o json has all" in text


def test_a_failure_tells_what_it_led_to(ask: Any) -> None:
    failure = FailureRow(
        node="box", kind="oom", reason="killed", at=NOW - 60, attempts=1, retry_at=NOW + 5, quarantined=False,
        action="degrade", level="degraded", delays=1, profile="gpu",
    )  # fmt: skip
    text = told(ask, failures=(failure,))
    assert "failures     failed 2 times in a row on box as profile gpu, last 1m ago (oom)" in text
    assert "             shrunk to level degraded: next try in 5.0s" in text
    again = told(ask, failures=(replace(failure, retry_at=NOW - 5),))
    assert "             shrunk to level degraded, and tried again since: forgotten when it stays up" in again


def test_a_replica_tells_its_accelerators_by_name(ask: Any) -> None:
    base = msgspec.json.decode(ask("explain", "qwen", "--json").out, type=ExplainOutput)
    device = PlaceDeviceRow(uuid="A", name="L40S", index=1, capacity=44 * GIB, budget=None, counted=9 * GIB)
    replica = replace(base.replicas[0], devices=("A", "B"), footprint_device=9 * GIB)
    text = told(ask, replicas=(replica,), places=(replace(base.places[0], devices=(device,)),))
    assert ", on L40S #1 and B, pid 4242" in text
    assert "300.0 MiB of the host's and 9.0 GiB of accelerators' counted" in text


def test_text_from_elsewhere_cannot_steer_the_terminal(ask: Any, daemon: Any) -> None:
    daemon.do(daemon.seeds.explain(seed.told(seed.QWEN, seed.ModelState.LOADING, "died\x1b[2J\nnext")))
    out = ask("explain", "qwen").out
    assert "\x1b" not in out
    assert any("died[2J next" in line for line in out.splitlines())
