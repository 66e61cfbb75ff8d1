"""The plugin that brings llmgw's own kinds of weights sources: registered as any other's are."""

from collections.abc import Sequence

import pluggy

from llmgw.weights.api import WeightSource
from llmgw.weights.registry import own_sources

hookimpl = pluggy.HookimplMarker("llmgw")  # llmgw.engine, where plugins have it from, lies above this package


@hookimpl
def llmgw_weight_sources() -> Sequence[WeightSource]:
    return tuple(dict.fromkeys(own_sources().values()))
