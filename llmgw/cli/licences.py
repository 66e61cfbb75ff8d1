"""What licences the weights of models come under, told once they are on a node."""

from collections.abc import Iterator, Mapping

from llmgw.admin.reading import Seen
from llmgw.catalog.spec import ModelSpec
from llmgw.facts import WeightsFact
from llmgw.ids import ModelName
from llmgw.weights.lookup import on_node
from llmgw.weights.naming import canonical, stem


class Licences:
    """Looks for them where other weights, or other models, are there than at the look before."""

    def __init__(self) -> None:
        self._told: set[ModelName] = set()
        self._looked_at: tuple[object, frozenset[tuple[object, ...]]] = (None, frozenset())

    def lines(self, seen: Seen) -> Iterator[str]:
        """One for each model of which that is news, in name order."""
        entries = [fact for report in seen.reports.values() for fact in report.weights if fact.entry is not None]
        key = frozenset((fact.source, fact.entry, fact.complete, fact.licence) for fact in entries)
        models, before = self._looked_at
        if not entries or (models is seen.models and before == key):
            return
        self._looked_at = (seen.models, key)
        by_stem: dict[str, list[WeightsFact]] = {}
        for fact in entries:
            by_stem.setdefault(stem(fact.source), []).append(fact)
        for name in sorted(seen.models):
            if name not in self._told and (found := _on_a_node(seen.models[name], by_stem)) is not None:
                self._told.add(name)
                yield f"{name}: its weights' licence is {found.licence or 'not stated by their source'}"


def _on_a_node(spec: ModelSpec, by_stem: Mapping[str, list[WeightsFact]]) -> WeightsFact | None:
    for profile in spec.profiles:
        if profile.weights is None:
            continue
        facts = by_stem.get(stem(canonical(profile.weights.source)))
        if facts and (found := on_node(facts, profile.weights)) is not None:
            return found
    return None
