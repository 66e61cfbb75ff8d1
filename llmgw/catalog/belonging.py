"""Where in a document a key belongs that stands at the wrong place: it was indented too much, or too little. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

Holders = Mapping[str, Sequence[str]]
"""By key, which parts of a document have it: "" is the document itself, `scaling` a mapping, `profiles` a list."""


def holders(schema: Mapping[str, Any]) -> Holders:
    """Of a kind's schema: its own keys, and those one level down."""
    found: dict[str, list[str]] = {}
    for name, value in schema["properties"].items():
        found.setdefault(name, []).append("")
        for key in _keys(value, schema):
            found.setdefault(key, []).append(name)
    return found


def belongs(key: str, path: Sequence[str | int], known: Holders) -> str:
    """`; it belongs under 'scaling'`; nothing where no part has that key, or several do. `path`: where it stands."""
    here = str(path[0]) if path else ""
    others = [holder for holder in known.get(key, ()) if holder != here]
    if len(others) != 1:
        return ""
    match others[0]:
        case "":
            return "; it belongs to the document itself: indent it less"
        case "profiles":
            return "; it belongs into a profile, under 'profiles'"
        case holder:
            return f"; it belongs under {holder!r}"


def _keys(value: Mapping[str, Any], schema: Mapping[str, Any]) -> Sequence[str]:
    inner = _resolved(value, schema)
    inner = _resolved(inner.get("items", inner), schema)
    return list(inner.get("properties", ()))


def _resolved(value: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = value.get("$ref", "")
    found: Mapping[str, Any] = (
        schema["$defs"].get(reference.rpartition("/")[2], {}) if reference.startswith("#/$defs/") else value
    )
    return found
