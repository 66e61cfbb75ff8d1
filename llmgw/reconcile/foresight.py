"""What a catalog would lead to as things stand here now. Nothing is written."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from llmgw.catalog.live import LiveCatalog
from llmgw.catalog.load import Loaded, load_catalog
from llmgw.catalog.place import Place
from llmgw.catalog.resolving import resolutions_of, resolved
from llmgw.catalog.spec import Catalog, WeightsSpec
from llmgw.clock import Clock
from llmgw.engine.manager import Engines
from llmgw.engine.sizes import Sizes
from llmgw.facts import NodeReport, WeightsFact
from llmgw.ids import NodeName
from llmgw.reconcile import rollouts
from llmgw.reconcile.liveness import Liveness
from llmgw.reconcile.observe import Seen, observe
from llmgw.schedule.forecast import Forecast, asked_for, forecast
from llmgw.schedule.rollout import effective
from llmgw.schedule.think import Known
from llmgw.store.api import Store

Look = Callable[[Iterable[WeightsSpec]], tuple[WeightsFact, ...]]
"""What is there of these files on the machine that is asked. May read disks."""


class Foresight:
    """Answers over one store. `place`: of the catalog that `live` follows; `look`: at the files of `node`."""

    def __init__(
        self,
        *,
        store: Store,
        place: Place,
        live: LiveCatalog,
        liveness: Liveness,
        engines: Engines,
        clock: Clock,
        node: NodeName,
        look: Look,
    ) -> None:
        self._store = store
        self._place = place
        self._live = live
        self._liveness = liveness
        self._engines = engines
        self._clock = clock
        self._node = node
        self._look = look

    async def foresee(
        self, catalog: Catalog | None, asked: Sequence[str] = ()
    ) -> tuple[Forecast, Loaded, Catalog | None]:
        """Of `catalog`, or of the followed one as it stands on disk, with what loading that had to say, and what is in
        force before it. `asked`: models that requests are taken to have come for.

        Raises CatalogInvalid and CatalogUnreadable, ValueError for a model that is not in it, and what reading the
        store raises.
        """
        loaded = Loaded(catalog=catalog) if catalog is not None else await asyncio.to_thread(self._load)
        loaded = replace(loaded, catalog=resolved(loaded.catalog, resolutions_of(self._live.current)))
        before, now, sizes = self._live.current, self._clock.now(), Sizes(self._engines)
        rolling = rollouts.relevant(loaded.catalog, await rollouts.read(self._store))
        catalog = effective(loaded.catalog, rolling)
        seen = await observe(self._store, sizes, catalog, now, liveness=self._liveness)
        seen = replace(seen, rollouts=rolling)
        known = asked_for(await asyncio.to_thread(self._known, seen, catalog, sizes), asked, now)
        return await asyncio.to_thread(forecast, known, now), loaded, before

    def _load(self) -> Loaded:
        return load_catalog(self._place.read(), self._engines.rules(), canonical=self._engines.canonical)

    def _known(self, seen: Seen, catalog: Catalog, sizes: Sizes) -> Known:
        nodes = self._looked_up(seen.observed.nodes, catalog)
        sized = sizes.of(catalog, nodes.values())
        observed = replace(seen.observed, nodes=nodes, footprints=sized.footprints)
        return replace(seen, observed=observed, levels=sized.levels).known(catalog)

    def _looked_up(self, reports: Mapping[NodeName, NodeReport], catalog: Catalog) -> Mapping[NodeName, NodeReport]:
        """As if this machine's agent had looked for the catalog's files; others look when it is in force."""
        report = reports.get(self._node)
        if report is None or report.catalog == catalog.digest:
            return reports
        wanted = (
            spec for model in catalog.models.values() for profile in model.profiles for spec in profile.every_file
        )
        return {**reports, self._node: replace(report, weights=self._look(wanted), catalog=catalog.digest)}
