"""Finds the installed engine plugins. One that cannot be loaded is reported; every other one works."""

import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points

import pluggy

from llmgw.catalog.rules import EngineRules
from llmgw.engine import hookspecs
from llmgw.engine.api import API_VERSION, Engine
from llmgw.ids import EngineName


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """What was found. `broken`: plugin name -> traceback or reason."""

    by_name: Mapping[EngineName, Engine] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)

    def rules(self) -> dict[str, EngineRules]:
        """What each engine demands of a profile, for the catalog's rules."""
        return {
            name: EngineRules(
                options_schema=engine.options_schema, needs_weights=engine.needs_weights, roles=engine.roles
            )
            for name, engine in self.by_name.items()
        }


def find_engines(found: Iterable[EntryPoint] | None = None) -> Engines:
    """Import every plugin of the entry-point group `llmgw` (or those given) and collect its engines."""
    manager = pluggy.PluginManager("llmgw")
    manager.add_hookspecs(hookspecs)
    engines: dict[EngineName, Engine] = {}
    broken: dict[str, str] = {}
    for point in sorted(found if found is not None else entry_points(group="llmgw"), key=lambda p: p.name):
        try:
            plugin = point.load()
            manager.register(plugin, name=point.name)
            manager.check_pending()  # a misspelt hook registers silently otherwise
            for engine in _engines_of(manager, plugin):
                if engine.api_version != API_VERSION:
                    raise ValueError(f"wants plugin API {engine.api_version}, this llmgw has {API_VERSION}")
                engines.setdefault(engine.name, engine)
        except (Exception, SystemExit):  # noqa: BLE001 - a plugin's failure, whatever it is, must stay its own
            broken[point.name] = traceback.format_exc(limit=-4)
            if manager.has_plugin(point.name):
                manager.unregister(name=point.name)
    return Engines(by_name=engines, broken=broken)


def _engines_of(manager: pluggy.PluginManager, plugin: object) -> list[Engine]:
    others = [other for other in manager.get_plugins() if other is not plugin]
    groups = manager.subset_hook_caller("llmgw_engines", others)()
    return [engine for group in groups for engine in group]
