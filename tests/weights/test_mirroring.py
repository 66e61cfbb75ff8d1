"""Nodes that give one another weights: real caches, agents' real servers, one store, and a web server outside."""

import asyncio
import hashlib
import os
import random
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from servers import Site, closed_port, serve

from llmgw.admin.own import create_own_app
from llmgw.agent.mirror import MOST, Mirroring, Throttle
from llmgw.agent.peers import StorePeers
from llmgw.app.listening import AdminServer, url
from llmgw.catalog.spec import FetchLimits, WeightsSettings, WeightsSpec
from llmgw.clock import SystemClock
from llmgw.errors import RetryableError
from llmgw.facts import DiskFact, MemoryFact, NodeReport, Progress
from llmgw.ids import Digest, NodeName, Revision
from llmgw.store import keys
from llmgw.store.api import Snapshot
from llmgw.store.codec import encode
from llmgw.store.held import Held
from llmgw.store.memory import MemoryStore
from llmgw.store.values import Applied, Member, Role
from llmgw.units import MIB, Bytes, Instant, Mono, Wall
from llmgw.weights.api import Description, Fetched, RemoteFile, Work
from llmgw.weights.cache import Cache
from llmgw.weights.doubt import Doubt
from llmgw.weights.manifest import Manifest, ManifestFile
from llmgw.weights.mirror import Mirror, Patience
from llmgw.weights.naming import canonical, entry_name
from llmgw.weights.peer import Lied, check
from llmgw.weights.registry import own_sources
from llmgw.weights.shelf import Shelf
from llmgw.weights.upkeep import Upkeep
from llmgw.weights.web import Web

TOKEN = "the cluster's"
CONTENT = os.urandom(3 * MIB + 17)
QUICK = Patience(look=0.05, stuck=5.0, finished=1.0, busy=1.0, describe=1.0)


@dataclass
class Machine:
    """A node: its cache, what serves it to others, and its report."""

    name: str
    store: MemoryStore
    cache: Cache
    peers: StorePeers
    told: list[tuple[str, str]] = field(default_factory=list)
    address: str = ""
    host: str = socket.gethostname()
    serving: Mirroring | None = None
    heard: list[Progress] = field(default_factory=list)

    async def report(self) -> None:
        room = Bytes(1 << 40)
        report = NodeReport(
            node=NodeName(self.name),
            at=Wall(1.0),
            memory=MemoryFact(total=room, available=room, foreign=Bytes(0)),
            disk=DiskFact(total=room, free=room),
            weights=self.cache.facts(()),
        )
        await self.store.put(keys.report(report.node), encode(report))

    async def join(self) -> None:
        member = Member(
            role=Role.AGENT, name=self.name, instance="1", since=Wall(1.0), version="1", host=self.host, pid=1,
            place="p", url=self.address,
        )  # fmt: skip
        await self.store.put(keys.member(Role.AGENT, self.name), encode(member))
        await self.report()

    async def fetch(self, spec: WeightsSpec) -> Path:
        return await self.cache.fetch(spec, reserve=Bytes(0), progress=self.heard.append)


@asynccontextmanager
async def machine(
    home: Path,
    name: str,
    store: MemoryStore,
    *,
    token: str = TOKEN,
    patience: Patience = QUICK,
    web: type[Web] = Web,
) -> AsyncIterator[Machine]:
    clock = SystemClock()
    held = Held(store)
    peers = StorePeers(store, held, node=NodeName(name), clock=clock)
    told: list[tuple[str, str]] = []
    mirror = Mirror(peers, token, clock, tell=told_by(told), patience=patience)
    sources = own_sources() | {scheme: web(first_wait=0.05, stall=5.0) for scheme in ("http", "https")}
    cache = Cache(home / name, cluster_id="c1", clock=clock, mirror=mirror, sources=sources)
    cache.open()
    upkeep = Upkeep(cache, node=name, log=home / f"{name}.log", clock=clock)
    tell = told_by(told)
    mirroring = Mirroring(Shelf(cache), peers.settings, clock, doubt=Doubt(upkeep, clock), tell=tell)
    app = create_own_app(
        what="an agent", store=store, token=TOKEN, clock=clock, unready=lambda: None, more=[mirroring.routes()]
    )
    server = AdminServer(app, ("127.0.0.1", 0))
    running = [asyncio.ensure_future(each) for each in (server.serve(), peers.run(), mirroring.run())]
    made = Machine(name, store, cache, peers, told, url(*server.address), serving=mirroring)
    await made.join()
    try:
        yield made
    finally:
        server.stop()
        for task in running[1:]:
            task.cancel()
        await asyncio.wait(running)
        await held.withdraw()


