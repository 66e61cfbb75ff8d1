"""Collecting by itself where a disk fills: off unless asked for, and no more than is needed."""

from dataclasses import replace
from pathlib import Path

from test_agent_upkeep import A, B, C, Fleet, fleet, model

from llmgw.app.pressure import Pressure
from llmgw.catalog.spec import Catalog, ClusterSpec, WeightsSettings
from llmgw.clock import SystemClock
from llmgw.facts import DiskFact, NodeReport
from llmgw.ids import Digest, Revision
from llmgw.reconcile.publishing import publish
from llmgw.store import keys
from llmgw.store.codec import decode, encode
from llmgw.store.events import EventLog
from llmgw.store.values import CatalogStatus
from llmgw.units import Bytes, Instant, Mono, Seconds, Wall


async def relieved(made: Fleet, settings: WeightsSettings, *, used: int, on_disk: str = "d1") -> tuple[set[str], str]:
    """What is left on the first node, whose disk of 100 bytes has so many in use, and what was told."""
    catalog = Catalog(
        revision=Revision("r1"), digest=Digest("d1"), models={"a": model("a", A)}, cluster=ClusterSpec(weights=settings)  # type: ignore[dict-item]
    )  # fmt: skip
    await publish(made.store, catalog, Instant(Mono(0), Wall(0)))
    status = CatalogStatus(source="/c", attempted=Revision("r1"), applied=Revision("r1"))
    await made.store.put(keys.CATALOG_STATUS, encode(status))
    node = made.nodes[0]
    await node.report()
    entry = await made.store.get(keys.report(node.name))
    assert entry is not None
    report = replace(decode(entry.value, NodeReport), disk=DiskFact(total=Bytes(100), free=Bytes(100 - used)))
    await made.store.put(keys.report(node.name), encode(report))

    async def compare(given: Catalog | None) -> tuple[Catalog | None, Catalog]:
        return None, replace(catalog, digest=Digest(on_disk))

    events = EventLog()
    await Pressure(store=made.store, clock=SystemClock(), record=events.record, compare=compare).relieve()
    left = {fact.source for fact in node.cache.facts(())}
    return left, " ".join(f"{event.reason}: {event.message}" for event in events.recent())


def filled(made: Fleet) -> None:
    made.nodes[0].put(A)
    made.nodes[0].put(B, wanted=2_000)  # 7 bytes each
    made.nodes[0].put(C, wanted=1_000)


ON = WeightsSettings(keep_revisions=0, min_age=Seconds(60), collect_above=90, collect_below=85)


async def test_by_default_a_full_disk_is_left_alone(tmp_path: Path) -> None:
    async with fleet(tmp_path, "n1") as made:
        filled(made)
        off = replace(ON, collect_above=None, collect_below=None)
        assert await relieved(made, off, used=99) == ({A, B, C}, "")


async def test_up_to_the_mark_nothing_goes(tmp_path: Path) -> None:
    async with fleet(tmp_path, "n1") as made:
        filled(made)
        assert await relieved(made, ON, used=90) == ({A, B, C}, "")


async def test_above_it_the_longest_unwanted_goes_and_no_more_than_is_needed(tmp_path: Path) -> None:
    async with fleet(tmp_path, "n1") as made:
        filled(made)
        left, told = await relieved(made, ON, used=92)
        assert left == {A, B}
        assert told == "disk pressure: the disk is 92 % full: 7 B of weights removed"
        assert made.nodes[0].told()[-1]["by"] == "llmgw, for the disk is full"


async def test_what_the_catalog_wants_stays_however_full_the_disk_is(tmp_path: Path) -> None:
    async with fleet(tmp_path, "n1") as made:
        filled(made)
        assert (await relieved(made, ON, used=100))[0] == {A}


async def test_age_holds_under_pressure_too(tmp_path: Path) -> None:
    async with fleet(tmp_path, "n1") as made:
        filled(made)
        assert (await relieved(made, replace(ON, min_age=Seconds(1e10)), used=99))[0] == {A, B, C}


async def test_without_a_lower_mark_it_is_ten_percent_less(tmp_path: Path) -> None:
    async with fleet(tmp_path, "n1") as made:
        filled(made)
        assert (await relieved(made, replace(ON, collect_below=None), used=91))[0] == {A}


async def test_while_the_catalog_on_disk_is_another_nothing_goes(tmp_path: Path) -> None:
    async with fleet(tmp_path, "n1") as made:
        filled(made)
        assert (await relieved(made, ON, used=99, on_disk="d2"))[0] == {A, B, C}
