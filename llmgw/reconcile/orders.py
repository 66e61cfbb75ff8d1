"""The operator's words on the catalog, as the store has them."""

from typing import Final, TypeVar

from llmgw.facts import Suspension
from llmgw.ids import ModelName
from llmgw.reconcile.gate import Orders
from llmgw.store import keys
from llmgw.store.api import Store
from llmgw.store.codec import decode
from llmgw.store.values import Approval, Pinned

T = TypeVar("T")

SINGLE: Final = (keys.PINNED, keys.SUSPENDED, keys.APPROVED)


def is_order(key: str) -> bool:
    return key in SINGLE or key.startswith(keys.SUSPENSIONS)


async def read_orders(store: Store) -> Orders:
    return Orders(
        pinned=await _read(store, keys.PINNED, Pinned),
        suspended=await _read(store, keys.SUSPENDED, Suspension),
        approval=await _read(store, keys.APPROVED, Approval),
        suspensions={
            ModelName(keys.last(entry.key)): decode(entry.value, Suspension, where=entry.key)
            for entry in (await store.list(keys.SUSPENSIONS)).entries
        },
    )


async def _read(store: Store, key: str, kind: type[T]) -> T | None:
    entry = await store.get(key)
    return None if entry is None else decode(entry.value, kind, where=key)
