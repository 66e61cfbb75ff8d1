"""Weights on their way to one replica: how far they are, and when that is news."""

from dataclasses import dataclass, field
from typing import Final

from llmgw.facts import ComingFile, Progress
from llmgw.units import Bytes, Mono, format_bytes, format_seconds

NEWS_EVERY: Final = 1.0
"""Seconds between two reports for the sake of progress alone: who watches needs no more, and a store feels each."""


@dataclass(slots=True)
class _One:
    progress: Progress
    told: Mono = field(default=Mono(0.0))
    here: bool = False


class Coming:
    """Several files at a time, as the cache tells of each."""

    def __init__(self) -> None:
        self._files: dict[str, _One] = {}

    @property
    def files(self) -> tuple[ComingFile, ...]:
        """Those that are not here yet, by their sources."""
        found = ((source, one) for source, one in self._files.items() if not one.here)
        return tuple(ComingFile(source=source, progress=one.progress) for source, one in found)

    @property
    def progress(self) -> Progress | None:
        """Of all together, those that are here already included. It waits while each that is left does."""
        if not self._files:
            return None
        every = [one.progress for one in self._files.values()]
        left = [one.progress for one in self._files.values() if not one.here]
        totals = [one.total for one in every if one.total is not None]
        rates = [one.rate for one in left if one.rate is not None]
        waits = bool(left) and all(one.waiting for one in left)
        return Progress(
            done=Bytes(sum(one.done for one in every)),
            total=Bytes(sum(totals)) if len(totals) == len(every) else None,
            rate=sum(rates) if rates else None,
            waiting=waits,
            waits_for=next((one.waits_for for one in left if one.waits_for), "") if waits else "",
        )

    def hear(self, source: str, progress: Progress, now: Mono) -> bool:
        """Whether it is worth a report at once."""
        one = self._files.get(source)
        if one is None:
            self._files[source] = _One(progress, now)
            return True
        before, one.progress = one.progress, progress
        turned = progress.done < before.done or _wait(progress) != _wait(before)
        if not turned and progress.done != progress.total and now - one.told < NEWS_EVERY:
            return False
        one.told = now
        return True

    def gave_up(self, source: str) -> None:
        """Nothing more comes of it."""
        self._files.pop(source, None)

    def brought(self, source: str, took: float) -> str:
        """It is here: `hf://a/b.gguf, 4.7 GiB in 1m20s (60 MiB/s)`; `took` in seconds."""
        one = self._files.get(source)
        size = one.progress.done if one else 0
        if one is not None:
            one.here = True
        speed = f" ({format_bytes(round(size / took))}/s)" if size and took > 0 else ""
        return f"{source}, {format_bytes(size)} in {format_seconds(took)}{speed}"


def _wait(progress: Progress) -> str | None:
    return progress.waits_for if progress.waiting else None
