"""A controller's terms of leadership, over a store in memory."""

import pytest

from llmgw.app.leading import Leading
from llmgw.app.parts import Deciding
from llmgw.clock import SystemClock
from llmgw.errors import NewerFormat
from llmgw.facts import Event
from llmgw.store import keys
from llmgw.store.api import Store
from llmgw.store.memory import MemoryStore


def nothing(_: Store) -> Deciding:
    raise AssertionError("it is not to decide anything")


async def test_what_a_newer_llmgw_put_in_force_is_neither_overruled_nor_written_over() -> None:
    store, told = MemoryStore(), list[Event]()
    newer = b'{"v": 2, "revision": "abc"}'
    await store.put(keys.APPLIED, newer)
    with pytest.raises(NewerFormat, match=r"catalog/applied has format 2.*upgrade llmgw"):
        await Leading(store, "c1", SystemClock(), told.append, nothing).run()
    entry = await store.get(keys.APPLIED)
    assert entry is not None
    assert entry.value == newer
    assert await store.get(keys.LEADER) is None, "another may lead at once"
