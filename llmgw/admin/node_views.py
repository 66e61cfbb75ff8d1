"""Nodes and their memory, from store values. Pure.

Memory is told as deciding counts it: capacity is what engines could have, counted is what placements took of it, and
free what is left of the capacity, or of the budget where that is less.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from llmgw.admin.reading import Seen
from llmgw.admin.shapes import CordonRow, DeviceProcessRow, DeviceRow, EngineRow, NodeRow
from llmgw.catalog.spec import NodeSpec
from llmgw.facts import Cordon, DeviceFact, Footprint, NodeReport, Phase
from llmgw.ids import NodeName, ReplicaId
from llmgw.plan import Want
from llmgw.schedule import room
from llmgw.store.values import Role
from llmgw.units import Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """A replica that holds memory of a node: reported, or assigned and about to be there."""

    id: ReplicaId
    model: str
    state: str
    footprint: Footprint | None  #: what its placement counted
    resident: Bytes  #: host memory that it is seen to take
    devices: tuple[str, ...]
    busy: bool = False  #: it answers requests, or some wait in it

    @property
    def host(self) -> Bytes:
        return self.footprint.host if self.footprint is not None else self.resident

    def on(self, device: str) -> Bytes:
        """The memory of one device that it counts for."""
        if device not in self.devices or self.footprint is None:
            return Bytes(0)
        return Bytes(-(-self.footprint.device // len(self.devices)))


def residents(seen: Seen, node: NodeName) -> tuple[Resident, ...]:
    """By id."""
    return tuple(sorted(_residents(seen, node), key=lambda each: each.id))


def _residents(seen: Seen, node: NodeName) -> Iterator[Resident]:
    report = seen.reports.get(node)
    reported = {fact.id: fact for fact in report.replicas} if report else {}
    for fact in reported.values():
        if fact.phase.occupies_memory:
            yield Resident(
                id=fact.id,
                model=fact.model,
                state=fact.phase,
                footprint=fact.footprint,
                resident=fact.resident or Bytes(0),
                devices=fact.devices,
                busy=fact.load is not None and fact.load.running + fact.load.waiting > 0,
            )
    for id, assigned in seen.assignments.items():
        if assigned.node == node and id not in reported and assigned.want is Want.RUN:
            yield Resident(
                id=id,
                model=assigned.model,
                state=Phase.PLACING,
                footprint=assigned.footprint,
                resident=Bytes(0),
                devices=assigned.devices,
            )


def policy(seen: Seen, node: NodeName) -> NodeSpec:
    """What the catalog in force says of the node."""
    return seen.applied.policies.get(node, NodeSpec()) if seen.applied else NodeSpec()


def node_row(seen: Seen, report: NodeReport) -> NodeRow:
    here, its = residents(seen, report.node), policy(seen, report.node)
    counted = Bytes(sum(each.host for each in here))
    capacity = room.capacity(report.memory, its.reserve.host, counted)
    return NodeRow(
        name=report.node,
        reported_at=report.at,
        memory_total=report.memory.total,
        memory_available=report.memory.available,
        memory_foreign=report.memory.foreign,
        disk_total=report.disk.total,
        disk_free=report.disk.free,
        replicas=len(here),
        engines=tuple(EngineRow(name=e.name, version=e.version, why=e.why, path=e.path) for e in report.engines),
        devices=tuple(_device(device, its, here) for device in report.devices),
        disk_mount=report.disk.mount,
        pool=its.pool,
        labels=its.labels,
        cordon=cordon_row(seen.cordons.get(report.node)),
        memory_capacity=capacity,
        memory_budget=its.budget.host,
        memory_counted=counted,
        silent=is_silent(seen, report.node),
    )


def is_silent(seen: Seen, node: NodeName) -> bool:
    """In a fleet: its agent does not say that it lives."""
    roles = {(member.role, member.name) for member in seen.members}
    return bool(roles) and (Role.AGENT, node) not in roles and all(role is not Role.UP for role, _ in roles)


def cordon_row(cordon: Cordon | None) -> CordonRow | None:
    return None if cordon is None else CordonRow(at=cordon.at, by=cordon.by, drain=cordon.drain)


def _device(fact: DeviceFact, its: NodeSpec, here: Iterable[Resident]) -> DeviceRow:
    counted = Bytes(sum(each.on(fact.uuid) for each in here))
    usable = fact.why is None and not fact.divided
    told = fact.processes
    return DeviceRow(
        uuid=fact.uuid,
        name=fact.name,
        index=fact.index,
        total=fact.total,
        used=fact.used,
        free=fact.free,
        foreign=fact.foreign,
        processes=None
        if told is None
        else tuple(DeviceProcessRow(pid=process.pid, memory=process.memory, ours=process.ours) for process in told),
        parent=fact.parent,
        divided=fact.divided,
        driver=fact.driver,
        why=fact.why,
        capacity=room.device_capacity(fact, its.reserve.device, counted) if usable else Bytes(0),
        budget=its.budget.device,
        counted=counted,
    )
