"""Many writes, as few transactions as the store takes."""

from collections.abc import Iterator, Sequence

from llmgw.store.api import LARGEST, MOST_WRITES, Delete, Put, Store, size


async def write_all(store: Store, writes: Sequence[Put | Delete]) -> None:
    """All writes in their order: in one transaction where they fit, else in several.

    So what must not be seen before something else comes after it. Raises as `Store.txn` does; what came before stays.
    """
    for batch in batches(writes):
        await store.txn(batch)


def batches(writes: Sequence[Put | Delete]) -> Iterator[Sequence[Put | Delete]]:
    """In order, each within MOST_WRITES and LARGEST; one write that is too large by itself is a batch of its own."""
    batch: list[Put | Delete] = []
    total = 0
    for write in writes:
        if batch and (len(batch) == MOST_WRITES or total + size(write) > LARGEST):
            yield batch
            batch, total = [], 0
        batch.append(write)
        total += size(write)
    if batch:
        yield batch
