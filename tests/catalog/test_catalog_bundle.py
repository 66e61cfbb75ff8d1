"""`llmgw schema`: one object that an editor or another checker can work with."""

import json
from pathlib import Path
from typing import Any

import pytest
from catalog_texts import SCHEMAS, model
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML
from test_catalog_templates import BASE, WEIGHTS, extending

from llmgw.catalog.bundle import KINDS, bundled
from llmgw.engine.manager import find_engines

EXAMPLES = Path(__file__).parents[2] / "catalog-examples"
INSTALLED = {name: rules.options_schema for name, rules in find_engines().rules().items()}


def documents(text: str) -> list[Any]:
    """As an editor reads them: YAML 1.2."""
    return list(YAML(typ="safe", pure=True).load_all(text))


def references(schema: Any) -> set[str]:
    if isinstance(schema, list):
        return {each for inner in schema for each in references(inner)}
    if not isinstance(schema, dict):
        return set()
    own = {schema["$ref"]} if isinstance(schema.get("$ref"), str) else set()
    return own | {each for inner in schema.values() for each in references(inner)}


def resolves(schema: Any, reference: str) -> bool:
    at = schema
    for step in reference.removeprefix("#").split("/")[1:]:
        at = at.get(step) if isinstance(at, dict) else None
    return reference.startswith("#") and at is not None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engines", [None, INSTALLED], ids=["bare", "engines"])
def test_a_bundle_is_a_schema_that_refers_to_nothing_outside_itself(kind: str, engines: Any) -> None:
    schema = bundled(kind, engines)
    Draft202012Validator.check_schema(schema)
    assert {each for each in references(schema) if not resolves(schema, each)} == set()
    assert json.loads(json.dumps(schema)) == schema


@pytest.mark.parametrize("file", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda file: "/".join(file.parts[-2:]))
def test_the_bundle_with_engines_accepts_every_example(file: Path) -> None:
    kind = "fleet" if file.name == "fleet.yaml" else "catalog"
    validator = Draft202012Validator(bundled(kind, INSTALLED))
    for document in documents(file.read_text()):
        validator.validate(document)


def errors(text: str, engines: Any = SCHEMAS) -> list[list[str | int]]:
    validator = Draft202012Validator(bundled("catalog", engines))
    return [list(error.absolute_path) for each in documents(text) for error in validator.iter_errors(each)]


def test_options_are_judged_by_the_engine_of_the_profile() -> None:
    text = model(profile="options: {thread: 1}")
    assert errors(text, {}) == []
    assert errors(text) == [["profiles", 0, "options"]]
    assert errors(text.replace("engine: cpu", "engine: command")) != []
    assert errors(text.replace("engine: cpu", "engine: other")) == []


def test_a_macro_may_stand_where_a_text_is_to_match_a_pattern() -> None:
    engines = {"cpu": {"type": "object", "properties": {"a": {"type": "string", "pattern": "^x+$"}}}}
    assert errors(model(profile="options: {a: xx}"), engines) == []
    assert errors(model(profile='options: {a: "${X}"}'), engines) == []
    assert errors(model(profile="options: {a: y}"), engines) == [["profiles", 0, "options", "a"]]


def test_options_of_a_levels_engine_are_judged_too() -> None:
    text = model(profile="minimal: {engine: command, options: {comand: [x]}}")
    assert errors(text, {}) == []
    assert {tuple(path[:3]) for path in errors(text)} == {("profiles", 0, "minimal")}


def test_templates_and_what_extends_them_may_be_in_part() -> None:
    assert errors(BASE) == []
    assert errors(extending(rest=WEIGHTS)) == []
    assert errors(extending(rest=WEIGHTS).replace("extends: base\n", "")) != []
    assert errors(BASE.replace("threads: 2", "thread: 2")) == [["profiles", 1, "options"]]


def test_what_takes_away_a_value_of_a_template_is_valid() -> None:
    taken = "labels: {tier: null}\nprofiles:\n  - {name: gpu, engine: cpu, env: {A: null}, options: {threads: null}}\n"
    assert errors(extending(rest=taken)) == []
    assert errors(extending(rest=taken).replace("extends: base\n", "")) != []


def test_options_that_are_merged_over_others_need_not_be_whole() -> None:
    level = "options: {command: [x]}\ndegraded: {engine: command, options: {health: /x}}"
    assert errors(model(profile=level).replace("engine: cpu", "engine: command")) == []
    part = "profiles:\n  - {name: gpu, engine: command, options: {health: /x}}\n"
    assert errors(extending(rest=part)) == []
    assert errors(BASE.partition("profiles:")[0] + part) == []
    assert errors(extending(rest=part.replace("health", "heath"))) != []


def test_what_an_engines_schema_refers_to_within_itself_is_found() -> None:
    number = {"type": "integer"}
    properties = {"a": {"$ref": "#/$defs/b"}, "$ref": number}
    engines = {"cpu": {"type": "object", "properties": properties, "$defs": {"b": number}}}
    assert errors(model(profile="options: {a: 1}"), engines) == []
    assert errors(model(profile="options: {a: x}"), engines) == [["profiles", 0, "options", "a"]]
    assert errors(model(profile="options: {$ref: x}"), engines) == [["profiles", 0, "options", "$ref"]]
