"""The operator's words while catalogs are taken in: over a real repository and a real store, without engines."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from llmgw.catalog.holds import HoldReason
from llmgw.catalog.live import LiveCatalog
from llmgw.catalog.place import Committed, Directory
from llmgw.clock import SystemClock
from llmgw.engine.manager import Engines
from llmgw.errors import NoSuchRevision
from llmgw.facts import Event, Suspension
from llmgw.ids import ModelName, Revision
from llmgw.reconcile.sync import RETRY, CatalogSync
from llmgw.store import keys
from llmgw.store.codec import encode
from llmgw.store.memory import MemoryStore
from llmgw.store.values import Pinned
from llmgw.units import Wall

WHO = {f"GIT_{role}_{what}": "n" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def git(repo: Path, *words: str) -> str:
    told = subprocess.run(
        ["git", "-C", str(repo), *words], check=True, capture_output=True, text=True, env={**os.environ, **WHO}
    )
    return told.stdout.strip()


def commit(repo: Path, name: str, *options: str) -> Revision:
    (repo / "c.yaml").write_text(f"apiVersion: llmgw/v1\nkind: Cluster\nname: {name}\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", name, *options)
    return Revision(git(repo, "rev-parse", "HEAD"))


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    path = tmp_path / "catalog"
    path.mkdir()
    git(path, "init", "-q", "-b", "main")
    return path


class World:
    """What one daemon's controller has of the catalog. `home`: its state directory."""

    def __init__(
        self,
        repo: Path,
        home: Path,
        *,
        signers: Path | None = None,
        store: MemoryStore | None = None,
        retry: float = RETRY,
    ) -> None:
        self.store = store or MemoryStore()
        self.live = LiveCatalog("test")
        self.events: list[Event] = []
        self.sync = CatalogSync(
            place=Directory(repo) if signers is None else Committed(repo),
            store=self.store, live=self.live, engines=Engines(), clock=SystemClock(), record=self.events.append,
            last_good=home / "last-good" / "catalog.json", wake=lambda: None, signers=signers,
            retry=retry,
        )  # fmt: skip

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not true():
                await asyncio.sleep(0.02)

    async def in_force(self, revision: Revision) -> None:
        await self.until(lambda: self.live.state().applied == revision)

    async def held(self, revision: Revision, reason: HoldReason) -> None:
        def so() -> bool:
            state = self.live.state()
            return state.attempted == revision and state.held is not None and state.held.reason is reason

        await self.until(so)

    async def roll_back(self, revision: str | None = None) -> None:
        catalog = await self.sync.find(revision)
        pinned = Pinned(revision=catalog.revision, digest=catalog.digest, at=Wall(1.0), by="ann")
        await self.store.put(keys.PINNED, encode(pinned))
        await self.in_force(catalog.revision)

    def told(self) -> list[str]:
        return [event.reason for event in self.events]


@asynccontextmanager
async def running(world: World) -> AsyncIterator[World]:
    task = asyncio.create_task(world.sync.run())
    try:
        yield world
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_rollback_goes_further_back_each_time_and_outlives_the_daemon(repo: Path, tmp_path: Path) -> None:
    revisions = []
    store = MemoryStore(tmp_path / "store")
    async with running(World(repo, tmp_path, store=store)) as world:
        for name in ("one", "two", "three"):
            revisions.append(commit(repo, name))
            await world.in_force(revisions[-1])
        for expected in (revisions[1], revisions[0]):
            await world.roll_back()
            assert world.live.state().applied == expected
            await world.held(revisions[2], HoldReason.ROLLED_BACK)
        with pytest.raises(NoSuchRevision):
            await world.sync.find(None)
        with pytest.raises(NoSuchRevision):
            await world.sync.find("feedfeed")

    again = MemoryStore(tmp_path / "store")
    again.load()
    await again.delete(keys.APPLIED)
    async with running(World(repo, tmp_path, store=again)) as world:
        await world.held(revisions[2], HoldReason.ROLLED_BACK)
        assert world.live.state().applied == revisions[0]
        await again.delete(keys.PINNED)
        await world.in_force(revisions[2])
        assert world.live.state().held is None


