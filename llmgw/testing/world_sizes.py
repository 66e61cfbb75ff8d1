"""What profiles take and can be shrunk to, by their own documents alone: no engine is asked. Pure."""

from collections.abc import Mapping
from typing import Final

from llmgw.catalog.spec import Catalog, ProfileSpec, spec_digest
from llmgw.facts import Footprint, Level, NodeReport
from llmgw.ids import NodeName, SpecDigest
from llmgw.plan import Levels
from llmgw.units import Bytes

GUESS: Final = 1.2
"""Memory per byte of weights, where nothing is declared."""


def declared(
    catalog: Catalog, nodes: Mapping[NodeName, NodeReport]
) -> tuple[Levels, dict[tuple[SpecDigest, Level], Footprint]]:
    """Levels as the blocks `degraded` and `minimal` say, where they take less than the level above."""
    levels: dict[tuple[SpecDigest, Level], ProfileSpec] = {}
    footprints: dict[tuple[SpecDigest, Level], Footprint] = {}
    for model in catalog.models.values():
        for profile in model.profiles:
            spec = spec_digest(model.name, profile)
            above = footprint(profile)
            if above is None:
                continue
            footprints[spec, Level.FULL] = above
            for level, shrunk in ((Level.DEGRADED, profile.degraded), (Level.MINIMAL, profile.minimal)):
                takes = footprint(shrunk) if shrunk is not None else None
                if shrunk is not None and takes is not None and _smaller(takes, above):
                    levels[spec, level], footprints[spec, level] = shrunk, takes
                    above = takes
    return levels, footprints


def footprint(profile: ProfileSpec) -> Footprint | None:
    """Declared, else guessed from the weights' sizes; None: nobody can tell."""
    beside = profile.host_memory or Bytes(0)
    if profile.memory is not None:
        if profile.devices:
            return Footprint(host=beside, device=profile.memory, source="declared")
        return Footprint(host=Bytes(profile.memory + beside), source="declared")
    sizes = [spec.size for spec in profile.roles.values()]
    if not sizes or None in sizes:
        return None
    whole = Bytes(int(GUESS * sum(size for size in sizes if size is not None)))
    if profile.devices:
        return Footprint(host=beside, device=whole, source="guess")
    return Footprint(host=Bytes(whole + beside), source="guess")


def _smaller(one: Footprint, other: Footprint) -> bool:
    """Of either memory it takes less: a level that leaves the devices may well take more of the host's."""
    return one.device < other.device or one.host < other.host
