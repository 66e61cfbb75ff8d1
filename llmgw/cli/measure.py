"""Finds how many requests at once an engine holds within a target: warms it up, and loads it step by step."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from llmgw.cli.capacity import Step, Target, Verdict, best, next_at_once, percentile
from llmgw.cli.engine_client import Count, EngineClient, EngineRefused, Text
from llmgw.cli.load import LEAST, Ask, Loading, Prompts, one
from llmgw.clock import Clock
from llmgw.errors import TerminalError

WARMING: Final = 2  #: requests that count for nothing, after the one that found out how to ask
QUIET: Final = 0.25  #: seconds between steps, for what was broken off to end in the engine
_WIDEST: Final = 30.0  #: seconds that the clients of a step are spread over, at most
_OTHERWISE: Final = frozenset({400, 404, 405, 415, 422, 501})  #: answers after which another way of asking may do


class BenchFailed(TerminalError):
    """Nothing could be measured, or nothing was held; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What to measure. `most`: requests at once; `least`: requests of a step."""

    target: Target
    prompt_tokens: int = 256
    max_tokens: int = 64
    most: int = 256
    least: int = LEAST


async def find_ask(client: EngineClient, model: str, limits: Limits, prompts: Prompts) -> Ask:
    """How this engine can be asked for a stream: tried out with a first request.

    Raises EngineRefused as the first way was refused, EngineLost.
    """
    refused: EngineRefused | None = None
    for path, body in _ways(model, limits.max_tokens):
        ask = partial(_ask, client, path, body)
        try:
            async with aclosing(ask(prompts.next())) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Count):
                        prompts.settle(piece.prompt)
            return ask
        except EngineRefused as error:
            if error.status not in _OTHERWISE:
                raise
            refused = refused or error
    assert refused is not None
    raise refused


def _ask(client: EngineClient, path: str, body: Mapping[str, Any], prompt: str) -> AsyncGenerator[Text | Count, None]:
    said = {"messages": [{"role": "user", "content": prompt}]} if "chat" in path else {"prompt": prompt}
    return client.stream(path, {**body, **said})


def _ways(model: str, max_tokens: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Chat before plain text; as long an answer as was asked for, where the engine knows how to be told."""
    plain = {"model": model, "max_tokens": max_tokens, "stream": True, "stream_options": {"include_usage": True}}
    for path in ("/v1/chat/completions", "/v1/completions"):
        yield path, {**plain, "ignore_eos": True}
        yield path, plain


async def measure(
    ask: Ask,
    prompts: Prompts,
    limits: Limits,
    clock: Clock,
    *,
    told: Callable[[Step], None],
    progress: Callable[[int, int, int], None],
    check: Callable[[], Awaitable[None]],
) -> tuple[Step, ...]:
    """The steps in the order they were made.

    `told`: each when it is done. `progress`: (at once, requests done, needed). `check`: asked after each step; what it
    raises ends all. Raises BenchFailed when one request alone fails.
    """
    spread = await _warm_up(ask, prompts, limits, clock)
    steps: list[Step] = []
    while (at_once := next_at_once(steps, limits.most)) is not None:
        if steps:
            await clock.sleep(QUIET)
        loading = Loading(
            ask=ask,
            prompts=prompts,
            clock=clock,
            target=limits.target,
            at_once=at_once,
            spread=spread,
            least=limits.least,
            told=partial(progress, at_once),
        )
        step = await loading.run()
        await check()
        if at_once == 1 and step.verdict is Verdict.ERRORS:
            raise BenchFailed(f"requests fail, one at a time: {step.error}")
        steps.append(step)
        told(step)
        spread = min(_WIDEST, percentile((sample.took for sample in loading.samples), 0.5) or 0.0)
    return tuple(steps)


async def _warm_up(ask: Ask, prompts: Prompts, limits: Limits, clock: Clock) -> float:
    """Requests that count for nothing. Returns the seconds that one takes. Raises BenchFailed."""
    took, pieces = 0.0, 0
    for _ in range(WARMING):
        sample = await one(ask, prompts.next(), clock, 600.0, lambda: None)
        if sample.error is not None:
            raise BenchFailed(f"requests fail, one at a time: {sample.error}")
        prompts.settle(sample.prompt_tokens)
        took, pieces = sample.took, max(pieces, sample.chunks)
    if pieces < 2:
        raise BenchFailed(
            f"an answer of {limits.max_tokens} tokens comes in one piece: either the engine does not stream, or the "
            "model ends at once; the time between tokens cannot be measured"
        )
    return took


def missed(steps: tuple[Step, ...], target: Target) -> str | None:
    """Why not even one request at a time is held; None: it is."""
    if best(steps) is not None or not steps:
        return None
    first = steps[0]
    figure = first.ttft_p95 if first.verdict is Verdict.TTFT else first.itl_p95
    what = (
        f"to the first token, and {target.ttft:g} s are allowed (--ttft)"
        if first.verdict is Verdict.TTFT
        else f"between tokens, and {target.itl:g} s are allowed (--itl)"
    )
    return f"the target is missed with one request at a time: {figure or 0:.3g} s {what}"
