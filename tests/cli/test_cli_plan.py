"""`llmgw plan` without a daemon: against a fleet that is described, and how a plan is told."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from llmgw.admin.plans import (
    ActionRow,
    EndRow,
    FetchRow,
    GoneRow,
    NodeEndRow,
    PlacedRow,
    PlanOutput,
    RefusedRow,
    RejectionRow,
    RoomRow,
    RouteRow,
    WaitingRow,
)
from llmgw.cli.planned import style_of, told
from llmgw.units import GIB, MIB

SCHEMA = Path(__file__).parents[2] / "schemas" / "output" / "plan.v1.schema.json"

CLUSTER = """
apiVersion: llmgw/v1
kind: Cluster
nodes:
  gpu-1: {pool: gpu, budget: {device: 40GiB}}
  gpu-2: {pool: gpu}
"""
FLEET = """
apiVersion: llmgw/v1
kind: Fleet
nodes:
  - name: gpu
    count: 2
    memory: 65GiB
    disk: 101GiB
    devices: [{name: NVIDIA L40S, memory: 48GiB, memory_used: 512MiB, count: 2}]
  - {name: plain, memory: 9GiB}
"""


def model(name: str, memory: str, *, devices: int = 0, more: str = "", weights: str = "") -> str:
    return f"""
apiVersion: llmgw/v1
kind: Model
name: {name}
{more}
profiles:
  - name: p
    engine: command
    devices: {devices}
    memory: {memory}
    host_memory: 1GiB
    {weights}
    options: {{command: [serve, "{{host}}", "{{port}}"]}}
