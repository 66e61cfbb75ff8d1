"""What was in force is read from the store once, whoever writes there."""

from dataclasses import replace

import pytest
from make import catalog as make_catalog

from llmgw.catalog.resolving import digest_with
from llmgw.catalog.spec import Catalog
from llmgw.ids import Digest, Revision
from llmgw.reconcile.history import KEPT, History
from llmgw.store import keys
from llmgw.store.api import Entry, Snapshot
from llmgw.store.histories import decode_entry, encode_entry
from llmgw.store.memory import MemoryStore
from llmgw.store.values import HistoryEntry
from llmgw.units import Instant, Mono, Wall

NOW = Instant(Mono(1.0), Wall(1.0))
MOVED = {"hf://a/b": "hf://a/b@1"}


class Counted(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.listed = 0
        self.got = 0

    async def get(self, key: str) -> Entry | None:
        self.got += 1
        return await super().get(key)

    async def list(self, prefix: str) -> Snapshot:
        self.listed += 1
        return await super().list(prefix)


def catalog(digest: str) -> Catalog:
    return replace(make_catalog(), revision=Revision(digest), digest=Digest(digest))


async def add(store: MemoryStore, history: History, digest: str) -> None:
    await store.txn(await history.addition(catalog(digest), NOW))


async def numbers(store: MemoryStore) -> dict[int, str]:
    entries = (await store.list(keys.HISTORY)).entries
    found = [decode_entry(entry.value, where=entry.key) for entry in entries]
    return {entry.number: entry.digest for entry in found}


async def seed(store: MemoryStore, number: int, moved: dict[str, str], digest: str, documents: str | None) -> None:
    entry = HistoryEntry(
        number=number, revision=Revision("r"), digest=Digest(digest), at=Wall(1.0), resolved=moved,
        documents=None if documents is None else Digest(documents),
    )  # fmt: skip
    await store.put(keys.history(number), encode_entry(entry))


async def test_each_other_content_is_one_more_entry_and_the_oldest_go() -> None:
    store = Counted()
    history = History(store)
    for number in range(KEPT + 5):
        await add(store, history, f"d{number}")
    assert await history.addition(catalog(f"d{KEPT + 4}"), NOW) == [], "the same content is no other entry"
    assert await numbers(store) == {number + 1: f"d{number}" for number in range(5, KEPT + 5)}


async def test_it_is_listed_once_and_then_what_came_is_read() -> None:
    store = Counted()
    for number in range(1, 60):
        await seed(store, number, {}, f"d{number}", None)
    history = History(store)
    await add(store, history, "other")
    store.listed = store.got = 0
    await add(store, history, "another")
    assert (store.listed, store.got < 8) == (0, True)
    assert (await numbers(store))[61] == "another"


@pytest.mark.parametrize("first", [True, False])
async def test_what_others_write_meanwhile_counts(first: bool) -> None:
    store = Counted()
    one, other = History(store), History(store)
    if not first:
        await add(store, one, "d0")
    assert await one.same_content(Digest("x")) == {}
    await add(store, other, "d1")
    await add(store, other, "d2")
    assert await one.addition(catalog("d2"), NOW) == []
    await add(store, one, "d3")
    assert list((await numbers(store)).values()) == (["d1", "d2", "d3"] if first else ["d0", "d1", "d2", "d3"])


async def test_a_history_that_was_replaced_is_read_anew() -> None:
    store = Counted()
    history = History(store)
    for number in range(4):
        await add(store, history, f"d{number}")
    assert await history.same_content(Digest("x")) == {}
    for entry in (await store.list(keys.HISTORY)).entries:
        await store.delete(entry.key)
    await seed(store, 1, MOVED, "restored", "documents")
    assert await history.same_content(Digest("documents")) == MOVED
    await add(store, history, "next")
    assert await numbers(store) == {1: "restored", 2: "next"}


async def test_the_revisions_of_the_same_documents_are_found_also_where_an_earlier_llmgw_wrote_them() -> None:
    store = Counted()
    documents, others = Digest("documents"), {"hf://a/b": "hf://a/b@2"}
    await seed(store, 1, MOVED, digest_with(documents, MOVED), None)
    await seed(store, 2, others, "other digest", "other documents")
    await seed(store, 3, {}, "still", None)
    history = History(store)
    assert await history.same_content(documents) == MOVED
    assert await history.same_content(Digest("other documents")) == others
    assert await history.same_content(Digest("still")) == {}
    assert await history.same_content(Digest("unheard of")) == {}
    await seed(store, 4, others, digest_with(documents, others), str(documents))
    assert await history.same_content(documents) == others, "as they were last"