def told_by(told: list[tuple[str, str]]) -> Callable[[str, str], None]:
    return lambda reason, message: told.append((reason, message))


@pytest.fixture
def site() -> Iterator[Site]:
    with serve() as running:
        running.files["/m.gguf"] = CONTENT
        yield running


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def wanted(site: Site, *, declared: bool = False) -> WeightsSpec:
    sha256 = hashlib.sha256(CONTENT).hexdigest() if declared else None
    return WeightsSpec(source=f"{site.url}/m.gguf", sha256=sha256)


async def test_what_a_node_holds_is_not_downloaded_by_another(tmp_path: Path, site: Site, store: MemoryStore) -> None:
    async with machine(tmp_path, "n1", store) as first, machine(tmp_path, "n2", store) as second:
        await first.fetch(wanted(site))
        await first.report()
        path = await second.fetch(wanted(site))
        assert path.read_bytes() == CONTENT
        assert path.is_relative_to(second.cache.root)
        assert len(site.gets) == 1
        assert [reason for reason, _ in second.told] == ["weights from peer"]
        assert "from n1" in second.told[0][1]


async def test_nodes_that_want_the_same_files_at_once_download_each_of_them_once(
    tmp_path: Path, site: Site, store: MemoryStore
) -> None:
    contents = {f"/{number}": os.urandom(MIB + number) for number in range(3)}
    site.files.update(contents)
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(machine(tmp_path, f"n{n}", store)) for n in range(4)]
        for node in nodes:
            node.cache.limit(FetchLimits(parallel=1))
        specs = [WeightsSpec(source=f"{site.url}{path}") for path in contents]
        paths = await asyncio.gather(*(node.fetch(spec) for node in nodes for spec in specs))
        assert [path.read_bytes() for path in paths] == [*contents.values()] * len(nodes)
        assert sorted(asked.path for asked in site.gets) == sorted(contents)
        assert len({path.parents[2] for path in paths}) == len(nodes)


async def test_a_flipped_byte_of_a_peer_is_refused_and_the_source_asked(
    tmp_path: Path, site: Site, store: MemoryStore
) -> None:
    async with machine(tmp_path, "n1", store) as first, machine(tmp_path, "n2", store) as second:
        theirs = await first.fetch(wanted(site))
        await first.report()
        with theirs.open("r+b") as file:
            file.seek(100)
            file.write(bytes([CONTENT[100] ^ 1]))
        path = await second.fetch(wanted(site))
        assert path.read_bytes() == CONTENT
        assert len(site.gets) == 2
        reason, message = second.told[0]
        assert reason == "weights refused"
        assert "n1" in message
        assert "sha256" in message
        async with asyncio.timeout(30):  # and it looks at its own copy, which nobody is served any more
            while not first.told or first.told[-1][0] != "weights corrupt":
                await asyncio.sleep(0.02)
        assert first.cache.locate(wanted(site)) is None
        assert len(list(first.cache.root.glob("corrupt-*"))) == 1
        await second.report()
        await first.fetch(wanted(site))
        assert len(site.gets) == 2, "it has it from the other now"


async def test_what_a_peer_holds_must_have_the_declared_checksum(
    tmp_path: Path, site: Site, store: MemoryStore
) -> None:
    async with machine(tmp_path, "n1", store) as first, machine(tmp_path, "n2", store) as second:
        site.files["/m.gguf"] = b"another file"
        await first.fetch(wanted(site))
        await first.report()
        site.files["/m.gguf"] = CONTENT
        path = await second.fetch(wanted(site, declared=True))
        assert path.read_bytes() == CONTENT
        assert len(site.gets) == 2


