"""What serves from the start on, until the newest revision has come; and since when it counts as in force."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from llmgw.catalog.asks import Asks
from llmgw.catalog.live import LiveCatalog, in_force_since, load_last_good, save_last_good
from llmgw.catalog.load import load_catalog
from llmgw.catalog.place import Place
from llmgw.catalog.rules import EngineRules
from llmgw.catalog.source import Source
from llmgw.catalog.spec import Catalog
from llmgw.catalog.watch import Observation
from llmgw.clock import SystemClock
from llmgw.engine.manager import Engines
from llmgw.errors import CatalogUnreadable
from llmgw.facts import Event
from llmgw.reconcile.sync import CatalogSync
from llmgw.store import keys
from llmgw.store.codec import decode
from llmgw.store.memory import MemoryStore
from llmgw.store.values import Applied
from llmgw.units import Wall


def source_of(name: str) -> Source:
    return Source(files={"c.yaml": f"apiVersion: llmgw/v1\nkind: Cluster\nname: {name}\n".encode()})


def catalog_of(name: str) -> Catalog:
    return load_catalog(source_of(name), {}).catalog


class Slow:
    """A place that tells nothing before `comes` is set."""

    name = "slow"

    def __init__(self, source: Source) -> None:
        self.asks = Asks()
        self.comes = asyncio.Event()
        self._source = source

    def read(self, revision: str | None = None) -> Source:
        raise CatalogUnreadable("not asked for here")

    async def follow(self) -> AsyncGenerator[Observation, None]:
        await self.comes.wait()
        yield Observation(source=self._source)
        await asyncio.Event().wait()


class Waiting(Engines):
    """Engines that are asked for their rules only once `go` is set: a catalog takes as long to be judged."""

    go = threading.Event()

    def rules(self) -> dict[str, EngineRules]:
        assert self.go.wait(20)
        return {}


class Following:
    """A process that takes catalogs in, and ends."""

    def __init__(self, place: Place, home: Path, grace: float, engines: Engines) -> None:
        self.live, self.store, self.told = LiveCatalog("test"), MemoryStore(), list[Event]()
        self.sync = CatalogSync(
            place=place, store=self.store, live=self.live, engines=engines, clock=SystemClock(),
            record=self.told.append, last_good=home / "last-good.json", wake=lambda: None, grace=grace,
        )  # fmt: skip

    async def applied(self) -> Applied:
        entry = await self.store.get(keys.APPLIED)
        assert entry is not None
        return decode(entry.value, Applied)

    @property
    def reasons(self) -> list[str]:
        return [event.reason for event in self.told if event.reason != "catalog warning"]


@asynccontextmanager
async def following(
    place: Place, home: Path, grace: float = 30, engines: Engines | None = None
) -> AsyncIterator[Following]:
    one = Following(place, home, grace, engines or Engines())
    running = asyncio.create_task(one.sync.run())
    try:
        yield one
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def until(look: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not look():
            await asyncio.sleep(0.005)


async def test_the_last_good_serves_while_the_source_has_not_answered(tmp_path: Path) -> None:
    save_last_good(tmp_path / "last-good.json", catalog_of("before"), Wall(1000))
    place = Slow(source_of("after"))
    async with following(place, tmp_path, grace=0.01) as one:
        await until(lambda: one.live.current)
        assert one.live.current == catalog_of("before")
        assert (await one.applied()).at == Wall(1000)
        place.comes.set()
        await until(lambda: one.live.current == catalog_of("after"))
    assert one.reasons == ["last good restored", "catalog applied"]


async def test_what_comes_in_time_is_put_in_force_at_once(tmp_path: Path) -> None:
    save_last_good(tmp_path / "last-good.json", catalog_of("before"))
    place = Slow(source_of("after"))
    place.comes.set()
    async with following(place, tmp_path) as one:
        await until(lambda: one.live.current)
    assert one.reasons == ["catalog applied"]


async def test_without_a_last_good_one_it_is_waited_for(tmp_path: Path) -> None:
    place = Slow(source_of("first"))
    async with following(place, tmp_path, grace=0) as one:
        await asyncio.sleep(0.02)
        assert one.live.current is None
        place.comes.set()
        await until(lambda: one.live.current)
    assert one.reasons == ["catalog applied"]


async def test_the_last_good_serves_while_a_large_catalog_is_judged(tmp_path: Path) -> None:
    save_last_good(tmp_path / "last-good.json", catalog_of("before"))
    place, engines = Slow(source_of("after")), Waiting()
    place.comes.set()
    async with following(place, tmp_path, grace=0.05, engines=engines) as one:
        try:
            await until(lambda: one.live.current)
            assert one.live.current == catalog_of("before")
        finally:
            engines.go.set()
        await until(lambda: one.live.current == catalog_of("after"))
    assert one.reasons == ["last good restored", "catalog applied"]


async def test_a_damaged_last_good_one_is_told_and_the_newest_taken(tmp_path: Path) -> None:
    (tmp_path / "last-good.json").write_text("{")
    place = Slow(source_of("after"))
    async with following(place, tmp_path, grace=0) as one:
        await until(lambda: one.told)
        place.comes.set()
        await until(lambda: one.live.current)
    assert one.reasons == ["last good unusable", "catalog applied"]


async def test_a_revision_is_in_force_since_it_first_was_also_across_restarts(tmp_path: Path) -> None:
    place = Slow(source_of("one"))
    place.comes.set()
    async with following(place, tmp_path) as first:
        await until(lambda: in_force_since(tmp_path / "last-good.json", catalog_of("one")))
    since = first.live.state().applied_at
    async with following(place, tmp_path) as again:
        await until(lambda: again.live.current)
        assert again.live.state().applied_at == since == (await again.applied()).at
    other = Slow(source_of("two"))
    other.comes.set()
    async with following(other, tmp_path) as later:
        await until(lambda: later.live.current)
    assert (later.live.state().applied_at or 0) > (since or 0)


async def test_a_clock_that_was_wrong_puts_nothing_in_force_in_the_future(tmp_path: Path) -> None:
    save_last_good(tmp_path / "last-good.json", catalog_of("one"), Wall(9e12))
    place = Slow(source_of("one"))
    place.comes.set()
    async with following(place, tmp_path) as one:
        await until(lambda: one.live.current)
    assert (one.live.state().applied_at or 9e12) <= SystemClock().now().wall


def test_a_last_good_one_of_before_this_was_noted_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "last-good.json"
    save_last_good(path, catalog_of("one"))
    path.write_text(path.read_text().replace(',"at":null', "").replace('"at":null,', ""))
    assert b'"at":null' not in path.read_bytes()
    assert load_last_good(path) == (catalog_of("one"), None)
    assert in_force_since(path, catalog_of("one")) is None
