"""The plugin seam: what a plugin of engines or weights sources implements, and all the types it needs.

A plugin imports `llmgw.engine` (and `llmgw.weights`, `llmgw.units`, `llmgw.facts`, `llmgw.errors`), nothing else
of llmgw. Registering: an entry point in the group `llmgw` names a module with functions marked `@hookimpl`.
"""

import pluggy

from llmgw.catalog.rules import Complaint
from llmgw.catalog.spec import ProfileSpec, SecretRef, WeightsSpec
from llmgw.engine.api import (
    API_VERSION,
    Engine,
    HttpRequest,
    LaunchSpec,
    Readiness,
    Slot,
    Verdict,
)
from llmgw.engine.shrink import shorter_context
from llmgw.errors import WeightsRefused, WeightsUnavailable
from llmgw.facts import EngineFact, EngineLoad, Exit, FailureKind, Footprint, Level, WeightsFact
from llmgw.weights.api import Description, Fetched, RemoteFile, WeightSource, Work
from llmgw.weights.manifest import ManifestFile

hookimpl = pluggy.HookimplMarker("llmgw")

__all__ = [
    "API_VERSION",
    "Complaint",
    "Description",
    "Engine",
    "EngineFact",
    "EngineLoad",
    "Exit",
    "FailureKind",
    "Fetched",
    "Footprint",
    "HttpRequest",
    "LaunchSpec",
    "Level",
    "ManifestFile",
    "ProfileSpec",
    "Readiness",
    "RemoteFile",
    "SecretRef",
    "Slot",
    "Verdict",
    "WeightSource",
    "WeightsFact",
    "WeightsRefused",
    "WeightsSpec",
    "WeightsUnavailable",
    "Work",
    "hookimpl",
    "shorter_context",
]
