"""Thousands of pushes, good and bad, forced and restored, with restarts between: what is in force is always the last
revision that may be, and nothing else, also on disk."""

import asyncio
import os
import random
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from llmgw.catalog.holds import HoldReason
from llmgw.catalog.live import LiveCatalog, load_last_good
from llmgw.catalog.place import Committed
from llmgw.clock import SystemClock
from llmgw.engine.manager import find_engines
from llmgw.reconcile.sync import CatalogSync
from llmgw.store import keys
from llmgw.store.memory import MemoryStore

NAMES = [f"m{number}" for number in range(8)]
BROKEN = (
    "kind: [",
    "apiVersion: llmgw/v1\nkind: Model\nname: x\nprofilse: []\n",
    "apiVersion: llmgw/v1\nkind: Modle\nname: x\n",
    "\x00",
    "a: &a [*a]\n",
    "",
)
ENGINES = find_engines()


def document(name: str, context: int) -> str:
    profile = f"{{name: p, engine: command, memory: 1MiB, context: {context}, options: {{command: [sleep]}}}}"
    return f"apiVersion: llmgw/v1\nkind: Model\nname: {name}\nprofiles:\n  - {profile}\n"


class Pusher:
    """A repository, and what an honest reader would say of its newest commit."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.random = random.Random(seed)
        path.mkdir()
        self.git("init", "-q", "-b", "main")
        self.models = dict.fromkeys(NAMES[:4], 512)
        self.broken = False
        self.commits: dict[str, tuple[dict[str, int], bool]] = {}
        self.parents: dict[str, str] = {}
        self.head = ""
        self.commit("first")

    def git(self, *words: str) -> str:
        env = {
            **os.environ,
            **{f"GIT_{who}_{what}": "n" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }
        done = subprocess.run(
            ["git", "-C", str(self.path), *words], check=True, capture_output=True, text=True, env=env
        )
        return done.stdout.strip()

    def commit(self, message: str) -> str:
        for file in self.path.glob("*.yaml"):
            file.unlink()
        for name, context in self.models.items():
            (self.path / f"{name}.yaml").write_text(document(name, context))
        (self.path / "cluster.yaml").write_text("apiVersion: llmgw/v1\nkind: Cluster\nname: home\n")
        if self.broken:
            (self.path / "broken.yaml").write_text(self.random.choice(BROKEN))
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.noted()

    def noted(self) -> str:
        before, self.head = self.head, self.git("rev-parse", "HEAD")
        self.commits[self.head] = (dict(self.models), self.broken)
        self.parents[self.head] = before
        return self.head

    def since(self, before: str) -> set[str]:
        """The newest commit, and those between it and that one, where that is an ancestor."""
        found, at = {self.head}, self.parents[self.head]
        while at and at != before:
            found.add(at)
            at = self.parents[at]
        return found if at == before else {self.head}

    def push(self) -> tuple[str, bool]:
        """A random one: its commit, and whether it says itself that its removals are meant."""
        draw, approved = self.random.random(), False
        if draw < 0.15 and len(self.commits) > 1:  # history is rewritten
            self.head = self.random.choice(list(self.commits))
            self.git("reset", "-q", "--hard", self.head)
            models, self.broken = self.commits[self.head]
            self.models = dict(models)
            return self.head, False
        self.broken = draw > 0.8
        if draw < 0.3:
            kept = self.random.sample(sorted(self.models), self.random.randint(0, len(self.models)))
            self.models = {name: self.models[name] for name in kept}
            approved = self.random.random() < 0.3
        elif draw < 0.5:
            self.models |= dict.fromkeys(self.random.sample(NAMES, 3), 512)
        elif self.models:
            self.models[self.random.choice(sorted(self.models))] = self.random.randrange(512, 9000)
        return self.commit("push\n\nLlmgw-Approve: removal" if approved else "push"), approved


class Reader:
    """A controller's part that takes catalogs in, over a state directory."""

    def __init__(self, repo: Path, home: Path) -> None:
        self.store = MemoryStore(home / "store")
        self.store.load()
        self.live = LiveCatalog("test")
        self.last_good = home / "last-good" / "catalog.json"
        self.sync = CatalogSync(
            place=Committed(repo), store=self.store, live=self.live, engines=ENGINES, clock=SystemClock(),
            record=lambda _: None, last_good=self.last_good, wake=lambda: None,
        )  # fmt: skip

    async def start(self) -> None:
        await self.store.delete(keys.APPLIED)
        self.task = asyncio.create_task(self.sync.run())
        await self.look()

    async def stop(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task

    async def look(self) -> None:
        _, done = await self.sync.refresh(20)
        assert done

    @property
    def in_force(self) -> dict[str, int]:
        assert self.live.current is not None
        return {str(name): model.profiles[0].context for name, model in self.live.current.models.items()}


async def run(tmp_path: Path, pushes: int, seed: int) -> None:
    pusher = Pusher(tmp_path / "repo", seed)
    reader = Reader(pusher.path, tmp_path)
    await reader.start()
    expected, revision = dict(pusher.models), pusher.head
    approvals: set[str] = set()
    outcomes = {"taken": 0, "invalid": 0, "held": 0}
    try:
        for number in range(pushes):
            commit, approved = pusher.push()
            approvals |= {commit} if approved else set()
            if number % 25 == 24:
                await reader.stop()
                reader = Reader(pusher.path, tmp_path)
                await reader.start()
            else:
                await reader.look()
            gone = expected.keys() - pusher.models.keys()
            much = bool(gone) and (not pusher.models or (len(expected) >= 4 and 2 * len(gone) > len(expected)))
            meant = bool(approvals & pusher.since(revision))
            state = reader.live.state()
            if pusher.broken:
                outcomes["invalid"] += 1
                assert state.problems, number
            elif much and not meant:
                outcomes["held"] += 1
                assert state.held is not None, number
                assert state.held.reason is HoldReason.REMOVAL
            else:
                outcomes["taken"] += 1
                assert (state.problems, state.held, state.error) == ((), None, None), number
                expected, revision = dict(pusher.models), commit
            assert (state.attempted, state.applied) == (commit, revision), number
            assert reader.in_force == expected, number
            kept, why = load_last_good(reader.last_good)
            assert kept is not None, why
            assert (kept.digest, kept.revision) == (reader.live.current and reader.live.current.digest, revision)
    finally:
        await reader.stop()
    assert min(outcomes.values()) > pushes // 50, outcomes  # else the test tests nothing


async def test_fifty_pushes_never_lose_the_last_good(tmp_path: Path) -> None:
    await run(tmp_path, 50, seed=1)


@pytest.mark.slow
async def test_thousands_of_pushes_never_lose_the_last_good(tmp_path: Path) -> None:
    await run(tmp_path, 5000, seed=2)
