"""Finds a profile's weights among what a node reports. Pure."""

from collections.abc import Iterable

from llmgw.catalog.spec import WeightsSpec
from llmgw.facts import WeightsFact
from llmgw.weights.naming import canonical, entry_name, is_local


def on_node(facts: Iterable[WeightsFact], spec: WeightsSpec) -> WeightsFact | None:
    """The complete weights that `spec` names, or None while they are not there.

    As `Cache.locate` finds them: the entry named for `spec`, else one of the same source with the same content.
    """
    source = canonical(spec.source)
    found = [fact for fact in facts if fact.source == source and fact.complete]
    if is_local(source):
        return found[0] if found else None
    exact = entry_name(source, spec.sha256)
    found.sort(key=lambda fact: (fact.entry != exact, fact.entry))
    return next((fact for fact in found if fact.entry == exact or _same_content(fact, spec)), None)


def _same_content(fact: WeightsFact, spec: WeightsSpec) -> bool:
    return spec.sha256 is None or fact.sha256 == spec.sha256.lower()