async def test_a_download_goes_on_at_a_peer_from_what_the_source_gave(
    tmp_path: Path, site: Site, store: MemoryStore
) -> None:
    async with machine(tmp_path, "n1", store) as first, machine(tmp_path, "n2", store) as second:
        site.stall_at = MIB
        begun = asyncio.ensure_future(second.fetch(wanted(site)))
        async with asyncio.timeout(30):
            while not any(path.stat().st_size for path in second.cache.root.glob("partial-*/entry/files/*")):
                await asyncio.sleep(0.02)
        begun.cancel()
        await asyncio.wait([begun])
        site.stall_at = None
        await first.fetch(wanted(site))
        await first.report()
        kept = list(second.cache.root.glob("kept-*/entry/files/*"))
        assert kept
        assert 0 < kept[0].stat().st_size <= MIB
        path = await second.fetch(wanted(site))
        assert path.read_bytes() == CONTENT
        assert len(site.gets) == 2


async def test_a_peer_that_dies_half_way_is_gone_on_from_at_the_source(
    tmp_path: Path, site: Site, store: MemoryStore
) -> None:
    async with machine(tmp_path, "n1", store) as first, machine(tmp_path, "n2", store) as second:
        await first.fetch(wanted(site))
        async with cut_after(first.address, 2 * MIB) as first.address:
            await first.join()
            assert (await second.fetch(wanted(site))).read_bytes() == CONTENT
        assert len(site.gets) == 2
        start = int(site.gets[1].headers["Range"].removeprefix("bytes=").removesuffix("-"))
        assert 0 < start <= 2 * MIB


async def test_a_peer_that_dies_half_way_is_gone_on_from_at_another(
    tmp_path: Path, site: Site, store: MemoryStore
) -> None:
    async with (
        machine(tmp_path, "n1", store) as first,
        machine(tmp_path, "n2", store) as second,
        machine(tmp_path, "n3", store) as third,
    ):
        await first.fetch(wanted(site))
        await first.report()
        await second.fetch(wanted(site))
        await second.report()
        async with cut_after(first.address, 2 * MIB) as first.address:
            await first.join()
            random.seed(0)  # n1 is asked first
            assert (await third.fetch(wanted(site))).read_bytes() == CONTENT
            with pytest.raises(OSError, match=r"refused|Connect"):
                await asyncio.open_connection(*first.address.removeprefix("http://").split(":"))
        assert len(site.gets) == 1
        assert "from n2" in third.told[0][1]


async def test_the_source_has_changed_since_a_peer_began(tmp_path: Path, site: Site, store: MemoryStore) -> None:
    async with machine(tmp_path, "n1", store) as first, machine(tmp_path, "n2", store) as second:
        await first.fetch(wanted(site))
        changed = site.files["/m.gguf"] = os.urandom(len(CONTENT))
        async with cut_after(first.address, 2 * MIB) as first.address:
            await first.join()
            assert (await second.fetch(wanted(site))).read_bytes() == changed


@asynccontextmanager
async def cut_after(address: str, count: int) -> AsyncIterator[str]:
    """The address of what passes on what `address` answers, breaks off after so many bytes, and then is gone."""
    host, _, port = address.removeprefix("http://").partition(":")
    left = count

    async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter, *, counted: bool) -> None:
        nonlocal left
        while data := await source.read(65536):
            if counted:
                data, left = data[:left], left - len(data)
            target.write(data)
            await target.drain()
            if left <= 0:
                server.close()
                break
        target.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up, down = await asyncio.open_connection(host, int(port))
        asked = asyncio.ensure_future(pass_on(reader, down, counted=False))
        try:
            await pass_on(up, writer, counted=True)
        finally:
            asked.cancel()
            down.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def test_a_whole_repository_comes_from_a_peer_though_its_hub_is_away(
    tmp_path: Path, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed_port()}")
    spec = WeightsSpec(source=canonical(f"hf://org/repo@{'a' * 40}"))
    async with machine(tmp_path, "n1", store) as first, machine(tmp_path, "n2", store) as second:
        home = first.cache.root / entry_name(spec.source, None)
        contents = {"config.json": b"{}", "tokenizer/vocab.txt": b"a\nb\n", "empty": b""}
        for name, data in contents.items():
            (home / "files" / name).parent.mkdir(parents=True, exist_ok=True)
            (home / "files" / name).write_bytes(data)
        files = tuple(
            ManifestFile(path=f"files/{name}", size=len(data), sha256=hashlib.sha256(data).hexdigest())
            for name, data in contents.items()
        )
        manifest = Manifest(source=spec.source, files=files, fetched_at=1.0, folder="")
        (home / "manifest.json").write_bytes(msgspec.json.encode(manifest))
        await first.report()
        path = await second.fetch(spec)
        assert path == second.cache.root / home.name / "files"
        assert {name: (path / name).read_bytes() for name in contents} == contents


