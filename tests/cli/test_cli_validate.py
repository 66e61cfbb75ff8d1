"""`llmgw validate`: what it takes, and the forms in which it answers."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from llmgw.catalog.rules import EngineRules
from llmgw.cli.checking import as_output, check, described_engines, targets
from llmgw.cli.main import main
from llmgw.cli.reports import Report, github_lines, sarif
from llmgw.errors import CatalogUnreadable, Problem, TerminalError

BAD = """\
apiVersion: llmgw/v1
kind: Model
name: Not a name
profiles:
  - {name: main, engine: nonesuch, env: {API_TOKEN: [hunter2]}}
"""
PART = """\
apiVersion: llmgw/v1
kind: Model
name: part
fallback: elsewhere
profiles:
  - {name: main, engine: command, memory: 1GiB, options: {command: [x, "{port}"]}}
"""
DOUBTFUL = PART.replace("fallback: elsewhere\n", "scaling: {min: 0}\n")

# What every reader of SARIF 2.1.0 relies on, of its published schema (sections 3.13, 3.14, 3.27 to 3.30).
SARIF_ESSENTIALS: dict[str, Any] = {
    "type": "object",
    "required": ["version", "runs"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["tool"],
                "properties": {
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {"driver": {"type": "object", "required": ["name"]}},
                    },
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "results": {"type": "array", "items": {"$ref": "#/$defs/result"}},
                },
            },
        },
    },
    "$defs": {
        "result": {
            "type": "object",
            "required": ["message"],
            "additionalProperties": False,
            "properties": {
                "ruleId": {"type": "string"},
                "ruleIndex": {"type": "integer", "minimum": -1},
                "level": {"enum": ["none", "note", "warning", "error"]},
                "message": {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}},
                "locations": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "physicalLocation": {
                                "type": "object",
                                "anyOf": [{"required": ["address"]}, {"required": ["artifactLocation"]}],
                                "properties": {
                                    "artifactLocation": {
                                        "properties": {"uri": {"type": "string", "pattern": "^[!-~]+$"}}
                                    },
                                    "region": {
                                        "properties": {
                                            "startLine": {"type": "integer", "minimum": 1},
                                            "startColumn": {"type": "integer", "minimum": 1},
                                        }
                                    },
                                },
                            }
                        },
                    },
                },
            },
        }
    },
}  # fmt: skip

HOOKS = Path(__file__).parents[2] / ".pre-commit-hooks.yaml"
SCHEMAS = Path(__file__).parents[2] / "schemas" / "output"

Ran = tuple[int, str, str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def validate(*args: object) -> Ran:
        with pytest.raises(SystemExit) as ended:
            main(["validate", *map(str, args)])
        out = capsys.readouterr()
        return int(str(ended.value.code)), out.out, out.err

    return validate


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in {"bad": BAD, "part": PART, "doubtful": DOUBTFUL}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.yaml").write_text(text)
    return tmp_path


def test_a_problem_is_shown_at_its_line_and_what_may_be_secret_is_not(here: Path, run: Callable[..., Ran]) -> None:
    code, out, err = run("bad")
    assert code == 3
    assert "     3 | name: Not a name\n       |       ^\n" in out
    assert "hunter2" not in out + err


def test_without_a_path_the_working_directory_is_checked(
    here: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here / "bad")
    assert run()[0] == 3


def test_warnings_make_it_invalid_where_that_is_asked_for(here: Path, run: Callable[..., Ran]) -> None:
    code, out, _ = run("doubtful")
    assert (code, "(warning)" in out) == (0, True)
    assert run("--strict", "doubtful")[0] == 3
    assert run("--strict", "doubtful", "-o", "github")[1].startswith("::warning file=doubtful/m.yaml,line=4,col=16,")


def test_several_catalogs_are_judged_each_for_itself(here: Path, run: Callable[..., Ran]) -> None:
    code, out, err = run("bad", "doubtful", "part")
    assert code == 3
    assert "bad/m.yaml:3:7: $.name" in out
    assert "doubtful: ok: 1 model" in out
    assert "part/m.yaml:4:11: $.fallback: no model 'elsewhere'" in out
    assert "bad: 3 problems" in err
    answer = json.loads(run("bad", "doubtful", "--json")[1])
    assert (answer["valid"], answer["models"], answer["source"]) == (False, 1, "bad, doubtful")
    assert {row["file"] for row in answer["problems"]} == {"bad/m.yaml"}


def test_files_are_parts_of_a_catalog_whose_other_names_are_not_missed(here: Path, run: Callable[..., Ran]) -> None:
    assert run("part/m.yaml")[0] == 0
    assert run("part")[0] == 3
    code, out, _ = run("bad/m.yaml", "part/m.yaml")
    assert code == 3
    assert "bad/m.yaml:3:7:" in out


def test_files_are_named_as_they_are_found_from_the_working_directory(
    here: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "part" / "twin.yaml").write_text(PART)
    assert "bad/m.yaml:3:7: $.name" in run("bad")[1]
    twice = run("part")[1]
    assert re.search(r"^part/twin\.yaml:3:7: .* part/m\.yaml:3:7", twice, re.MULTILINE), "the other place too"
    assert {row["file"] for row in json.loads(run(here / "bad", "--json")[1])["problems"]} == {"bad/m.yaml"}
    monkeypatch.chdir(here / "doubtful")
    assert "../bad/m.yaml:3:7: " in run("../bad")[1]
    assert f"{here}/bad/m.yaml:3:7: " in run(here / "bad")[1], "as it was given"
    (here / "empty").mkdir()
    assert run("../empty")[1].startswith("../empty: no catalog files")


def test_a_working_directory_that_was_removed_is_no_hindrance(
    here: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "gone").mkdir()
    monkeypatch.chdir(here / "gone")
    (here / "gone").rmdir()
    assert f"{here}/bad/m.yaml:3:7: " in run(here / "bad")[1]


def test_code_hosts_are_told_where_files_are_in_the_repository(
    here: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(here))
    monkeypatch.chdir(here / "bad")
    assert run("-o", "github")[1].startswith("::error file=bad/m.yaml,line=3,col=7,")
    (ran,) = json.loads(run("../part", "-o", "sarif")[1])["runs"]
    assert ran["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": "part/m.yaml"}
    monkeypatch.setenv("GITHUB_WORKSPACE", str(here / "doubtful"))
    (ran,) = json.loads(run(here / "part", "-o", "sarif")[1])["runs"]
    assert ran["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == (
        (here / "part" / "m.yaml").as_uri()
    )


@pytest.mark.parametrize("command", [["plan"], ["diff", "part"], ["simulate"]])
def test_other_commands_name_files_in_the_same_way(
    here: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    play = "apiVersion: llmgw/v1\nkind: Scenario\nname: s\nduration: 1m\ncatalog: ../bad\nfleet: fleet.yaml\n"
    (here / "played").mkdir()
    (here / "played" / "s.yaml").write_text(play)
    (here / "fleet.yaml").write_text("nodes: []\n")
    arguments = {
        "plan": ["bad", "--fleet", "fleet.yaml"],
        "diff": ["bad"],
        "simulate": ["played/s.yaml"],
    }[command[0]]  # fmt: skip
    (here / "part" / "m.yaml").write_text(PART.replace("fallback: elsewhere\n", ""))
    with pytest.raises(SystemExit) as ended:
        main([*command, *arguments])
    out = capsys.readouterr().out
    assert (ended.value.code, "\nbad/m.yaml:3:7: $.name" in f"\n{out}") == (3, True), out


def test_annotations_for_github_escape_what_its_runner_would_read(here: Path) -> None:
    problem = Problem("a,b:c.yaml", 3, 7, "$.x", "50 % of\nit")
    (line,) = github_lines(Report(data={}, problems=(problem,)))
    assert line == "::error file=a%2Cb%3Ac.yaml,line=3,col=7,title=llmgw catalog::$.x: 50 %25 of%0Ait"


def test_sarif_is_what_its_readers_expect(here: Path, run: Callable[..., Ran]) -> None:
    code, out, _ = run("bad", "doubtful", "-o", "sarif")
    told = json.loads(out)
    Draft202012Validator(SARIF_ESSENTIALS).validate(told)
    (ran,) = told["runs"]
    results = ran["results"]
    assert code == 3
    assert [result["level"] for result in results] == ["error", "error", "error", "warning"]
    rules = [rule["id"] for rule in ran["tool"]["driver"]["rules"]]
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in results)
    assert results[0]["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "bad/m.yaml"},
        "region": {"startLine": 3, "startColumn": 7},
    }


def test_sarif_of_a_problem_with_a_whole_file_of_an_odd_name_is_valid_too(here: Path) -> None:
    report = Report(data={}, problems=(Problem("ä b.yaml", 0, 0, "$", "empty"),))
    Draft202012Validator(SARIF_ESSENTIALS).validate(sarif([report], "1"))


def test_an_engine_that_is_only_described_has_its_options_checked(here: Path, run: Callable[..., Ran]) -> None:
    schema = {"type": "object", "additionalProperties": False, "properties": {"threads": {"type": "integer"}}}
    (here / "schemas").mkdir()
    (here / "schemas" / "nonesuch.json").write_text(json.dumps(schema))
    (here / "bad" / "m.yaml").write_text(
        BAD.replace("Not a name", "fine").replace("env: {API_TOKEN: [hunter2]}", "options: {thread: 1}")
    )
    assert "no engine 'nonesuch'" in run("bad")[1]
    _, out, _ = run("bad", "--engine-schemas", "schemas")
    assert "unknown key 'thread'; did you mean 'threads'?" in out


@pytest.mark.parametrize("text", ["{", "[]", '{"type": 5}', "3"])
def test_a_described_engine_without_a_schema_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(TerminalError, match=r"x\.json"):
        described_engines(tmp_path)


def test_a_directory_of_schemas_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(TerminalError, match="no such directory"):
        described_engines(tmp_path / "none")


def test_what_is_not_there_is_unreadable(tmp_path: Path) -> None:
    (target,) = targets([tmp_path / "none"])
    with pytest.raises(CatalogUnreadable):
        check(target, {}, print, canonical=str)


def test_the_answer_over_one_catalog_has_its_revision(here: Path) -> None:
    rules = {"command": EngineRules(options_schema={"type": "object"}, roles=None)}
    (one,) = [check(target, rules, print, canonical=str) for target in targets([here / "doubtful"])]
    assert as_output([one]).revision == one.revision is not None
    assert as_output([one, one]).revision is None


TEMPLATED = """\
apiVersion: llmgw/v1
kind: Template
name: base
priority: 7
---
apiVersion: llmgw/v1
kind: Model
name: one
extends: base
profiles:
  - {name: main, engine: command, memory: 1GiB, env: {A: hunter2}, options: {command: [x, "{port}"]}}