"""


@pytest.fixture
def world(tmp_path: Path) -> Path:
    (tmp_path / "catalog").mkdir()
    (tmp_path / "fleet.yaml").write_text(FLEET)
    return tmp_path


@pytest.fixture
def plan(cli: Any, world: Path) -> Any:
    def run(*documents: str, options: tuple[str, ...] = ()) -> Any:
        (world / "catalog" / "all.yaml").write_text("---".join(documents))
        state = ("--state", world / "state")
        return cli("plan", world / "catalog", "--fleet", world / "fleet.yaml", *state, *options)

    return run


def test_a_catalog_is_planned_on_a_described_fleet(plan: Any) -> None:
    source = "weights: {source: 'pypi://a==1/a.gguf', size: 20GiB}"
    ran = plan(
        CLUSTER,
        model("big", "30GiB", devices=1, weights=source),
        model("pair", "90GiB", devices=2),
        model("huge", "90GiB", devices=1),
        model("small", "2GiB"),
        model("cold", "1GiB", more="scaling: {on_demand: true}"),
    )
    assert (ran.code, ran.err) == (2, "")
    lines = ran.out.splitlines()
    assert lines[0].endswith(" on 3 nodes that are described, and idle")
    assert "  + launch    big on gpu-1, NVIDIA L40S #0: profile p (engine command)" in lines
    assert "               takes 30.0 GiB of device memory and 1.0 GiB of host memory (declared)" in lines
    assert "               fetches pypi://a==1/a.gguf (20.0 GiB)" in lines
    assert "  + launch    pair on gpu-2, NVIDIA L40S #0, NVIDIA L40S #1: profile p (engine command)" in lines
    assert any(line.startswith("  huge: 0/3 nodes: 2 device memory (need 90.0 GiB, ") for line in lines)
    assert "    gpu-1: device memory: needs 90.0 GiB, has 40.0 GiB (budget 40.0 GiB each)" in lines
    assert any(line.startswith("  cold: on demand") for line in lines)
    assert "  gpu-1: replicas 0 -> 1; memory 0 B -> 1.0 GiB of 64.0 GiB; disk free 101.0 GiB -> 81.0 GiB" in lines
    assert "    NVIDIA L40S #0: 0 B -> 30.0 GiB of 40.0 GiB" in lines
    assert lines[-1] == "Plan: 3 to launch. 1 model cannot be placed. 20.0 GiB to fetch."


def test_json_is_one_object_as_its_schema_has_it(plan: Any) -> None:
    ran = plan(model("big", "30GiB", devices=1), options=("--json",))
    value = json.loads(ran.out)
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(value)
    assert ran.code == 2
    assert (value["valid"], value["offline"], value["changes"], value["settled"]) == (True, True, True, True)
    (action,) = value["actions"]
    assert (action["kind"], action["starts"]["node"], action["stops"]) == ("launch", "gpu-1", None)
    assert [device["index"] for device in action["starts"]["devices"]] == [0]


def test_nothing_to_do_is_exit_0(plan: Any) -> None:
    ran = plan(CLUSTER, model("cold", "1GiB", more="scaling: {on_demand: true}"))
    assert ran.code == 0
    assert ran.out.splitlines()[-1] == "Nothing to do: what runs is what the catalog wants."


def test_an_invalid_catalog_is_exit_3_with_every_problem(plan: Any) -> None:
    ran = plan(model("a", "lots"), model("a", "1GiB"))
    assert ran.code == 3
    assert "all.yaml:10:13: $.profiles[0].memory: expected a size such as 24GiB or 500MB" in ran.out
    assert "'a' is already a name, alias or variant" in ran.out
    assert ran.err == "nothing is planned: correct what is listed above\n"
    value = json.loads(plan(model("a", "lots"), options=("--json",)).out)
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(value)
    assert (value["valid"], len(value["problems"])) == (False, 1)


def test_an_invalid_fleet_is_exit_3_with_its_own_places(plan: Any, world: Path) -> None:
    (world / "fleet.yaml").write_text("apiVersion: llmgw/v1\nkind: Fleet\nnodes: [{name: box, memory: lots}]\n")
    ran = plan(model("a", "1GiB"))
    assert ran.code == 3
    assert "fleet.yaml:3:29: $.nodes[0].memory: expected a size such as 24GiB or 500MB" in ran.out


def test_a_fleet_that_is_not_there_is_an_error(plan: Any, world: Path) -> None:
    (world / "fleet.yaml").unlink()
    ran = plan(model("a", "1GiB"))
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"llmgw: cannot read {world / 'fleet.yaml'}: No such file or directory\n"


def test_without_a_daemon_or_a_fleet_it_says_how_to_have_either(cli: Any, world: Path) -> None:
    ran = cli("plan", "--state", world / "state")
    assert (ran.code, ran.out) == (1, "")
    assert "no llmgw daemon runs on" in ran.err


def test_files_of_this_machine_make_the_estimate_and_are_not_taken_for_the_fleets(plan: Any, world: Path) -> None:
    local = world / "a.bin"
    local.write_bytes(b"x" * 1000)
    ran = plan(model("a", "1GiB", weights=f"weights: {{source: 'file://{local}'}}"))
    assert ran.code == 2
    assert f"needs file://{local}, which plain is not known to have: put it there" in ran.out
    assert "to fetch" not in ran.out


def test_an_estimate_is_made_from_a_file_of_this_machine(plan: Any, world: Path, smollm2: Path) -> None:
    document = f"""
apiVersion: llmgw/v1
kind: Model
name: smol
profiles:
  - {{name: cpu, engine: cpu, context: CONTEXT, weights: {{source: "file://{smollm2}"}}}}
