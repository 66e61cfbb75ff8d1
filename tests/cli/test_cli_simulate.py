"""`llmgw simulate`: what it prints, what it writes, and every problem of a scenario at once."""

import json
from pathlib import Path

import msgspec
import pytest

from llmgw.admin.schemas import file_name
from llmgw.admin.simulations import SimulateOutput
from llmgw.catalog.schemas import load_schema
from llmgw.cli.main import main
from llmgw.cli.simulated import POINTS, thinned

SMALL = """\
apiVersion: llmgw/v1
kind: Scenario
description: One model, now and then.
duration: 2h
fleet: [{name: box, memory: 16GiB, engines: [llamacpp]}]
traffic: [{model: chat, per_hour: 30, length: 5s}]
faults: [{at: 1h, kind: crash, model: small}]
---
apiVersion: llmgw/v1
kind: Model
name: small
aliases: [chat]
profiles: [{name: cpu, engine: llamacpp, weights: {source: /models/small.gguf}, memory: 4GiB}]
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *args])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_it_tells_what_became_of_requests_and_memory(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(scenario)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "One model, now and then."
    assert lines[1].startswith("small: 2h, seed 0, ")
    table = [line.split() for line in lines[2:]]
    assert table[0][:4] == ["MODEL", "REQUESTS", "SERVED", "HELD"]
    assert table[1][0] == "small"
    assert int(table[1][1]) > 30
    assert table[1][-2:] == ["1", "crash"]
    assert table[-1][:2] == ["box", "host"]


def test_json_is_of_its_schema_and_the_same_for_the_same_seed(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for seed in ("1", "1", "2"):
        assert run(str(scenario), "--json", "--seed", seed) == 0
        answers.append(msgspec.json.decode(capsys.readouterr().out, type=SimulateOutput, strict=True))
    first, again, other = answers
    assert first == again
    assert first.models != other.models
    (model,) = first.models
    assert model.arrived == model.served + sum(model.refused.values()) + sum(model.failed.values()) + model.waiting
    assert model.loads == 2
    (memory,) = first.memory
    assert memory.points[0] == (0.1 + 0.2, 4 * 2**30) or memory.points[0][1] in (0, 4 * 2**30)
    assert (Path(__file__).parents[2] / "schemas" / "output" / file_name("simulate")).is_file()


def test_the_chart_is_an_svg_with_a_line_for_each_memory(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chart = tmp_path / "memory.svg"
    assert run(str(scenario), "--chart", str(chart)) == 0
    text = chart.read_text()
    assert text.startswith("<svg")
    assert "box host" in text
    assert str(chart) in capsys.readouterr().err


@pytest.mark.parametrize("name", ["memory.png", "memory", "memory.svg.gz"])
def test_a_chart_of_another_kind_is_refused_before_anything_is_played(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert run(str(scenario), "--chart", str(tmp_path / name)) == 64
    told = capsys.readouterr()
    assert told.out == ""
    assert "charts are SVG: give it a name that ends in .svg" in told.err
    assert not (tmp_path / name).exists()


def test_events_are_the_last_ones_with_their_times(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(scenario), "--events", "3") == 0
    first, second, third = capsys.readouterr().out.splitlines()[:3]
    assert first.startswith("0d 01:00:0")
    assert "launch small" in first or "failed" in first or "launch small" in second
    assert third.endswith(": ready")


FAULTY = """\
apiVersion: llmgw/v1
kind: Scenario
duration: 1h
fleet: [{name: box, memory: 16GiB, disk: -1}]
engines: [{model: smal}]
traffic: [{model: small, per_hour: 0, length: 5s}, {model: small, per_hour: 1, length: 5s, from: "08:00", to: "08:00"}]
faults: [{at: 2h, kind: node_down}, {at: 1m, kind: foreign, node: box}]
start: "2026-02-30 00:00"
---
apiVersion: llmgw/v1
kind: Model
name: small
profiles: [{name: cpu, engine: llamacp, weights: {source: /models/small.gguf}, memory: 4GiB}]
"""


def test_every_problem_is_told_at_once_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(FAULTY)
    assert run(str(path)) == 3
    out = capsys.readouterr().out.replace(f"{path}:", "")
    for told in (
        "4:42: $.fleet[0].disk: must be at least 0",
        "6:36: $.traffic[0].per_hour: must be more than 0",
        "the same as `from`: leave both out for all of the day",
        "7:15: $.faults[0].at: not before the scenario's end: see `duration`",
        "$.faults[0]: a fault of kind node_down needs 'node'",
        "$.faults[1]: a fault of kind foreign needs 'size'",
        "$.start: there is no such date or time",
        "13:32: $.profiles[0].engine: no engine 'llamacp'; did you mean 'llamacpp'?",
    ):
        assert told in out, told


def test_names_are_held_against_the_catalog_and_the_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.yaml"
    text = SMALL.replace("model: small}]", "model: smal}, {at: 1m, kind: silent, node: bx}]").replace("chat,", "chet,")
    path.write_text(text)
    assert run(str(path)) == 3
    out = capsys.readouterr().out
    assert "$.traffic[0].model: no model 'chet'; did you mean 'chat'?" in out
    assert "$.faults[0].model: no model 'smal'; did you mean 'small'?" in out
    assert "$.faults[1].node: no node 'bx'; did you mean 'box'?" in out


def test_catalogs_and_fleets_lie_beside_the_scenario(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, _, catalog = SMALL.partition("---\n")
    (tmp_path / "catalog").mkdir()
    (tmp_path / "catalog" / "models.yaml").write_text(catalog)
    fleet = "apiVersion: llmgw/v1\nkind: Fleet\nnodes: [{name: box, memory: 16GiB, engines: [llamacpp]}]\n"
    (tmp_path / "fleet.yaml").write_text(fleet)
    lines = [line for line in head.splitlines() if not line.startswith("fleet")]
    path = tmp_path / "s.yaml"
    path.write_text("\n".join([*lines, "catalog: catalog", "fleet: fleet.yaml", ""]))
    assert run(str(path)) == 0
    (tmp_path / "catalog" / "models.yaml").write_text(catalog.replace("engine: llamacpp", "engine: llama"))
    (tmp_path / "fleet.yaml").write_text(fleet.replace("16GiB", "much"))
    assert run(str(path)) == 3
    out = capsys.readouterr().out
    assert "catalog/models.yaml:" in out
    assert "fleet.yaml:3:" in out


def test_a_scenario_without_a_catalog_or_with_two_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head, _, catalog = SMALL.partition("---\n")
    path = tmp_path / "s.yaml"
    path.write_text(head)
    assert run(str(path)) == 3
    assert "no catalog: name its directory in `catalog`" in capsys.readouterr().out
    (tmp_path / "catalog").mkdir()
    (tmp_path / "catalog" / "models.yaml").write_text(catalog)
    path.write_text(head + "catalog: catalog\n---\n" + catalog)
    assert run(str(path)) == 3
    assert "documents follow too" in capsys.readouterr().out


def test_a_file_that_is_not_there_is_an_error_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(tmp_path / "none.yaml")) == 1
    assert "cannot read" in capsys.readouterr().err


def test_the_scenarios_schema_has_a_description_for_every_part_and_valid_examples() -> None:
    from jsonschema import Draft202012Validator

    schema = load_schema("scenario")
    Draft202012Validator.check_schema(schema)

    def parts(part: dict[str, object]) -> None:
        properties = part.get("properties", {})
        assert isinstance(properties, dict)
        for key, one in properties.items():
            assert one.get("description"), key
            for example in [*one.get("examples", []), *([one["default"]] if "default" in one else [])]:
                Draft202012Validator({"$defs": schema["$defs"], **one}).validate(example)

    for part in (schema, *schema["$defs"].values()):
        parts(part)


def test_long_curves_are_thinned_and_keep_their_peaks() -> None:
    series = [(float(at), float(at % 7)) for at in range(5000)]
    series[2500] = (2500.0, 99.0)
    points = list(thinned(series, 5000))
    assert len(points) == POINTS
    assert max(taken for _, taken in points) == 99
    assert json.dumps(points) == json.dumps(sorted(points))
