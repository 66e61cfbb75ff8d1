"""A model's log followed through a fleet: when its replica ends, or its node does, the next one's is gone on with.

Each agent tells the log of the engines that it has, from one to the next. This goes from agent to agent.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import httpx
import msgspec

from llmgw.admin import logs, reading
from llmgw.admin.members import agent_urls
from llmgw.admin.stories import LogLine
from llmgw.enginelogs import MAX_LINES
from llmgw.errors import RetryableError
from llmgw.facts import Phase, ReplicaFact
from llmgw.ids import ModelName, NodeName, ReplicaId
from llmgw.store.api import Store

LOOK: Final = 1.0
"""Seconds without a line, after which it is looked whether another replica is the one to follow."""

OFTEN: Final = 5.0
"""The same, though lines come."""

AHEAD: Final = 1000  #: lines that wait for a slow reader


@dataclass(frozen=True, slots=True)
class Answer:
    """One agent's, that is being read."""

    client: httpx.AsyncClient
    reply: httpx.Response

    async def close(self) -> None:
        await self.reply.aclose()
        await self.client.aclose()


Open = Callable[[str, int], Awaitable[Answer | None]]
"""Asks the agent at that URL for so many of the last lines and those to come. None: it cannot, or knows of none."""


@dataclass(frozen=True, slots=True)
class _Place:
    node: NodeName
    replica: ReplicaId
    url: str


class Wandering:
    """`asked`: the model, by any of its names."""

    def __init__(self, store: Store, asked: str, open: Open) -> None:
        self._store = store
        self._asked = asked
        self._open = open
        self._model = ModelName(asked)
        self._replica = ReplicaId("")  #: whose lines came last

    async def rows(self, answer: Answer) -> AsyncIterator[bytes]:
        """A JSON object a line, until whoever reads it leaves."""
        while True:
            pump = _Pump(answer)
            try:
                place = None
                while place is None and (row := await pump.next()) is not _ENDED:
                    if isinstance(row, LogLine):
                        self._model, self._replica = ModelName(row.model), ReplicaId(row.replica)
                        yield _encoded(row)
                    else:
                        place = await self._moved_to()
            finally:
                await pump.close()
            if place is None:
                yield self._note("its agent answers no more: waiting for it, or for another replica")
            place, answer = await self._next(place)
            same = place.replica == self._replica
            self._replica = place.replica
            yield self._note(f"{'again' if same else 'goes on with'} replica {place.replica} on {place.node}")

    async def _next(self, place: _Place | None) -> tuple[_Place, Answer]:
        """Wherever there is one, as soon as it can be asked."""
        while True:
            if place is not None:
                # Of a log that was followed already only what is new, of another one all.
                lines = 0 if place.replica == self._replica else MAX_LINES
                if (answer := await self._open(place.url, lines)) is not None:
                    return place, answer
            await asyncio.sleep(LOOK)
            place = await self._best(anew=True)

    async def _moved_to(self) -> _Place | None:
        """None: the one that is followed serves, or the next one of its agent does, or there is none yet."""
        return await self._best(anew=False)

    async def _best(self, *, anew: bool) -> _Place | None:
        """`anew`: the one that was followed will do; else only one on another node, where it is gone or about to."""
        try:
            seen = await reading.look(self._store)
        except RetryableError:
            return None
        urls = agent_urls(seen.members)
        facts = {fact.id: fact for report in seen.reports.values() for fact in report.replicas}
        model = next((spec.name for spec in seen.models.values() if self._asked in spec.names), self._model)
        known = facts.get(self._replica)
        living = [facts[id] for id in logs.replicas_of(seen, model) if _serves(facts[id]) and facts[id].node in urls]
        if known in living:
            return _Place(known.node, known.id, urls[known.node]) if anew else None
        if not anew and known is not None and any(fact.node == known.node for fact in living):
            return None
        return next((_Place(fact.node, fact.id, urls[fact.node]) for fact in living), None)

    def _note(self, text: str) -> bytes:
        return _encoded(LogLine(model=self._model, replica=self._replica, text="", note=text))


def _serves(fact: ReplicaFact) -> bool:
    """Or will, and has a log."""
    return fact.phase in (Phase.STARTING, Phase.READY)


def _encoded(row: LogLine) -> bytes:
    return msgspec.json.encode(row) + b"\n"


_ENDED: Final = object()


class _Pump:
    """Rows of an answer as they come. None: time to look around; _ENDED: there are no more."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._rows: asyncio.Queue[object] = asyncio.Queue(AHEAD)
        self._task = asyncio.create_task(self._read(), name="log of an agent")
        self._looked = asyncio.get_running_loop().time()

    async def next(self) -> object:
        now = asyncio.get_running_loop().time
        if now() - self._looked < OFTEN:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    return await self._rows.get()
        self._looked = now()
        return None

    async def _read(self) -> None:
        try:
            async for line in self._answer.reply.aiter_lines():
                await self._rows.put(msgspec.json.decode(line, type=LogLine))
        except (httpx.HTTPError, msgspec.MsgspecError):
            pass  # it ended, or is cut: there is no more
        await self._rows.put(_ENDED)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._answer.close()
