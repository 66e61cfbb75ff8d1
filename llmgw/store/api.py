"""The store seam. `llmgw.testing.store_checks` is its conformance suite: every implementation passes it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from llmgw.errors import TerminalError
from llmgw.units import Seconds

MOST_WRITES: Final = 100
"""Writes of one transaction, and as many conditions. etcd takes 128 operations as it is delivered, and comparing takes
some. `batches.write_all` is for more, where not all need be done at once."""

LARGEST: Final = 1_500_000
"""Bytes of the keys and values of one transaction: etcd takes 1.5 MiB as it is delivered, framing included."""


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


class Lease(Protocol):
    """What its owner must keep alive: keys that were put under it vanish when it ends, each a change as by Delete.

    It ends when nobody kept it for `ttl` (the owner died, or was paused), and when it is revoked.
    """

    @property
    def ttl(self) -> Seconds:
        """As the store granted it: not shorter than what was asked for."""
        ...

    @property
    def lost(self) -> asyncio.Event:
        """Set once its owner heard of the end: from `keep`, from a write under it, from `revoke`."""
        ...

    async def keep(self) -> None:
        """Keep it alive until cancelled. Returns when it is lost. A store that is away for a while is no loss."""
        ...

    async def revoke(self) -> None:
        """End it and its keys now. Idempotent. Raises RetryableError where the store is away: it will expire."""
        ...


@dataclass(frozen=True, slots=True)
class Put:
    """Without a lease the key stays, also where it was under one."""

    key: str
    value: bytes
    lease: Lease | None = None


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
    """Compare-and-set keys with ordered watches. Writing an equal value (under the same lease) is no event and no new
    revision.

    Reads and writes raise RetryableError when the store is away. A write without conditions is then tried again until
    its deadline; of one with conditions that got no answer nobody knows whether it was carried out: read again.
    """

    async def get(self, key: str) -> Entry | None: ...

    async def list(self, prefix: str) -> Snapshot: ...

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        if_revision: int | None = None,
        lease: Lease | None = None,
        expect: Sequence[Expect] = (),
    ) -> int:
        """Write, and return the key's revision. `if_revision` 0: only where the key does not exist.

        Raises StaleRevision when the key's revision is another or a condition does not hold, LeaseLost when the lease
        ended, ValueTooLarge.
        """
        ...

    async def delete(self, key: str) -> None: ...

    async def txn(self, writes: Sequence[Put | Delete], *, expect: Sequence[Expect] = ()) -> int:
        """All writes at one revision, or none. Raises as `put` does, having written nothing.

        At most MOST_WRITES writes and as many conditions, and LARGEST bytes.
        """
        ...

    def watch(self, prefix: str, *, from_revision: int) -> AsyncIterator[Sequence[Change]]:
        """Changes with a revision above `from_revision`, in order, in batches, until the caller stops iterating.

        A change that another of the same key followed may be left out. While the store is away nothing comes; then it
        goes on where it was. Raises Resync when it cannot tell all that changed: `follow` lists again then.
        """
        ...

    async def lease(self, ttl: Seconds) -> Lease:
        """A new lease, that ends after `ttl` unless it is kept."""
        ...

    async def close(self) -> None:
        """End every watch. Idempotent."""
        ...


class ValueTooLarge(TerminalError):
    """The store does not take this much at once."""


def check_writes(writes: Sequence[Put | Delete], expect: Sequence[Expect]) -> None:
    """What every store refuses. Raises ValueError, a fault of the caller's, or ValueTooLarge."""
    if len({write.key for write in writes}) < len(writes):
        raise ValueError("a transaction writes each key once")
    if max(len(writes), len(expect)) > MOST_WRITES:
        raise ValueError(f"{max(len(writes), len(expect))} operations in one transaction: it takes {MOST_WRITES}")
    sizes = {write.key: size(write) for write in writes}
    if sum(sizes.values()) > LARGEST:
        key = max(sizes, key=sizes.__getitem__)
        what = f"{key} has {sizes[key]:,} bytes" if sizes[key] > LARGEST else f"{len(sizes)} writes have too many bytes"
        raise ValueTooLarge(f"{what}: the store takes {LARGEST:,} at once")


def size(write: Put | Delete) -> int:
    """Bytes that it counts towards LARGEST."""
    return len(write.key.encode()) + (len(write.value) if isinstance(write, Put) else 0)
