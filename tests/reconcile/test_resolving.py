"""Branches and tags of weights are resolved once, and what they were resolved to is kept."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from llmgw.catalog.live import LiveCatalog
from llmgw.catalog.place import Directory
from llmgw.catalog.spec import Catalog, WeightsSpec
from llmgw.clock import SystemClock
from llmgw.engine import Description, Fetched, RemoteFile, WeightSource, WeightsRefused, WeightsUnavailable, Work
from llmgw.engine.manager import Engines, find_engines
from llmgw.facts import Event
from llmgw.ids import ModelName
from llmgw.reconcile.comparing import Comparing
from llmgw.reconcile.earlier import Earlier
from llmgw.reconcile.resolving import Resolver
from llmgw.reconcile.sync import CatalogSync
from llmgw.store import keys
from llmgw.store.codec import decode
from llmgw.store.memory import MemoryStore
from llmgw.store.values import HistoryEntry
from llmgw.units import Bytes
from llmgw.weights.registry import own_sources

ONE, TWO, THREE = "1" * 40, "2" * 40, "3" * 40
NAME = ModelName("m")


class Branches(WeightSource):
    """`tree://m[@REVISION]`: a branch that a test moves."""

    schemes = frozenset({"tree"})

    def __init__(self) -> None:
        self.commit = ONE
        self.fails: Exception | None = None
        self.asked: list[str] = []

    def canonical(self, text: str) -> str:
        return text

    def is_moving(self, source: str) -> bool:
        return "@" not in source

    async def describe(self, spec: WeightsSpec) -> Description:
        self.asked.append(spec.source)
        if self.fails is not None:
            raise self.fails
        resolved = spec.source if "@" in spec.source else f"{spec.source}@{self.commit}"
        return Description(files=(RemoteFile(path="x", size=1000),), resolved=resolved)

    async def fetch(self, spec: WeightsSpec, work: Work) -> Fetched:
        raise AssertionError("nobody fetches here")


ENGINES = find_engines()


def text(source: str = "tree://m", description: str = "") -> str:
    return (
        f"apiVersion: llmgw/v1\nkind: Model\nname: m\ndescription: '{description}'\n"
        f"profiles: [{{name: p, engine: cpu, weights: {{source: '{source}'}}}}]\n"
    )


@dataclass
class Rig:
    home: Path
    source: Branches
    store: MemoryStore = field(default_factory=MemoryStore)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.live = LiveCatalog("test")
        self.engines: Engines = replace(ENGINES, sources={**own_sources(), "tree": self.source})
        self.catalog = self.home / "catalog"
        self.catalog.mkdir(exist_ok=True)
        self.place = Directory(self.catalog)
        self.last_good = self.home / "last-good.json"

    def write(self, text: str) -> None:
        (self.catalog / "c.yaml").write_text(text)

    @property
    def weights(self) -> WeightsSpec:
        return weights_of(self.live.current)

    async def until(self, done: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not done():
                await asyncio.sleep(0.02)

    async def described(self, word: str) -> None:
        await self.until(lambda: self.live.current and self.live.current.models[NAME].description == word)

    @asynccontextmanager
    async def following(self) -> AsyncIterator[CatalogSync]:
        sync = CatalogSync(
            place=self.place, store=self.store, live=self.live, engines=self.engines, clock=SystemClock(),
            record=self.events.append, last_good=self.last_good, wake=lambda: None,
        )  # fmt: skip
        running = asyncio.create_task(sync.run())
        try:
            yield sync
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    async def history(self) -> list[HistoryEntry]:
        return [decode(entry.value, HistoryEntry) for entry in (await self.store.list(keys.HISTORY)).entries]


def weights_of(catalog: Catalog | None) -> WeightsSpec:
    assert catalog is not None
    weights = catalog.models[NAME].profiles[0].weights
    assert weights is not None
    return weights


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, Branches())


async def test_a_catalog_in_force_names_the_commit_and_knows_the_size(rig: Rig) -> None:
    rig.write(text())
    async with rig.following():
        await rig.until(lambda: rig.live.current)
        assert rig.weights.source == f"tree://m@{ONE}"
        assert (rig.weights.written, rig.weights.found, rig.weights.expected) == ("tree://m", 1000, 1000)
    (entry,) = await rig.history()
    assert (entry.sources, entry.resolved) == ((f"tree://m@{ONE}",), {"tree://m": f"tree://m@{ONE}"})


async def test_a_branch_that_moved_is_not_taken_up_by_another_revision_or_a_restart(rig: Rig) -> None:
    rig.write(text())
    async with rig.following():
        await rig.until(lambda: rig.live.current)
        rig.source.commit = TWO
        rig.write(text(description="other"))
        await rig.described("other")
        assert rig.weights.source == f"tree://m@{ONE}"
    again = Rig(rig.home, rig.source, store=rig.store)
    asked = len(rig.source.asked)
    async with again.following():
        await again.described("other")
        assert again.weights.source == f"tree://m@{ONE}"
    assert len(rig.source.asked) == asked
    assert len(await rig.history()) == 2


async def test_it_is_taken_up_on_request_and_going_back_goes_back_to_the_same_commit(rig: Rig) -> None:
    rig.write(text(description="first"))
    async with rig.following() as sync:
        await rig.described("first")
        rig.source.commit = TWO
        _, done = await sync.refresh(20)
        assert done
        assert rig.weights.source == f"tree://m@{ONE}"
        rig.write(text(description="second"))
        await rig.described("second")
        _, done = await sync.refresh(20, weights=True)
        assert done
        assert rig.weights.source == f"tree://m@{TWO}"
        rig.source.commit = THREE
        rig.write(text(description="first"))
        await rig.described("first")
        assert rig.weights.source == f"tree://m@{ONE}"
        await rig.until(lambda: rig.weights.found)
        assert rig.source.asked[-1] == f"tree://m@{ONE}", "its size, not what the branch is now"
    digests = [entry.digest for entry in await rig.history()]
    assert len(set(digests)) == 3
    assert digests[-1] == digests[0]


async def test_a_request_keeps_the_commit_where_nobody_answers(rig: Rig) -> None:
    rig.write(text())
    async with rig.following() as sync:
        await rig.until(lambda: rig.live.current)
        rig.source.fails = WeightsUnavailable("tree://m: the hub is away")
        _, done = await sync.refresh(20, weights=True)
        assert done
        assert rig.weights.source == f"tree://m@{ONE}"


async def test_a_source_named_anew_is_resolved_anew(rig: Rig) -> None:
    rig.write(text())
    async with rig.following():
        await rig.until(lambda: rig.live.current)
        rig.write(text("tree://other", description="away"))
        await rig.described("away")
        rig.source.commit = TWO
        rig.write(text(description="back"))
        await rig.described("back")
        assert rig.weights.source == f"tree://m@{TWO}"


@pytest.mark.parametrize(
    "failure", [WeightsUnavailable("tree://m: away"), WeightsRefused("tree://m: denied"), OSError("x")]
)
async def test_a_catalog_does_not_wait_for_a_source_that_fails_and_says_so_once(rig: Rig, failure: Exception) -> None:
    rig.source.fails = failure
    rig.write(text())
    async with rig.following() as sync:
        await rig.until(lambda: rig.live.current)
        assert rig.weights.source == "tree://m"
        await sync.refresh(20)
        told = [event for event in rig.events if event.reason == "source not told"]
        assert [event.subject for event in told] == ["model/m"]
        assert "tree://m" in told[0].message
        assert rig.weights.untold == told[0].message


async def test_a_source_that_answers_later_is_taken_in_then(rig: Rig) -> None:
    rig.source.fails = WeightsUnavailable("tree://m: away")
    rig.write(text())
    async with rig.following() as sync:
        await rig.until(lambda: rig.live.current)
        rig.source.fails = None
        await sync.refresh(20)
        assert rig.weights.untold is None
        assert rig.weights.source == f"tree://m@{ONE}"
        assert rig.live.state().applied == rig.live.state().attempted


async def test_sizes_come_in_beside_and_change_nothing_else(rig: Rig) -> None:
    rig.write(text(f"tree://m@{ONE}"))
    async with rig.following():
        await rig.until(lambda: rig.live.current and rig.weights.found)
        assert rig.weights.written is None
        applied = [event for event in rig.events if event.reason.startswith("catalog")]
        assert [event.reason for event in applied] == ["catalog applied"]
    assert len(await rig.history()) == 1
    again = Rig(rig.home, rig.source, store=rig.store)
    async with again.following():
        await again.until(lambda: again.live.current)
        assert again.weights.found == Bytes(1000)
    assert rig.source.asked == [f"tree://m@{ONE}"]


async def test_looking_ahead_compares_with_the_commits_in_force(rig: Rig) -> None:
    rig.write(text())
    async with rig.following():
        await rig.until(lambda: rig.live.current)
        rig.source.commit = TWO
        comparing = Comparing(live=rig.live, place=rig.place, engines=rig.engines)
        before, after = await comparing.sides(None)
        assert before is not None
        assert (before.models, before.digest) == (after.models, after.digest)


async def test_an_earlier_catalog_from_git_has_the_commits_that_it_had(rig: Rig) -> None:
    rig.write(text(description="first"))
    async with rig.following() as sync:
        await rig.described("first")
        first = rig.live.current
        rig.source.commit = TWO
        await sync.refresh(20, weights=True)
    assert first is not None
    earlier = Earlier(
        store=rig.store, last_good=rig.home / "nothing", engines=rig.engines, read=lambda _: rig.place.read(None)
    )
    found = await earlier.get(first.revision, first.digest)
    assert found is not None
    assert weights_of(found).source == f"tree://m@{ONE}"


def test_a_resolver_asks_nobody_before_it_is_asked() -> None:
    source = Branches()
    Resolver({"tree": source}, store=MemoryStore(), clock=SystemClock(), record=lambda _: None, changed=lambda: None)
    assert source.asked == []
