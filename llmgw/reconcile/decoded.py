"""Store values as they were decoded before, for as long as their entries stay the same: most do, from pass to pass."""

from collections.abc import Iterable
from typing import TypeVar, cast

from llmgw.store.api import Entry, Store
from llmgw.store.codec import decode

T = TypeVar("T")


class Decoded:
    """Reads one store. Values are shared between passes: nobody may change them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[tuple[str, type], dict[str, tuple[int, object]]] = {}

    async def all(self, prefix: str, kind: type[T]) -> dict[str, T]:
        """By the part of the key after `prefix`. Raises what `decode` raises."""
        entries = (await self._store.list(prefix)).entries
        return {key.removeprefix(prefix): value for key, value in self.of(prefix, entries, kind).items()}

    def of(self, prefix: str, entries: Iterable[Entry], kind: type[T]) -> dict[str, T]:
        """By key: all entries of that kind which there are under `prefix`. What is gone is forgotten."""
        known, found = self._known.get((prefix, kind), {}), dict[str, tuple[int, object]]()
        for entry in entries:
            before = known.get(entry.key)
            if before is None or before[0] != entry.revision:
                before = (entry.revision, decode(entry.value, kind, where=entry.key))
            found[entry.key] = before
        self._known[prefix, kind] = found
        return {key: cast(T, value) for key, (_, value) in found.items()}
