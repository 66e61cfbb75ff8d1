"""The embedded store passes the suite of all stores, and keeps its durable keys whatever interrupts it."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from llmgw.errors import Resync, RetryableError
from llmgw.store import memory
from llmgw.store.api import Delete, Put
from llmgw.store.memory import MemoryStore
from llmgw.testing.store_checks import STORE_CHECKS, StoreCase


def opened(directory: Path | None) -> MemoryStore:
    store = MemoryStore(directory)
    store.load()
    return store


@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
async def test_memory_store_with_a_directory(check, tmp_path: Path) -> None:
    async def make() -> MemoryStore:
        return opened(tmp_path / "store")

    await check(StoreCase(open=make, reopen=make))


@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
async def test_memory_store_without_a_directory(check) -> None:
    async def make() -> MemoryStore:
        return opened(None)

    await check(StoreCase(open=make))


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writing beyond `size` fails in here, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_disk_that_fills_in_the_middle_of_a_transaction_changes_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    await store.txn([Put("settings/a", b"old"), Put("settings/c", b"old")])
    before = sorted(path.name for path in tmp_path.iterdir())
    with largest_file(10_000), pytest.raises(RetryableError, match="cannot keep settings/a"):
        await store.txn([Put("settings/a", b"new"), Put("settings/b", b"x" * 20_000), Delete("settings/c")])
    for seen in (store, opened(tmp_path)):
        entries = (await seen.list("")).entries
        assert [(entry.key, entry.value) for entry in entries] == [("settings/a", b"old"), ("settings/c", b"old")]
    assert sorted(path.name for path in tmp_path.iterdir()) == before


async def test_a_transaction_interrupted_after_its_commit_is_finished_at_the_next_start(tmp_path: Path) -> None:
    store = opened(tmp_path)
    await store.put("settings/gone", b"1")
    (tmp_path / ".staged.1").write_bytes(b"first")
    (tmp_path / "settings%2Ftwo").write_bytes(b"second")  # this part was carried out
    steps = [(".staged.1", "settings%2Fone"), (".staged.2", "settings%2Ftwo"), (None, "settings%2Fgone")]
    (tmp_path / ".txn").write_bytes(msgspec.json.encode(steps))
    entries = (await opened(tmp_path).list("")).entries
    assert [(entry.key, entry.value) for entry in entries] == [("settings/one", b"first"), ("settings/two", b"second")]
    assert not list(tmp_path.glob(".*"))


async def test_a_transaction_interrupted_before_its_commit_never_was(tmp_path: Path) -> None:
    await opened(tmp_path).put("settings/a", b"1")
    (tmp_path / ".staged.1").write_bytes(b"half")
    (tmp_path / ".settings%2Fa.0011").write_bytes(b"half")
    entries = (await opened(tmp_path).list("")).entries
    assert [entry.value for entry in entries] == [b"1"]
    assert not list(tmp_path.glob(".*"))


async def test_what_is_no_key_file_does_not_hinder_the_start(tmp_path: Path) -> None:
    await opened(tmp_path).put("settings/a", b"1")
    (tmp_path / "folder").mkdir()
    (tmp_path / ".folder").mkdir()
    assert len((await opened(tmp_path).list("")).entries) == 1


async def test_only_durable_keys_touch_the_disk(tmp_path: Path) -> None:
    store = opened(tmp_path)
    await store.put("usage/local", b"1")
    await store.txn([Put("nodes/n/report", b"1"), Put("catalog/applied", b"1")])
    assert [path.name for path in tmp_path.iterdir()] == ["catalog%2Fapplied"]
    await store.delete("catalog/applied")
    assert not list(tmp_path.iterdir())


async def test_deletions_are_remembered_up_to_a_bound_and_older_watches_are_told_to_list_again() -> None:
    store = opened(None)
    for number in range(memory.DELETIONS_KEPT + 2):
        await store.put(f"k/{number}", b"1")
        await store.delete(f"k/{number}")
    with pytest.raises(Resync, match="list k/ again"):
        await anext(store.watch("k/", from_revision=0))
    recent = (await store.list("")).revision - 2
    (change,) = await anext(store.watch("k/", from_revision=recent))
    assert change.value is None


async def test_a_slow_watchers_backlog_is_bounded_by_the_number_of_keys() -> None:
    store = opened(None)
    watch = store.watch("s/", from_revision=0)
    await store.put("s/a", b"")
    await anext(watch)
    for number in range(500):
        await store.put("s/a", str(number).encode())
        await store.put("s/b", str(number).encode())
    assert [(change.key, change.value) for change in await anext(watch)] == [("s/a", b"499"), ("s/b", b"499")]
