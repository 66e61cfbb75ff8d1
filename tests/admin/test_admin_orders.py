"""The operator's words over the admin API: what they write, and what they refuse."""

from dataclasses import replace
from typing import Any

import daemon_seeds as seed
import httpx
import msgspec
import pytest

from llmgw.admin.app import create_app
from llmgw.admin.schemas import schema_of
from llmgw.catalog.holds import Held, HoldReason
from llmgw.catalog.spec import Catalog
from llmgw.errors import CatalogInvalid, NoSuchRevision, Problem
from llmgw.facts import Suspension
from llmgw.ids import Digest, Revision
from llmgw.plan import Rollout
from llmgw.store import keys
from llmgw.store.codec import decode
from llmgw.store.events import EventLog
from llmgw.store.values import Approval, CatalogStatus, HistoryEntry, Pinned
from llmgw.units import Wall

OLD = Revision("0123abc" + "0" * 33)


async def find(asked: str | None) -> Catalog:
    """Knows one earlier revision, and one that is no longer valid."""
    if asked == "badbad":
        raise CatalogInvalid([Problem("a.yaml", 1, 1, "$", "no engine 'x'")])
    if asked is None or asked == "v1" or OLD.startswith(asked):
        return Catalog(revision=OLD, digest=Digest("old"))
    raise NoSuchRevision(f"no revision {asked}; `llmgw history` lists them")


class Api:
    def __init__(self, seeds: seed.Seeds) -> None:
        self.seeds, self.events = seeds, EventLog()
        self.app = create_app(store=seeds.store, events=self.events, token="t", node=seed.NODE, find=find)

    async def ask(self, path: str, *, status: int = 200, **body: Any) -> Any:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as client:
            reply = await client.post(f"/api/v1/{path}", json=body, headers={"Authorization": "Bearer t"})
        assert reply.status_code == status, reply.text
        return reply.json()

    async def get(self, path: str) -> Any:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:1") as client:
            reply = await client.get(f"/api/v1/{path}", headers={"Authorization": "Bearer t"})
        return reply.json()

    async def stored(self, key: str, kind: Any) -> Any:
        entry = await self.seeds.store.get(key)
        return None if entry is None else decode(entry.value, kind)

    async def newest(self, reason: HoldReason | None, **fields: Any) -> None:
        """BAD is the newest revision, GOOD is in force, and that is why."""
        held = None if reason is None else Held(reason=reason, message="told why")
        status = CatalogStatus(source="/srv", attempted=seed.BAD, applied=seed.GOOD, held=held, **fields)
        await self.seeds.put(keys.CATALOG_STATUS, status)

    def told(self) -> list[tuple[str, str]]:
        return [(event.subject, event.reason) for event in self.events.recent()]


@pytest.fixture
async def api() -> Api:
    return Api(await seed.full())


async def test_the_newest_revision_is_approved_by_its_beginning(api: Api) -> None:
    await api.newest(HoldReason.REMOVAL)
    answer = await api.ask("approve", revision=seed.BAD[:7], by="ann")
    assert (answer["changed"], answer["revision"], answer["model"]) == (True, seed.BAD, None)
    approval = await api.stored(keys.APPROVED, Approval)
    assert (approval.revision, approval.by, approval.removal) == (seed.BAD, "ann", True)
    assert api.told() == [("catalog", "approved")]
    assert schema_of("order")["$ref"].endswith("OrderOutput")


@pytest.mark.parametrize("asked", ["feed", "bb", seed.BAD + "+dirty:abc", seed.GOOD])
async def test_another_revision_is_not_approved(api: Api, asked: str) -> None:
    await api.newest(HoldReason.REMOVAL)
    answer = await api.ask("approve", revision=asked, status=404)
    assert "is not the newest revision" in answer["error"]["message"]
    assert await api.stored(keys.APPROVED, Approval) is None


@pytest.mark.parametrize(
    ("reason", "approves", "applies"),
    [
        (HoldReason.REMOVAL, True, False),
        (HoldReason.PROTECTED, True, False),
        (HoldReason.MANUAL, True, True),
        (HoldReason.UNSIGNED, False, False),
        (HoldReason.SUSPENDED, False, False),
        (HoldReason.ROLLED_BACK, False, False),
    ],
)
async def test_each_order_lifts_what_it_is_for_and_says_what_does_where_it_is_not(
    api: Api, reason: HoldReason, approves: bool, applies: bool
) -> None:
    await api.newest(reason)
    for path, works in (("apply", applies), ("approve", approves)):
        answer = await api.ask(path, status=200 if works else 409)
        if not works:
            assert answer["error"]["code"] == "not_now"
            assert "told why" in answer["error"]["message"]


