"""A faster validator of shapes. It accepts, and never judges: what it does not accept goes to `schemas`, for the words.

jsonschema-rs checks some sixty times faster than jsonschema. It is asked only where what it accepts the judge accepts:
values read the faster way (`Document.plain`), so of characters that both take for the same classes; our own schemas,
and those of plugins that use nothing but keywords that mean the same to both. It never follows a reference elsewhere.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import jsonschema_rs

from llmgw.catalog.amounts import duration_fault, size_fault

_PLAIN: Final = frozenset({
    "type", "required", "dependentRequired", "minProperties", "maxProperties", "minItems", "maxItems", "minLength",
    "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "x-size-at-least", "x-duration-at-least",
})  # fmt: skip
_WORDS: Final = frozenset({"title", "description", "default", "examples", "deprecated", "$comment", "x-expects"})
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_ODD: Final = re.compile(r"\\[A-Za-ce-mo-wyz]|\(\?(?![!=:])|&&|~~|--|\[\[")
"""What of a pattern Python and Rust may take for different characters, or read otherwise. `\\d` is 0 to 9 to both: text
that was read the faster way has no other digits."""
_EXACT: Final = frozenset({"required", "anyOf", "allOf", "not"})
"""Keywords under which not to accept means as much as to accept."""
_MOST: Final = 256

Validator = Callable[[Any], bool]


def own(schema: Mapping[str, Any]) -> Validator:
    """Whether a value surely has the shape of one of our own schemas."""
    made: Validator = jsonschema_rs.Draft202012Validator(
        dict(schema), keywords={"x-size-at-least": _Size, "x-duration-at-least": _Duration}
    ).is_valid
    return made


def of_plugin(schema: Mapping[str, Any]) -> Validator:
    """The same of a plugin's schema, whatever it holds. Made once for each."""
    known = _made.get(id(schema))
    if known is not None:
        return known[1]
    validator: Validator = _refuses
    if is_plain(schema):
        try:
            validator = own(schema)
        except ValueError:  # not a schema: the judge says what to do about it
            pass
    if len(_made) >= _MOST:
        _made.clear()
    _made[id(schema)] = (schema, validator)
    return validator


_made: dict[int, tuple[Mapping[str, Any], Validator]] = {}  # values keep the schemas, so that no id is reused


def _refuses(_: Any) -> bool:
    return False


def is_plain(schema: Any) -> bool:
    """Whether all that it uses means the same to both validators, or less to the faster one."""
    if isinstance(schema, bool):
        return True
    if not isinstance(schema, dict):
        return False
    if schema.get("$schema", _DIALECT) != _DIALECT:
        return False
    return all(_is_plain_keyword(name, value) for name, value in schema.items())


def _is_plain_keyword(name: Any, value: Any) -> bool:
    match name:
        case "properties" | "dependentSchemas":
            return isinstance(value, dict) and all(map(is_plain, value.values()))
        case "additionalProperties" | "items" | "propertyNames":
            return is_plain(value)
        case "anyOf" | "allOf":
            return isinstance(value, list) and all(map(is_plain, value))
        case "not":
            return _is_exact(value)
        case "enum":
            return isinstance(value, list) and all(isinstance(each, str | int) for each in value)
        case "const":
            return isinstance(value, str | int)
        case "pattern":
            return isinstance(value, str) and _ODD.search(value) is None
    return name in _PLAIN or name in _WORDS or name == "$schema"


def _is_exact(schema: Any) -> bool:
    if not isinstance(schema, dict) or not schema.keys() <= _EXACT:
        return False
    parts = [*schema.get("anyOf", ()), *schema.get("allOf", ()), *([schema["not"]] if "not" in schema else [])]
    return all(map(_is_exact, parts))


class _Size:
    """A keyword of our own, as jsonschema-rs has them."""

    def __init__(self, _: Any, least: int, __: Any) -> None:
        self._least = least

    def validate(self, instance: Any) -> None:
        if (fault := size_fault(instance, self._least)) is not None:
            raise ValueError(fault)


class _Duration:
    def __init__(self, _: Any, least: float, __: Any) -> None:
        self._least = least

    def validate(self, instance: Any) -> None:
        if (fault := duration_fault(instance, self._least)) is not None:
            raise ValueError(fault)
