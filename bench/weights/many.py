"""A cache of very many entries: what opening it, reporting on it and listing what could go cost."""

import asyncio
import json
import os
import resource
import time
from pathlib import Path

import httpx

from llmgw.admin.app import create_app
from llmgw.catalog.spec import Catalog, ClusterSpec
from llmgw.clock import SystemClock
from llmgw.facts import DiskFact, MemoryFact, NodeReport, WeightsFact
from llmgw.ids import Digest, NodeName, Revision
from llmgw.reconcile.publishing import publish
from llmgw.store import keys
from llmgw.store.codec import encode
from llmgw.store.events import EventLog
from llmgw.store.memory import MemoryStore
from llmgw.store.values import CatalogStatus
from llmgw.units import Bytes, Seconds, Wall
from llmgw.weights import survey
from llmgw.weights.cache import Cache
from llmgw.weights.collector import listing
from llmgw.weights.naming import entry_name


def fill(root: Path, count: int) -> None:
    """So many entries of one small file each."""
    (root / ".llmgw-cache").write_text(json.dumps({"cluster": "bench", "layout": 1}))
    for number in range(count):
        source = f"https://models.example.org/family-{number % 100}/model-{number}.gguf"
        entry = root / entry_name(source, None)
        os.makedirs(entry / "files")
        (entry / "files" / "model.gguf").write_bytes(b"x")
        file = {"path": "files/model.gguf", "size": 1, "sha256": f"{number:064x}"}
        told = {"v": 1, "source": source, "files": [file], "fetched_at": 1e9, "metadata": {"general.name": "x"}}
        (entry / "manifest.json").write_text(json.dumps(told))
        (entry / "last_wanted").write_text("1000000000\n")


def peak() -> int:
    """Bytes of memory that this process took at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(root: Path) -> dict[str, float]:
    """Seconds, but for `told` and `left out`, which are entries, and `memory`, bytes on top of what it was before."""
    told: dict[str, float] = {}
    before = peak()
    cache = Cache(root, cluster_id="bench", clock=SystemClock())
    for name, work in (("open", cache.open), ("first report", lambda: cache.facts([]))):
        begun = time.perf_counter()
        work()
        told[name] = time.perf_counter() - begun
    usual, survey.LOOK = survey.LOOK, len(os.listdir(root))  # as if all its parts had had their turn
    cache.facts([])
    survey.LOOK = usual
    begun = time.perf_counter()
    for _ in range(3):
        cache.facts([])
    told["a report"] = (time.perf_counter() - begun) / 3
    facts = cache.facts([])
    told["told"], told["left out"] = len(facts), cache.unlisted
    report = NodeReport(
        node=NodeName("n1"),
        at=SystemClock().now().wall,
        memory=MemoryFact(total=Bytes(1), available=Bytes(1), foreign=Bytes(0)),
        disk=DiskFact(total=Bytes(1), free=Bytes(1)),
        weights=facts,
        unlisted=cache.unlisted,
    )
    told["collect"] = asyncio.run(_list(report))
    told["memory"] = peak() - before
    return told


def judge(count: int) -> float:
    """Seconds to say of so many entries whether they can go, were they all in one report."""
    facts = [
        WeightsFact(
            source=f"https://models.example.org/{number}", entry=f"{number}", size=Bytes(1), last_wanted=Wall(1.0)
        )
        for number in range(count)
    ]
    begun = time.perf_counter()
    found = listing(facts, wanted=(), history=(), min_age=Seconds(0), keep_revisions=3, now=SystemClock().now())
    assert len(found) == count
    return time.perf_counter() - begun


async def _list(report: NodeReport) -> float:
    """Seconds of the admin API's answer to `llmgw collect`."""
    store, clock = MemoryStore(), SystemClock()
    catalog = Catalog(revision=Revision("r1"), digest=Digest("d1"), models={}, cluster=ClusterSpec())
    await publish(store, catalog, clock.now())
    told = CatalogStatus(source="/c", attempted=catalog.revision, applied=catalog.revision)
    await store.put(keys.CATALOG_STATUS, encode(told))
    await store.put(keys.report(report.node), encode(report))
    app = create_app(store=store, events=EventLog(), token="t", node=NodeName("n1"), clock=clock)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1", headers={"authorization": "Bearer t"}
    ) as client:
        begun = time.perf_counter()
        answer = await client.get("/api/v1/collect")
        took = time.perf_counter() - begun
    assert len(answer.json()["entries"]) == len(report.weights)
    return took
