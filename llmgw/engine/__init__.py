"""The plugin seam: what an engine plugin implements, and all the types it needs.

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
from llmgw.facts import EngineFact, EngineLoad, Exit, FailureKind, Footprint, Level, WeightsFact

hookimpl = pluggy.HookimplMarker("llmgw")

__all__ = [
    "API_VERSION",
    "Complaint",
    "Engine",
    "EngineFact",
    "EngineLoad",
    "Exit",
    "FailureKind",
    "Footprint",
    "HttpRequest",
    "LaunchSpec",
    "Level",
    "ProfileSpec",
    "Readiness",
    "SecretRef",
    "Slot",
    "Verdict",
    "WeightsFact",
    "WeightsSpec",
    "hookimpl",
    "shorter_context",
]