"""

    def needs(context: int) -> int:
        ran = plan(document.replace("CONTEXT", str(context)), options=("--json",))
        (action,) = json.loads(ran.out)["actions"]
        assert action["starts"]["footprint_source"] == "estimate"
        size: int = action["starts"]["host"]
        return size

    assert needs(8192) > needs(512) > smollm2.stat().st_size


def test_a_model_may_be_taken_as_asked_for(plan: Any) -> None:
    cold = model("cold", "1GiB", more="scaling: {on_demand: true}\naliases: [chilly]")
    ran = plan(cold, options=("--asked", "chilly"))
    assert ran.code == 2
    assert "  + launch    cold on plain: profile p (engine command)" in ran.out.splitlines()
    assert "asked for" in ran.out
    ran = plan(cold, options=("--asked", "cole"))
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "llmgw: no model 'cole' in the catalog; did you mean 'cold'?\n"


EXAMPLE = Path(__file__).parents[2] / "catalog-examples" / "gpu-server"


def test_the_example_of_a_fleet_is_one_that_its_catalog_can_be_planned_on(cli: Any, tmp_path: Path) -> None:
    common = (EXAMPLE, "--fleet", EXAMPLE / "fleet.yaml", "--state", tmp_path)
    ran = cli("plan", *common, "--asked", "mistral-small-24b", "--asked", "smollm2-135m-instruct")
    assert (ran.code, ran.err) == (2, "")
    assert "  + launch    qwen3-8b on gpu-1, NVIDIA L40S" in ran.out
    assert "  + launch    mistral-small-24b on gpu-1, NVIDIA L40S" in ran.out
    assert "Cannot be placed" not in ran.out
    assert ran.out.splitlines()[-1] == "Plan: 3 to launch. 93.8 MiB to fetch."


# -- how a plan is told

PLACED = PlacedRow(
    node="box", profile="cpu", engine="cpu", level="full", devices=(), host=2 * GIB, device=0,
    footprint_source="estimate", fetch=(), why="in the catalog",
)  # fmt: skip
GONE = GoneRow(
    replica="r1", node="box", profile="cpu", level="full", host=GIB, device=0, reason="spec changed", detail=""
)


def text(**fields: Any) -> str:
    return "\n".join(told(PlanOutput(valid=True, revision="a" * 40, changes=True, **fields), 1000.0))


def action(kind: str, *, starts: PlacedRow | None = None, stops: GoneRow | None = None) -> ActionRow:
    return ActionRow(kind=kind, model="m", number=1, starts=starts, stops=stops)


def test_a_replacement_tells_what_goes_and_what_comes() -> None:
    shown = text(actions=(action("replace", starts=PLACED, stops=GONE),))
    assert "  ~ replace   m: r1 on box (profile cpu): spec changed" in shown
    assert "               then on box: profile cpu (engine cpu)" in shown
    assert "               takes 2.0 GiB of host memory (estimate)" in shown
    assert shown.endswith("Plan: 1 to replace.")


@pytest.mark.parametrize(
    ("kind", "sign", "summary"),
    [("stop", "-", "1 to stop"), ("evict", "!", "1 to evict"), ("drain", ">", "1 to drain")],
)
def test_what_only_goes_tells_what_it_frees(kind: str, sign: str, summary: str) -> None:
    gone = replace(GONE, reason="memory pressure", detail="for qwen", device=9 * GIB, level="degraded")
    shown = text(actions=(action(kind, stops=gone),))
    assert f"  {sign} {kind:<9} m: r1 on box (profile cpu, level degraded): memory pressure, for qwen" in shown
    assert "               frees 9.0 GiB of device memory and 1.0 GiB of host memory" in shown
    assert shown.endswith(f"Plan: {summary}.")


def test_the_first_line_of_an_action_has_its_colour_and_no_other_line() -> None:
    lines = list(told(PlanOutput(valid=True, actions=(action("launch", starts=PLACED), action("stop", stops=GONE)))))
    assert [style_of(line) for line in lines if style_of(line)] == ["green", "red"]
    assert style_of("  + launch    m on box: profile cpu (engine cpu)") == "green"


def test_files_of_unknown_size_and_a_smaller_level_are_told() -> None:
    starts = replace(PLACED, level="minimal", fetch=(FetchRow(source="pypi://a==1/a", size=None, local=False),), why="")
    shown = text(actions=(action("launch", starts=starts),), fetch_unknown=1)
    assert "  + launch    m on box: profile cpu (engine cpu, level minimal)" in shown
    assert "fetches pypi://a==1/a (a size nobody knows yet)" in shown
    assert shown.endswith("Plan: 1 to launch. 0 B and 1 file of unknown size to fetch.")


def test_routes_that_change_are_told_and_restart_nothing() -> None:
    shown = text(routes=(RouteRow(model="m", changes=("aliases: + fast", "profile p weight: 1.0 -> 2.0")),))
    assert "  = route     m: aliases: + fast; profile p weight: 1.0 -> 2.0; nothing restarts" in shown
    assert shown.endswith("Plan: 1 routed anew.")


def test_what_could_be_freed_is_told_where_it_is_more_than_there_is() -> None:
    short = RejectionRow(node="a", reason="host memory", need=9 * GIB, have=6 * GIB, freeable=8 * GIB, detail="")
    other = RejectionRow(node="b", reason="cordoned", need=0, have=0, freeable=0, detail="by ann", profile="cpu")
    refused = RefusedRow(model="m", summary="0/2 nodes: ...", rejections=(short, other))
    end = EndRow(model="m", state="ready", reason="", wanted=3, ready=2, why="")
    shown = text(refused=(refused,), models=(end,))
    assert "  m (2 of 3 placed): 0/2 nodes: ..." in shown
    assert "    a: host memory: needs 9.0 GiB, has 6.0 GiB, 8.0 GiB if all that may give way went" in shown
    assert "    b (profile cpu): cordoned (by ann)" in shown
    assert shown.endswith("Nothing to do. 1 model cannot be placed.")


def test_what_waits_tells_until_when() -> None:
    shown = text(waiting=(WaitingRow(model="m", why="restarting after a back-off"),), due=1060.0)
    assert "Waiting:\n  m: restarting after a back-off\n  looked at again in 1m" in shown


def test_long_lists_are_cut_with_a_count() -> None:
    nothing = RoomRow(capacity=GIB, budget=None, before=0, after=MIB)
    nodes = tuple(
        NodeEndRow(
            node=f"n{n}", pool="default", cordoned=False, replicas_before=0, replicas_after=1, memory=nothing,
            devices=(), disk_before=GIB, disk_after=GIB,
        )
        for n in range(30)
    )  # fmt: skip
    shown = text(nodes=nodes)
    assert "  n19: replicas 0 -> 1; memory 0 B -> 1.0 MiB of 1.0 GiB; disk free 1.0 GiB" in shown
    assert "n20" not in shown
    assert "  and 10 more nodes; -o json has all" in shown


def test_a_stopped_system_and_one_that_does_not_settle_say_so() -> None:
    assert "stopped by the operator (`llmgw start` serves again)." in text(stopped=True)
    assert "It did not come to rest within 50 passes" in text(settled=False, passes=50)
    assert "2 replicas on the way already." in text(under_way=2)


def test_the_heading_tells_what_is_in_force() -> None:
    assert text().startswith(f"Plan for {'a' * 12}; no catalog is in force yet")
    assert text(in_force="a" * 40).startswith(f"Plan for {'a' * 12}, which is in force")
    assert text(in_force="b" * 40).startswith(f"Plan for {'a' * 12}; in force is {'b' * 12}")


def end(model: str, **fields: Any) -> EndRow:
    row: dict[str, Any] = {"state": "ready", "reason": "", "wanted": 1, "ready": 1, "why": "in the catalog", **fields}
    return EndRow(model=model, **row)


def test_what_stays_otherwise_than_the_catalog_says_is_named_though_there_is_nothing_to_do() -> None:
    def last(*rows: EndRow) -> str:
        return list(told(PlanOutput(valid=True, revision="b" * 40, in_force="b" * 40, models=rows)))[-1]

    assert last(end("a")) == "Nothing to do: what runs is what the catalog wants."
    failed, old = end("b", state="failed", ready=0), end("c", outdated=1, suspended=True)
    assert last(end("a"), failed, old) == (
        "Nothing to do, though not all is as the catalog wants it: b is in quarantine, c runs an older version while "
        "it is suspended."
    )


def test_a_model_whose_rollout_failed_says_by_which_revision_it_runs_and_what_would_change_that() -> None:
    row = end("m", rollout_failed=f"{'b' * 12} failed: out of memory (failed 3 times in a row)", spec_revision="a" * 40)
    lines = list(told(PlanOutput(valid=True, revision="b" * 40, in_force="b" * 40, models=(end("n"), row))))
    at = lines.index("As before, since a rollout failed:")
    assert lines[at + 1 : at + 3] == [
        "  m: bbbbbbbbbbbb failed: out of memory (failed 3 times in a row)",
        "    it is launched as aaaaaaaaaaaa has it, until a revision launches it otherwise, or `llmgw reset m` tries "
        "the failed one again",
    ]
    assert lines[-1] == "Nothing to do, though not all is as the catalog wants it: m is as aaaaaaaaaaaa has it."


def test_a_companion_that_runs_is_not_called_not_served() -> None:
    rows = (end("comp", wanted=0, drafts_for=("big",)), end("off", wanted=0, ready=0, state="inactive", reason="idle"))
    text = "\n".join(told(PlanOutput(valid=True, revision="b" * 40, in_force="b" * 40, models=rows)))
    assert "Not served then:\n  off: idle\n" in text
    assert "comp" not in text
