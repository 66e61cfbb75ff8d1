"""Finds a profile's weights among what a node reports. Pure."""

from collections.abc import Iterable

from llmgw.catalog.spec import WeightsSpec
from llmgw.facts import WeightsFact
from llmgw.weights.naming import canonical, entry_name, is_local


def on_node(facts: Iterable[WeightsFact], spec: WeightsSpec) -> WeightsFact | None:
    """The complete weights that `spec` names, or None while they are not there."""
    source = canonical(spec.source)
    entry = None if is_local(source) else entry_name(source, spec.sha256)
    return next((fact for fact in facts if fact.source == source and fact.entry == entry and fact.complete), None)