class Knowing(Web):
    """A source that has checksums of its own."""

    knows_sha256 = True

    async def describe(self, spec: WeightsSpec) -> Description:
        return Description(files=(RemoteFile(path="m.gguf", sha256=hashlib.sha256(CONTENT).hexdigest()),))


async def test_a_peer_whose_manifest_lies_is_found_out_by_the_source(
    tmp_path: Path, site: Site, store: MemoryStore
) -> None:
    async with machine(tmp_path, "n1", store) as first, machine(tmp_path, "n2", store, web=Knowing) as second:
        site.files["/m.gguf"] = CONTENT[::-1]
        await first.fetch(wanted(site))
        await first.report()
        site.files["/m.gguf"] = CONTENT
        assert (await second.fetch(wanted(site))).read_bytes() == CONTENT
        assert [reason for reason, _ in second.told] == ["weights refused"]
        assert "its source says" in second.told[0][1]


@pytest.mark.parametrize(
    "change",
    [
        {"source": "https://example.org/other"},
        {"files": ()},
        {"files": (ManifestFile(path="files/../../evil", size=1, sha256="0" * 64),)},
        {"files": (ManifestFile(path="/files/evil", size=1, sha256="0" * 64),)},
        {"files": (ManifestFile(path="files/a\n", size=1, sha256="0" * 64),)},
        {"files": (ManifestFile(path="files/a", size=1, sha256="0" * 63),)},
        {"files": tuple(ManifestFile(path=path, size=1, sha256="0" * 64) for path in ("files/a", "files/a/b"))},
        {"folder": "../.."},
    ],
)
def test_a_manifest_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    spec = WeightsSpec(source="https://example.org/a")
    file = ManifestFile(path="files/a", size=1, sha256="0" * 64)
    right = Manifest(source=spec.source, files=(file,), fetched_at=1.0)
    check(right, spec, {})
    with pytest.raises(Lied):
        check(msgspec.structs.replace(right, **change), spec, {})


async def test_a_node_that_serves_as_many_as_it_can_is_waited_for_within_bounds(
    tmp_path: Path, site: Site, store: MemoryStore
) -> None:
    async with machine(tmp_path, "n1", store) as first, machine(tmp_path, "n2", store) as second:
        await first.fetch(wanted(site))
        await first.report()
        assert first.serving is not None
        first.serving.sending = MOST
        asked = asyncio.ensure_future(second.fetch(wanted(site)))
        await asyncio.sleep(0.3)
        assert not asked.done()
        first.serving.sending = 0
        await asked
        assert len(site.gets) == 1
        assert first.serving.sending == 0


async def test_a_token_is_shown_to_no_loopback_address_of_another_machine(
    tmp_path: Path, site: Site, store: MemoryStore
) -> None:
    async with machine(tmp_path, "n1", store) as first, machine(tmp_path, "n2", store) as second:
        first.host = "elsewhere"
        await first.fetch(wanted(site))
        await first.join()
        await second.fetch(wanted(site))
        assert len(site.gets) == 2


async def test_what_a_node_sends_stays_within_its_bandwidth() -> None:
    clock = Counting()
    throttle = Throttle(clock)
    for _ in range(4):
        await throttle.take(MIB, Bytes(2 * MIB))
    assert clock.slept == pytest.approx(2.0)
    await throttle.take(MIB, None)
    assert clock.slept == pytest.approx(2.0)


