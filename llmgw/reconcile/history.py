"""The catalogs that were in force, as the store keeps them: read once, not at each change anew."""

from collections.abc import Mapping
from typing import Final

from llmgw.catalog.resolving import digest_with, moved
from llmgw.catalog.spec import Catalog, ModelSpec
from llmgw.ids import Digest
from llmgw.memo import Once
from llmgw.store import keys
from llmgw.store.api import Delete, Entry, Put, Store
from llmgw.store.histories import Past, decode_past, encode_entry
from llmgw.store.values import HistoryEntry
from llmgw.units import Instant
from llmgw.weights.naming import canonical

KEPT: Final = 100
"""Entries; the oldest go."""


class History:
    """Of one store. What was read is read no more: others may write too, but only after the newest."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: list[tuple[str, int, Past]] | None = None  # key and revision, oldest first; None: nothing was read

    async def same_content(self, documents: Digest) -> Mapping[str, str]:
        """What moving sources were at when the very documents of that digest were in force last."""
        for past in reversed(await self._pasts()):
            if past.resolved and documents == (past.documents or _documents_if(documents, past)):
                return past.resolved
        return {}

    async def addition(self, catalog: Catalog, now: Instant) -> list[Put | Delete]:
        """One more entry where the content differs from the newest; the oldest beyond KEPT go."""
        known = await self._pasts()
        if known and known[-1].digest == catalog.digest:
            return []
        number = known[-1].number + 1 if known else 1
        models = {str(model.name): _sources_of(model) for model in catalog.models.values()}
        entry = HistoryEntry(
            number=number,
            revision=catalog.revision,
            digest=catalog.digest,
            at=now.wall,
            sources=tuple(sorted({source for sources in models.values() for source in sources})),
            models=models,
            resolved=moved(catalog),
            documents=catalog.documents,
        )
        surplus = known[: max(0, len(known) + 1 - KEPT)]
        return [Put(keys.history(number), encode_entry(entry)), *(Delete(keys.history(old.number)) for old in surplus)]

    async def _pasts(self) -> list[Past]:
        known = self._known
        if known is None or not await self._is_newest(known):
            known = [_read(entry) for entry in (await self._store.list(keys.HISTORY)).entries]
        while (entry := await self._store.get(keys.history(_after(known)))) is not None:
            known.append(_read(entry))
        while known and await self._store.get(known[0][0]) is None:
            del known[0]
        self._known = known
        return [past for _, _, past in known]

    async def _is_newest(self, known: list[tuple[str, int, Past]]) -> bool:
        """Whether what was the newest is there still: then others came after it."""
        if not known:
            return True
        key, revision, _ = known[-1]
        newest = await self._store.get(key)
        return newest is not None and newest.revision == revision


def _after(known: list[tuple[str, int, Past]]) -> int:
    """The number of the next entry."""
    return known[-1][2].number + 1 if known else 1


def _read(entry: Entry) -> tuple[str, int, Past]:
    return entry.key, entry.revision, decode_past(entry.value, where=entry.key)


def _documents_if(asked: Digest, past: Past) -> Digest | None:
    """The documents' digest, if it is that which is asked for: an earlier llmgw did not write it down."""
    return asked if digest_with(asked, past.resolved) == past.digest else None


def _sources(model: ModelSpec) -> tuple[str, ...]:
    return tuple(sorted({canonical(spec.source) for profile in model.profiles for spec in profile.every_file}))


_sources_of: Final = Once(_sources)
