"""Rollouts in the store: begun when a catalog comes into force, brought on by passes."""

from collections.abc import Mapping

from llmgw.catalog.spec import Catalog, spec_digest
from llmgw.ids import ModelName, SpecDigest
from llmgw.plan import ModelStatus, Rollout
from llmgw.schedule import rollout
from llmgw.store import keys
from llmgw.store.api import Delete, Put, Store
from llmgw.store.batches import write_all
from llmgw.store.codec import decode, encode
from llmgw.units import Instant


class Effective:
    """The catalog in force, with models whose rollout failed as they were before: the same object while it is so."""

    def __init__(self) -> None:
        self._made: tuple[Catalog, Mapping[ModelName, Rollout], Catalog] | None = None

    def of(self, catalog: Catalog, rollouts: Mapping[ModelName, Rollout]) -> Catalog:
        back = rollout.returned(catalog, rollouts)
        if self._made is None or self._made[0] is not catalog or self._made[1] != back:
            self._made = (catalog, back, rollout.effective(catalog, back))
        return self._made[2]


def relevant(catalog: Catalog, rollouts: Mapping[ModelName, Rollout]) -> dict[ModelName, Rollout]:
    """Those under way, and those whose models are wanted as they were before."""
    back = rollout.returned(catalog, rollouts)
    return {name: one for name, one in rollouts.items() if one.failed is None or name in back}


async def read(store: Store) -> dict[ModelName, Rollout]:
    entries = (await store.list(keys.ROLLOUTS)).entries
    return {ModelName(keys.last(entry.key)): decode(entry.value, Rollout, where=entry.key) for entry in entries}


async def begun(store: Store, before: Catalog | None, after: Catalog, now: Instant) -> list[Put | Delete]:
    """What is to be written when `after` takes the place of `before`."""
    if before is None:
        return []
    changed = [
        name
        for name, model in after.models.items()
        if (old := before.models.get(name)) is not None and old is not model and old.profiles != model.profiles
    ]
    known = await read(store)
    if not changed and not known:
        return []
    return _writes(rollout.begin(before, after, known, await _served(store, before, changed), now))


async def _served(store: Store, catalog: Catalog, names: list[ModelName]) -> frozenset[ModelName]:
    """Models whose spec is ready, or was seen to take memory when it was."""
    specs = {spec_digest(name, profile): name for name in names for profile in catalog.models[name].profiles}
    found = {
        name
        for entry in (await store.list(keys.MEASURED)).entries
        if (name := specs.get(SpecDigest(entry.key.removeprefix(keys.MEASURED).partition("/")[0])))
    }
    for name in names:
        entry = await store.get(keys.explain(name))
        if entry is not None and decode(entry.value, ModelStatus, where=entry.key).ready > 0:
            found.add(name)
    return frozenset(found)


async def write(store: Store, changes: Mapping[ModelName, Rollout | None]) -> None:
    await write_all(store, _writes(changes))


def _writes(changes: Mapping[ModelName, Rollout | None]) -> list[Put | Delete]:
    return [
        Delete(keys.rollout(name)) if one is None else Put(keys.rollout(name), encode(one))
        for name, one in changes.items()
    ]
