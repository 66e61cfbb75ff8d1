"""Asks nodes to do something with entries of their caches, through the store, and waits for what they say."""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from llmgw.clock import Clock
from llmgw.errors import RetryableError
from llmgw.ids import NodeName
from llmgw.store import keys
from llmgw.store.api import Lease, Store
from llmgw.store.codec import decode, encode
from llmgw.store.values import UpkeepAnswer, UpkeepOrder, UpkeepOutcome
from llmgw.units import Seconds

TTL: Final = Seconds(10.0)
"""An order ends this long after its asker died."""

PATIENCE: Final = 10.0
"""Seconds without a sign of life after which a node counts as one that could not be asked. Agents give one each 2 s."""

LOOK: Final = 0.1
"""Seconds between two looks at the answers."""

MOST: Final = 1_000
"""Entries of one order: its answer must stay small enough for the store."""


@dataclass(slots=True, kw_only=True)
class Answers:
    """`unreached`: nodes that did not answer whole, and why."""

    outcomes: dict[NodeName, dict[str, UpkeepOutcome]] = field(default_factory=dict)
    unreached: dict[NodeName, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    store: Store
    clock: Clock
    patience: float = PATIENCE

    async def ask(self, entries: Mapping[NodeName, Sequence[str]], order: UpkeepOrder) -> Answers:
        """`order` for each node's entries: all nodes at once. Raises RetryableError where the store is away."""
        answers = Answers()
        if not entries:
            return answers
        lease = await self.store.lease(TTL)
        keeping = asyncio.ensure_future(lease.keep())
        try:
            async with asyncio.TaskGroup() as group:
                for node, names in entries.items():
                    group.create_task(self._node(node, names, order, lease, answers))
        finally:
            keeping.cancel()
            with suppress(RetryableError):
                await lease.revoke()
        return answers

    async def _node(
        self, node: NodeName, names: Sequence[str], order: UpkeepOrder, lease: Lease, answers: Answers
    ) -> None:
        answers.outcomes[node] = {}
        try:
            await self._parts(node, names, order, lease, answers)
        except RetryableError as error:
            answers.unreached[node] = f"the store is away: {error}"

    async def _parts(
        self, node: NodeName, names: Sequence[str], order: UpkeepOrder, lease: Lease, answers: Answers
    ) -> None:
        for first in range(0, len(names), MOST):
            part = replace(order, entries=tuple(names[first : first + MOST]))
            answer = await self._one(node, part, lease)
            answers.outcomes[node].update({each.entry: each for each in answer.outcomes})
            if not answer.finished:
                answers.unreached[node] = f"no answer for {self.patience:.0f} s: `llmgw nodes` shows whether it lives"
                return

    async def _one(self, node: NodeName, order: UpkeepOrder, lease: Lease) -> UpkeepAnswer:
        """The last that it said."""
        id = secrets.token_hex(8)
        key = keys.upkeep_answer(node, id)
        now = self.clock.now()
        heard, last = now.mono, UpkeepAnswer(at=now.wall)
        await self.store.put(keys.upkeep_order(node, id), encode(order), lease=lease)
        try:
            while not last.finished and self.clock.now().mono - heard < self.patience:
                await self.clock.sleep(LOOK)
                entry = await self.store.get(key)
                answer = None if entry is None else decode(entry.value, UpkeepAnswer, where=key)
                if answer is not None and answer != last:
                    heard, last = self.clock.now().mono, answer
        finally:
            with suppress(RetryableError):
                await self.store.delete(keys.upkeep_order(node, id))
                await self.store.delete(key)
        return last
