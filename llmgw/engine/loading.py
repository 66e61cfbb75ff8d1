"""Load one plugin: import it, call its hook, judge the engines it brings.

The same code runs in the child process that a third party's plugin is tried in and then in the daemon.
"""

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint
from typing import Any, Final

import pluggy
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from llmgw.engine import hookspecs
from llmgw.engine.api import API_VERSION, Engine
from llmgw.errors import TerminalError
from llmgw.ids import EngineName, is_name

SUPPORTED: Final = frozenset({API_VERSION})
"""The versions of the plugin API that this llmgw can load. The policy stands in docs/plugin-api.md."""


class BadPlugin(TerminalError):
    """A plugin that can be imported and breaks the contract; the text is for its author.

    `engines`: the names that it brings all the same, as far as they could be told.
    """

    engines: tuple[EngineName, ...] = ()


def summary(error: BaseException) -> str:
    """What a plugin raised, on one line."""
    said = " ".join(str(error).split())[:300]
    if isinstance(error, BadPlugin):
        return said
    kind = type(error).__name__
    return f"{kind}: {said}" if said else kind


def load_plugin(point: EntryPoint) -> tuple[Engine, ...]:
    """The engines of one plugin. Raises BadPlugin, or whatever the plugin itself raises (SystemExit too)."""
    engines = call_hook(point.load(), point.name)
    check_engines(engines)
    return engines


def call_hook(plugin: object, name: str) -> tuple[Engine, ...]:
    """What `llmgw_engines` returns, which may be no engines at all. Raises as `load_plugin` does."""
    # A manager for each plugin: none can see, wrap or break another's hooks.
    manager = pluggy.PluginManager("llmgw")
    manager.add_hookspecs(hookspecs)
    manager.register(plugin, name=name)
    manager.check_pending()  # a misspelt hook registers silently otherwise
    if not manager.hook.llmgw_engines.get_hookimpls():
        raise BadPlugin(f"{name} implements no hook: mark a function llmgw_engines with @llmgw.engine.hookimpl")
    results = manager.hook.llmgw_engines()
    if not results:
        raise BadPlugin("llmgw_engines returned None: return a sequence of Engine objects")
    for result in results:
        if isinstance(result, str | bytes | Mapping) or not isinstance(result, Iterable):
            raise BadPlugin(f"llmgw_engines returned {_kind(result)}: return a sequence of Engine objects")
    return tuple(engine for result in results for engine in result)


def check_engines(engines: Iterable[object]) -> None:
    """Raises BadPlugin at the first that breaks the contract."""
    found = tuple(engines)
    try:
        for engine in found:
            check_engine(engine)
        names = [engine.name for engine in found if isinstance(engine, Engine)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise BadPlugin(f"it brings the engine {twice[0]!r} twice")
    except BadPlugin as error:
        error.engines = tuple(dict.fromkeys(name for engine in found if (name := _name(engine)) is not None))
        raise


def check_engine(engine: object) -> None:
    """Raises BadPlugin when llmgw could not work with this engine object."""
    if isinstance(engine, type):
        raise BadPlugin(f"llmgw_engines returned the class {engine.__name__}: return an object, {engine.__name__}()")
    if not isinstance(engine, Engine):
        raise BadPlugin(f"llmgw_engines returned {_kind(engine)}: engines derive from llmgw.engine.Engine")
    kind = type(engine).__name__
    if _name(engine) is None:
        name = getattr(engine, "name", None)
        raise BadPlugin(f"{kind}.name is {name!r}: a name is up to 63 lower-case letters, digits and ._-")
    if engine.api_version not in SUPPORTED:
        older = isinstance(engine.api_version, int) and engine.api_version < min(SUPPORTED)
        advice = "update the plugin" if older else "update llmgw"
        raise BadPlugin(f"{kind} wants plugin API {engine.api_version!r}, this llmgw has {API_VERSION}: {advice}")
    _check_schema(kind, engine.options_schema)
    if not isinstance(engine.needs_weights, bool):
        raise BadPlugin(f"{kind}.needs_weights is {_kind(engine.needs_weights)}: True or False")
    roles = engine.roles
    if roles is not None and not (isinstance(roles, frozenset) and all(isinstance(role, str) for role in roles)):
        raise BadPlugin(f"{kind}.roles is {_kind(roles)}: a frozenset of names, or None for any")


def _check_schema(kind: str, schema: object) -> None:
    if not isinstance(schema, Mapping):
        raise BadPlugin(f"{kind}.options_schema is {_kind(schema)}: a JSON Schema, as a mapping")
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise BadPlugin(f"{kind}.options_schema is no JSON Schema: {error.json_path}: {error.message}") from error
    for keyword, value in _keywords(schema):
        if keyword in ("$ref", "$dynamicRef") and not str(value).startswith("#"):
            # Judging a catalog must not ask the network.
            raise BadPlugin(
                f"{kind}.options_schema refers to {value!r}: only references within it (#/...) are followed"
            )


def _keywords(schema: Any) -> Iterable[tuple[str, Any]]:
    """Every member of every mapping in it; of `enum`, `const`, `default` and `examples`, which hold data, none."""
    if isinstance(schema, Mapping):
        for key, value in schema.items():
            if key not in ("enum", "const", "default", "examples"):
                yield key, value
                yield from _keywords(value)
    elif isinstance(schema, list | tuple):
        for part in schema:
            yield from _keywords(part)


def _name(engine: object) -> EngineName | None:
    name = getattr(engine, "name", None)
    return EngineName(name) if isinstance(name, str) and is_name(name) else None


def _kind(value: object) -> str:
    return f"{type(value).__name__} {value!r:.80}"
