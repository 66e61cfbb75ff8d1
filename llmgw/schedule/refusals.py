"""Why a model is not placed: each node's first reason, with what it needs, what there is, what evicting could free."""

from dataclasses import replace
from typing import Final

from llmgw.catalog.spec import Catalog, ProfileSpec, WeightsSpec
from llmgw.facts import Level, Observed
from llmgw.ids import NodeName
from llmgw.plan import Reason, Rejection
from llmgw.schedule.eviction import gives_way
from llmgw.schedule.filters import Filters
from llmgw.schedule.nodes import Nodes, Place
from llmgw.schedule.placement import Fit, Placement, Want, Way
from llmgw.schedule.residency import HOST
from llmgw.schedule.room import Room, share
from llmgw.units import Bytes, format_bytes
from llmgw.weights.naming import canonical, is_local, local_path

MOST: Final = 200
"""Nodes that are told of one by one."""


_ITS_OWN: Final = frozenset({Reason.DISK, Reason.GROUP, Reason.DRAFT, Reason.QUARANTINED})
"""Reasons that say nothing of other models of its size."""


class Refusals:
    def __init__(
        self, catalog: Catalog, observed: Observed, nodes: Nodes, filters: Filters, placement: Placement
    ) -> None:
        self._catalog = catalog
        self._observed = observed
        self._nodes = nodes
        self._filters = filters
        self._placement = placement
        self._told: dict[tuple[object, ...], list[Rejection]] = {}

    def of(self, way: Way, want: Want) -> list[Rejection]:
        """One for each node, as things stand in the pass."""
        alike = self._alike(way, want)
        if alike is not None and (known := self._told.get(alike)) is not None:
            return list(known)
        names = list(self._nodes.places)[:MOST]
        found = [replace(self._refusal(way, want, name), profile=way.profile.name) for name in names]
        if alike is not None and all(one.reason not in _ITS_OWN for one in found):
            self._told[alike] = found
        return found

    def _alike(self, way: Way, want: Want) -> tuple[object, ...] | None:
        """Equal for models that are refused for the same reasons: of the same size, asking for the same. None: it has
        a story of its own."""
        profile, placement = way.profile, way.model.placement
        if way.records or profile.draft_model is not None or way.model.groups or self._placement.was_measured(way.spec):
            return None
        footprint = self._observed.footprints.get((way.spec, Level.FULL))
        if footprint is None and any(_says_why(spec) for spec in profile.roles.values()):
            return None
        where = (placement.pools, placement.nodes, tuple(sorted(placement.labels.items())))
        what = (profile.name, profile.engine, tuple(profile.options), profile.devices, profile.exclusive, footprint)
        return (self._nodes.version, where, what, want.pinned, want.priority, want.yields)

    def _refusal(self, way: Way, want: Want, name: NodeName) -> Rejection:
        static = self._filters.refusal(way.model, way.profile, name)
        if static is not None:
            return static
        if name in way.shut:
            return Rejection(node=name, reason=Reason.QUARANTINED, detail=way.records[name].last.reason)
        fit = self._placement.fit(way, name)
        if fit is None:
            return self._unknown(way, name)
        if fit.profile is not way.profile and (unable := self._filters.unable(fit.profile, name)) is not None:
            return unable
        place = self._nodes.places[name]
        memory = self._memory(place, fit, want)
        if memory is not None:
            return memory
        if (disk := self._filters.no_disk(name, *fit.profiles)) is not None:
            return disk
        rivals = sorted(place.rivals(way.model, leaving=True))
        if rivals:
            return Rejection(node=name, reason=Reason.GROUP, detail=f"with {', '.join(rivals)}")
        return Rejection(node=name, reason=Reason.HOST_MEMORY, detail="what would have to make room comes before it")

    def _unknown(self, way: Way, name: NodeName) -> Rejection:
        if way.profile.draft_model is not None and self._observed.footprints.get((way.spec, Level.FULL)) is not None:
            return Rejection(node=name, reason=Reason.DRAFT, detail=f"{way.profile.draft_model} cannot run there")
        if (lacking := self._lacking(way.profile, name)) is not None:
            return Rejection(node=name, reason=Reason.NO_FILE, detail=lacking)
        untold = [spec.untold for spec in way.profile.roles.values() if spec.untold is not None]
        advice = untold[0] if untold else "declare `memory`, or `size` under `weights`, in the profile"
        return Rejection(node=name, reason=Reason.SIZE_UNKNOWN, detail=advice)

    def _lacking(self, profile: ProfileSpec, name: NodeName) -> str | None:
        """A file that would be served in place, which the node has looked for in vain: there is no size to declare."""
        if self._observed.nodes[name].catalog != self._catalog.digest:
            return None
        missing = (canonical(spec.source) for spec in self._filters.missing(profile, name))
        path = next((local_path(source) for source in missing if is_local(source)), None)
        return path and f"{path} is not there, or cannot be used: put it there, or correct its `source`"

    def _memory(self, place: Place, fit: Fit, want: Want) -> Rejection | None:
        """Device memory first: it is what there is least of."""
        room, name = place.room, place.name
        freed = self._freeable(place, want)
        if fit.profile.devices:
            each = share(fit.footprint, fit.profile)
            taken = {uuid for uuid in room.devices if uuid in room.sole or (fit.profile.exclusive and room.soon[uuid])}
            free = sorted(
                (0 if uuid in taken else max(0, room.free_soon(uuid, pinned=want.pinned)) for uuid in room.devices),
                reverse=True,
            )
            have = free[fit.profile.devices - 1]
            if each > have:
                after = sorted(
                    (max(0, room.free_soon(uuid, pinned=want.pinned)) + freed.get(uuid, 0) for uuid in room.devices),
                    reverse=True,
                )[fit.profile.devices - 1]
                return Rejection(
                    node=name, reason=Reason.DEVICE_MEMORY, need=Bytes(each), have=Bytes(have), freeable=Bytes(after),
                    detail=self._budget(room, want, device=True, alone=fit.profile.exclusive),
                )  # fmt: skip
        need, have = max(0, fit.footprint.host), max(0, room.free_soon(HOST, pinned=want.pinned))
        if need <= have:
            return None
        return Rejection(
            node=name, reason=Reason.HOST_MEMORY, need=Bytes(need), have=Bytes(have),
            freeable=Bytes(have + freed.get(HOST, 0)), detail=self._budget(room, want, device=False, alone=False),
            )  # fmt: skip

    def _freeable(self, place: Place, want: Want) -> dict[str, int]:
        freed: dict[str, int] = {}
        for one in place.staying:
            if gives_way(one, want):
                for dimension, cost in one.costs.items():
                    freed[dimension] = freed.get(dimension, 0) + cost
        return freed

    @staticmethod
    def _budget(room: Room, want: Want, *, device: bool, alone: bool) -> str:
        if device and room.sole:
            return f"{len(room.sole)} of {len(room.names)} held by one that has them for itself"
        if alone:
            return "it wants its devices for itself"
        bounded = [each for each in room.limit if (each != HOST) is device and room.limit[each] < room.capacity[each]]
        if want.pinned or not bounded:
            return ""
        budget = format_bytes(room.limit[bounded[0]])
        return f"budget {budget} each" if device else f"budget {budget}"


def _says_why(spec: WeightsSpec) -> bool:
    """Whether a size that nobody knows may have a reason of this very file."""
    return spec.untold is not None or is_local(canonical(spec.source))
