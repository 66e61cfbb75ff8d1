"""The catalog in force as the store tells it: for a controller that has just begun to lead."""

from llmgw.catalog.spec import Catalog, ClusterSpec, ModelSpec, SupervisionSettings
from llmgw.errors import TerminalError
from llmgw.store import keys
from llmgw.store.api import Store
from llmgw.store.codec import decode, decode_shared
from llmgw.store.values import Applied
from llmgw.units import Wall


async def in_force(store: Store) -> tuple[Catalog, Wall] | None:
    """With since when. None where there is none, or it cannot be read whole."""
    try:
        entry = await store.get(keys.APPLIED)
        if entry is None:
            return None
        applied = decode(entry.value, Applied, where=entry.key)
        entries = (await store.list(f"{keys.MODELS}{applied.digest}/")).entries
        models = [decode_shared(one.value, ModelSpec) for one in entries]
    except TerminalError:
        return None
    return _catalog(applied, models), applied.at


def _catalog(applied: Applied, models: list[ModelSpec]) -> Catalog:
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
    named = {model.name: model for model in sorted(models, key=lambda model: model.name)}
    return Catalog(revision=applied.revision, digest=applied.digest, models=named, cluster=cluster)
