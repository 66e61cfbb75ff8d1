"""Schemas for editors and other checkers: each kind whole in one object, with the engines' options where wanted. Pure,
but for the committed files that it reads."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, Final

from llmgw.catalog.partial import or_null
from llmgw.catalog.schemas import WHOLE, load_schema

CATALOG: Final = "catalog"
PARTS: Final = ("model", "cluster", "template")
"""What a document of a catalog may be, by the names of their schemas."""
KINDS: Final = (CATALOG, *PARTS, "fleet", "scenario")
_WITH_PROFILES: Final = ("model", "template")

_FILE: Final = ".v1.schema.json"
_NAMES: Final = frozenset({"properties", "$defs", "patternProperties", "dependentSchemas"})
"""Keywords under which keys are somebody's names."""
_VALUES: Final = frozenset({"enum", "const", "default", "examples"})
"""Keywords that hold values, not schemas."""
_MACRO: Final = r"\$\{[A-Za-z]"


def bundled(kind: str, engines: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """The schema of a kind, every reference within it. `engines`: the schema of each engine's options, by its name; a
    profile's `options` are then judged by its engine's."""
    if kind != CATALOG:
        return _part(kind, engines or {})
    whole = copy.deepcopy(load_schema(CATALOG))
    parts = {part: _part(part, engines or {}) for part in PARTS}
    whole["$defs"] = {part: _moved(schema, f"#/$defs/{part}") for part, schema in parts.items()}
    inside: dict[str, Any] = _pointed(whole, _to_part)
    return inside


def _part(kind: str, engines: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    schema: dict[str, Any] = _changed(copy.deepcopy(load_schema(kind)), _worded)
    if kind not in _WITH_PROFILES or not engines:
        return schema
    definitions = schema["$defs"]
    names = sorted(engines)
    for name in names:
        definitions[_key(name)] = _with_macros(_moved(engines[name], f"#/$defs/{_key(name)}"))
        given = _in_part(engines[name], nullable=kind != "model")
        definitions[_key(name, part=True)] = _with_macros(_moved(given, f"#/$defs/{_key(name, part=True)}"))
    for holder, part in ("profile", kind != "model"), ("level", True):
        judged = [_options_of(name, part=part) for name in names]
        definitions[holder]["allOf"] = [*definitions[holder].get("allOf", ()), *judged]
    engine = definitions["profile"]["properties"]["engine"]
    engine["examples"] = names
    return schema


def _key(engine: str, *, part: bool = False) -> str:
    return f"{'part-of-' if part else ''}options-of-{engine}"


def _options_of(engine: str, *, part: bool) -> dict[str, Any]:
    return {
        "if": {"properties": {"engine": {"const": engine}}, "required": ["engine"]},
        "then": {"properties": {"options": {"$ref": f"#/$defs/{_key(engine, part=part)}"}}},
    }


def _in_part(schema: Mapping[str, Any], *, nullable: bool) -> dict[str, Any]:
    """An engine's schema for options that are merged over others: what they lack may be there. `nullable`: what is
    there may be taken away."""
    kept = {key: copy.deepcopy(value) for key, value in schema.items() if key not in WHOLE}
    properties = kept.get("properties", {})
    for name, value in properties.items():
        if isinstance(value, dict) and "properties" in value:
            properties[name] = value = _in_part(value, nullable=nullable)
        if isinstance(value, dict) and nullable:
            or_null(value)
    return kept


def _moved(schema: Mapping[str, Any], to: str) -> dict[str, Any]:
    """A schema that stands below another: what it refers to within itself is found there."""

    def below(reference: str) -> str:
        return f"{to}{reference[1:]}" if reference == "#" or reference.startswith("#/") else reference

    inner: dict[str, Any] = _pointed({key: value for key, value in schema.items() if key != "$schema"}, below)
    return inner


def _with_macros(schema: Mapping[str, Any]) -> dict[str, Any]:
    """An engine's schema for documents as they are written: where a text is to match a pattern, a macro may stand."""
    changed: dict[str, Any] = _changed(_changed(schema, _worded), _or_macro)
    return changed


def _or_macro(schema: dict[str, Any]) -> None:
    if isinstance(schema.get("pattern"), str):
        schema["pattern"] = rf"(?:{schema['pattern']})|{_MACRO}"


def _worded(schema: dict[str, Any]) -> None:
    """What is expected in words: editors would tell the pattern. (The keyword is VS Code's.)"""
    if isinstance(schema.get("pattern"), str) and isinstance(schema.get("x-expects"), str):
        schema.setdefault("patternErrorMessage", f"expected {schema['x-expects']}")


def _changed(schema: Any, change: Callable[[dict[str, Any]], None], *, names: bool = False) -> Any:
    """A copy, with each schema in it changed. `names`: the keys are names of someone's."""
    if isinstance(schema, list):
        return [_changed(each, change) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    copied = {
        key: value if key in _VALUES and not names else _changed(value, change, names=key in _NAMES and not names)
        for key, value in schema.items()
    }
    if not names:
        change(copied)
    return copied


def _to_part(reference: str) -> str:
    file, _, pointer = reference.partition("#")
    return f"#/$defs/{file.removesuffix(_FILE)}{pointer}" if file.endswith(_FILE) else reference


def _pointed(schema: Any, change: Any, *, names: bool = False) -> Any:
    """With every reference changed. `names`: the keys are names of someone's, and none of them is a keyword."""
    if isinstance(schema, list):
        return [_pointed(each, change) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    changed = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and not names:
            changed[key] = change(value)
        elif key in _VALUES and not names:
            changed[key] = value
        else:
            changed[key] = _pointed(value, change, names=key in _NAMES and not names)
    return changed
