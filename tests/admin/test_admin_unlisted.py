"""Entries that a node's report has no room for."""

from dataclasses import replace

import daemon_seeds as seed

from llmgw.admin.collecting import Limits, collect_listing
from llmgw.admin.reading import look
from llmgw.ids import NodeName
from llmgw.store import keys
from llmgw.units import Instant, Mono, Wall


async def test_collect_says_how_many_entries_follow_once_these_are_gone() -> None:
    seeds = await seed.full()
    report = replace(seed.report(), unlisted=5)
    await seeds.put(keys.report(report.node), report)
    seen, now = await look(seeds.store), Instant(Mono(0.0), Wall(seed.NOW))
    await seeds.store.close()
    assert collect_listing(seen, (), now, dry_run=False).unlisted == 5
    elsewhere = Limits(node=NodeName("another"))
    assert collect_listing(seen, (), now, dry_run=False, limits=elsewhere).unlisted == 0
