"""Weights on their way to one replica: how far they are, and when that is news."""

from typing import Final

from llmgw.facts import Progress
from llmgw.units import Mono, format_bytes, format_seconds

NEWS_EVERY: Final = 1.0
"""Seconds between two reports for the sake of progress alone: who watches needs no more, and a store feels each."""


class Coming:
    """One file after the other, as the cache tells of each."""

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self._told = Mono(0.0)

    def hear(self, progress: Progress, now: Mono) -> bool:
        """Whether it is worth a report at once."""
        before, self.progress = self.progress, progress
        turned = before is None or progress.done < before.done or progress.waiting is not before.waiting
        if not turned and progress.done != progress.total and now - self._told < NEWS_EVERY:
            return False
        self._told = now
        return True

    def brought(self, source: str, took: float) -> str:
        """`hf://a/b.gguf, 4.7 GiB in 1m20s (60 MiB/s)`; `took` in seconds."""
        size = self.progress.done if self.progress else 0
        speed = f" ({format_bytes(round(size / took))}/s)" if size and took > 0 else ""
        return f"{source}, {format_bytes(size)} in {format_seconds(took)}{speed}"
