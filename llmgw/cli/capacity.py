"""What one replica holds: figures of requests at once, judged against a target, and what to try next. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

SHARE: Final = 0.95  #: of the requests, and of the gaps between tokens, that must meet the target
_FINE: Final = 16  #: the search ends when what holds and what does not are this part of the former apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What has to be held, in seconds: to the first token, and between tokens, each at the 95th percentile."""

    ttft: float
    itl: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One request as its client saw it, in seconds. `chunks`: pieces of text; `tokens`: as the engine counted them.

    `ttft` None: none came. `gaps`: between one piece and the next.
    """

    ttft: float | None
    gaps: tuple[float, ...] = ()
    took: float = 0.0
    chunks: int = 0
    tokens: int | None = None
    prompt_tokens: int | None = None
    error: str | None = None


class Verdict(StrEnum):
    HELD = "held"
    TTFT = "first token too late"
    ITL = "tokens too slow"
    ERRORS = "errors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """So many requests at once, measured. Times in seconds; None: there was nothing to take them from.

    A step that could not be held any more was ended early, and has fewer `requests`.
    """

    at_once: int
    requests: int
    failed: int
    ttft_p50: float | None
    ttft_p95: float | None
    itl_p50: float | None
    itl_p95: float | None
    tokens_per_second: float
    verdict: Verdict
    error: str | None = None  #: the first

    @property
    def held(self) -> bool:
        return self.verdict is Verdict.HELD


def percentile(values: Iterable[float], share: float) -> float | None:
    """By nearest rank: a value that occurred. None: there are none."""
    found = sorted(values)
    return found[max(0, math.ceil(share * len(found)) - 1)] if found else None


def judge(at_once: int, samples: Sequence[Sample], tokens_per_second: float, target: Target) -> Step:
    """A request that failed met no target; but few of many (1 - SHARE) may fail."""
    first = [sample.ttft for sample in samples if sample.ttft is not None]
    gaps = [gap for sample in samples for gap in sample.gaps]
    errors = [sample.error for sample in samples if sample.error is not None]
    ttft, itl = percentile(first, SHARE), percentile(gaps, SHARE)
    if ttft is None or len(errors) > _allowed(len(samples)):
        verdict = Verdict.ERRORS
    elif _late(samples, target) > _allowed(len(samples)):
        verdict = Verdict.TTFT
    else:
        verdict = Verdict.HELD if itl is None or itl <= target.itl else Verdict.ITL
    return Step(
        at_once=at_once,
        requests=len(samples),
        failed=len(errors),
        ttft_p50=percentile(first, 0.5),
        ttft_p95=ttft,
        itl_p50=percentile(gaps, 0.5),
        itl_p95=itl,
        tokens_per_second=tokens_per_second,
        verdict=verdict,
        error=errors[0] if errors else None,
    )


def is_lost(samples: Sequence[Sample], needed: int, target: Target) -> bool:
    """Whether the target cannot be met any more, whatever the rest of `needed` requests bring."""
    failed = sum(sample.error is not None for sample in samples)
    return max(_late(samples, target), failed) > _allowed(needed)


def _late(samples: Sequence[Sample], target: Target) -> int:
    return sum(sample.ttft is None or sample.ttft > target.ttft for sample in samples)


def _allowed(requests: int) -> int:
    return requests - math.ceil(SHARE * requests)


def next_at_once(steps: Sequence[Step], most: int) -> int | None:
    """Doubled until it does not hold, then halved towards the border; None: found, to a sixteenth."""
    if not steps:
        return 1
    missed = min((step.at_once for step in steps if not step.held), default=None)
    held = max((step.at_once for step in steps if step.held and (missed is None or step.at_once < missed)), default=0)
    if missed is None:
        return None if held >= most else min(most, held * 2)
    if held == 0 or missed - held <= max(1, held // _FINE):
        return None
    return (held + missed) // 2


def best(steps: Sequence[Step]) -> Step | None:
    """The most that was held below the least that was not; None: not even one request."""
    missed = min((step.at_once for step in steps if not step.held), default=math.inf)
    return max((step for step in steps if step.held and step.at_once < missed), key=lambda s: s.at_once, default=None)
