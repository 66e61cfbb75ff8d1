"""Load one plugin: import it, call its hooks, judge the engines and sources it brings.

The same code runs in the child process that a third party's plugin is tried in and then in the daemon.
"""

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any, Final

import pluggy
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from llmgw.engine import hookspecs
from llmgw.engine.api import API_VERSION, Engine
from llmgw.engine.returned import one_line, said, shown
from llmgw.errors import TerminalError
from llmgw.ids import EngineName, is_name
from llmgw.weights.api import WeightSource

SUPPORTED: Final = frozenset({API_VERSION})
"""The versions of the plugin API that this llmgw can load. The policy stands in docs/plugin-api.md."""


_SCHEME: Final = re.compile(r"[a-z][a-z0-9+-]{0,31}\Z")


class BadPlugin(TerminalError):
    """A plugin that can be imported and breaks the contract; the text is for its author.

    `engines`, `sources`: what it brings all the same, as far as it could be told.
    """

    engines: tuple[EngineName, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """What a plugin brings."""

    engines: tuple[Engine, ...] = ()
    sources: tuple[WeightSource, ...] = ()

    @property
    def names(self) -> tuple[EngineName, ...]:
        return tuple(engine.name for engine in self.engines)

    @property
    def schemes(self) -> tuple[str, ...]:
        return tuple(sorted(scheme for source in self.sources for scheme in source.schemes))

    @property
    def api_version(self) -> int | None:
        engines, sources = {each.api_version for each in self.engines}, {each.api_version for each in self.sources}
        return max(engines | sources, default=None)


def summary(error: BaseException) -> str:
    """What a plugin raised, on one line."""
    return one_line(str(error)) if isinstance(error, BadPlugin) else said(error)


def load_plugin(point: EntryPoint) -> Brought:
    """What one plugin brings. Raises BadPlugin, or whatever the plugin itself raises (SystemExit too)."""
    brought = call_hooks(point.load(), point.name)
    check_brought(brought)
    return brought


def call_hooks(plugin: object, name: str) -> Brought:
    """What its hooks return, which may be anything at all. Raises as `load_plugin` does."""
    # A manager for each plugin: none can see, wrap or break another's hooks.
    manager = pluggy.PluginManager("llmgw")
    manager.add_hookspecs(hookspecs)
    manager.register(plugin, name=name)
    manager.check_pending()  # a misspelt hook registers silently otherwise
    engines, sources = manager.hook.llmgw_engines, manager.hook.llmgw_weight_sources
    if not engines.get_hookimpls() and not sources.get_hookimpls():
        raise BadPlugin(f"{name} implements no hook: mark a function llmgw_engines with @llmgw.engine.hookimpl")
    return Brought(engines=_called(engines, "Engine"), sources=_called(sources, "WeightSource"))


def _called(hook: pluggy.HookCaller, kind: str) -> tuple[Any, ...]:
    if not hook.get_hookimpls():
        return ()
    results = hook()
    if not results:
        raise BadPlugin(f"{hook.name} returned None: return a sequence of {kind} objects")
    for result in results:
        if isinstance(result, str | bytes | Mapping) or not isinstance(result, Iterable):
            raise BadPlugin(f"{hook.name} returned {_kind(result)}: return a sequence of {kind} objects")
    return tuple(each for result in results for each in result)


def check_brought(brought: Brought) -> None:
    """Raises BadPlugin at the first that breaks the contract."""
    try:
        for engine in brought.engines:
            check_engine(engine)
        for source in brought.sources:
            check_source(source)
        for what, names in ("engine", brought.names), ("source", brought.schemes):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise BadPlugin(f"it brings the {what} {twice[0]!r} twice")
    except BadPlugin as error:
        error.engines = tuple(dict.fromkeys(name for each in brought.engines if (name := _name(each)) is not None))
        error.sources = tuple(sorted({scheme for each in brought.sources for scheme in _schemes(each)}))
        raise


def check_source(source: object) -> None:
    """Raises BadPlugin when llmgw could not work with this source object."""
    if isinstance(source, type):
        raise BadPlugin(
            f"llmgw_weight_sources returned the class {source.__name__}: return an object, {source.__name__}()"
        )
    if not isinstance(source, WeightSource):
        raise BadPlugin(f"llmgw_weight_sources returned {_kind(source)}: sources derive from llmgw.engine.WeightSource")
    kind, schemes = type(source).__name__, getattr(source, "schemes", None)
    if not isinstance(schemes, frozenset) or not schemes or set(_schemes(source)) != schemes:
        raise BadPlugin(f"{kind}.schemes is {_kind(schemes)}: a frozenset of names such as 'oci', in lower case")
    _check_version(kind, source.api_version)
    if not isinstance(source.peak, int) or source.peak < 1:
        raise BadPlugin(f"{kind}.peak is {_kind(source.peak)}: bytes of disk per byte of weights, at least 1")
    _check_methods(kind, source, WeightSource)


def _schemes(source: object) -> list[str]:
    found = getattr(source, "schemes", None)
    if not isinstance(found, frozenset | set | tuple | list):
        return []
    return [each for each in found if isinstance(each, str) and _SCHEME.match(each)]


def _check_version(kind: str, version: object) -> None:
    if version not in SUPPORTED:
        older = isinstance(version, int) and version < min(SUPPORTED)
        advice = "update the plugin" if older else "update llmgw"
        raise BadPlugin(f"{kind} wants plugin API {version!r}, this llmgw has {API_VERSION}: {advice}")


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
    _check_version(kind, engine.api_version)
    _check_schema(kind, engine.options_schema)
    if not isinstance(engine.needs_weights, bool):
        raise BadPlugin(f"{kind}.needs_weights is {_kind(engine.needs_weights)}: True or False")
    roles = engine.roles
    if roles is not None and not (isinstance(roles, frozenset) and all(isinstance(role, str) for role in roles)):
        raise BadPlugin(f"{kind}.roles is {_kind(roles)}: a frozenset of names, or None for any")
    _check_methods(kind, engine, Engine)


def _check_methods(kind: str, brought: object, seam: type) -> None:
    """Each can be called as llmgw calls it. What it then does is seen when it is."""
    for name, declared in inspect.getmembers(seam, inspect.isfunction):
        method, wanted = getattr(brought, name), list(inspect.signature(declared).parameters)[1:]
        if not callable(method):
            raise BadPlugin(f"{kind}.{name} is {_kind(method)}: a method")
        is_async = inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
        if is_async and not inspect.iscoroutinefunction(declared):
            raise BadPlugin(f"{kind}.{name} is async: llmgw calls it as a plain function, with no loop running")
        try:
            inspect.signature(method).bind(*wanted)
        except TypeError as error:
            raise BadPlugin(f"{kind}.{name} cannot be called with ({', '.join(wanted)}): {error}") from error
        except ValueError:  # a function of C, which tells nobody what it takes
            continue


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
    return f"{type(value).__name__} {shown(value)}"
