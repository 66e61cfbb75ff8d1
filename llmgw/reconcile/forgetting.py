"""Machines that were taken away: what is known of one that has been lost for long is removed."""

from collections.abc import Callable
from typing import Final

from llmgw.facts import Event
from llmgw.reconcile.observe import Seen
from llmgw.store import keys
from llmgw.store.api import Delete, Store
from llmgw.store.batches import write_all
from llmgw.units import Instant

FORGOTTEN: Final = 24 * 3600.0
"""Seconds since its last report, of a node that is lost by our own clock too."""


async def forget_nodes(store: Store, seen: Seen, now: Instant, record: Callable[[Event], None]) -> None:
    """Its report and its assignments. Should it come back, its engines are found without an assignment."""
    for node in sorted(seen.observed.lost):
        silent = now.wall - seen.observed.nodes[node].at
        if silent <= FORGOTTEN:
            continue
        there = [id for id, assigned in seen.assignments.items() if assigned.node == node]
        await write_all(store, [*(Delete(keys.assignment(node, id)) for id in there), Delete(keys.report(node))])
        text = f"it has not reported for {silent / 3600:.0f} hours"
        record(Event(at=now.wall, subject=f"node/{node}", reason="forgotten", message=text))
