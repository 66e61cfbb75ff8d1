"""Putting a catalog in force for gateways and agents, whole as far as anybody can see."""

from collections.abc import Mapping
from typing import Final

from llmgw.catalog.spec import Catalog
from llmgw.errors import TerminalError
from llmgw.ids import ContentId
from llmgw.plan import Endpoint
from llmgw.reconcile.history import History
from llmgw.reconcile.rollouts import begun
from llmgw.store import keys
from llmgw.store.api import Delete, Put, Store
from llmgw.store.batches import write_all
from llmgw.store.codec import decode, encode
from llmgw.store.contents import Contents, contents_of, keys_of
from llmgw.store.values import Applied, CatalogPart
from llmgw.units import Instant

LOOK_EVERY: Final = 600.0
"""Seconds after which it is looked anew what the store holds: somebody may have deleted some of it by hand."""


class Publisher:
    """Of one store, which nobody else publishes to meanwhile: it knows what it wrote, and looks only where it does not.

    First, models and the lists of them, as far as they are not there: nobody looks at them yet. Then, in one
    transaction, which catalog it is, and the end of the endpoints of models it no longer has: traffic stops before any
    engine does. What the catalog before it consisted of stays for those who still read it; what neither needs goes
    last. Whatever fails on the way, what is in force is whole, and the next attempt does the rest.
    """

    def __init__(self, store: Store, history: History | None = None) -> None:
        self._store = store
        self._history = history or History(store)
        self._there: set[str] | None = None  #: keys of models and lists; None: look
        self._looked_at = 0.0  #: monotonic
        self._now: tuple[tuple[ContentId, ...], frozenset[str]] | None = None  #: in force: its parts, and its keys
        self._before: frozenset[str] = frozenset()  #: keys of the one before

    async def publish(self, catalog: Catalog, now: Instant, *, before: Catalog | None = None) -> None:
        """`before`: whose place it takes: rollouts begin. Raises RetryableError where the store is away."""
        contents = contents_of(catalog.models)
        there, self._there = self._there, None  # where this fails, nobody knows how far it came
        if there is None or now.mono - self._looked_at > LOOK_EVERY:
            there = await self._look(contents.values)
            self._looked_at = now.mono
        new = [Put(key, value) for key, value in contents.values.items() if key not in there]
        await write_all(self._store, new)
        there |= {put.key for put in new}
        await self._put_in_force(catalog, contents, now, before)
        if self._now is not None and self._now[0] != contents.parts:
            self._before = self._now[1]
        self._now = (contents.parts, frozenset(contents.values))
        surplus = sorted(there - self._now[1] - self._before)
        await write_all(self._store, [Delete(key) for key in surplus])
        self._there = there.difference(surplus)

    async def _look(self, wanted: Mapping[str, bytes]) -> set[str]:
        """What is there; of `wanted` only what is as it should be."""
        found = {
            entry.key: entry.value
            for prefix in (keys.PARTS, keys.SPECS, keys.MODELS)
            for entry in (await self._store.list(prefix)).entries
        }
        if self._now is None and (entry := await self._store.get(keys.APPLIED)) is not None:
            self._now = _known(entry.value, found)
        return {key for key, value in found.items() if wanted.get(key, value) == value}

    async def _put_in_force(self, catalog: Catalog, contents: Contents, now: Instant, before: Catalog | None) -> None:
        endpoints = [
            entry.key
            for entry in (await self._store.list(keys.ENDPOINTS)).entries
            if decode(entry.value, Endpoint, where=entry.key).model not in catalog.models
        ]
        history = await self._history.addition(catalog, now)
        rollouts = await begun(self._store, before, catalog, now)
        # Beyond what one transaction takes, endpoints follow: gateways pass over those of a model that is not there.
        withdrawn = [Delete(key) for key in endpoints]
        applied = encode(_applied(catalog, contents, now))
        await write_all(self._store, [Put(keys.APPLIED, applied), *history, *rollouts, *withdrawn])


async def publish(store: Store, catalog: Catalog, now: Instant, *, before: Catalog | None = None) -> None:
    """Once: as `Publisher.publish` by one who knows nothing of the store yet."""
    await Publisher(store).publish(catalog, now, before=before)


def _known(raw: bytes, found: Mapping[str, bytes]) -> tuple[tuple[ContentId, ...], frozenset[str]] | None:
    """What the catalog in force consists of, as far as it is there; None: it cannot be read, or an earlier llmgw wrote
    it."""
    try:
        parts = decode(raw, Applied, where=keys.APPLIED).parts
        lists = {keys.part(part): found[keys.part(part)] for part in parts or () if keys.part(part) in found}
        models = [key for name, value in lists.items() for key in keys_of(decode(value, CatalogPart, where=name))]
    except TerminalError:
        return None
    return None if parts is None else (parts, frozenset([*lists, *models]))


def _applied(catalog: Catalog, contents: Contents, now: Instant) -> Applied:
    cluster = catalog.cluster
    return Applied(
        revision=catalog.revision,
        digest=catalog.digest,
        at=now.wall,
        gateway=cluster.gateway,
        weights=cluster.weights,
        cluster=cluster.name,
        nodes=tuple(cluster.nodes),
        policies=cluster.nodes,
        time_zone=cluster.time_zone,
        scaling=cluster.scaling,
        defaults=cluster.defaults,
        recovery=cluster.recovery,
        supervision=cluster.supervision,
        sync=cluster.sync,
        protect=cluster.protect,
        notify=cluster.notify,
        parts=contents.parts,
    )
