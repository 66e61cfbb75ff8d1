"""What profiles take and can be shrunk to, as the daemon reckons it."""

from collections.abc import Mapping

from llmgw.catalog.spec import Catalog, ProfileSpec
from llmgw.engine.manager import Engines
from llmgw.engine.sizes import Sizes
from llmgw.facts import Footprint, Level, NodeReport
from llmgw.ids import NodeName, SpecDigest
from llmgw.testing.world_controller import Sizing


def sizing(engines: Engines | None = None) -> Sizing:
    """By these engines' word; without any, by what the profiles declare. It keeps answers: one for each world."""
    sizes = Sizes(engines or Engines())

    def sized(
        catalog: Catalog, nodes: Mapping[NodeName, NodeReport]
    ) -> tuple[Mapping[tuple[SpecDigest, Level], ProfileSpec], Mapping[tuple[SpecDigest, Level], Footprint]]:
        found = sizes.of(catalog, nodes.values())
        return found.levels, found.footprints

    return sized
