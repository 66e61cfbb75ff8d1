"""`GET /api/v1/revision`: whether a revision is the newest, was superseded, or has not come."""

import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from test_admin_api import check

from llmgw.admin.app import create_app
from llmgw.catalog.live import CatalogState, LiveCatalog
from llmgw.catalog.place import Committed
from llmgw.catalog.spec import Catalog, ClusterSpec
from llmgw.engine.manager import Engines
from llmgw.facts import Event
from llmgw.ids import Digest, NodeName, Revision
from llmgw.reconcile.comparing import Comparing
from llmgw.reconcile.publishing import publish
from llmgw.store import keys
from llmgw.store.codec import encode
from llmgw.store.events import EventLog
from llmgw.store.memory import MemoryStore
from llmgw.store.values import CatalogStatus
from llmgw.units import Instant, Mono, Wall

NOW = Instant(Mono(1.0), Wall(1.0))
VALID = 'apiVersion: llmgw/v1\nkind: Model\nname: one\nexternal: {url: "https://api.example.org/v1"}\n'


class Following:
    """The application of a daemon that follows a repository, and is at `newest`; a look at the source finds `found`."""

    def __init__(self, repository: Path) -> None:
        self.path = repository
        self.events = EventLog()
        self.found: str | None = None
        self.looks = 0
        self.in_time = True
        self._live = LiveCatalog(str(repository))
        self._store = MemoryStore()
        engines = Engines(by_name={}, plugins=())
        self._app = create_app(
            store=self._store,
            events=self.events,
            token="t",
            node=NodeName("box"),
            refresh=self._refresh,
            lineage=Comparing(live=self._live, place=Committed(repository), engines=engines).lineage,
        )
        self.git("init", "-q", "-b", "main")

    def git(self, *words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        done = subprocess.run(["git", "-C", str(self.path), *who, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, text: str) -> str:
        (self.path / "a.yaml").write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "change")
        return self.git("rev-parse", "HEAD")

    async def at(self, newest: str) -> None:
        self._live.reject(Revision(newest), now=NOW)
        await self._store.put(keys.CATALOG_STATUS, encode(CatalogStatus(source="x", attempted=Revision(newest))))

    async def in_force(self, revision: str) -> None:
        catalog = Catalog(revision=Revision(revision), digest=Digest("d"), models={}, cluster=ClusterSpec())
        await publish(self._store, catalog, NOW)

    def heard(self, reason: str, revision: str) -> None:
        self.events.record(Event(at=Wall(1.0), subject="catalog", reason=reason, message=f"{revision}: more"))

    async def _refresh(self, patience: float, weights: bool) -> tuple[CatalogState, bool]:
        self.looks += 1
        if self.found is not None:
            await self.at(self.found)
        return self._live.state(), self.in_time

    async def told(self, revision: str) -> Any:
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as client:
            headers = {"Authorization": "Bearer t"}
            reply = await client.get("/api/v1/revision", params={"revision": revision}, headers=headers)
        assert reply.status_code == 200, reply.text
        check("revision", reply.json())
        return reply.json()


@pytest.fixture
def following(tmp_path: Path) -> Following:
    return Following(tmp_path)


async def test_a_commit_before_the_newest_is_superseded_and_its_problems_are_told(following: Following) -> None:
    valid = following.commit(VALID)
    invalid = following.commit(VALID.replace("name", "nmae"))
    newest = following.commit(VALID)
    await following.at(newest)
    told = await following.told(newest[:9])
    assert (told["standing"], told["revision"], following.looks) == ("newest", newest, 0)
    told = await following.told(valid[:9])
    assert (told["standing"], told["revision"], told["newest"]) == ("superseded", valid, newest)
    assert told["problems"] == []
    told = await following.told(invalid)
    assert told["standing"] == "superseded"
    assert "unknown key 'nmae'" in " ".join(row["message"] for row in told["problems"])


async def test_what_git_does_not_have_or_has_elsewhere_may_yet_come(following: Following) -> None:
    newest = following.commit(VALID)
    following.git("checkout", "-q", "-b", "aside")
    aside = following.commit(f"{VALID}# more\n")
    following.git("checkout", "-q", "main")
    await following.at(newest)
    for revision in (aside, "f" * 40, "f" * 12 + "+dirty:" + "f" * 12, "--all"):
        assert (await following.told(revision))["standing"] == "unknown", revision
    assert following.looks == 0


async def test_what_came_and_was_pushed_over_is_remembered(following: Following) -> None:
    newest = following.commit(VALID)
    await following.at(newest)
    following.heard("catalog invalid", "e" * 40)
    following.heard("catalog unreadable", "d" * 40)
    told = await following.told("e" * 12)
    assert (told["standing"], told["revision"], told["said"]) == ("superseded", "e" * 40, "it was invalid")
    assert (await following.told("d" * 12))["standing"] == "unknown"


async def test_one_that_newer_ones_are_held_after_is_in_force_still(following: Following) -> None:
    first = following.commit(VALID)
    await following.at(following.commit(f"{VALID}# more\n"))
    following.heard("catalog applied", first)
    assert (await following.told(first))["said"] == "it was in force"
    await following.in_force(first)
    assert (await following.told(first))["said"] == "it is in force still"


async def test_one_that_comes_again_is_not_superseded(following: Following) -> None:
    first = following.commit(VALID)
    await following.at(following.commit(f"{VALID}# more\n"))
    following.found = first  # a forced push, of which nobody has heard yet
    assert (await following.told(first))["standing"] == "newest"


async def test_while_the_source_does_not_answer_nothing_is_said(following: Following) -> None:
    first = following.commit(VALID)
    await following.at(following.commit(f"{VALID}# more\n"))
    following.in_time = False
    assert (await following.told(first))["standing"] == "unknown"
