"""The catalog in force beside another: what `llmgw diff` compares, and whether a revision is an earlier one. Nothing is
written."""

import asyncio
from dataclasses import dataclass

from llmgw.catalog.commits import Lineage, is_ancestor
from llmgw.catalog.live import LiveCatalog
from llmgw.catalog.load import load_catalog
from llmgw.catalog.place import Place
from llmgw.catalog.resolving import resolutions_of, resolved
from llmgw.catalog.spec import Catalog
from llmgw.engine.manager import Engines
from llmgw.errors import CatalogInvalid, CatalogUnreadable
from llmgw.ids import Revision


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparing:
    """`place`: of the catalog that `live` follows."""

    live: LiveCatalog
    place: Place
    engines: Engines

    async def sides(self, catalog: Catalog | None) -> tuple[Catalog | None, Catalog]:
        """What is in force, and `catalog`, else the followed one as it stands on disk.

        Raises CatalogInvalid and CatalogUnreadable.
        """
        other = catalog if catalog is not None else await asyncio.to_thread(self._at)
        return self.live.current, resolved(other, resolutions_of(self.live.current))

    async def read(self, revision: str | None) -> Catalog:
        """The followed one as it stands there, or at a revision. Raises CatalogInvalid and CatalogUnreadable."""
        return await asyncio.to_thread(self._at, revision)

    async def lineage(self, asked: str) -> Lineage | None:
        """None: git has no such commit there, or there is no git."""
        return await asyncio.to_thread(self._lineage, asked, self.live.state().attempted)

    def _lineage(self, asked: str, newest: Revision | None) -> Lineage | None:
        try:
            source = self.place.read(asked)
            if source.commit is None or source.repository is None or newest is None:
                return None
            commit = Revision(source.commit)
            earlier = commit != newest and is_ancestor(source.repository, commit, newest.partition("+")[0])
        except (CatalogUnreadable, FileNotFoundError):
            return None
        if not earlier:
            return Lineage(commit=commit, earlier=False)
        try:
            load_catalog(source, self.engines.rules(), canonical=self.engines.canonical)
        except CatalogInvalid as error:
            return Lineage(commit=commit, earlier=True, problems=error.problems)
        return Lineage(commit=commit, earlier=True)

    def _at(self, revision: str | None = None) -> Catalog:
        return load_catalog(self.place.read(revision), self.engines.rules(), canonical=self.engines.canonical).catalog
