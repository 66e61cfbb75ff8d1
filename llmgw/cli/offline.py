"""Planning without a daemon: a catalog against a fleet that is described in a file."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llmgw.admin.planning import plan_output
from llmgw.catalog.spec import Catalog, WeightsSpec
from llmgw.clock import SystemClock
from llmgw.engine.sizes import Sizes
from llmgw.errors import TerminalError
from llmgw.facts import DiskFact, MemoryFact, NodeReport, Observed, WeightsFact
from llmgw.fleet import load_fleet, reports
from llmgw.ids import NodeName
from llmgw.schedule.forecast import asked_for, forecast
from llmgw.schedule.think import Known
from llmgw.units import Bytes, Instant
from llmgw.weights.cache import Cache

if TYPE_CHECKING:
    from llmgw.admin.plans import PlanOutput
    from llmgw.engine.manager import Engines


def plan_offline(
    catalog: Catalog,
    fleet: Path,
    engines: "Engines",
    cache: Path,
    asked: Sequence[str] = (),
    *,
    now: Instant | None = None,
) -> "PlanOutput":
    """What an idle fleet would come to. Engines, and what they make of files that are on this machine (`cache`, and
    files in place), are those that are installed here. `asked`: models that requests are taken to have come for.
    `now`: the time that windows go by; None: the clock's.

    Raises CatalogInvalid with every problem of the fleet's file, TerminalError where it cannot be read or there is no
    such model.
    """
    now = now or SystemClock().now()
    try:
        data = fleet.read_bytes()
    except OSError as error:
        raise TerminalError(f"cannot read {fleet}: {error.strerror}") from error
    described = load_fleet(str(fleet), data, engines.by_name)
    nodes = reports(described, engines=engines.by_name, at=now.wall, catalog=catalog.digest)
    sized = Sizes(engines).of(catalog, [*nodes.values(), _here(catalog, cache)])
    known = Known(
        catalog=catalog,
        observed=Observed(nodes=nodes, replicas={}, recovery={}, footprints=sized.footprints),
        levels=sized.levels,
    )
    try:
        return plan_output(forecast(asked_for(known, asked, now), now), offline=True)
    except ValueError as error:
        raise TerminalError(str(error)) from error


def _here(catalog: Catalog, cache: Path) -> NodeReport:
    """This machine's files, for what their headers tell. It is none of the fleet's nodes."""
    nothing = Bytes(0)
    return NodeReport(
        node=NodeName("here"),
        at=SystemClock().now().wall,
        memory=MemoryFact(total=nothing, available=nothing, foreign=nothing),
        disk=DiskFact(total=nothing, free=nothing),
        weights=files_here(catalog, cache),
    )


def files_here(catalog: Catalog, cache: Path) -> tuple[WeightsFact, ...]:
    """What of the catalog's files is on this machine."""
    wanted: list[WeightsSpec] = [
        spec for model in catalog.models.values() for profile in model.profiles for spec in profile.every_file
    ]
    with tempfile.TemporaryDirectory() as empty:
        root = cache if cache.is_dir() else Path(empty)  # without a cache, files in place count
        return Cache(root, cluster_id="", clock=SystemClock()).facts(wanted)
