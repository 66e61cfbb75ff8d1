"""The JSON Schemas of a catalog document, and their errors in a person's words.

Messages name keys, places and what was expected, never the value that was found: it may be a secret. Keywords of
our own: `x-expects` (what to write, in words), `x-not-supported-yet`, `x-resolved-when-loaded` (no value holds it),
`x-size-at-least` (bytes) and `x-duration-at-least` (seconds), which also hold where the unit hides the figure: "0GiB".
"""

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path as FilePath
from typing import Any, Final

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.exceptions import SchemaError, UndefinedTypeCheck, UnknownType
from jsonschema.validators import extend
from referencing.exceptions import Unresolvable

from llmgw.catalog import accepting
from llmgw.catalog.amounts import duration_fault, size_fault
from llmgw.catalog.amounts import to_bytes as to_bytes
from llmgw.catalog.amounts import to_seconds as to_seconds
from llmgw.catalog.belonging import Holders, belongs, holders
from llmgw.catalog.blame import TYPOGRAPHIC
from llmgw.catalog.document import Document, Path, as_mapping, quoted
from llmgw.catalog.partial import template_schema
from llmgw.errors import Problem

BROKEN_SCHEMA: Final = (SchemaError, UnknownType, UndefinedTypeCheck, Unresolvable, re.error, TypeError, ValueError)
"""What validating with a plugin's faulty schema may raise."""

PART: Final = "part"
"""As a kind: a Model document of which something is missing that was to come from elsewhere."""

WHOLE: Final = frozenset({"required", "dependentRequired", "anyOf", "oneOf", "not", "if", "minProperties"})
"""Keywords that what is missing may yet satisfy."""

MOST_KEYS: Final = 30  #: that a message lists

_TYPES: Final = {
    "object": "a mapping", "array": "a list", "string": "text", "integer": "a whole number",
    "number": "a number", "boolean": "true or false", "null": "nothing",
}  # fmt: skip
_WORDS_OF_YAML_1_1: Final = frozenset({"yes", "no", "on", "off", "y", "n"})


def schema_directory() -> FilePath:
    """Where the schemas are: inside the installed package, or at the root of a source checkout."""
    package = FilePath(__file__).parent.parent
    installed = package / "schemas"
    return installed if installed.is_dir() else package.parent / "schemas"


def load_schema(name: str) -> dict[str, Any]:
    """A committed schema by name: `catalog`, `model`, `cluster`. Raises OSError where the installation is broken."""
    schema: dict[str, Any] = json.loads((schema_directory() / f"{name}.v1.schema.json").read_text("utf-8"))
    return schema


def _schema_of(kind: str) -> dict[str, Any]:
    """What a kind is judged by: a Template without its nulls, which editors are to accept."""
    if kind not in ("Template", PART):
        return load_schema(kind.lower())
    template = template_schema(load_schema("model"), nullable=False)
    return template if kind == "Template" else {"$ref": "#/$defs/partial", "$defs": template["$defs"]}


@cache
def validator_for(kind: str) -> Draft202012Validator:
    """The validator of one kind of document, made once."""
    return judge_of(_schema_of(kind))


@cache
def _acceptor_for(kind: str) -> accepting.Validator:
    return accepting.own(_schema_of(kind))


def check(document: Document, kind: str) -> list[Problem]:
    """Every way in which the document is not of its kind's shape."""
    if document.plain and _acceptor_for(kind)(document.value):
        return []
    return _problems(validator_for(kind).iter_errors(document.value), document, ())


def check_options(
    document: Document, path: Path, options: Any, schema: Mapping[str, Any], *, whole: bool = True
) -> list[Problem]:
    """Every way in which a profile's `options`, at `path`, do not fit the engine's own schema. `whole` false: some of
    them may be missing that were to come from elsewhere.

    Raises one of BROKEN_SCHEMA when the schema itself is at fault.
    """
    if document.plain and accepting.of_plugin(schema)(options):
        return []
    errors = judge_of(schema).iter_errors(options)
    return _problems((error for error in errors if whole or error.validator not in WHOLE), document, path)


def _problems(errors: Iterable[ValidationError], document: Document, prefix: Path) -> list[Problem]:
    """Of a value that is of the wrong kind nothing else is told."""
    known = list(errors)
    wrong = {tuple(error.absolute_path) for error in known if error.validator == "type"}
    telling = (error for error in known if error.validator == "type" or tuple(error.absolute_path) not in wrong)
    found = [problem for error in telling for problem in _translate(error, document, prefix)]
    return list(dict.fromkeys(found))  # `required` reports each missing key once for each


