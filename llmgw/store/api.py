"""The store seam. `llmgw.testing.store_checks` is its conformance suite: every implementation passes it."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Entry:
    """A key's value and the store revision of its last change. Revisions only grow, over all keys."""

    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Change:
    """One event of a watch. `value` None: the key was deleted."""

    key: str
    value: bytes | None
    revision: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All entries under a prefix, in key order, as of `revision`: watch from there and nothing is missed."""

    entries: tuple[Entry, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Put:
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Delete:
    """Deleting an absent key is a no-op."""

    key: str


@dataclass(frozen=True, slots=True)
class Expect:
    """A condition of a transaction: the key's last change is `revision`; 0: it does not exist."""

    key: str
    revision: int


class Store(Protocol):
    """Compare-and-set keys with ordered watches. Writing an equal value is no event and no new revision."""

    async def get(self, key: str) -> Entry | None: ...

    async def list(self, prefix: str) -> Snapshot: ...

    async def put(self, key: str, value: bytes, *, if_revision: int | None = None) -> int:
        """Write, and return the revision. `if_revision` 0: only where the key does not exist.

        Raises StaleRevision when the key's revision is another.
        """
        ...

    async def delete(self, key: str) -> None: ...

    async def txn(self, writes: Sequence[Put | Delete], *, expect: Sequence[Expect] = ()) -> int:
        """All writes at one revision, or none. Raises StaleRevision, having written nothing."""
        ...

    def watch(self, prefix: str, *, from_revision: int) -> AsyncIterator[Sequence[Change]]:
        """Changes with a revision above `from_revision`, in order, in batches, until the caller stops iterating."""
        ...

    async def close(self) -> None:
        """End every watch. Idempotent."""
        ...
