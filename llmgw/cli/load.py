"""Puts so many requests at once on an engine, and measures them."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final

from llmgw.cli.capacity import Sample, Step, Target, is_lost, judge
from llmgw.cli.engine_client import Count, Text
from llmgw.clock import Clock
from llmgw.errors import LlmgwError

Ask = Callable[[str], AsyncGenerator[Text | Count, None]]
"""A request: the prompt in, pieces of its answer out. Raises LlmgwError."""

LEAST: Final = 12  #: requests of a step
ROUNDS: Final = 2  #: requests of each client in a step
PATIENCE: Final = 30.0  #: seconds without a piece, at least, after which a request counts as failed
_LOOK: Final = 0.02  #: seconds between looks at how late this process is
_AFTER_ERROR: Final = 0.1  #: seconds: an engine that refuses at once must not be hammered


class Prompts:
    """Texts of about `tokens` tokens, no two of which begin alike: a prefix cache must not make a model look fast."""

    def __init__(self, tokens: int, seed: int) -> None:
        self._random = Random(seed)
        self._words = _WORDS.split()
        self._count = max(1, tokens)
        self._tokens = tokens

    def next(self) -> str:
        words = self._random.choices(self._words, k=self._count)
        return f"{self._random.getrandbits(40):x} {' '.join(words)}"

    def settle(self, counted: int | None) -> None:
        """Fit the texts' length to what the engine counted of the last one, its chat template included."""
        if counted:
            self._count = max(1, round(self._count + (self._tokens - counted)))


@asynccontextmanager
async def watched() -> AsyncIterator[list[float]]:
    """How late this process is, in seconds, looked at all the time: what is late here looks late in the engine."""
    late: list[float] = []

    async def look() -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LOOK
            await asyncio.sleep(_LOOK)
            late.append(max(0.0, loop.time() - due))

    looking = asyncio.ensure_future(look())
    try:
        yield late
    finally:
        looking.cancel()
        await asyncio.wait({looking})


async def one(ask: Ask, prompt: str, clock: Clock, patience: float, heard: Callable[[], None]) -> Sample:
    """A request, measured. `heard` is called at each piece. What goes wrong is in the sample."""
    began, moments, count, error = clock.now().mono, list[float](), Count(None, None), None
    pieces = ask(prompt)
    try:
        async with asyncio.timeout(patience) as limit:
            async for piece in pieces:
                limit.reschedule(asyncio.get_running_loop().time() + patience)
                if isinstance(piece, Count):
                    count = piece
                    continue
                moments.append(clock.now().mono)
                heard()
    except TimeoutError:
        error = f"no {'more' if moments else 'first'} token within {patience:.0f} s"
    except LlmgwError as failed:
        error = str(failed)
    finally:
        await pieces.aclose()  # the request ends with it
    if error is None and not moments:
        error = "an answer without any text"
    return Sample(
        ttft=moments[0] - began if moments else None,
        gaps=tuple(later - earlier for earlier, later in itertools.pairwise(moments)),
        took=clock.now().mono - began,
        chunks=len(moments),
        tokens=count.completion,
        prompt_tokens=count.prompt,
        error=error,
    )


@dataclass(slots=True, kw_only=True)
class Loading:
    """One step: `at_once` clients, each with the next request as soon as it has the answer to the last.

    They begin spread over `spread` seconds (about what one request takes), so that they do not go in step. What is
    begun before all of them are there counts for nothing. The step ends when enough requests were answered, or when
    the target cannot be held any more; what is then under way is broken off.
    """

    ask: Ask
    prompts: Prompts
    clock: Clock
    target: Target
    at_once: int
    spread: float = 0.0
    least: int = LEAST
    told: Callable[[int, int], None] = lambda done, needed: None
    samples: list[Sample] = field(default_factory=list)
    _began: float | None = None  #: when all were there
    _pieces: int = 0
    _enough: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def needed(self) -> int:
        return max(self.least, ROUNDS * self.at_once)

    async def run(self) -> Step:
        async with asyncio.TaskGroup() as group:
            clients = [group.create_task(self._client(index)) for index in range(self.at_once)]
            await self._enough.wait()
            for client in clients:
                client.cancel()
        took = self.clock.now().mono - (self._began or 0.0)
        rate = self._pieces * _tokens_a_piece(self.samples) / took if took > 0 else 0.0
        return judge(self.at_once, self.samples, rate, self.target)

    async def _client(self, index: int) -> None:
        await self.clock.sleep(self.spread * index / self.at_once)
        if index == self.at_once - 1:
            self._began = self.clock.now().mono
        patience = max(PATIENCE, 3 * self.target.ttft, 10 * self.target.itl)
        while not self._enough.is_set():
            counts = self._began is not None
            sample = await one(self.ask, self.prompts.next(), self.clock, patience, self._heard)
            if counts:
                self._add(sample)
            if sample.error is not None:
                await self.clock.sleep(_AFTER_ERROR)

    def _heard(self) -> None:
        self._pieces += self._began is not None

    def _add(self, sample: Sample) -> None:
        if self._enough.is_set():
            return
        self.samples.append(sample)
        self.told(len(self.samples), self.needed)
        if len(self.samples) >= self.needed or is_lost(self.samples, self.needed, self.target):
            self._enough.set()


def _tokens_a_piece(samples: Iterable[Sample]) -> float:
    """Engines that send several tokens at once (speculative decoding) say how many there were."""
    told = [(sample.tokens, sample.chunks) for sample in samples if sample.tokens and sample.chunks]
    pieces = sum(chunks for _, chunks in told)
    return max(1.0, sum(tokens for tokens, _ in told) / pieces) if pieces else 1.0


_WORDS: Final = """
the of and to in that it was for on with as are at be this from have or by one had not but what all were when we there
can an your which their said if do will each about how up out them then she many some so these would other into has more
her two like him see time could no make than first been its who now people my made over did down only way find use may
water long little very after words called just where most know get through back much before go good new write our used
me man too any day same right look think also around another came come work three word must because does part even
place well such here take why things help put years different away again off went old number great tell men say small
every found still between name should home big give air line set own under read last never us left end along while
"""
