"""What an engine found damaged is hashed: only then is it known whether the file is to blame, or whoever named it.

A file that is not what was fetched is set aside and fetched anew, which is no fault of the model's. One that is so
again and again is the disk's fault: somebody has to look.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import structlog

from llmgw.catalog.spec import WeightsSpec
from llmgw.clock import Clock
from llmgw.facts import Failure, FailureKind
from llmgw.units import Mono
from llmgw.weights.doomed import Refusal
from llmgw.weights.naming import is_local
from llmgw.weights.upkeep import Upkeep

log = structlog.get_logger("llmgw.weights")

SOUND_FOR: Final = 3600.0
"""Seconds that an entry which was found sound is not hashed again: that takes minutes."""

MOST_ASIDE: Final = 2
"""Corrupt copies of one entry from which on it is not fetched anew by itself: each takes as much of the disk."""


class Doubt:
    """Of one node's cache."""

    def __init__(self, upkeep: Upkeep, clock: Clock) -> None:
        self._upkeep = upkeep
        self._clock = clock
        self._sound: dict[str, Mono] = {}

    async def look(self, failure: Failure, roles: Mapping[str, WeightsSpec]) -> Failure:
        """The failure as it is once the files of `roles` were hashed. Cancellable."""
        sound, trouble = False, list[str]()
        for spec in dict.fromkeys(spec for spec in roles.values() if not is_local(spec.source)):
            entry = self._upkeep.find(spec)
            if entry is None:
                trouble.append(f"{spec.source} is not whole any more")
                continue
            try:
                if (count := self._upkeep.set_aside_before(entry)) >= MOST_ASIDE:
                    return replace(failure, reason=f"{failure.reason}; {_again(count, entry)}")
                trouble += await self._verify(entry)
                sound = True
            except (Refusal, OSError) as error:
                log.warning("entry_not_verified", entry=entry, error=str(error))
        if trouble:
            reason = f"its weights were damaged on the disk ({'; '.join(trouble)}): set aside, and fetched anew"
            return replace(failure, kind=FailureKind.FETCH, reason=reason)
        more = "; its files on the disk are as they were fetched" if sound else ""
        return replace(failure, reason=f"{failure.reason}{more}")

    async def check(self, entry: str) -> tuple[str, ...]:
        """What of an entry is damaged: it is set aside then. Raises Refusal, OSError."""
        return await self._verify(entry)

    async def _verify(self, entry: str) -> tuple[str, ...]:
        now = self._clock.now().mono
        if entry in self._sound and now - self._sound[entry] < SOUND_FOR:
            return ()
        trouble = (await self._upkeep.verify(entry)).trouble
        if not trouble:
            self._sound[entry] = now
        return trouble


def _again(count: int, entry: str) -> str:
    return (
        f"{count} copies of its weights were set aside as corrupt before, so they are not fetched anew: check the "
        f"disk, remove {entry} and its corrupt- copies with `llmgw collect`, and `llmgw reset` the model"
    )
