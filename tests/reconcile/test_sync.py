"""Taking revisions in while the disk will not play along."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from llmgw.catalog.live import LiveCatalog
from llmgw.catalog.place import Directory
from llmgw.clock import SystemClock
from llmgw.engine.manager import Engines
from llmgw.facts import Event
from llmgw.reconcile.sync import CatalogSync
from llmgw.store import keys
from llmgw.store.memory import MemoryStore


async def eventually(look: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(30):
        while not look():
            await asyncio.sleep(0.02)
    assert look(), what


def cluster(name: str) -> str:
    return f"apiVersion: llmgw/v1\nkind: Cluster\nname: {name}\n"


async def test_a_fault_of_our_own_is_told_and_the_next_revision_taken(tmp_path: Path) -> None:
    catalog = tmp_path / "catalog"
    catalog.mkdir()
    (catalog / "c.yaml").write_text(cluster("one"))
    live, told = LiveCatalog("test"), list[Event]()

    def record(event: Event) -> None:
        told.append(event)
        if len(told) == 1:
            raise ValueError("a bug")

    store = MemoryStore()
    follower = CatalogSync(
        place=Directory(catalog), store=store, live=live, engines=Engines(), clock=SystemClock(), record=record,
        last_good=tmp_path / "last-good.json", wake=lambda: None,
    )  # fmt: skip
    running = asyncio.create_task(follower.run())
    try:
        await eventually(lambda: live.state().error, "the fault told")
        assert "ValueError: a bug" in (live.state().error or "")
        (catalog / "c.yaml").write_text(cluster("two"))
        await eventually(lambda: live.current and live.current.cluster.name == "two", "the next revision in force")
        await eventually(lambda: live.state().error is None, "the fault is over")
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_a_full_disk_changes_nothing_and_is_tried_again(tmp_path: Path) -> None:
    catalog, disk = tmp_path / "catalog", tmp_path / "store"
    catalog.mkdir()
    (catalog / "c.yaml").write_text(cluster("one"))
    store, live, events = MemoryStore(disk), LiveCatalog("test"), list[Event]()
    store.load()
    follower = CatalogSync(
        place=Directory(catalog), store=store, live=live, engines=Engines(), clock=SystemClock(), record=events.append,
        last_good=tmp_path / "last-good.json", wake=lambda: None, retry=0.1,
    )  # fmt: skip
    running = asyncio.create_task(follower.run())
    try:
        await eventually(lambda: live.current, "the first revision in force")
        first = live.current
        disk.rename(tmp_path / "away")
        disk.write_text("in the way")
        (catalog / "c.yaml").write_text(cluster("two"))
        await eventually(lambda: live.state().error, "the trouble told")
        assert live.current is first, "what is in force stays, whole"
        assert f"cannot be put in force yet: cannot keep catalog/applied, catalog/history/00000002 in {disk}" in (
            live.state().error or ""
        )
        assert not running.done()

        disk.unlink()
        (tmp_path / "away").rename(disk)
        await eventually(lambda: live.current is not first, "the second revision in force")
        assert live.state().error is None
        assert len((await store.list(keys.HISTORY)).entries) == 2
        assert [event.reason for event in events].count("catalog applied") == 2
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
