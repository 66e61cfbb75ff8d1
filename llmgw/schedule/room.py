"""How much memory of a node engines may take: capacity is physics, a budget is policy. Pure.

Two ledgers: `now` holds all that is there; `soon` leaves out what is going, and has what it makes room for. A launch
must fit both: it waits for what goes, and takes nothing that something else was promised.
"""

from collections.abc import Iterable
from typing import Final

from llmgw.catalog.spec import NodeSpec, ProfileSpec
from llmgw.facts import DeviceFact, Footprint, MemoryFact, NodeReport
from llmgw.schedule.residency import HOST, Costs
from llmgw.units import Bytes

NOTHING: Final[Costs] = {}


def capacity(memory: MemoryFact, reserve: Bytes, held: int) -> Bytes:
    """Host memory for engines: what is left beside others' and the reserve. Never less than the residents' `held`:
    that is in use already, and others growing must not make us stop what still runs."""
    return Bytes(max(0, memory.total - reserve - memory.foreign, min(held, memory.total)))


def device_capacity(device: DeviceFact, reserve: Bytes, held: int) -> Bytes:
    """As `capacity`. Where the driver does not say what others use, it is what is used beyond what we count."""
    foreign = device.foreign if device.foreign is not None else max(0, device.used - held)
    return Bytes(max(0, device.total - reserve - foreign, min(held, device.total)))


def allowed(capacity: Bytes, budget: Bytes | None) -> Bytes:
    """Memory for engines that are not pinned. `budget` None: as much as there is."""
    return capacity if budget is None else min(capacity, budget)


def usable(report: NodeReport) -> tuple[DeviceFact, ...]:
    """The devices that a replica can be placed on."""
    return tuple(device for device in report.devices if device.why is None and not device.divided)


def share(footprint: Footprint, profile: ProfileSpec) -> int:
    """Bytes on each of its devices, the same on all of them."""
    return -(-max(0, footprint.device) // profile.devices) if profile.devices else 0


class Room:
    """One node's memory during one pass, by dimension: host memory and each usable device."""

    __slots__ = ("capacity", "closing", "limit", "names", "now", "sole", "soon")

    def __init__(self, report: NodeReport, policy: NodeSpec, resident: Iterable[Costs]) -> None:
        devices = usable(report)
        now: dict[str, int] = dict.fromkeys((HOST, *(device.uuid for device in devices)), 0)
        for costs in resident:
            for dimension, cost in costs.items():
                if dimension in now:
                    now[dimension] += cost
        self.now = now
        self.soon = dict(now)
        host = capacity(report.memory, policy.reserve.host, now[HOST])
        self.capacity: dict[str, int] = {HOST: host}
        self.limit: dict[str, int] = {HOST: allowed(host, policy.budget.host)}
        for device in devices:
            there = device_capacity(device, policy.reserve.device, now[device.uuid])
            self.capacity[device.uuid] = there
            self.limit[device.uuid] = allowed(there, policy.budget.device)
        self.sole: set[str] = set()  #: devices that somebody who stays or comes has for itself
        self.closing: set[str] = set()  #: those that somebody who is going has for itself
        self.names = {device.uuid: device.name for device in devices}

    @property
    def devices(self) -> Iterable[str]:
        return self.names

    def bounds(self, *, pinned: bool) -> dict[str, int]:
        """Pinned overrides the budget, never the capacity."""
        return self.capacity if pinned else self.limit

    def free(self, dimension: str, *, pinned: bool = False) -> int:
        """For a launch at once; below 0 where too much is taken."""
        return self.bounds(pinned=pinned)[dimension] - max(self.now[dimension], self.soon[dimension])

    def free_soon(self, dimension: str, *, pinned: bool = False) -> int:
        return self.bounds(pinned=pinned)[dimension] - self.soon[dimension]

    def fits(self, costs: Costs, *, pinned: bool = False) -> bool:
        return all(cost <= self.free(dimension, pinned=pinned) for dimension, cost in costs.items())

    def fits_soon(self, costs: Costs, *, pinned: bool = False) -> bool:
        return all(cost <= self.free_soon(dimension, pinned=pinned) for dimension, cost in costs.items())

    @property
    def shifting(self) -> bool:
        """Something is going."""
        return any(self.now[dimension] > soon for dimension, soon in self.soon.items())

    @property
    def over(self) -> bool:
        """More is held than the limits allow."""
        return any(held > self.limit[dimension] for dimension, held in self.soon.items())

    def stay(self, costs: Costs, *, alone: bool) -> None:
        """It is counted already. `alone`: it has its devices for itself."""
        if alone:
            self.sole |= costs.keys() & self.names.keys()

    def leave(self, costs: Costs, *, alone: bool = False) -> None:
        """It is there, and going."""
        for dimension, cost in costs.items():
            if dimension in self.soon:
                self.soon[dimension] -= cost
        if alone:
            mine = costs.keys() & self.names.keys()
            self.sole -= mine
            self.closing |= mine

    def promise(self, costs: Costs, *, alone: bool = False) -> None:
        """It comes when what goes is gone; or it is not going after all."""
        for dimension, cost in costs.items():
            if dimension in self.soon:
                self.soon[dimension] += cost
        self.stay(costs, alone=alone)

    def take(self, costs: Costs, *, alone: bool = False) -> None:
        """It is launched."""
        self.promise(costs, alone=alone)
        for dimension, cost in costs.items():
            if dimension in self.now:
                self.now[dimension] += cost

    def exclusive_costs(self, uuid: str, each: int, *, pinned: bool) -> int:
        """Of one that shares its device with nobody: all of it."""
        return max(each, self.bounds(pinned=pinned)[uuid])
