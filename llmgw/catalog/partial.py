"""The schema of Templates, and of Model documents that extend one: the Model's, with nothing required that a document
may have from elsewhere.

`python -m llmgw.catalog.partial` writes the committed file anew; a test fails when it differs.
"""

import copy
import json
from collections.abc import Mapping
from typing import Any, Final

FILE: Final = "template.v1.schema.json"

_MERGED: Final = ("profile", "weights", "draft")
"""What of a Model is merged by key, besides the whole. A level is of parts of a profile."""
_ITSELF: Final = frozenset({"apiVersion", "kind", "name", "extends"})
NOT_SHARED: Final = ("aliases", "variants")
"""What names one model alone."""


def template_schema(model: Mapping[str, Any], *, nullable: bool = True) -> dict[str, Any]:
    """From the Model's schema. `#/$defs/partial` is what a Model document that extends a Template looks like.
    `nullable`: with the `null` that takes away what a template says; else it has been taken out."""
    whole: dict[str, Any] = copy.deepcopy(dict(model))
    definitions = whole.pop("$defs")
    properties = whole["properties"]
    definitions["profile"]["required"] = ["name"]
    del definitions["weights"]["required"]
    definitions["weights"]["minProperties"] = 1
    del definitions["draft"]["dependentRequired"]
    if nullable:
        for part in (whole, *(definitions[name] for name in _MERGED if name in definitions)):
            _allow_null(part)
    partial = {
        "description": "Any part of a Model document.",
        "type": "object",
        "additionalProperties": False,
        "required": ["apiVersion", "kind", "name"],
        "properties": properties,
    }
    return {
        "$schema": model["$schema"],
        "title": "llmgw Template",
        "description": "What many models have in common. A Model document with `extends: NAME` is merged over it.",
        "type": "object",
        "additionalProperties": False,
        "required": partial["required"],
        "properties": {
            **{key: value if value.get("enum") == [] else _same(key) for key, value in properties.items()},
            "kind": {"description": "What this document describes.", "const": "Template"},
            "name": {
                "$ref": "#/$defs/name",
                "description": "What `extends` calls it. Names of templates are apart from those of models.",
                "examples": ["llama-small"],
            },
            **{key: _not_shared(key) for key in NOT_SHARED if key in properties},
        },
        "$defs": {"partial": partial, **definitions},
    }


def _allow_null(schema: Any) -> None:
    """Each key of a map that is merged may be null, but those that say what it is."""
    for key, value in schema.get("properties", {}).items():
        if key in _ITSELF or not isinstance(value, dict):
            continue
        _allow_null(value)
        or_null(value)
    if isinstance(inner := schema.get("additionalProperties"), dict):
        or_null(inner)


def or_null(value: dict[str, Any]) -> None:
    """`null` is valid, too. What nothing is valid for stays so."""
    if "type" in value:
        types = [value["type"]] if isinstance(value["type"], str) else value["type"]
        value["type"] = [*types, *({"null"} - set(types))]
        if "enum" in value:
            value["enum"] = [*value["enum"], None]
    elif value.get("enum"):
        value["enum"] = [*value["enum"], None]
    elif "$ref" in value:
        value["anyOf"] = [{"$ref": value.pop("$ref")}, {"type": "null"}]
    elif "anyOf" in value:
        value["anyOf"] = [*value["anyOf"], {"type": "null"}]


def _same(key: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/partial/properties/{key}"}


def _not_shared(key: str) -> dict[str, Any]:
    """Nothing is of an empty enum, as of `"not": {}`; but of that editors tell in words of their own."""
    words = f"no `{key}` in a template: each is of one model"
    return {
        "description": "No part of a template: it names one model.",
        "enum": [],
        "errorMessage": words,
        "doNotSuggest": True,
        "x-expects": words,
    }


def text_of(schema: Mapping[str, Any]) -> str:
    """The committed form."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    from llmgw.catalog.schemas import load_schema, schema_directory

    (schema_directory() / FILE).write_text(text_of(template_schema(load_schema("model"))), "utf-8")
