"""The operator's words on the catalog and on models must not be lost with the file that they lie in."""

from pathlib import Path

import pytest

from llmgw.facts import Suspension
from llmgw.ids import ModelName
from llmgw.store import keys
from llmgw.store.codec import decode
from llmgw.store.damage import set_aside
from llmgw.store.memory import MemoryStore
from llmgw.units import Instant, Mono, Wall

NOW = Instant(Mono(1.0), Wall(1000.0))


def opened(directory: Path) -> MemoryStore:
    store = MemoryStore(directory)
    store.load()
    return store


@pytest.mark.parametrize("key", [keys.SUSPENDED, keys.PINNED])
async def test_a_damaged_suspension_or_rollback_keeps_the_catalog_in_force(tmp_path: Path, key: str) -> None:
    store = opened(tmp_path)
    await store.put(key, b"\xff")
    (told,) = await set_aside(store, NOW)
    assert "llmgw resume" in told
    again = opened(tmp_path)
    entry = await again.get(keys.SUSPENDED)
    assert entry is not None
    assert decode(entry.value, Suspension).at == NOW.wall
    assert await again.get(keys.PINNED) is None


async def test_a_model_with_a_damaged_suspension_stays_suspended(tmp_path: Path) -> None:
    store, key = opened(tmp_path), keys.suspension(ModelName("qwen"))
    await store.put(key, b"{}")
    (told,) = await set_aside(store, NOW)
    assert "llmgw resume qwen" in told
    entry = await opened(tmp_path).get(key)
    assert entry is not None
    assert decode(entry.value, Suspension).at == NOW.wall


async def test_a_damaged_approval_approves_nothing_and_a_damaged_rollout_is_forgotten(tmp_path: Path) -> None:
    store = opened(tmp_path)
    await store.put(keys.APPROVED, b"[]")
    await store.put(keys.rollout(ModelName("qwen")), b"[]")
    assert len(await set_aside(store, NOW)) == 2
    assert (await opened(tmp_path).list("")).entries == ()
