"""Nodes as one model sees them: where it is, or why not there, and who holds the memory. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from llmgw.admin import node_views
from llmgw.admin.node_views import Resident
from llmgw.admin.planning import rejection_row
from llmgw.admin.reading import Seen
from llmgw.admin.stories import HolderRow, PlaceDeviceRow, PlaceRow
from llmgw.catalog.spec import Catalog, ClusterSpec, ModelSpec, ProfileSpec
from llmgw.facts import NodeReport, Observed
from llmgw.ids import Digest, ModelName, NodeName, Revision
from llmgw.plan import ModelStatus, Rejection
from llmgw.schedule import room
from llmgw.schedule.filters import Filters
from llmgw.units import Bytes
from llmgw.weights.lookup import on_node


def places(seen: Seen, spec: ModelSpec, told: ModelStatus | None) -> tuple[PlaceRow, ...]:
    """Those that it is on first, then by name."""
    filters = static_filters(seen)
    rows = [_place(seen, spec, seen.reports[node], told, filters) for node in sorted(seen.reports)]
    return tuple(sorted(rows, key=lambda row: row.verdict != "placed"))


def static_filters(seen: Seen) -> Filters:
    """What rules nodes out whatever runs there, as the store tells of them."""
    cluster = ClusterSpec(nodes=seen.applied.policies if seen.applied else {})
    nothing = Catalog(revision=Revision(""), digest=Digest(""), models={}, cluster=cluster)
    return Filters(nothing, Observed(nodes=seen.reports, replicas={}, recovery={}, footprints={}, cordons=seen.cordons))


def _against(spec: ModelSpec, node: NodeName, told: ModelStatus | None, filters: Filters) -> Iterator[Rejection]:
    """As the controller told; of a model that it did not place, what can be said without it."""
    given = [each for each in told.rejections if each.node == node] if told is not None else []
    yield from given
    if not given:
        found = [(profile, filters.refusal(spec, profile, node)) for profile in spec.profiles]
        if all(refusal is not None for _, refusal in found):
            yield from (replace(refusal, profile=profile.name) for profile, refusal in found if refusal is not None)


def _place(seen: Seen, spec: ModelSpec, report: NodeReport, told: ModelStatus | None, filters: Filters) -> PlaceRow:
    its, here = node_views.policy(seen, report.node), node_views.residents(seen, report.node)
    held = Bytes(sum(each.host for each in here))
    capacity = room.capacity(report.memory, its.reserve.host, held)
    placed = any(each.model == spec.name for each in here)
    known = (each for each in told.rejections if each.node == report.node) if told else iter(())
    refusals = tuple(map(rejection_row, known if placed else _against(spec, report.node, told, filters)))
    first = refusals[0] if refusals else None
    return PlaceRow(
        node=report.node,
        verdict="placed" if placed else "refused" if first is not None else "open",
        reason=first.reason if first is not None else "",
        need=first.need if first is not None else 0,
        have=first.have if first is not None else 0,
        detail=first.detail if first is not None else "",
        capacity=capacity,
        budget=None if its.budget.host is None else room.allowed(capacity, its.budget.host),
        held=held,
        holders=tuple(_holder(seen, each) for each in here if each.model != spec.name),
        pool=its.pool,
        cordon=node_views.cordon_row(seen.cordons.get(report.node)),
        refusals=refusals,
        devices=tuple(_devices(seen, report, here)),
        holds_weights=any(_holds(report, profile) for profile in spec.profiles),
    )


def _holds(report: NodeReport, profile: ProfileSpec) -> bool:
    files = profile.roles.values()
    return bool(files) and all(on_node(report.weights, file) is not None for file in files)


def _devices(seen: Seen, report: NodeReport, here: Iterable[Resident]) -> Iterator[PlaceDeviceRow]:
    its = node_views.policy(seen, report.node)
    for device in room.usable(report):
        counted = Bytes(sum(each.on(device.uuid) for each in here))
        yield PlaceDeviceRow(
            uuid=device.uuid,
            name=device.name,
            index=device.index,
            capacity=room.device_capacity(device, its.reserve.device, counted),
            budget=its.budget.device,
            counted=counted,
        )


def _holder(seen: Seen, each: Resident) -> HolderRow:
    spec = seen.models.get(ModelName(each.model))
    return HolderRow(
        model=each.model,
        replica=each.id,
        state=each.state,
        memory=each.host,
        priority=spec.priority if spec else 0,
        pinned=spec.pinned if spec else False,
        device=each.footprint.device if each.footprint is not None else 0,
        devices=each.devices,
        suspended=spec.suspend if spec else False,
        on_demand=spec.scaling.on_demand if spec else False,
        busy=each.busy,
    )
