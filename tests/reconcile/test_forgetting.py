"""A machine that was taken away is not listed for ever."""

from dataclasses import replace

from llmgw.catalog.spec import Catalog
from llmgw.engine.manager import Engines
from llmgw.engine.sizes import Sizes
from llmgw.facts import DiskFact, Event, MemoryFact, NodeReport
from llmgw.ids import Digest, NodeName, Revision
from llmgw.reconcile.forgetting import FORGOTTEN, forget_nodes
from llmgw.reconcile.observe import Seen, observe
from llmgw.store import keys
from llmgw.store.codec import encode
from llmgw.store.memory import MemoryStore
from llmgw.units import GIB, Bytes, Instant, Mono, Wall

NODE = NodeName("gone")
CATALOG = Catalog(models={}, revision=Revision("r"), digest=Digest("d"))


async def seen(store: MemoryStore, now: Instant, *lost: NodeName) -> Seen:
    found = await observe(store, Sizes(Engines()), CATALOG, now)
    return replace(found, observed=replace(found.observed, lost=frozenset(lost)))


async def forgotten(silent: float, *lost: NodeName) -> tuple[bool, list[Event]]:
    store, events = MemoryStore(), list[Event]()
    memory = MemoryFact(total=Bytes(GIB), available=Bytes(GIB), foreign=Bytes(0))
    disk = DiskFact(total=Bytes(GIB), free=Bytes(GIB))
    await store.put(keys.report(NODE), encode(NodeReport(node=NODE, at=Wall(0), memory=memory, disk=disk)))
    now = Instant(Mono(silent), Wall(silent))
    await forget_nodes(store, await seen(store, now, *lost), now, events.append)
    return await store.get(keys.report(NODE)) is None, events


async def test_a_node_lost_for_a_day_is_forgotten_and_that_is_told() -> None:
    gone, events = await forgotten(FORGOTTEN + 1, NODE)
    assert gone
    assert [(event.subject, event.reason) for event in events] == [("node/gone", "forgotten")]


async def test_a_node_that_is_lost_for_less_is_kept() -> None:
    assert await forgotten(FORGOTTEN - 1, NODE) == (False, [])


async def test_a_report_with_an_old_stamp_alone_proves_nothing() -> None:
    assert await forgotten(FORGOTTEN * 2) == (False, [])