class Counting(SystemClock):
    """Sleeping takes as long as it should, and no time."""

    slept = 0.0

    def now(self) -> Instant:
        return Instant(Mono(self.slept), Wall(self.slept))

    async def sleep(self, seconds: float) -> None:
        self.slept += seconds


async def test_nodes_of_a_catalog_that_forbids_it_do_not_mirror(tmp_path: Path, site: Site, store: MemoryStore) -> None:
    applied = Applied(revision=Revision("r"), digest=Digest("d"), at=Wall(1.0), weights=WeightsSettings(mirror=False))
    await store.put(keys.APPLIED, encode(applied))
    async with machine(tmp_path, "n1", store) as first, machine(tmp_path, "n2", store) as second:
        await first.fetch(wanted(site))
        await first.report()
        await second.fetch(wanted(site))
        assert len(site.gets) == 2
        entry = next(fact.entry for fact in first.cache.facts(()))
        async with httpx.AsyncClient(trust_env=False) as client:
            found = await client.get(f"{first.address}/mirror/{entry}", headers={"Authorization": f"Bearer {TOKEN}"})
        assert found.status_code == 404


async def test_a_node_that_is_gone_is_passed_over(tmp_path: Path, site: Site, store: MemoryStore) -> None:
    async with machine(tmp_path, "n1", store) as first:
        await first.fetch(wanted(site))
        await first.report()
    async with machine(tmp_path, "n2", store) as second:
        assert (await second.fetch(wanted(site))).read_bytes() == CONTENT
        assert len(site.gets) == 2


async def test_another_clusters_key_opens_nothing(tmp_path: Path, site: Site, store: MemoryStore) -> None:
    async with machine(tmp_path, "n1", store) as first, machine(tmp_path, "n2", store, token="x") as second:
        await first.fetch(wanted(site))
        await first.report()
        assert (await second.fetch(wanted(site))).read_bytes() == CONTENT
        assert len(site.gets) == 2


async def test_a_claim_whose_holder_gets_no_further_is_waited_for_within_bounds(
    tmp_path: Path, site: Site, store: MemoryStore
) -> None:
    short = Patience(look=0.05, stuck=0.4, finished=0.4, busy=0.4, describe=1.0)
    async with machine(tmp_path, "n1", store) as first, machine(tmp_path, "n2", store, patience=short) as second:
        spec = wanted(site)
        entry = await claimed(first, spec)
        assert (await second.fetch(spec)).read_bytes() == CONTENT
        assert [reason for reason, _ in second.told] == ["waiting for weights"]
        await first.peers.release(entry)


async def test_a_claim_that_was_given_up_passes_to_who_waits(tmp_path: Path, site: Site, store: MemoryStore) -> None:
    async with machine(tmp_path, "n1", store) as first, machine(tmp_path, "n2", store) as second:
        spec = wanted(site)
        entry = await claimed(first, spec)
        waiting = asyncio.ensure_future(second.fetch(spec))
        async with asyncio.timeout(30):
            while not (second.heard and second.heard[-1].waiting):
                await asyncio.sleep(0.02)
        assert second.heard[-1].waits_for == "n1 to fetch it"
        assert second.told
        assert not site.gets
        await first.peers.release(entry)
        assert (await waiting).read_bytes() == CONTENT


async def test_who_waits_for_another_node_takes_no_turn(tmp_path: Path, site: Site, store: MemoryStore) -> None:
    site.files["/b"] = b"another file"
    async with machine(tmp_path, "n1", store) as first, machine(tmp_path, "n2", store) as second:
        entry = await claimed(first, wanted(site))
        second.cache.limit(FetchLimits(parallel=1))
        waiting = asyncio.ensure_future(second.fetch(wanted(site)))
        async with asyncio.timeout(30):
            while not second.told:
                await asyncio.sleep(0.02)
            await second.fetch(WeightsSpec(source=f"{site.url}/b"))
        assert not waiting.done()
        await first.peers.release(entry)
        await waiting


