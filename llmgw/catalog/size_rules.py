"""Sizes that are surely meant otherwise: a number without a unit is one of bytes. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from llmgw.catalog.document import Document, Path, as_mapping
from llmgw.catalog.levels import LEVELS
from llmgw.errors import Problem
from llmgw.units import MIB

LEAST: Final = MIB
"""Bytes: no engine gets by with less, and nobody counts larger ones in megabytes."""

_OF_PROFILE: Final = ("memory", "host_memory")
_OF_NODE: Final = ("budget", "reserve")


def doubts_of_model(document: Document) -> Iterator[Problem]:
    """Of a valid Model document, its levels' blocks made whole: what these inherit is told where it is given."""
    for index, profile in enumerate(document.value.get("profiles", ())):
        yield from _of(document, ("profiles", index), profile, _OF_PROFILE)
        for level in LEVELS:
            block = profile.get(level, {})
            given = [key for key in _OF_PROFILE if block.get(key) != profile.get(key)]
            yield from _of(document, ("profiles", index, level), block, given)


def doubts_of_cluster(document: Document) -> Iterator[Problem]:
    """Of a valid Cluster document."""
    yield from _of(document, ("gateway",), as_mapping(document.value.get("gateway")), ("max_body",))
    for name, node in as_mapping(document.value.get("nodes")).items():
        for part in _OF_NODE:
            sizes = as_mapping(as_mapping(node).get(part))
            yield from _of(document, ("nodes", name, part), sizes, list(sizes))


def _of(document: Document, path: Path, holder: Mapping[str, Any], keys: Sequence[str]) -> Iterator[Problem]:
    for key in keys:
        size = holder.get(key)
        if isinstance(size, int | float) and 0 < size < LEAST:
            message = f"is {size:g} bytes: write a unit if more is meant, such as `{size:g}GiB` or `{size:g}MiB`"
            yield document.problem((*path, key), message)
