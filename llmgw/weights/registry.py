"""The kinds of weights sources that there are, by scheme."""

from collections.abc import Callable, Mapping
from functools import lru_cache

from llmgw.catalog.schemas import did_you_mean
from llmgw.catalog.spec import WeightsSpec
from llmgw.errors import WeightsRefused
from llmgw.weights import naming
from llmgw.weights.api import Description, Fetched, WeightSource, Work
from llmgw.weights.filesystems import Filesystems
from llmgw.weights.hub import Hub
from llmgw.weights.inplace import InPlace
from llmgw.weights.pypi import Pypi
from llmgw.weights.web import Web

Sources = Mapping[str, WeightSource]
"""By scheme."""


def own_sources() -> dict[str, WeightSource]:
    """Those that come with llmgw."""
    return by_scheme((InPlace(), Hub(), Pypi(), Web(), Filesystems()))


def by_scheme(sources: "tuple[WeightSource, ...]") -> dict[str, WeightSource]:
    return {scheme: source for source in sources for scheme in sorted(source.schemes)}


class Lost(WeightSource):
    """Stands for the sources of a plugin that is broken or turned off: what names them is accepted, and waits."""

    def __init__(self, scheme: str, why: str) -> None:
        self.schemes = frozenset({scheme})  # type: ignore[misc] # an object's own, here
        self._why = why

    def canonical(self, text: str) -> str:
        return text

    async def describe(self, spec: WeightsSpec) -> Description:
        raise self._refusal(spec)

    async def fetch(self, spec: WeightsSpec, work: Work) -> Fetched:
        raise self._refusal(spec)

    def _refusal(self, spec: WeightsSpec) -> WeightsRefused:
        return WeightsRefused(f"nothing here can fetch {spec.source}: {self._why}")


def canonical_by(sources: Sources) -> Callable[[str], str]:
    """What gives any source its one spelling, as its own kind has it; ValueError with advice."""

    @lru_cache(maxsize=65_536)
    def canonical(text: str) -> str:
        known = naming.parse(text)
        if not isinstance(known, naming.OtherSource):
            return naming.spell(known)
        source = sources.get(known.scheme)
        if source is not None:
            return source.canonical(text)
        hint = did_you_mean(known.scheme, sources) or f" (there are: {', '.join(sorted(sources))})"
        raise ValueError(f"{text!r}: no source of kind {known.scheme}://{hint}")

    return canonical
