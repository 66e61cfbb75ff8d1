"""A controller that begins to lead finds a catalog in force."""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from llmgw.catalog.live import LiveCatalog
from llmgw.catalog.load import load_catalog
from llmgw.catalog.place import Directory
from llmgw.catalog.source import read_source
from llmgw.catalog.spec import Catalog
from llmgw.clock import SystemClock
from llmgw.engine.manager import find_engines
from llmgw.facts import Event
from llmgw.reconcile.in_force import in_force
from llmgw.reconcile.publishing import publish
from llmgw.reconcile.sync import CatalogSync
from llmgw.store import keys
from llmgw.store.codec import decode, encode
from llmgw.store.memory import MemoryStore
from llmgw.store.values import Applied
from llmgw.units import Instant, Mono, Wall
from llmgw.weights.naming import canonical

ENGINES = find_engines()

CLUSTER = """\
apiVersion: llmgw/v1
kind: Cluster
name: home
time_zone: Europe/Berlin
gateway: {cold_start_timeout: 7s}
defaults: {start_timeout: 3m}
scaling: {up_after: 4s}
recovery: {backoff: 9s}
weights: {keep_revisions: 5}
nodes: {n1: {pool: fast}}
---
apiVersion: llmgw/v1
kind: Model
name: small
profiles: [{name: p, engine: command, memory: 1MiB, options: {command: [sleep, "9"]}}]
"""


def written(directory: Path, text: str = CLUSTER) -> Path:
    directory.mkdir()
    (directory / "c.yaml").write_text(text)
    return directory


async def followed(
    store: MemoryStore, path: Path, done: Callable[[LiveCatalog], object]
) -> tuple[LiveCatalog, list[str]]:
    live, told = LiveCatalog(str(path)), list[Event]()
    sync = CatalogSync(
        place=Directory(path), store=store, live=live, engines=ENGINES, clock=SystemClock(), record=told.append,
        last_good=path.parent / "last-good.json", wake=lambda: None,
    )  # fmt: skip
    running = asyncio.create_task(sync.run())
    try:
        async with asyncio.timeout(30):
            while not done(live):
                await asyncio.sleep(0.02)
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    return live, [event.reason for event in told]


async def put_in_force(store: MemoryStore, path: Path) -> None:
    catalog = load_catalog(read_source(path), ENGINES.rules(), canonical=canonical).catalog
    await publish(store, catalog, Instant(Mono(1), Wall(1000)))
    assert await in_force(store) == (catalog, Wall(1000)), "all of it can be read back"


async def test_the_same_catalog_goes_on_being_in_force_since_it_first_was(tmp_path: Path) -> None:
    store, path = MemoryStore(), written(tmp_path / "catalog")
    before = load_catalog(read_source(path), ENGINES.rules(), canonical=canonical).catalog
    await publish(store, before, Instant(Mono(1), Wall(1000)))
    live, _ = await followed(store, path, lambda live: live.current)
    assert live.current == before
    assert live.state().applied_at == 1000
    entry = await store.get(keys.APPLIED)
    assert entry is not None
    assert decode(entry.value, Applied).at == 1000


async def test_a_new_leader_whose_own_catalog_is_bad_goes_on_with_the_one_in_force(tmp_path: Path) -> None:
    store = MemoryStore()
    await put_in_force(store, written(tmp_path / "good"))
    bad = written(tmp_path / "bad", "kind: nonsense\n")
    live, told = await followed(store, bad, lambda live: live.state().problems)
    assert live.current is not None
    assert live.current.cluster.recovery.backoff == 9
    assert list(live.current.models) == ["small"]
    assert "catalog taken over" in told


async def as_an_earlier_llmgw_wrote_it(store: MemoryStore, path: Path) -> Catalog:
    catalog = load_catalog(read_source(path), ENGINES.rules(), canonical=canonical).catalog
    await publish(store, catalog, Instant(Mono(1), Wall(1000)))
    for prefix in (keys.SPECS, keys.PARTS):
        for entry in (await store.list(prefix)).entries:
            await store.delete(entry.key)
    for name, model in catalog.models.items():
        await store.put(keys.model(catalog.digest, name), encode(model))
    entry = await store.get(keys.APPLIED)
    assert entry is not None
    fields = {name: value for name, value in json.loads(entry.value).items() if name != "parts"}
    await store.put(keys.APPLIED, json.dumps(fields).encode())
    return catalog


async def test_what_an_earlier_llmgw_put_in_force_is_taken_over_and_put_in_force_anew(tmp_path: Path) -> None:
    store, path = MemoryStore(), written(tmp_path / "catalog")
    before = await as_an_earlier_llmgw_wrote_it(store, path)
    assert await in_force(store) == (before, Wall(1000))
    live, told = await followed(store, path, lambda live: live.current)
    assert live.current == before
    assert live.state().applied_at == 1000, "it is in force since it first was"
    assert (await store.list(keys.MODELS)).entries == ()
    assert len((await store.list(keys.SPECS)).entries) == len(before.models)
    assert await in_force(store) == (before, Wall(1000))
    assert "catalog held" not in told


async def test_a_revision_that_takes_too_much_from_an_earlier_llmgws_catalog_is_held(tmp_path: Path) -> None:
    store = MemoryStore()
    before = await as_an_earlier_llmgw_wrote_it(store, written(tmp_path / "good"))
    less = written(tmp_path / "less", CLUSTER.partition("---")[0])
    live, told = await followed(store, less, lambda live: live.state().held)
    assert live.current == before
    assert "catalog held" in told


async def test_settings_that_outlived_their_models_are_no_catalog(tmp_path: Path) -> None:
    """The embedded store keeps `catalog/applied` on disk, and models in memory."""
    store = MemoryStore(tmp_path / "store")
    store.load()
    await put_in_force(store, written(tmp_path / "good"))
    store = MemoryStore(tmp_path / "store")
    store.load()
    assert await store.get(keys.APPLIED) is not None
    assert await in_force(store) is None
    live, _ = await followed(store, tmp_path / "good", lambda live: live.current)
    assert await in_force(store) == (live.current, Wall(1000))


async def test_what_was_in_force_counts_across_a_restart_of_the_embedded_store(tmp_path: Path) -> None:
    def taken(live: LiveCatalog) -> bool:
        return live.current is not None and (tmp_path / "last-good.json").exists()

    await followed(MemoryStore(tmp_path / "store"), written(tmp_path / "good"), taken)
    store = MemoryStore(tmp_path / "store")
    store.load()
    less = written(tmp_path / "less", CLUSTER.partition("---")[0])
    live, told = await followed(store, less, lambda live: live.state().held)
    assert live.current is not None
    assert list(live.current.models) == ["small"]
    assert "catalog held" in told
