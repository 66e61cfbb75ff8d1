"""The hooks a plugin may implement. One file: this is the whole seam."""

from collections.abc import Sequence

import pluggy

from llmgw.engine.api import Engine
from llmgw.weights.api import WeightSource

hookspec = pluggy.HookspecMarker("llmgw")


@hookspec
def llmgw_engines() -> Sequence[Engine]:  # type: ignore[empty-body]
    """The engines that this plugin brings."""


@hookspec
def llmgw_weight_sources() -> Sequence[WeightSource]:  # type: ignore[empty-body]
    """The kinds of weights sources that this plugin brings."""
