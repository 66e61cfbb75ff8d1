"""The committed schemas cannot drift from the values of `catalog.spec`."""

import ast
import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

import llmgw
from llmgw.catalog import spec
from llmgw.catalog.schemas import load_schema, schema_directory, to_bytes, to_seconds
from llmgw.ids import ALIAS_PATTERN, NAME_PATTERN
from llmgw.units import BYTES_PATTERN, SECONDS_PATTERN

KINDS = ("model", "cluster", "template")
MODEL, CLUSTER = load_schema("model"), load_schema("cluster")


def resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    target: Any = root
    for step in reference.removeprefix("#/").split("/"):
        target = target[step]
    return {**resolved(target, root), **schema}


def accepted(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The properties that values have: those that wait, what is resolved while loading and the document's head left
    out."""
    properties = schema["properties"]
    return {
        key: value
        for key, value in properties.items()
        if value.get("x-not-supported-yet") is not True
        and value.get("x-resolved-when-loaded") is not True
        and not ("apiVersion" in properties and key in ("apiVersion", "kind"))
    }


SHAPES = [
    (MODEL, MODEL, spec.ModelSpec),
    (MODEL["$defs"]["profile"], MODEL, spec.ProfileSpec),
    (MODEL["$defs"]["weights"], MODEL, spec.WeightsSpec),
    (MODEL["properties"]["external"], MODEL, spec.ExternalSpec),
    (MODEL["properties"]["variants"]["items"], MODEL, spec.VariantSpec),
    (MODEL["properties"]["scaling"], MODEL, spec.ScalingSpec),
    (MODEL["$defs"]["window"], MODEL, spec.Window),
    (MODEL["properties"]["placement"], MODEL, spec.PlacementSpec),
    (MODEL["properties"]["affinity"], MODEL, spec.AffinitySpec),
    (MODEL["$defs"]["env_value"], MODEL, spec.SecretRef),
    (CLUSTER, CLUSTER, spec.ClusterSpec),
    (CLUSTER["properties"]["gateway"], CLUSTER, spec.GatewaySettings),
    (CLUSTER["properties"]["defaults"], CLUSTER, spec.Defaults),
    (CLUSTER["properties"]["scaling"], CLUSTER, spec.ScalingSettings),
    (CLUSTER["properties"]["supervision"], CLUSTER, spec.SupervisionSettings),
    (CLUSTER["properties"]["recovery"], CLUSTER, spec.RecoverySettings),
    (CLUSTER["properties"]["weights"], CLUSTER, spec.WeightsSettings),
    (CLUSTER["properties"]["notify"]["items"], CLUSTER, spec.NotifySpec),
    (CLUSTER["$defs"]["secret"], CLUSTER, spec.SecretRef),
    (CLUSTER["$defs"]["node"], CLUSTER, spec.NodeSpec),
    (CLUSTER["$defs"]["node"]["properties"]["budget"], CLUSTER, spec.BudgetSpec),
    (CLUSTER["$defs"]["node"]["properties"]["reserve"], CLUSTER, spec.ReserveSpec),
]


WRITTEN_AS = {
    (spec.ProfileSpec, "draft_model"): None,  # as `draft.model`
    (spec.ScalingSpec, "windows"): "schedule",
    (spec.Window, "start"): "from",
    (spec.Window, "end"): "to",
    (spec.WeightsSpec, "written"): None,  # what becomes of `source`
    (spec.WeightsSpec, "found"): None,  # what the source tells
    (spec.WeightsSpec, "untold"): None,
    (spec.WeightsSpec, "endpoint"): None,  # as `weights.hub_endpoint` of the Cluster document
}
"""Where a document calls a field otherwise."""

WRITTEN_INTO = {spec.WeightsSpec: {"allow", "ignore"}}
"""What a document says beside a field, and goes into it: patterns, into the source."""

WORKED_OUT = {
    (spec.ScalingSpec, "min"), (spec.ScalingSpec, "max"), (spec.Window, "min"),
    (spec.Window, "days"), (spec.ModelSpec, "profiles"),
}  # fmt: skip
"""What is left out depends on the rest of the document, so that the schema names no default, or another."""


def key_of(kind: type, name: str) -> str | None:
    return WRITTEN_AS.get((kind, name), name)


@pytest.mark.parametrize(("schema", "root", "kind"), SHAPES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_schema_accepts_exactly_the_fields_of_its_value(
    schema: Mapping[str, Any], root: Mapping[str, Any], kind: type
) -> None:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    keys = {key for name in fields if (key := key_of(kind, name)) is not None}
    assert set(accepted(schema)) == keys | WRITTEN_INTO.get(kind, set())
    assert schema["additionalProperties"] is False
    needed = {
        key_of(kind, name)
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if (kind, name) not in WORKED_OUT
    }
    head = {"apiVersion", "kind"} if "apiVersion" in schema["properties"] else set()
    assert set(schema.get("required", [])) - head == needed


@pytest.mark.parametrize(("schema", "root", "kind"), SHAPES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_schema_names_the_default_that_its_value_has(
    schema: Mapping[str, Any], root: Mapping[str, Any], kind: type
) -> None:
    for field in dataclasses.fields(kind):
        key = key_of(kind, field.name)
        if key is None or (kind, field.name) in WORKED_OUT:
            continue
        prop = resolved(schema["properties"][key], root)
        default = field.default_factory() if callable(field.default_factory) else field.default
        if default is dataclasses.MISSING or default is None:
            assert "default" not in prop, field.name
        elif dataclasses.is_dataclass(default):
            assert prop.get("default", {}) == {}, field.name
        else:
            convert = {"size": to_bytes, "duration": to_seconds}.get(
                prop.get("$ref", "").rpartition("/")[2], lambda x: x
            )
            written = convert(prop["default"])
            assert (tuple(written) if isinstance(written, list) else written) == default, field.name


def test_a_levels_block_may_give_any_part_of_a_profile_but_its_name_and_its_share_of_traffic() -> None:
    level = MODEL["$defs"]["level"]
    others = {"name", "degraded", "minimal", "weight", "tier", "max_requests"}
    assert set(level["properties"]) == set(accepted(MODEL["$defs"]["profile"])) - others
    assert level["additionalProperties"] is False
    for key, part in level["properties"].items():
        assert resolved(part, MODEL) == resolved(MODEL["$defs"]["profile"]["properties"][key], MODEL) | part


def every_schema(schema: Any, path: str = "$") -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(schema, dict):
        yield path, schema
        for key, value in schema.items():
            if key in ("properties", "$defs"):
                for name, inner in value.items():
                    yield from every_schema(inner, f"{path}.{name}")
            elif key in ("items", "additionalProperties"):
                yield from every_schema(value, f"{path}.{key}")


@pytest.mark.parametrize("name", ["catalog", *KINDS])
def test_a_schema_is_valid_and_every_part_is_described(name: str) -> None:
    schema = load_schema(name)
    Draft202012Validator.check_schema(schema)
    for path, part in every_schema(schema):
        if "$ref" not in part:
            assert part.get("description") or path == "$", path


@pytest.mark.parametrize("name", KINDS)
def test_what_people_write_has_an_example_that_is_valid(name: str) -> None:
    root = load_schema(name)
    for path, part in every_schema(root):
        whole = resolved(part, root)
        if (
            part is root
            or "const" in part
            or "properties" in part
            or part.get("enum") == []
            or path.startswith("$.env_value")
        ):
            continue
        examples = [*whole.get("examples", []), *([whole["default"]] if "default" in whole else [])]
        assert examples or {"$ref", "anyOf"} & part.keys() or path.endswith(("name", "node", "profiles")), path
        validator = Draft202012Validator({**whole, "$defs": root["$defs"]})
        for example in examples:
            assert validator.is_valid(example), (path, example)


def test_patterns_are_those_of_the_code() -> None:
    for root in (MODEL, CLUSTER):
        assert root["$defs"]["name"]["pattern"] == NAME_PATTERN
        assert root["$defs"]["size"]["pattern"] == BYTES_PATTERN
        assert root["$defs"]["duration"]["pattern"] == SECONDS_PATTERN
    assert MODEL["properties"]["aliases"]["items"]["pattern"] == ALIAS_PATTERN


def test_editors_find_each_kind_through_the_catalog_schema() -> None:
    schemas = {f"{name}.v1.schema.json": load_schema(name) for name in ("catalog", *KINDS)}
    registry: Registry[Any] = Registry().with_resources(
        [(name, Resource.from_contents(schema)) for name, schema in schemas.items()]
    )
    validator = Draft202012Validator(schemas["catalog.v1.schema.json"], registry=registry)
    assert validator.is_valid({"apiVersion": "llmgw/v1", "kind": "Cluster"})
    assert not validator.is_valid({"apiVersion": "llmgw/v1", "kind": "Cluster", "profiles": []})
    assert not validator.is_valid({"apiVersion": "llmgw/v1", "kind": "Model", "name": "a"})
    external = {"url": "https://api.example.org/v1"}
    assert validator.is_valid({"apiVersion": "llmgw/v1", "kind": "Model", "name": "a", "external": external})
    assert not validator.is_valid({"apiVersion": "llmgw/v1", "kind": "Other"})
    part = {"apiVersion": "llmgw/v1", "name": "a", "profiles": [{"name": "b", "context": 1}]}
    assert validator.is_valid({**part, "kind": "Template"})
    assert validator.is_valid({**part, "kind": "Model", "extends": "c"})
    assert not validator.is_valid({**part, "kind": "Model"})
    assert not validator.is_valid({**part, "kind": "Model", "extends": "c", "nmae": "a"})


def test_the_schemas_are_found_and_are_json() -> None:
    directory = schema_directory()
    assert isinstance(directory, Path)
    for name in ("catalog", *KINDS):
        assert json.loads((directory / f"{name}.v1.schema.json").read_text())["title"]


def test_every_value_that_a_catalog_may_set_is_read_by_something() -> None:
    """A key that is accepted works: each field is used outside the catalog package, which only makes the values."""
    root = Path(llmgw.__file__).parent
    files = [*root.rglob("*.py"), *(root.parent / "plugins").rglob("*.py")]
    used = {
        node.attr
        for file in files
        if (root / "catalog") not in file.parents and "testing" not in file.parts
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute)
    }
    kinds = (
        spec.ModelSpec, spec.ProfileSpec, spec.WeightsSpec, spec.SecretRef, spec.ClusterSpec, spec.GatewaySettings,
        spec.Defaults, spec.RecoverySettings, spec.WeightsSettings, spec.NodeSpec, spec.BudgetSpec, spec.ReserveSpec,
        spec.ScalingSpec, spec.ScalingSettings, spec.PlacementSpec, spec.NotifySpec,
    )  # fmt: skip
    fields = {f"{kind.__name__}.{field.name}" for kind in kinds for field in dataclasses.fields(kind)}
    # `roles` reads `draft` and `files` for all; windows are read through catalog.windows; the hub goes into each file.
    unused = {name for name in fields if name.partition(".")[2] not in used}
    assert unused <= {"ProfileSpec.draft", "ProfileSpec.files", "WeightsSettings.hub_endpoint"}
