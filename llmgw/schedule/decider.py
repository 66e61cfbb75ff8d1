"""Deciding again and again. Pure, but for what it remembers."""

from collections.abc import Sequence
from typing import Final

from llmgw.catalog.spec import Catalog
from llmgw.facts import Observed
from llmgw.plan import Levels, Plan, Wish
from llmgw.schedule.decide import NO_LEVELS, decide
from llmgw.units import Instant, Wall

REMEMBERED: Final = 60.0
"""Seconds after which a decision is made anew though nothing changed."""


class Decider:
    """Decides as `decide` does, and remembers the last decision: asked the same again, the answer is there.

    Worth having where passes are many and news is little. Nothing else is kept, so that no answer depends on the past.
    """

    def __init__(self) -> None:
        self._asked: tuple[object, ...] | None = None
        self._plan = Plan()
        self._good_for = (Wall(0), Wall(0))

    def decide(
        self,
        wishes: Sequence[Wish],
        catalog: Catalog,
        observed: Observed,
        now: Instant,
        *,
        levels: Levels = NO_LEVELS,
        settled: bool = True,
    ) -> Plan:
        asked = (tuple(wishes), catalog, observed, levels, settled)
        begin, end = self._good_for
        if not (asked == self._asked and begin <= now.wall < end):
            self._plan = decide(wishes, catalog, observed, now, levels=levels, settled=settled)
            self._asked = asked
            until = Wall(now.wall + REMEMBERED)
            self._good_for = (now.wall, until if self._plan.due is None else min(until, self._plan.due))
        return self._plan
