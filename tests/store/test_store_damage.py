"""Durable values that cannot be read are done without, one by one."""

from pathlib import Path

import pytest

from llmgw.errors import NewerFormat
from llmgw.facts import Cordon
from llmgw.ids import ModelName, NodeName
from llmgw.plan import Stopped
from llmgw.store import keys
from llmgw.store.codec import decode, encode
from llmgw.store.damage import KINDS, refuse_newer, set_aside
from llmgw.store.memory import MemoryStore
from llmgw.store.values import ApiKey, HistoryEntry
from llmgw.units import Instant, Mono, Wall

NOW = Instant(Mono(1.0), Wall(1000.0))


def opened(directory: Path) -> MemoryStore:
    store = MemoryStore(directory)
    store.load()
    return store


def history(number: int) -> bytes:
    return encode(HistoryEntry(number=number, revision="r", digest="d", at=Wall(1)))  # type: ignore[arg-type]


def test_every_durable_key_has_a_kind() -> None:
    assert all(any(kind.startswith(prefix) for kind in KINDS) for prefix in keys.DURABLE)


@pytest.mark.parametrize("damaged", [b"", b"\xff\xfe\x00", b"[]", b"{}", b'{"v": 1, "number": "x"}'])
async def test_a_damaged_value_goes_and_its_neighbours_stay(tmp_path: Path, damaged: bytes) -> None:
    store = opened(tmp_path)
    await store.put(keys.history(1), history(1))
    await store.put(keys.history(2), damaged)
    await store.put(f"{keys.RECOVERY}abc/box", damaged)
    told = await set_aside(store, NOW)
    assert len(told) == 2
    assert "catalog/history/00000002" in told[0]
    assert [entry.key for entry in (await opened(tmp_path).list("")).entries] == [keys.history(1)]
    assert await set_aside(store, NOW) == ()


async def test_a_damaged_switch_stays_thrown(tmp_path: Path) -> None:
    store = opened(tmp_path)
    await store.put(keys.STOPPED, b"\xff")
    (told,) = await set_aside(store, NOW)
    assert "llmgw start" in told
    entry = await opened(tmp_path).get(keys.STOPPED)
    assert entry is not None
    assert decode(entry.value, Stopped).at == NOW.wall


async def test_a_node_with_a_damaged_cordon_stays_cordoned(tmp_path: Path) -> None:
    store = opened(tmp_path)
    key = keys.cordon(NodeName("gpu-1"))
    await store.put(key, b"\xff")
    (told,) = await set_aside(store, NOW)
    assert "llmgw uncordon gpu-1" in told
    entry = await opened(tmp_path).get(key)
    assert entry is not None
    assert decode(entry.value, Cordon).at == NOW.wall


async def test_damaged_demand_is_done_without(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for key in (keys.ask(ModelName("m")), keys.scaling(ModelName("m")), f"{keys.CONCURRENCY}abc/box"):
        await store.put(key, b"?")
    assert len(await set_aside(store, NOW)) == 3
    assert (await opened(tmp_path).list("")).entries == ()


async def test_a_newer_value_is_not_lost(tmp_path: Path) -> None:
    store = opened(tmp_path)
    await store.put(keys.APPLIED, b'{"v": 99}')
    with pytest.raises(NewerFormat, match="upgrade"):
        await set_aside(store, NOW)
    assert await opened(tmp_path).get(keys.APPLIED) is not None


@pytest.mark.parametrize("key", [keys.APPLIED, keys.PINNED, keys.suspension(ModelName("m"))])
async def test_who_would_decide_refuses_what_a_newer_one_wrote_and_leaves_damage_to_others(
    tmp_path: Path, key: str
) -> None:
    store = opened(tmp_path)
    await store.put(keys.STOPPED, b"\xff")
    await store.put(keys.SUSPENDED, b'{"v": 1}')
    await refuse_newer(store)
    await store.put(key, b'{"v": 2, "unknown": [1]}')
    with pytest.raises(NewerFormat, match=rf"the stored {key} has format 2.*upgrade llmgw"):
        await refuse_newer(store)


async def test_a_damaged_api_key_stays_there_revoked_so_that_the_gateways_stay_shut(tmp_path: Path) -> None:
    store = opened(tmp_path)
    await store.put(keys.api_key("ada"), b"\xff")
    (told,) = await set_aside(store, NOW)
    assert "llmgw keys create ada" in told
    entry = await opened(tmp_path).get(keys.api_key("ada"))
    assert entry is not None
    assert decode(entry.value, ApiKey).revoked == NOW.wall
