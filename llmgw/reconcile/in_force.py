"""The catalog in force as the store tells it: for a controller that has just begun to lead."""

from collections.abc import Mapping

from llmgw.catalog.spec import Catalog, ClusterSpec, ModelSpec, SupervisionSettings
from llmgw.errors import TerminalError
from llmgw.ids import ModelName
from llmgw.store import keys
from llmgw.store.api import Store
from llmgw.store.codec import decode
from llmgw.store.contents import Catalogs
from llmgw.store.values import Applied
from llmgw.units import Wall


async def in_force(store: Store) -> tuple[Catalog, Wall] | None:
    """With since when. None where there is none, or it cannot be read whole."""
    try:
        found = await Catalogs().in_force(store)
        return None if found is None else (_catalog(found.applied, found.check().models), found.applied.at)
    except TerminalError:
        return None


async def read_applied(store: Store) -> Applied | None:
    """Which catalog it is, also where it is not whole. None as `in_force`."""
    entry = await store.get(keys.APPLIED)
    try:
        return None if entry is None else decode(entry.value, Applied, where=entry.key)
    except TerminalError:
        return None


def _catalog(applied: Applied, models: Mapping[ModelName, ModelSpec]) -> Catalog:
    cluster = ClusterSpec(
        name=applied.cluster,
        time_zone=applied.time_zone,
        gateway=applied.gateway,
        defaults=applied.defaults,
        scaling=applied.scaling,
        recovery=applied.recovery,
        supervision=applied.supervision or SupervisionSettings(),
        weights=applied.weights,
        nodes=applied.policies,
        sync=applied.sync,
        protect=applied.protect,
        notify=applied.notify,
    )
    return Catalog(revision=applied.revision, digest=applied.digest, models=models, cluster=cluster)