def _size_at_least(_: Any, least: int, instance: Any, __: Any) -> Iterator[ValidationError]:
    if (fault := size_fault(instance, least)) is not None:
        yield ValidationError(fault)


def _duration_at_least(_: Any, least: float, instance: Any, __: Any) -> Iterator[ValidationError]:
    if (fault := duration_fault(instance, least)) is not None:
        yield ValidationError(fault)


_Judge: Final = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator, {"x-size-at-least": _size_at_least, "x-duration-at-least": _duration_at_least}
)


def judge_of(schema: Mapping[str, Any]) -> Draft202012Validator:
    made: Draft202012Validator = _Judge(schema)
    return made


def _translate(error: ValidationError, document: Document, prefix: Path) -> Iterator[Problem]:
    path: tuple[str | int, ...] = (*prefix, *error.absolute_path)
    schema: Mapping[str, Any] = error.schema if isinstance(error.schema, dict) else {}
    if "propertyNames" in error.absolute_schema_path:
        key = str(error.instance)
        yield document.problem((*path, key), f"{quoted(key)} is not {_expected(schema, 'text')}", at_key=True)
    elif (waits := schema.get("x-not-supported-yet")) and error.validator in ("enum", "maxItems", "maximum"):
        what = waits if isinstance(waits, str) else quoted(str(path[-1]))
        yield document.problem(path, f"not supported yet: {what}", at_key=True)
    elif error.validator == "additionalProperties" and isinstance(error.instance, dict):
        for key in _unknown_keys(error.instance, schema):
            known = _open_keys(schema)
            hints = (_elsewhere(key, path, document), did_you_mean(key, known))
            hint = next(filter(None, reversed(hints) if prefix else hints), _known_here(known))
            message = f"unknown key {quoted(key)}{hint}"
            yield document.problem((*path, key), message, at_key=True)
    elif error.validator == "required" and isinstance(error.instance, dict):
        wanted: Any = error.validator_value
        for key in wanted:
            if key not in error.instance:
                yield document.problem(path, f"missing key {quoted(key)}{_hint_for_missing(schema, key)}")
    elif error.validator == "anyOf" and isinstance(error.instance, dict):
        ways: Any = error.validator_value
        named = [quoted(key) for way in ways for key in way["required"]]
        yield document.problem(path, f"missing key {' or '.join(named)}")
    elif error.validator == "dependentRequired" and isinstance(error.instance, dict):
        needs: Any = error.validator_value
        for key in (key for key in needs if key in error.instance):
            for other in (other for other in needs[key] if other not in error.instance):
                message = f"{quoted(key)} needs {quoted(other)} beside it"
                yield document.problem((*path, key), message, at_key=True)
    else:
        yield document.problem(path, f"{_message(error, schema, path)}{_odd_characters(error.instance)}")


def _message(error: ValidationError, schema: Mapping[str, Any], path: Path) -> str:
    wanted: Any = error.validator_value
    match error.validator:
        case "type":
            return _wrong_type(error.instance, wanted, schema)
        case "enum" if not wanted:
            return f"expected {_expected(schema, 'no such key')}"
        case "enum" | "const":
            choices = wanted if error.validator == "enum" else [wanted]
            shown = ", ".join(json.dumps(choice) if not isinstance(choice, str) else choice for choice in choices)
            return f"must be {'one of ' if len(choices) > 1 else ''}{shown}{_close_to(error.instance, choices, path)}"
        case "pattern":
            if list(path[-2:]) == ["weights", "source"]:
                return _wrong_source(str(error.instance), schema)
            return (
                f"expected {_expected(schema, f'text that matches {wanted}')}{_by_another_name(error.instance, path)}"
            )
        case "minimum":
            return f"must be at least {wanted}"
        case "maximum":
            return f"must be at most {wanted}"
        case "exclusiveMinimum":
            return f"must be more than {wanted}"
        case "exclusiveMaximum":
            return f"must be less than {wanted}"
        case "minLength" | "minItems" | "minProperties" if "x-expects" not in schema:
            return "must not be empty" if wanted == 1 else f"must have at least {wanted} entries"
        case "maxLength":
            return f"must have at most {wanted} characters"
        case "maxItems" | "maxProperties" if "x-expects" not in schema:
            return f"must have at most {wanted} entries"
        case "uniqueItems":
            return "must not hold the same entry twice"
        case "x-size-at-least" | "x-duration-at-least":
            return error.message
        case _:
            return f"expected {_expected(schema, f'a value that satisfies {error.validator!r} of the schema')}"


