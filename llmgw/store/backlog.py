"""Changes that wait for one watcher within this process."""

import asyncio
from collections.abc import Sequence
from typing import Final

from llmgw.errors import Resync
from llmgw.store.api import Change

BACKLOG: Final = 10_000
"""Keys whose changes wait for one watcher. A slower one lists again."""


class Backlog:
    """One watch's backlog: at most BACKLOG distinct keys, since a later change replaces an earlier."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._pending: dict[str, Change] = {}
        self._ended = False
        self._behind = False
        self._wake = asyncio.Event()

    def offer(self, changes: Sequence[Change]) -> None:
        if self._behind:
            return
        for change in changes:
            if change.key.startswith(self._prefix):
                self._pending.pop(change.key, None)  # keep revision order
                self._pending[change.key] = change
                self._wake.set()
        if len(self._pending) > BACKLOG:
            self._behind = True
            self._pending = {}

    def end(self) -> None:
        self._ended = True
        self._wake.set()

    async def take(self) -> Sequence[Change]:
        """The next batch; empty once the watch ended. Raises Resync when too much changed since the last."""
        while not self._pending and not self._ended and not self._behind:
            self._wake.clear()
            await self._wake.wait()
        if self._behind and not self._ended:
            raise Resync(f"more than {BACKLOG} keys changed under {self._prefix!r} before the watcher came for them")
        batch = tuple(self._pending.values())
        self._pending = {}
        return batch
