"""Collects weights by itself where a node's disk fills, if the Cluster document says so. Off otherwise.

What may go is what `llmgw collect --collect` would remove: the same list, the same ages and kept revisions, and
the same look of each node for itself. The longest unwanted go first, and no more than brings the disk below its mark.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import structlog

from llmgw.admin import reading
from llmgw.admin.asking import Asking
from llmgw.admin.collecting import Limits, collect_listing
from llmgw.admin.diffs import Compare
from llmgw.admin.reading import Seen
from llmgw.admin.shapes import CollectOutput, WeightsRow
from llmgw.admin.upkeep_routes import remove, unsettled
from llmgw.catalog.spec import WeightsSettings
from llmgw.clock import Clock
from llmgw.errors import LlmgwError
from llmgw.facts import Event, NodeReport
from llmgw.store.api import Store
from llmgw.units import format_bytes

log = structlog.get_logger("llmgw.collect")

EVERY: Final = 60.0
"""Seconds between two looks: disks fill by downloads, which take minutes."""

GAP: Final = 10
"""Percent of the disk between the two marks where only the upper one is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """Of the controller that leads. `compare`: the catalog as it stands on disk now."""

    store: Store
    clock: Clock
    record: Callable[[Event], None]
    compare: Compare

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.clock.sleep(EVERY)
            try:
                await self.relieve()
            except LlmgwError as error:  # the store is away, say: the next look is soon
                log.warning("not_collected", error=str(error))

    async def relieve(self) -> tuple[CollectOutput, ...]:
        """One look at every node. Raises LlmgwError."""
        seen = await reading.look(self.store)
        settings = seen.applied.weights if seen.applied else WeightsSettings()
        full = [seen.reports[node] for node in sorted(seen.reports) if _excess(seen.reports[node], settings) > 0]
        if not full or (why := await unsettled(seen, self.compare)) is not None:
            if full:
                log.warning("not_collected", error=why)
            return ()
        return tuple([await self._relieve(seen, report, settings) for report in full])

    async def _relieve(self, seen: Seen, report: NodeReport, settings: WeightsSettings) -> CollectOutput:
        limits, history = Limits(node=report.node), await reading.history(self.store)
        listed = collect_listing(seen, history, self.clock.now(), dry_run=True, limits=limits)
        chosen = _chosen(listed, report, _excess(report, settings))
        asking = Asking(store=self.store, clock=self.clock)
        done = await remove(asking, seen, replace(listed, entries=chosen), limits, "llmgw, for the disk is full")
        if done.entries:
            used = _used(report)
            self._tell(report, f"the disk is {used} % full: {format_bytes(done.removed)} of weights removed")
        else:
            log.warning("nothing_to_collect", node=report.node, used=_used(report), stale=listed.stale)
        return done

    def _tell(self, report: NodeReport, message: str) -> None:
        at = self.clock.now().wall
        self.record(Event(at=at, subject=f"node/{report.node}", reason="disk pressure", message=message))


def _used(report: NodeReport) -> int:
    return 0 if report.disk.total == 0 else round(100 * (1 - report.disk.free / report.disk.total))


def _excess(report: NodeReport, settings: WeightsSettings) -> float:
    """Bytes above the lower mark, where the upper one is passed; else 0."""
    above, total, free = settings.collect_above, report.disk.total, report.disk.free
    if above is None or total - free <= total * above / 100:
        return 0.0
    below = settings.collect_below if settings.collect_below is not None else max(0, above - GAP)
    return total - free - total * below / 100


def _chosen(listed: CollectOutput, report: NodeReport, excess: float) -> tuple[WeightsRow, ...]:
    """The longest unwanted first, until that is enough."""
    wanted = {fact.entry: fact.last_wanted for fact in report.weights}
    chosen: list[WeightsRow] = []
    for row in sorted(listed.entries, key=lambda row: (wanted.get(row.entry, 0.0), row.entry)):
        if sum(each.size for each in chosen) >= excess:
            break
        chosen.append(row)
    return tuple(chosen)
