"""The schema of Templates, and of Model documents that extend one: the Model's, with nothing required that a document
may have from elsewhere.

`python -m llmgw.catalog.partial` writes the committed file anew; a test fails when it differs.
"""

import copy
import json
from collections.abc import Mapping
from typing import Any, Final

from llmgw.catalog.schemas import load_schema, schema_directory

FILE: Final = "template.v1.schema.json"

_NOT_SHARED: Final = ("aliases", "variants")
"""What names one model alone."""


def template_schema(model: Mapping[str, Any]) -> dict[str, Any]:
    """From the Model's schema. `#/$defs/partial` is what a Model document that extends a Template looks like."""
    whole: dict[str, Any] = copy.deepcopy(dict(model))
    definitions = whole.pop("$defs")
    properties = whole["properties"]
    properties["kind"] = {
        "description": "What this document describes.",
        "enum": ["Model", "Template"],
        "examples": ["Model"],
    }
    definitions["profile"]["required"] = ["name"]
    del definitions["weights"]["required"]
    definitions["weights"]["minProperties"] = 1
    del definitions["draft"]["dependentRequired"]
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
        "$ref": "#/$defs/partial",
        "properties": {
            "kind": {"description": "What this document describes.", "const": "Template"},
            "name": {
                "$ref": "#/$defs/name",
                "description": "What `extends` calls it. Names of templates are apart from those of models.",
                "examples": ["llama-small"],
            },
            **{key: _not_shared(key) for key in _NOT_SHARED if key in properties},
        },
        "$defs": {"partial": partial, **definitions},
    }


def _not_shared(key: str) -> dict[str, Any]:
    return {
        "description": "No part of a template: it names one model.",
        "not": {},
        "x-expects": f"no `{key}` in a template: each is of one model",
    }


def text_of(schema: Mapping[str, Any]) -> str:
    """The committed form."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    (schema_directory() / FILE).write_text(text_of(template_schema(load_schema("model"))), "utf-8")