class Plain(Web):
    """A source that begins in an empty place."""

    resumes = False

    async def fetch(self, spec: WeightsSpec, work: Work) -> Fetched:
        assert not any(work.files.iterdir())
        assert {path.name for path in work.directory.iterdir()} == {"entry"}
        return await super().fetch(spec, work)


async def test_a_source_that_cannot_go_on_begins_in_an_empty_place(
    tmp_path: Path, site: Site, store: MemoryStore
) -> None:
    async with machine(tmp_path, "n1", store) as first, machine(tmp_path, "n2", store, web=Plain) as second:
        await first.fetch(wanted(site))
        async with cut_after(first.address, 2 * MIB) as first.address:
            await first.join()
            assert (await second.fetch(wanted(site))).read_bytes() == CONTENT
        assert "Range" not in site.gets[1].headers


class Away(MemoryStore):
    """A store that can be away."""

    away = False

    async def list(self, prefix: str) -> Snapshot:
        if self.away:
            raise RetryableError("the store does not answer")
        return await super().list(prefix)


async def test_while_the_store_is_away_the_source_is_asked(tmp_path: Path, site: Site) -> None:
    store = Away()
    async with machine(tmp_path, "n1", store) as first, machine(tmp_path, "n2", store) as second:
        await first.fetch(wanted(site))
        await first.report()
        store.away = True
        assert (await second.fetch(wanted(site))).read_bytes() == CONTENT
        store.away = False
        assert len(site.gets) == 2


async def claimed(one: Machine, spec: WeightsSpec) -> str:

    entry = entry_name(spec.source, spec.sha256)
    assert await one.peers.claim(entry) is None
    return entry


async def test_nothing_but_whole_entries_is_served(tmp_path: Path, site: Site, store: MemoryStore) -> None:
    async with machine(tmp_path, "n1", store) as first:
        await first.fetch(wanted(site))
        entry = next(str(fact.entry) for fact in first.cache.facts(()))
        (first.cache.root / f"corrupt-{entry}-00000000").mkdir()
        for path in (
            "..%2f..%2fetc/0",
            f"{entry}/1",
            f"{entry}/-1",
            f"{entry}/manifest.json",
            f"{entry}/..%2fmanifest.json",
            f"{entry}%2ffiles",
            ".llmgw-cache",
            "v1-sha256-" + "0" * 64,
            f"corrupt-{entry}-00000000",
        ):
            found = await ask(first, f"/mirror/{path}")
            assert found.status_code in (400, 404, 422), path


async def test_a_link_in_an_entry_is_not_followed(tmp_path: Path, site: Site, store: MemoryStore) -> None:
    async with machine(tmp_path, "n1", store) as first:
        path = await first.fetch(wanted(site))
        entry = next(str(fact.entry) for fact in first.cache.facts(()))
        assert (await ask(first, f"/mirror/{entry}/0")).content == CONTENT
        (tmp_path / "other").write_bytes(CONTENT)
        path.unlink()
        path.symlink_to(tmp_path / "other")
        assert (await ask(first, f"/mirror/{entry}/0")).status_code == 404


async def test_a_part_is_sent_and_another_content_is_not(tmp_path: Path, site: Site, store: MemoryStore) -> None:
    async with machine(tmp_path, "n1", store) as first:
        await first.fetch(wanted(site))
        entry = next(str(fact.entry) for fact in first.cache.facts(()))
        part = await ask(first, f"/mirror/{entry}/0", {"Range": f"bytes={MIB}-"})
        assert part.status_code == 206
        assert part.content == CONTENT[MIB:]
        for other in ("bytes=5-9", "bytes=-5"):  # kinds of ranges that no node asks for
            whole = await ask(first, f"/mirror/{entry}/0", {"Range": other})
            assert (whole.status_code, whole.content) == (200, CONTENT)
            assert "Content-Range" not in whole.headers
        assert (await ask(first, f"/mirror/{entry}/0", {"If-Match": '"x"'})).status_code == 412
        assert (await ask(first, f"/mirror/{entry}/0", {"Range": "bytes=99999999-"})).status_code == 416


async def ask(one: Machine, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.get(f"{one.address}{path}", headers={"Authorization": f"Bearer {TOKEN}", **(headers or {})})
