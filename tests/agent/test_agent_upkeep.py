"""Orders about cache entries, from the admin API through the store to the node's disk and back."""

import asyncio
import hashlib
import json
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from etcds import Etcd

from llmgw.admin.app import create_app
from llmgw.admin.asking import Asking
from llmgw.agent.upkeep import Orders
from llmgw.catalog.spec import Catalog, ClusterSpec, ModelSpec, ProfileSpec, WeightsSettings, WeightsSpec
from llmgw.clock import SystemClock
from llmgw.errors import CatalogInvalid, Problem
from llmgw.facts import DiskFact, Footprint, MemoryFact, NodeReport
from llmgw.ids import Digest, EngineName, ModelName, NodeName, ProfileName, ReplicaId, Revision, SpecDigest
from llmgw.plan import Assignment
from llmgw.reconcile.publishing import publish
from llmgw.store import keys
from llmgw.store.address import Address
from llmgw.store.api import Store
from llmgw.store.codec import encode
from llmgw.store.etcd import EtcdStore
from llmgw.store.events import EventLog
from llmgw.store.memory import MemoryStore
from llmgw.store.values import CatalogStatus, UpkeepAction, UpkeepOrder
from llmgw.units import Bytes, Instant, Mono, Seconds, Wall
from llmgw.weights.cache import Cache
from llmgw.weights.naming import entry_name
from llmgw.weights.upkeep import Upkeep

A, B, C = (f"pypi://models==1/{name}.gguf" for name in "abc")


def model(name: str, source: str) -> ModelSpec:
    profile = ProfileSpec(name=ProfileName("p"), engine=EngineName("cpu"), weights=WeightsSpec(source=source))
    return ModelSpec(name=ModelName(name), profiles=(profile,))


def profile(source: str) -> ProfileSpec:
    return ProfileSpec(name=ProfileName("p"), engine=EngineName("cpu"), weights=WeightsSpec(source=source))