def _wrong_type(value: Any, wanted: str | Sequence[str], schema: Mapping[str, Any]) -> str:
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    kinds = " or ".join(_TYPES.get(name, name) for name in names)
    if names == ["object"] and (keys := _open_keys(schema)):
        kinds = f"{kinds} with {_listed(keys)}"
    fraction = "integer" in names and "number" not in names and isinstance(value, float)
    message = f"expected {_expected(schema, kinds)}, found {'one that is not whole' if fraction else found(value)}"
    if "boolean" in names and isinstance(value, str) and value.lower() in _WORDS_OF_YAML_1_1:
        return f"{message}: YAML 1.2 reads yes, no, on and off as text; write true or false"
    if names == ["string"] and isinstance(value, bool | int | float):
        return f"{message}: put quotes around it"
    if names == ["array"] and not isinstance(value, list | dict | None):
        return f"{message}: put brackets around it, `[` and `]`"
    return message


def _odd_characters(value: Any) -> str:
    """What text came with that was pasted from a page or a chat, and is hard to see."""
    odd = [each for each in value if each in TYPOGRAPHIC] if isinstance(value, str) else []
    if odd and value[0] in TYPOGRAPHIC:
        return f"; U+{ord(odd[0]):04X} is no quote to YAML: write \" or '"
    hidden = [each for each in value if each > "\x7f" and not each.isprintable()] if isinstance(value, str) else []
    return f"; it holds U+{ord(hidden[0]):04X}, which is not to be seen: remove it" if hidden else ""


def _wrong_source(source: str, schema: Mapping[str, Any]) -> str:
    if source.partition("://")[0].lower() in ("https", "http") and "@" in source:
        return f"expected {_expected(schema, '')}, without a user or a password: name the secret in `token`"
    return f"expected {_expected(schema, '')}"


def found(value: Any) -> str:
    """What kind of value it is, in words; the value itself is not shown."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case _:
            return "a mapping"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` or nothing."""
    near = difflib.get_close_matches(word[:100], sorted(known), n=1, cutoff=0.6)
    return f"; did you mean {quoted(near[0])}?" if near else ""


def _known_here(known: Sequence[str]) -> str:
    return f"; known here: {_listed(known)}" if known else ""


def _elsewhere(key: str, path: Path, document: Document) -> str:
    """Where that very key has its place, as `belongs` says it."""
    kind = as_mapping(document.value).get("kind")
    return belongs(key, path, _holders("cluster" if kind == "Cluster" else "model"))


@cache
def _holders(name: str) -> Holders:
    return holders(load_schema(name))


def _listed(keys: Sequence[str]) -> str:
    more = len(keys) - MOST_KEYS
    return ", ".join(keys[:MOST_KEYS]) + (f" and {more} more" if more > 0 else "")


def _open_keys(schema: Mapping[str, Any]) -> list[str]:
    return [name for name, value in schema.get("properties", {}).items() if not _is_barred(value)]


def _by_another_name(value: Any, path: Path) -> str:
    """Names of models are often published in capitals."""
    return "; `aliases` may hold a model's other spellings" if path == ("name",) and value != str(value).lower() else ""


def _expected(schema: Mapping[str, Any], otherwise: str) -> str:
    return str(schema.get("x-expects", otherwise))


def _close_to(value: Any, choices: Sequence[Any], path: Path) -> str:
    if not isinstance(value, str) or "env" in path:
        return ""
    return did_you_mean(value, [choice for choice in choices if isinstance(choice, str)])


def _unknown_keys(instance: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    patterns = list(schema.get("patternProperties", {}))
    known = schema.get("properties", {})
    return [key for key in instance if key not in known and not any(re.search(p, key) for p in patterns)]


def _hint_for_missing(schema: Mapping[str, Any], key: str) -> str:
    expects = schema.get("properties", {}).get(key, {}).get("x-expects")
    return f": {expects}" if expects else ""


def _is_barred(schema: Any) -> bool:
    """Whether no value is valid: of a key that waits, or one that a Model has and a Template may not."""
    return isinstance(schema, dict) and schema.get("enum") == []