async def test_what_is_in_force_needs_no_approval_and_what_is_invalid_gets_none(api: Api) -> None:
    await api.newest(None, problems=(seed.PROBLEM,))
    assert "invalid" in (await api.ask("apply", status=409))["error"]["message"]
    status = CatalogStatus(source="/srv", attempted=seed.GOOD, applied=seed.GOOD)
    await api.seeds.put(keys.CATALOG_STATUS, status)
    assert (await api.ask("apply"))["changed"] is False


async def test_a_tag_may_have_a_short_name(api: Api) -> None:
    assert (await api.ask("rollback", revision="v1"))["revision"] == OLD


async def test_a_rollback_pins_what_was_found(api: Api) -> None:
    answer = await api.ask("rollback", by="ann")
    assert (answer["changed"], answer["revision"]) == (True, OLD)
    assert answer["catalog"]["pinned"]["by"] == "ann"
    pinned = await api.stored(keys.PINNED, Pinned)
    assert (pinned.revision, pinned.digest) == (OLD, "old")
    again = await api.ask("rollback", revision=OLD[:6], by="bob")
    assert again["changed"] is False
    assert (await api.stored(keys.PINNED, Pinned)).by == "ann"
    assert "lists them" in (await api.ask("rollback", revision="feedfeed", status=404))["error"]["message"]
    for short in "", "0", "0aB":
        assert "too short" in (await api.ask("rollback", revision=short, status=404))["error"]["message"]
    assert "no engine 'x'" in (await api.ask("rollback", revision="badbad", status=409))["error"]["message"]

    await api.ask("suspend")
    resumed = await api.ask("resume")
    assert (resumed["changed"], resumed["catalog"]["pinned"], resumed["catalog"]["suspended"]) == (True, None, None)
    assert (await api.ask("resume"))["changed"] is False
    assert api.told() == [("catalog", reason) for reason in ("rolled back", "suspended", "resumed")]


async def test_a_model_is_suspended_by_any_of_its_names_and_shown_so(api: Api) -> None:
    alias = "default"
    answer = await api.ask("suspend", model=alias, by="ann")
    assert (answer["changed"], answer["model"]) == (True, seed.QWEN)
    assert (await api.ask("suspend", model=seed.QWEN, by="bob"))["changed"] is False
    assert (await api.stored(keys.suspension(seed.QWEN), Suspension)).by == "ann"
    rows = {row["name"]: row for row in (await api.get("models"))["models"]}
    assert (rows[seed.QWEN]["suspended"], rows[seed.QWEN]["suspension"]["by"]) == (True, "ann")
    assert rows[seed.SMOL]["suspended"] is False
    assert "did you mean" in (await api.ask("suspend", model="qwem", status=404))["error"]["message"]
    assert (await api.ask("resume", model=alias))["changed"] is True
    assert (await api.ask("resume", model=seed.QWEN))["changed"] is False


async def test_a_model_that_has_left_the_catalog_can_be_resumed(api: Api) -> None:
    await api.seeds.put("settings/suspensions/gone", Suspension(at=seed.NOW, by="ann"))
    assert (await api.ask("resume", model="gone"))["changed"] is True


async def test_history_tells_which_is_in_force(api: Api) -> None:
    for number, (revision, digest) in enumerate([(OLD, "old"), (seed.GOOD, "d"), (OLD, "old")], 1):
        entry = HistoryEntry(number=number, revision=revision, digest=Digest(digest), at=Wall(float(number)))
        await api.seeds.put(keys.history(number), entry)
    entries = (await api.get("history"))["entries"]
    assert [row["revision"] for row in entries] == [OLD, seed.GOOD, OLD]
    applied = (await api.get("status"))["catalog"]["applied"]
    assert [row["in_force"] for row in entries].count(True) <= 1
    assert all(row["revision"] == applied for row in entries if row["in_force"])


async def test_reset_tries_a_failed_rollout_again(api: Api) -> None:
    one = Rollout(good=(), good_revision=OLD, wanted="w", revision=seed.GOOD, at=seed.NOW, failed=seed.NOW, why="broke")
    await api.seeds.put(keys.rollout(seed.QWEN), one)
    await api.seeds.put(keys.rollout(seed.SMOL), one)
    (row,) = (await api.ask("reset", model=seed.QWEN))["models"]
    assert row["rollout"] is True
    assert await api.stored(keys.rollout(seed.QWEN), Rollout) == replace(one, failed=None, why="")
    assert (await api.stored(keys.rollout(seed.SMOL), Rollout)).failed is not None
    msgspec.json.encode(row)