class Node:
    """A cache with its agent's upkeep, and no engines."""

    def __init__(self, name: str, home: Path, store: Store, *, root: Path | None = None) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.name, self.store, self.audit = NodeName(name), store, home / "collected.log"
        self.cache = Cache(root or home / "weights", cluster_id="c1", clock=SystemClock())
        self.cache.open()
        self.events = EventLog()
        self.in_use: set[str] = set()
        self.upkeep = Upkeep(self.cache, node=name, log=self.audit, clock=SystemClock())

    def put(self, source: str, content: bytes = b"weights", *, wanted: float = 1_000_000) -> Path:
        entry = self.cache.root / entry_name(source, None)
        (entry / "files").mkdir(parents=True)
        (entry / "files" / "x.gguf").write_bytes(content)
        told = {"path": "files/x.gguf", "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest = {"v": 1, "source": source, "files": [told], "fetched_at": wanted}
        (entry / "manifest.json").write_text(json.dumps(manifest))
        return entry

    async def report(self) -> None:
        report = NodeReport(
            node=self.name,
            at=Wall(1.0),
            memory=MemoryFact(total=Bytes(1), available=Bytes(1), foreign=Bytes(0)),
            disk=DiskFact(total=Bytes(1), free=Bytes(1)),
            weights=self.cache.facts(()),
        )
        await self.store.put(keys.report(self.name), encode(report))

    def orders(self) -> Orders:
        return Orders(
            node=self.name,
            store=self.store,
            upkeep=self.upkeep,
            in_use=lambda: self.in_use,
            clock=SystemClock(),
            record=self.events.record,
            changed=lambda: None,
        )

    def told(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.audit.read_text().splitlines()] if self.audit.exists() else []


@dataclass
class Fleet:
    store: Store
    nodes: list[Node]
    patience: float = 10.0
    on_disk: Catalog | Exception | None = None  #: the catalog as it stands there now; None: nobody looks

    async def catalog(self, *models: ModelSpec, digest: str = "d1", status: CatalogStatus | None = None) -> Catalog:
        revision = Revision(digest * 8)
        cluster = ClusterSpec(weights=WeightsSettings(keep_revisions=0, min_age=Seconds(60)))
        catalog = Catalog(revision=revision, digest=Digest(digest), models={m.name: m for m in models}, cluster=cluster)
        await publish(self.store, catalog, Instant(Mono(0), Wall(0)))
        told = status or CatalogStatus(source="/c", attempted=revision, applied=revision)
        await self.store.put(keys.CATALOG_STATUS, encode(told))
        return catalog

    async def compare(self, given: Catalog | None) -> tuple[Catalog | None, Catalog]:
        if isinstance(self.on_disk, Exception):
            raise self.on_disk
        assert self.on_disk is not None
        return None, self.on_disk

    async def ask(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        for node in self.nodes:
            await node.report()
        compare = None if self.on_disk is None else self.compare
        app = create_app(
            store=self.store,
            events=EventLog(),
            token="t",
            node=NodeName("n1"),
            clock=SystemClock(),
            compare=compare,
            patience=self.patience,
        )
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as client:
            reply = await client.request(method, f"/api/v1/{path}", json=body, headers={"Authorization": "Bearer t"})
        assert reply.status_code == status, reply.text
        return reply.json()

    async def collect(self, *, status: int = 200, **asked: Any) -> Any:
        return await self.ask("POST", "collect", asked, status=status)


@asynccontextmanager
async def fleet(
    tmp_path: Path, *names: str, root: Path | None = None, deaf: str = "", store: Store | None = None
) -> AsyncIterator[Fleet]:
    store = store or MemoryStore()
    made = Fleet(store, [Node(name, tmp_path / name, store, root=root) for name in names])
    running = [asyncio.create_task(node.orders().run()) for node in made.nodes if node.name != deaf]
    try:
        yield made
    finally:
        for task in running:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def outcomes(answer: Any) -> dict[tuple[str, str], str]:
    return {(row["node"], row["source"]): row["outcome"] for row in answer["entries"]}


async def test_each_node_removes_its_own_and_only_what_nothing_wants(tmp_path: Path) -> None:
    async with fleet(tmp_path, "n1", "n2") as made:
        first, second = made.nodes
        await made.catalog(model("a", A))
        kept, gone, there = first.put(A), first.put(B), second.put(B)
        answer = await made.collect(by="ann")
        assert outcomes(answer) == {("n1", B): "removed", ("n2", B): "removed"}
        assert (answer["removed"], answer["refused"], answer["unreached"]) == (14, 0, {})
        assert (kept.exists(), gone.exists(), there.exists()) == (True, False, False)
        lines = first.told()
        assert [line["what"] for line in lines] == ["removing", "removed"]
        assert lines[1] | {"at": 0} == lines[0] | {"at": 0, "what": "removed"}
        assert lines[0] | {"at": 0} == {
            "v": 1, "at": 0, "what": "removing", "node": "n1", "entry": gone.name, "source": B, "size": 7,
            "files": ["files/x.gguf"], "revision": "d1" * 8, "by": "ann", "why": "",
        }  # fmt: skip
        assert "weights removed" in [event.reason for event in first.events.recent()]
        assert (await made.store.list("upkeep/")).entries == ()


async def test_a_dry_run_lists_exactly_what_is_then_removed(tmp_path: Path) -> None:
    async with fleet(tmp_path, "n1", "n2") as made:
        await made.catalog(model("a", A))
        made.nodes[0].put(A)
        made.nodes[0].put(B)
        made.nodes[1].put(C)
        listed = await made.ask("GET", "collect?dry_run=true")
        answer = await made.collect(plan_id=listed["plan_id"])
        assert {(r["node"], r["entry"]) for r in listed["entries"]} == {
            (r["node"], r["entry"]) for r in answer["entries"] if r["outcome"] == "removed"
        }
        assert len(listed["entries"]) == 2


async def test_a_list_that_changed_since_it_was_looked_at_is_refused_whole(tmp_path: Path) -> None:
    async with fleet(tmp_path, "n1") as made:
        await made.catalog(model("a", A))
        first = made.nodes[0].put(B)
        agreed = (await made.ask("GET", "collect?dry_run=true"))["plan_id"]
        second = made.nodes[0].put(C)
        reply = await made.collect(plan_id=agreed, status=409)
        assert reply["error"]["code"] == "stale_plan"
        assert first.exists()
        assert second.exists()


async def test_age_and_revisions_can_be_said_for_once(tmp_path: Path) -> None:
    async with fleet(tmp_path, "n1") as made:
        await made.catalog(model("b", B), digest="d0")
        await made.catalog(model("a", A))
        now = SystemClock().now().wall
        entry = made.nodes[0].put(B, wanted=now - 30)
        (row,) = (await made.ask("GET", "collect?keep_revisions=2"))["entries"]
        assert (row["removable"], row["reason"]) == (False, "revision d0d0d0d0d0d0 is 2 of 2")
        (row,) = (await made.ask("GET", "collect"))["entries"]
        assert row["reason"].startswith("too young")
        assert (await made.collect(keep_revisions=2, older_than=0))["entries"] == []
        assert entry.exists()
        assert outcomes(await made.collect(older_than=10)) == {("n1", B): "removed"}


async def test_one_node_or_one_model_can_be_named(tmp_path: Path) -> None:
    async with fleet(tmp_path, "n1", "n2") as made:
        await made.catalog(model("b", B), model("c", C), digest="d0")
        await made.catalog(model("a", A))
        for node in made.nodes:
            node.put(B)
            node.put(C)
        assert outcomes(await made.collect(node="n2", model="b")) == {("n2", B): "removed"}
        assert outcomes(await made.collect(model="c")) == {("n1", C): "removed", ("n2", C): "removed"}
        assert "no node" in (await made.collect(node="n3", status=404))["error"]["message"]
        assert "no catalog that is remembered" in (await made.collect(model="x", status=404))["error"]["message"]


@pytest.mark.parametrize(
    ("status", "on_disk", "why"),
    [
        (CatalogStatus(source="/c", attempted=Revision("d1" * 8), error="gone"), None, "cannot be read"),
        (
            CatalogStatus(source="/c", attempted=Revision("e" * 16), problems=(Problem("f", 1, 1, "$", "x"),)),
            None,
            "invalid",
        ),
        (CatalogStatus(source="/c", attempted=Revision("e" * 16)), None, "not applied"),
        (None, CatalogInvalid([Problem("f", 1, 1, "$", "x")]), "invalid"),
        (None, OSError("gone"), "cannot be read"),
        (None, Catalog(revision=Revision("e"), digest=Digest("e"), models={}, cluster=ClusterSpec()), "not applied"),
    ],
)  # fmt: skip
async def test_while_the_catalog_is_not_surely_known_nothing_is_removed(
    status: CatalogStatus | None, on_disk: Catalog | Exception | None, why: str, tmp_path: Path
) -> None:
    async with fleet(tmp_path, "n1") as made:
        await made.catalog(model("a", A), status=status)
        made.on_disk = on_disk
        entry = made.nodes[0].put(B)
        answer = await made.collect(older_than=0)
        assert why in answer["stale"]
        assert answer["entries"] == []
        assert entry.exists()


async def test_without_any_catalog_nothing_is_removed(tmp_path: Path) -> None:
    async with fleet(tmp_path, "n1") as made:
        entry = made.nodes[0].put(B)
        assert (await made.collect(older_than=0))["stale"] == "no catalog is in force"
        assert entry.exists()


async def test_a_node_that_does_not_answer_is_told_and_the_others_are_collected(tmp_path: Path) -> None:
    async with fleet(tmp_path, "n1", "n2", deaf="n2") as made:
        made.patience = 0.5
        await made.catalog(model("a", A))
        for node in made.nodes:
            node.put(B)
        answer = await made.collect()
        assert outcomes(answer) == {("n1", B): "removed", ("n2", B): "unknown"}
        assert set(answer["unreached"]) == {"n2"}


async def test_what_a_killed_process_left_half_removed_is_removed_and_in_the_log(tmp_path: Path) -> None:
    store = MemoryStore()
    node = Node("n1", tmp_path / "n1", store)
    entry = node.put(B)
    doomed = node.cache.root / f"removing-{entry.name}-01234567"
    doomed.mkdir()
    entry.rename(doomed / "entry")
    os.utime(doomed, (1.0, 1.0))
    task = asyncio.create_task(node.orders().run())
    async with asyncio.timeout(30):
        while doomed.exists() or not node.told():
            await asyncio.sleep(0.01)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert [(line["what"], line["source"], line["by"]) for line in node.told()] == [("removed", B, "llmgw")]


async def test_over_etcd_nodes_are_asked_as_well_and_nothing_is_left_in_the_store(
    tmp_path: Path, shared_etcd: Etcd
) -> None:
    address = Address(targets=(shared_etcd.target,), prefix=f"/test/{secrets.token_hex(8)}/")
    store = EtcdStore(address)
    try:
        async with fleet(tmp_path, "n1", "n2", "n3", deaf="n3", store=store) as made:
            made.patience = 3.0
            await made.catalog(model("a", A))
            for node in made.nodes:
                node.put(A)
                node.put(B)
            answer = await made.collect()
            assert outcomes(answer) == {("n1", B): "removed", ("n2", B): "removed", ("n3", B): "unknown"}
            assert set(answer["unreached"]) == {"n3"}
            answer = await made.ask("POST", "weights", {"action": "verify", "node": "n1"})
            assert [row["done"] for row in answer["entries"]] == [True]
            assert (await store.list("upkeep/")).entries == ()
    finally:
        await store.close()


# -- the node's own word, whatever a controller asks


async def order(made: Fleet, *entries: str, catalog: str = "d1", min_age: float = 0) -> dict[str, tuple[bool, str]]:
    asking = Asking(store=made.store, clock=SystemClock())
    given = UpkeepOrder(
        action=UpkeepAction.REMOVE, entries=(), at=Wall(0), by="evil", catalog=Digest(catalog), min_age=Seconds(min_age)
    )
    answers = await asking.ask({NodeName("n1"): entries}, given)
    return {entry: (each.done, each.text) for entry, each in answers.outcomes[NodeName("n1")].items()}


async def test_a_hostile_controller_gets_nothing_removed_that_the_catalog_wants(tmp_path: Path) -> None:
    async with fleet(tmp_path, "n1") as made:
        await made.catalog(model("a", A))
        entry = made.nodes[0].put(A)
        assert (await order(made, entry.name)) == {entry.name: (False, "the catalog in force wants it")}
        assert (await order(made, entry.name, catalog="d0"))[entry.name][1].startswith("the catalog has changed")
        assert entry.exists()


@pytest.mark.parametrize("path", ["../precious", "/etc/passwd", "..", "", ".llmgw-cache", "partial-x", "a\0b"])
async def test_a_hostile_controller_names_any_path_in_vain(path: str, tmp_path: Path) -> None:
    async with fleet(tmp_path, "n1") as made:
        await made.catalog(model("a", A))
        (tmp_path / "n1" / "precious").mkdir()
        (tmp_path / "n1" / "precious" / "thesis.tex").touch()
        assert not (await order(made, path))[path][0]
        assert (tmp_path / "n1" / "precious" / "thesis.tex").exists()
        assert (made.nodes[0].cache.root / ".llmgw-cache").exists()


async def test_what_an_engine_uses_or_any_node_s_replica_is_assigned_to_stays(tmp_path: Path) -> None:
    async with fleet(tmp_path, "n1") as made:
        await made.catalog(model("a", A))
        used, given = made.nodes[0].put(B), made.nodes[0].put(C)
        made.nodes[0].in_use.add(B)
        assignment = Assignment(
            replica=ReplicaId("r1"), model=ModelName("m"), profile=profile(C), spec=SpecDigest("s"),
            node=NodeName("n2"), revision=Revision("r"), footprint=Footprint(host=Bytes(1)),
        )  # fmt: skip
        await made.store.put(keys.assignment(NodeName("n2"), ReplicaId("r1")), encode(assignment))
        assert await order(made, used.name, given.name) == {
            used.name: (False, "in use"),
            given.name: (False, "a replica is assigned to it"),
        }


async def test_the_node_judges_age_itself(tmp_path: Path) -> None:
    async with fleet(tmp_path, "n1") as made:
        await made.catalog(model("a", A))
        entry = made.nodes[0].put(B, wanted=SystemClock().now().wall)
        assert "younger than 1h" in (await order(made, entry.name, min_age=3600))[entry.name][1]


async def test_an_order_that_nobody_waits_for_any_more_is_never_carried_out(tmp_path: Path) -> None:
    async with fleet(tmp_path, "n1", deaf="n1") as made:
        await made.catalog(model("a", A))
        entry = made.nodes[0].put(B)
        asking = Asking(store=made.store, clock=SystemClock(), patience=0.2)
        given = UpkeepOrder(
            action=UpkeepAction.REMOVE, entries=(), at=Wall(0), by="x", catalog=Digest("d1"), min_age=Seconds(0)
        )
        answers = await asking.ask({NodeName("n1"): [entry.name]}, given)
        assert set(answers.unreached) == {"n1"}
        task = asyncio.create_task(made.nodes[0].orders().run())  # it comes back
        await asyncio.sleep(0.3)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert entry.exists()


async def test_two_nodes_that_share_a_cache_remove_an_entry_once(tmp_path: Path) -> None:
    async with fleet(tmp_path, "n1", "n2", root=tmp_path / "shared") as made:
        await made.catalog(model("a", A))
        kept, gone = made.nodes[0].put(A), made.nodes[0].put(B)
        answer = await made.collect()
        assert sorted(outcomes(answer).values()) == ["refused", "removed"]
        assert (kept.exists(), gone.exists()) == (True, False)


# -- integrity


async def test_verify_finds_a_flipped_byte_and_sets_the_entry_aside(tmp_path: Path) -> None:
    async with fleet(tmp_path, "n1") as made:
        await made.catalog(model("a", A), model("b", B))
        node = made.nodes[0]
        good, bad = node.put(A, b"fine weights"), node.put(B, b"good weights")
        (bad / "files" / "x.gguf").write_bytes(b"good Weights")
        answer = await made.ask("POST", "weights", {"action": "verify"})
        assert {row["entry"]: row["done"] for row in answer["entries"]} == {good.name: True, bad.name: False}
        (text,) = [row["text"] for row in answer["entries"] if not row["done"]]
        assert "corrupt: files/x.gguf: sha256" in text
        assert node.cache.locate(WeightsSpec(source=B)) is None  # so it is fetched anew, and never served
        assert node.cache.locate(WeightsSpec(source=A)) is not None
        rows = (await made.ask("GET", "weights"))["entries"]
        assert sorted((row["source"], row["state"], row["wanted"]) for row in rows) == [
            (A, "complete", True), (B, "corrupt", False),
        ]  # fmt: skip
        assert outcomes(await made.collect()) == {("n1", B): "removed"}


async def test_verify_finds_a_file_that_is_gone_or_cut(tmp_path: Path) -> None:
    async with fleet(tmp_path, "n1") as made:
        await made.catalog(model("a", A), model("b", B))
        cut, gone = made.nodes[0].put(A), made.nodes[0].put(B)
        (cut / "files" / "x.gguf").write_bytes(b"wei")
        (gone / "files" / "x.gguf").unlink()
        answer = await made.ask("POST", "weights", {"action": "verify", "what": ["a", B]})
        texts = {row["entry"]: row["text"] for row in answer["entries"]}
        assert "3 bytes, not 7" in texts[cut.name]
        assert "it is not there" in texts[gone.name]


async def test_a_pinned_entry_is_kept_until_it_is_unpinned(tmp_path: Path) -> None:
    async with fleet(tmp_path, "n1") as made:
        await made.catalog(model("a", A))
        entry = made.nodes[0].put(B)
        await made.ask("POST", "weights", {"action": "pin", "what": [entry.name[:18]], "by": "ann"})
        (row,) = (await made.ask("GET", "collect"))["entries"]
        assert (row["removable"], row["reason"]) == (False, "pinned by ann")
        assert "pinned" in (await order(made, entry.name))[entry.name][1]
        await made.ask("POST", "weights", {"action": "unpin", "what": [B]})
        assert outcomes(await made.collect()) == {("n1", B): "removed"}


async def test_where_one_of_several_is_not_there_it_is_told_and_none_is_touched(tmp_path: Path) -> None:
    async with fleet(tmp_path, "n1") as made:
        await made.catalog(model("a", A))
        entry = made.nodes[0].put(B)
        asked = {"action": "pin", "what": [B, "typo"]}
        told = (await made.ask("POST", "weights", asked, status=404))["error"]["message"]
        assert "no cache entry is 'typo', so nothing was done" in told
        assert not (entry / "pinned").exists()
        answer = await made.ask("POST", "weights", {"action": "pin", "what": [B, entry.name]})
        assert [row["entry"] for row in answer["entries"]] == [entry.name]


async def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    async with fleet(tmp_path, "n1") as made:
        await made.catalog(model("a", A))
        assert (
            "no cache entry is"
            in (await made.ask("POST", "weights", {"action": "pin", "what": ["x"]}, status=404))["error"]["message"]
        )
        await made.ask("POST", "weights", {"action": "remove", "what": [A]}, status=400)
