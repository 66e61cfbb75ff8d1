"""Catalogs that were in force: which one to go back to, and where its content is to be had."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmgw.catalog import kept
from llmgw.catalog.load import load_catalog
from llmgw.catalog.resolving import at, resolved
from llmgw.catalog.source import Source
from llmgw.catalog.spec import Catalog
from llmgw.catalog.yamldoc import quoted
from llmgw.engine.manager import Engines
from llmgw.errors import CatalogInvalid, CatalogUnreadable, NoSuchRevision, Problem
from llmgw.ids import Digest, Revision, is_named, shortened
from llmgw.reconcile.in_force import in_force
from llmgw.store import keys
from llmgw.store.api import Store
from llmgw.store.histories import decode_entry
from llmgw.store.values import HistoryEntry, Pinned


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """`read`: the followed place's files at a revision, where there is git to ask for it. Blocks."""

    store: Store
    last_good: Path
    engines: Engines
    read: Callable[[str], Source]

    async def find(self, asked: str | None, current: Digest | None, pinned: Pinned | None) -> Catalog:
        """The catalog of a revision (or the beginning of one), a tag or a branch; None: the one before what is in
        force, which is `current`. It is as `pinned` where the operator went back already.

        Raises NoSuchRevision, and CatalogInvalid where it is one no longer: an engine is gone, say.
        """
        entries = await self._history()
        if asked is None:
            entry = before(entries, current, pinned)
            if entry is None:
                raise NoSuchRevision("no catalog was in force before this one; `llmgw history` lists what there was")
            return await self._of(entry.revision, entry.digest)
        # Of a revision that was in force with several contents, since a branch of weights moved, the last counts.
        found = {entry.revision: entry for entry in entries if is_named(entry.revision, asked)}
        if (whole := found.get(Revision(asked))) is not None:
            found = {whole.revision: whole}
        if len(found) > 1:
            raise NoSuchRevision(f"{quoted(asked)} begins several revisions; `llmgw history` lists them")
        for entry in found.values():
            return await self._of(entry.revision, entry.digest)
        return await asyncio.to_thread(self._from_git, asked)

    async def get(self, revision: Revision, digest: Digest) -> Catalog | None:
        """That very content, wherever it is; None: it cannot be had any more."""
        if (found := await in_force(self.store)) is not None and found[0].digest == digest:
            return found[0]
        catalog = await asyncio.to_thread(kept.find, self.last_good, digest)
        if catalog is not None:
            return catalog
        try:
            catalog = await self._at(revision, digest)
        except (NoSuchRevision, CatalogUnreadable):
            return None
        return catalog if catalog.digest == digest else None

    async def _of(self, revision: Revision, digest: Digest) -> Catalog:
        catalog = await asyncio.to_thread(kept.find, self.last_good, digest)
        if catalog is None:
            return await self._at(revision, digest)
        if missing := _without_engine(catalog, self.engines.rules().keys()):
            raise CatalogInvalid(missing)
        return catalog

    async def _at(self, revision: Revision, digest: Digest) -> Catalog:
        """From git, with its moving sources at what they were then."""
        then = next((entry.resolved for entry in await self._history() if entry.digest == digest), {})
        return resolved(await asyncio.to_thread(self._from_git, revision), at(then))

    def _from_git(self, revision: str) -> Catalog:
        try:
            source = self.read(revision)
        except CatalogUnreadable as error:
            raise NoSuchRevision(f"{error}; `llmgw history` lists what was in force") from error
        return load_catalog(source, self.engines.rules(), canonical=self.engines.canonical).catalog

    async def _history(self) -> Sequence[HistoryEntry]:
        entries = (await self.store.list(keys.HISTORY)).entries
        return [decode_entry(entry.value, where=entry.key) for entry in entries]


def _without_engine(catalog: Catalog, known: Collection[str]) -> list[Problem]:
    """What was kept is valid but for that: plugins come and go."""
    where = shortened(catalog.revision)
    return [
        Problem(
            where, 0, 0, "$", f"model {model.name} needs the engine {profile.engine!r}, which no plugin here brings"
        )
        for model in catalog.models.values()
        for profile in model.profiles
        if profile.engine not in known
    ]


def before(entries: Sequence[HistoryEntry], current: Digest | None, pinned: Pinned | None) -> HistoryEntry | None:
    """The entry before the one in force; of one that was gone back to, before it came the first time. Pure."""
    known = list(entries)
    while pinned is not None and known and known[-1].digest == pinned.digest:
        known.pop()  # written by the rollback itself
    places = [index for index, entry in enumerate(known) if entry.digest == current]
    earlier = known[: places[-1]] if places else known
    return next((entry for entry in reversed(earlier) if entry.digest != current), None)
