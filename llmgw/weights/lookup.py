"""Finds a profile's weights among what a node reports, and what is wanted of it. Pure."""

from collections.abc import Iterable
from typing import Final

from llmgw.catalog.spec import WeightsSpec
from llmgw.facts import WeightsFact
from llmgw.weights.naming import canonical, entry_name, is_held_as, is_local, is_moving, repository


def on_node(facts: Iterable[WeightsFact], spec: WeightsSpec) -> WeightsFact | None:
    """The complete weights that `spec` names, or None while they are not there.

    As `Cache.locate` finds them: the entry named for `spec`, else one of the same source with the same content; of a
    source without a revision the one that was wanted last.
    """
    source = canonical(spec.source)
    found = [fact for fact in facts if fact.complete and is_held_as(source, fact.source)]
    if is_local(source):
        return found[0] if found else None
    exact = entry_name(source, spec.sha256)
    if is_moving(source):
        found.sort(key=lambda fact: (fact.last_wanted, fact.entry or ""), reverse=True)
    else:
        found.sort(key=lambda fact: (fact.entry != exact, fact.entry))
    return next((fact for fact in found if fact.entry == exact or _same_content(fact, spec)), None)


class WantedSources:
    """Canonical sources that somebody wants. One without a revision wants every entry of its repository: which of them
    it means, nobody has said yet."""

    def __init__(self, sources: Iterable[str]) -> None:
        self._exact: Final = frozenset(sources)
        self._repositories: Final = frozenset(repository(source) for source in self._exact if is_moving(source))

    def __contains__(self, source: str) -> bool:
        return source in self._exact or (bool(self._repositories) and repository(source) in self._repositories)


def _same_content(fact: WeightsFact, spec: WeightsSpec) -> bool:
    return spec.sha256 is None or fact.sha256 == spec.sha256.lower()
