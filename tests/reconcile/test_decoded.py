"""Values that are the same as at the pass before are not decoded anew, and what changed is."""

from llmgw.facts import Ask
from llmgw.reconcile.decoded import Decoded
from llmgw.store import keys
from llmgw.store.codec import encode
from llmgw.store.memory import MemoryStore
from llmgw.units import Wall


async def test_what_stayed_is_the_very_value_and_what_changed_or_went_is_seen() -> None:
    store = MemoryStore(None)
    decoded = Decoded(store)
    await store.put("asks/a", encode(Ask(asked=Wall(1))))
    await store.put("asks/b", encode(Ask(asked=Wall(2))))
    first = await decoded.all(keys.ASKS, Ask)
    assert {name: ask.asked for name, ask in first.items()} == {"a": 1, "b": 2}
    await store.put("asks/b", encode(Ask(asked=Wall(3))))
    second = await decoded.all(keys.ASKS, Ask)
    assert second["a"] is first["a"]
    assert second["b"].asked == 3
    await store.delete("asks/a")
    assert (await decoded.all(keys.ASKS, Ask)).keys() == {"b"}
    await store.put("asks/a", encode(Ask(asked=Wall(4))))
    assert (await decoded.all(keys.ASKS, Ask))["a"].asked == 4
