"""The catalog in force beside another: what `llmgw diff` compares. Nothing is written."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from llmgw.catalog.live import LiveCatalog
from llmgw.catalog.load import load_catalog
from llmgw.catalog.source import read_source
from llmgw.catalog.spec import Catalog
from llmgw.engine.manager import Engines
from llmgw.weights.naming import canonical


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparing:
    """`path`: of the catalog that `live` follows."""

    live: LiveCatalog
    path: Path
    engines: Engines

    async def sides(self, catalog: Catalog | None) -> tuple[Catalog | None, Catalog]:
        """What is in force, and `catalog`, else the followed one as it stands on disk.

        Raises CatalogInvalid and CatalogUnreadable.
        """
        other = catalog if catalog is not None else await asyncio.to_thread(self._on_disk)
        return self.live.current, other

    def _on_disk(self) -> Catalog:
        return load_catalog(read_source(self.path), self.engines.rules(), canonical=canonical).catalog
