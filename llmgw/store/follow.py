"""A watch that never misses anything: where the store cannot tell what changed, what is there is listed again."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Final

import structlog

from llmgw.errors import Resync, RetryableError
from llmgw.store.api import Change, Snapshot, Store

log = structlog.get_logger("llmgw.store")

RETRY: Final = 1.0
"""Seconds between two attempts to list from a store that is away."""


async def follow(store: Store, prefix: str, seen: Snapshot) -> AsyncIterator[Sequence[Change]]:
    """What changed under `prefix` since `seen`, which the caller listed, until the store is closed.

    After a resync: a change for each key whose revision is new, and for each that is gone (its revision that of the
    list), so that whoever applies all changes to what it had holds what the store holds.
    """
    known = {entry.key: entry.revision for entry in seen.entries}
    revision = seen.revision
    while True:
        try:
            async with aclosing(store.watch(prefix, from_revision=revision)) as watch:  # type: ignore[type-var]
                async for changes in watch:
                    _note(known, changes)
                    revision = changes[-1].revision
                    yield changes
            return
        except Resync as why:
            log.info("resync", prefix=prefix, reason=str(why))
        now = await listed(store, prefix)
        changes, revision = _differences(known, now), now.revision
        _note(known, changes)
        if changes:
            yield changes


async def listed(store: Store, prefix: str) -> Snapshot:
    """All under `prefix`, as soon as the store answers."""
    told = False
    while True:
        try:
            return await store.list(prefix)
        except RetryableError as error:
            if not told:
                log.warning("list_waits", prefix=prefix, error=str(error))
            told = True
            await asyncio.sleep(RETRY)


def _differences(known: dict[str, int], now: Snapshot) -> list[Change]:
    present = {entry.key for entry in now.entries}
    gone = [Change(key, None, now.revision) for key in known if key not in present]
    return [*(Change(e.key, e.value, e.revision) for e in now.entries if known.get(e.key) != e.revision), *gone]


def _note(known: dict[str, int], changes: Sequence[Change]) -> None:
    for change in changes:
        if change.value is None:
            known.pop(change.key, None)
        else:
            known[change.key] = change.revision
