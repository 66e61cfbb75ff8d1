"""How fast a download is, smoothed. Pure."""

from collections import deque
from typing import Final

WINDOW: Final = 10.0
"""Seconds that a rate looks back: long enough to be calm, short enough to show a line that died."""

SOONEST: Final = 1.0
"""Seconds of looking before there is a rate."""

_SPACING: Final = 0.25


class Speed:
    """Bytes a second over the last WINDOW seconds. What was there when it first looked came with an earlier attempt."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, now: float, done: int) -> float | None:
        """`done` bytes at monotonic `now`; the rate, None: not known yet. Fewer bytes than before are a new start."""
        seen = self._seen
        if seen and done < seen[-1][1]:
            seen.clear()
        if len(seen) >= 2 and now - seen[-2][0] < _SPACING:
            seen.pop()
        seen.append((now, done))
        while len(seen) > 2 and now - seen[1][0] >= WINDOW:
            seen.popleft()
        began, first = seen[0]
        return (done - first) / (now - began) if now - began >= SOONEST else None