"""


def test_a_model_is_shown_merged_with_where_each_value_was_written(here: Path, run: Callable[..., Ran]) -> None:
    (here / "part" / "m.yaml").write_text(TEMPLATED)
    code, out, _ = run("--show", "one", "part")
    assert (code, "hunter2" in out) == (0, False)
    assert re.search(r"^priority: 7 +# part/m\.yaml:4:11$", out, re.MULTILINE)
    code, out, _ = run("--show", "one", "part", "--json")
    answer = json.loads(out)
    Draft202012Validator(json.loads((SCHEMAS / "show.v1.schema.json").read_text())).validate(answer)
    assert (answer["document"]["priority"], answer["origins"]["$.priority"]) == (7, "part/m.yaml:4:11")


@pytest.mark.parametrize("name", ["uno", "one-warm"])
def test_a_model_is_shown_by_each_of_its_names(here: Path, run: Callable[..., Ran], name: str) -> None:
    more = "name: one\naliases: [uno]\nvariants: [{name: one-warm, set_params: {temperature: 1}}]\n"
    (here / "part" / "m.yaml").write_text(TEMPLATED.replace("name: one\n", more))
    code, out, _ = run("--show", name, "part", "--json")
    assert (code, json.loads(out)["name"]) == (0, "one")


def test_a_model_that_is_not_there_cannot_be_shown(here: Path, run: Callable[..., Ran]) -> None:
    (here / "part" / "m.yaml").write_text(TEMPLATED)
    code, _, err = run("--show", "on", "part")
    assert (code, "no model 'on' to show; did you mean 'one'?" in err) == (1, True)
    (here / "part" / "m.yaml").write_text(TEMPLATED.replace("extends: base", "extends: bse"))
    assert "the template that it extends is not there" in run("--show", "one", "part")[2]
    assert "no model 'base' to show: it is a Template" in run("--show", "base", "part")[2]
    (here / "part" / "m.yaml").write_text(TEMPLATED.replace("name: one", "name: 'one"))
    assert "no model 'one' to show: part/m.yaml cannot be read whole" in run("--show", "one", "part")[2]
    assert run("--show", "one", "part", "bad")[0] == 64
    assert run("--show", "one", "part", "-o", "sarif")[0] == 64


def test_the_pre_commit_hook_runs_a_command_that_there_is(here: Path, run: Callable[..., Ran]) -> None:
    (hook,) = YAML(typ="safe", pure=True).load(HOOKS)
    program, *arguments = hook["entry"].split()
    assert (program, arguments[0]) == ("llmgw", "validate")
    assert (hook["language"], hook["pass_filenames"]) == ("python", False)
    assert run(*arguments[1:], "bad")[0] == 3