async def test_a_rollback_is_carried_out_though_the_newest_cannot_be_read(repo: Path, tmp_path: Path) -> None:
    async with running(World(repo, tmp_path)) as world:
        first = commit(repo, "one")
        await world.in_force(first)
        await world.in_force(commit(repo, "two"))
        (repo / "c.yaml").write_text("kind: [")
        await world.until(lambda: world.live.state().problems)
        await world.roll_back(first[:10])
        await world.until(lambda: world.live.state().problems)
        repo.rename(tmp_path / "away")
        await world.until(lambda: world.live.state().error)
        assert world.live.state().applied == first


async def test_a_commit_that_was_never_in_force_is_had_from_git(repo: Path, tmp_path: Path) -> None:
    skipped = commit(repo, "one")
    newest = commit(repo, "two")
    async with running(World(repo, tmp_path)) as world:
        await world.in_force(newest)
        await world.roll_back("HEAD~1")
        assert world.live.state().applied == skipped


async def test_a_commit_is_gone_back_to_though_its_files_were_in_force_with_changes_too(
    repo: Path, tmp_path: Path
) -> None:
    async with running(World(repo, tmp_path)) as world:
        first = commit(repo, "one")
        await world.in_force(first)
        (repo / "c.yaml").write_text("apiVersion: llmgw/v1\nkind: Cluster\nname: being-edited\n")
        await world.until(lambda: "+dirty:" in (world.live.state().applied or ""))
        dirty = world.live.state().applied
        assert dirty is not None
        second = commit(repo, "two")
        await world.in_force(second)
        for asked, expected in ((first[:12], first), (dirty, dirty), (first, first)):
            await world.roll_back(asked)
            assert world.live.state().applied == expected


async def test_orders_are_heeded_at_once_and_tell_nothing_twice(repo: Path, tmp_path: Path) -> None:
    first = commit(repo, "one")
    async with running(World(repo, tmp_path)) as world:
        await world.in_force(first)
        await world.store.put(keys.SUSPENDED, encode(Suspension(at=Wall(1.0), by="ann")))
        second = commit(repo, "two")
        await world.held(second, HoldReason.SUSPENDED)
        for _ in range(3):  # further orders, which change nothing for it
            await world.store.put(keys.suspension(ModelName("m")), encode(Suspension(at=Wall(1.0), by="ann")))
            await world.store.delete(keys.suspension(ModelName("m")))
        third = commit(repo, "three")
        await world.held(third, HoldReason.SUSPENDED)
        await world.store.delete(keys.SUSPENDED)
        await world.in_force(third)
        told = [reason for reason in world.told() if reason != "catalog warning"]  # a catalog without models
        assert told == ["catalog applied", "catalog held", "catalog held", "catalog applied"]


def signed_as(repo: Path, key: Path) -> str:
    """Have commits signed by a new key; its line for the allowed signers."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    git(repo, "config", "gpg.format", "ssh")
    git(repo, "config", "user.signingKey", str(key))
    return f"{key.name}@example.org {key.with_suffix('.pub').read_text()}"


async def test_a_signer_who_is_allowed_later_puts_the_held_commit_in_force_without_another(
    repo: Path, tmp_path: Path
) -> None:
    signers = tmp_path / "allowed"
    signers.write_text(signed_as(repo, tmp_path / "ann"))
    good = commit(repo, "one", "-S")
    async with running(World(repo, tmp_path, signers=signers, retry=0.1)) as world:
        await world.in_force(good)
        bob = signed_as(repo, tmp_path / "bob")
        late = commit(repo, "two", "-S")
        await world.held(late, HoldReason.UNSIGNED)
        signers.write_text(signers.read_text() + bob)
        await world.in_force(late)
        told = [reason for reason in world.told() if reason != "catalog warning"]
        assert told == ["catalog applied", "catalog held", "catalog applied"]


async def test_where_signatures_are_wanted_an_unsigned_commit_keeps_the_last_good(repo: Path, tmp_path: Path) -> None:
    signers = tmp_path / "allowed"
    signers.write_text(signed_as(repo, tmp_path / "ann"))
    good = commit(repo, "one", "-S")
    async with running(World(repo, tmp_path, signers=signers)) as world:
        await world.in_force(good)
        bad = commit(repo, "two")
        await world.held(bad, HoldReason.UNSIGNED)
        assert world.live.state().applied == good
        held = world.live.state().held
        assert held is not None
        assert held.message == f"{bad[:12]} is not signed, so it is not put in force"
    async with running(World(repo, tmp_path, signers=signers)) as world:
        await world.held(bad, HoldReason.UNSIGNED)
        assert world.live.state().applied == good, "also after a restart"
        await world.in_force(commit(repo, "three", "-S"))
