"""After how long a silent node is given up: the catalog says it, at once, unless the operator's flag does."""

from dataclasses import replace

from llmgw.catalog.live import LiveCatalog
from llmgw.catalog.spec import Catalog, ClusterSpec, SupervisionSettings
from llmgw.clock import SystemClock
from llmgw.engine.manager import Engines
from llmgw.ids import Digest, Revision
from llmgw.reconcile.in_force import in_force
from llmgw.reconcile.liveness import Liveness
from llmgw.reconcile.loop import Controller
from llmgw.reconcile.publishing import publish
from llmgw.store.memory import MemoryStore
from llmgw.units import Seconds

CATALOG = Catalog(revision=Revision("r"), digest=Digest("d"))


def with_grace(seconds: float) -> Catalog:
    cluster = ClusterSpec(supervision=SupervisionSettings(node_grace=Seconds(seconds)))
    return replace(CATALOG, digest=Digest(f"d{seconds}"), cluster=cluster)


def controller(live: LiveCatalog, **more: Liveness) -> Controller:
    return Controller(
        store=MemoryStore(), live=live, engines=Engines(), clock=SystemClock(), record=lambda _: None, **more
    )


async def test_the_patience_is_that_of_the_catalog_in_force() -> None:
    live = LiveCatalog("test")
    made = controller(live)
    for seconds in (30.0, 90.0):
        live.accept(with_grace(seconds), SystemClock().now())
        await made.reconcile()
        assert made.liveness.patience == seconds


async def test_an_operators_flag_wins() -> None:
    live = LiveCatalog("test")
    live.accept(with_grace(30), SystemClock().now())
    made = controller(live, liveness=Liveness(patience=7))
    await made.reconcile()
    assert made.liveness.patience == 7


async def test_a_controller_that_takes_over_knows_it_from_the_store() -> None:
    store = MemoryStore()
    await publish(store, with_grace(45), SystemClock().now())
    found = await in_force(store)
    assert found is not None
    assert found[0].cluster.supervision.node_grace == 45
