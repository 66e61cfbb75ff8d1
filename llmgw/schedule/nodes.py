"""The nodes during one pass: who stays on each, who is going, what that leaves, and where something fits. Pure."""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from llmgw.catalog.spec import Catalog, ModelSpec, ProfileSpec
from llmgw.facts import Footprint, Observed, Phase, ReplicaFact
from llmgw.ids import ModelName, NodeName, ReplicaId
from llmgw.plan import Wish
from llmgw.schedule.residency import HOST, Costs, Item
from llmgw.schedule.room import Room, share
from llmgw.units import Wall

_NO_MODELS: Final[frozenset[ModelName]] = frozenset()


@dataclass(slots=True, eq=False, kw_only=True)
class Resident:
    """A replica that holds memory, and stays unless something needs it more."""

    fact: ReplicaFact
    costs: Costs
    model: ModelSpec
    wish: Wish
    pinned: bool
    busy: bool  #: decoding, or what it was loaded for still waits: for now it gives way to nobody
    yields: bool
    last_used: Wall
    priority: int
    outdated: bool = False  #: serves until a current one is ready
    exclusive: bool = False  #: has its devices for itself
    needed: bool = False  #: to draft for one that waits for it
    companion: bool = False  #: here only to draft for others
    draft: "Resident | None" = None
    settles_at: Wall | None = None  #: when it will have been there long enough to give way to an equal

    @property
    def forced(self) -> bool:
        return self.pinned or self.busy or self.wish.held or self.needed

    def item(self) -> Item:
        return Item(
            id=self.fact.id,
            costs=self.costs,
            priority=self.priority,
            pinned=self.pinned,
            active=self.busy or self.wish.held or self.needed,
            yields=self.yields,
            last_used=self.last_used,
            model=self.fact.model,
            groups=frozenset(self.model.groups),
            draft=self.draft.fact.id if self.draft is not None else None,
            companion=self.companion,
        )


class Claimant(Protocol):
    """Something that was promised its room."""

    @property
    def model(self) -> ModelSpec: ...

    @property
    def priority(self) -> int: ...

    @property
    def on_demand(self) -> bool: ...


@dataclass(slots=True, eq=False)
class Place:
    """One node."""

    name: NodeName
    room: Room
    staying: list[Resident] = field(default_factory=list)
    groups: dict[str, set[ModelName]] = field(default_factory=dict)  #: of what stays and what is promised
    going: dict[str, set[ModelName]] = field(default_factory=dict)  #: groups of what is on its way out
    models: dict[ModelName, int] = field(default_factory=dict)  #: replicas that stay or are promised
    promised: list[tuple[Costs, "Claimant"]] = field(default_factory=list)  #: what is to come, and how it ranks

    _softest: tuple[tuple[int, bool] | None, tuple[int, bool] | None] | None = None

    def changed(self) -> None:
        """Who stays, or was promised room, is different."""
        self._softest = None

    def softest(self) -> tuple[tuple[int, bool] | None, tuple[int, bool] | None]:
        """Of those who may give way now, and of those who will in time, the one that does so most readily: minus its
        priority, and whether it yields, or is wanted on demand. Known at a glance, so that most nodes of a full fleet
        need not be looked at."""
        if self._softest is None:
            mine = [one for one in self.staying if not (one.pinned or one.wish.held or one.companion)]
            now = [(-one.priority, one.yields) for one in mine if not one.busy]
            later = [(-one.priority, one.wish.on_demand) for one in mine]
            later += [(-other.priority, other.on_demand) for _, other in self.promised]
            self._softest = (max(now, default=None), max(later, default=None))
        return self._softest

    def has(self, model: ModelName, *, ready: bool = False) -> bool:
        """Whether a replica of it stays."""
        return any(one.fact.model == model and (one.fact.phase is Phase.READY or not ready) for one in self.staying)

    def add(self, model: ModelSpec) -> None:
        self.models[model.name] = self.models.get(model.name, 0) + 1
        for group in model.groups:
            self.groups.setdefault(group, set()).add(model.name)

    def drop(self, model: ModelSpec) -> None:
        self.models[model.name] -= 1
        if not self.models[model.name]:
            del self.models[model.name]
            for group in model.groups:
                self.groups.get(group, set()).discard(model.name)
                self.going.setdefault(group, set()).add(model.name)

    def rivals(self, model: ModelSpec, *, leaving: bool) -> set[ModelName]:
        """Other models here that share a group with it."""
        found: set[ModelName] = set()
        for group in model.groups:
            found |= self.groups.get(group, set())
            if leaving:
                found |= self.going.get(group, set())
        return found - {model.name}


def resident_costs(fact: ReplicaFact, footprint: Footprint | None) -> dict[str, int]:
    """What a replica takes of its node. Where its devices are not known its device memory counts nowhere."""
    if footprint is None:
        return {HOST: max(0, fact.resident or 0)}
    costs = {HOST: max(0, footprint.host)}
    if fact.devices and footprint.device > 0:
        each = -(-footprint.device // len(fact.devices))
        costs |= dict.fromkeys(fact.devices, each)
    return costs


def launch_costs(
    room: Room, profile: ProfileSpec, footprint: Footprint, *, pinned: bool, soon: bool
) -> dict[str, int] | None:
    """What it would take, with the devices chosen: all of one kind, the fullest that it fits on. None: it does not."""
    bounds, coming = room.bounds(pinned=pinned), room.soon
    now = coming if soon else room.now
    host = max(0, footprint.host)
    if host > bounds[HOST] - max(now[HOST], coming[HOST]):
        return None
    if not profile.devices:
        return {HOST: host}
    each = share(footprint, profile)
    fitting: dict[str, list[tuple[int, str]]] = {}
    for uuid, kind in room.names.items():  # a fleet is placed by asking many nodes this: no calls in here
        held = max(now[uuid], coming[uuid])
        left = bounds[uuid] - held
        if uuid in room.sole or (uuid in room.closing and not soon):
            continue
        if each <= left and not (held > 0 and profile.exclusive):
            fitting.setdefault(kind, []).append((left, uuid))
    chosen = pick_devices(fitting.values(), profile.devices)
    if chosen is None:
        return None
    if profile.exclusive:
        return {HOST: host, **{uuid: room.exclusive_costs(uuid, each, pinned=pinned) for uuid in chosen}}
    return {HOST: host, **dict.fromkeys(chosen, each)}


def pick_devices(kinds: Iterable[Sequence[tuple[int, str]]], count: int) -> list[str] | None:
    """The lowest-ranked `count` of one kind; of several, those whose worst ranks lowest. None: too few of each."""
    enough = [sorted(kind)[:count] for kind in kinds if len(kind) >= count]
    if not enough:
        return None
    return sorted(uuid for _, uuid in min(enough, key=lambda chosen: (chosen[-1][0], chosen)))


class Nodes:
    """All places, and an index of what is free, so that the tightest fit is found without asking each."""

    def __init__(
        self,
        catalog: Catalog,
        observed: Observed,
        costs: Mapping[ReplicaId, dict[str, int]],
        exclusive: Collection[ReplicaId] = (),
    ) -> None:
        """`costs`: of every replica that occupies memory. Those of an `exclusive` one grow to all of its devices."""
        resident: dict[NodeName, list[Costs]] = {name: [] for name in observed.nodes}
        for id, taken in costs.items():
            resident[observed.replicas[id].node].append(taken)
        self.places = {
            name: Place(name, Room(report, catalog.cluster.node(name), resident[name]))
            for name, report in sorted(observed.nodes.items())
        }
        for id in exclusive:
            self._take_whole(self.places[observed.replicas[id].node].room, costs[id])
        self._indexes: dict[int, _Index] = {}
        self.version = 0
        self.moved: set[NodeName] = set()  #: nodes where something is going
        self._where: dict[ModelName, dict[NodeName, int]] = {}

    @staticmethod
    def _take_whole(room: Room, costs: dict[str, int]) -> None:
        for uuid in costs.keys() & room.names.keys():
            rest = max(0, room.limit[uuid] - costs[uuid])
            costs[uuid] += rest
            room.now[uuid] += rest
            room.soon[uuid] += rest

    def index(self) -> None:
        """Once who stays is known. What is free is indexed when first asked for, and kept from here on."""
        self.moved |= {place.name for place in self.places.values() if place.room.shifting}

    def holding(self, model: ModelName) -> Mapping[NodeName, int]:
        """How many replicas of the model stay on, or are promised to, which nodes."""
        return self._where.get(model, {})

    def settle(self, place: Place, model: ModelSpec) -> None:
        """A replica of the model stays there or is promised."""
        place.add(model)
        where = self._where.setdefault(model.name, {})
        where[place.name] = where.get(place.name, 0) + 1

    def unsettle(self, place: Place, model: ModelSpec) -> None:
        place.drop(model)
        where = self._where[model.name]
        where[place.name] -= 1
        if not where[place.name]:
            del where[place.name]

    def changed(self, place: Place) -> None:
        """Room was taken or given."""
        self.version += 1
        place.changed()
        for index in self._indexes.values():
            index.update(place)
        if place.room.shifting:
            self.moved.add(place.name)

    def by_tightness(self, profile: ProfileSpec, footprint: Footprint) -> Iterator[NodeName]:
        """Nodes that may have room for it at once, the tightest first; each at least once."""
        index = self._indexes.get(profile.devices)
        if index is None:
            index = self._indexes[profile.devices] = _Index(profile.devices, self.places.values())
        return index.at_least(share(footprint, profile) if profile.devices else max(0, footprint.host))


class _Index:
    """Nodes by what is free: host memory for 0 devices; for one, each device; for more, the least of the node's
    freest that many."""

    def __init__(self, devices: int, places: Iterable[Place]) -> None:
        self._devices = devices
        self._known = {place.name: self._free(place.room) for place in places}
        self._sorted = sorted((free, name) for name, each in self._known.items() for free in each)

    def _free(self, room: Room) -> list[int]:
        if not self._devices:
            return [room.free(HOST)]
        free = [room.free(uuid) for uuid in room.names]
        if self._devices == 1:
            return free
        return sorted(free, reverse=True)[self._devices - 1 : self._devices]

    def update(self, place: Place) -> None:
        before, after = self._known[place.name], self._free(place.room)
        if before == after:
            return
        self._known[place.name] = after
        for old, new in zip(before, after, strict=True):
            if old != new:
                del self._sorted[bisect_left(self._sorted, (old, place.name))]
                insort(self._sorted, (new, place.name))

    def at_least(self, need: int) -> Iterator[NodeName]:
        for position in range(bisect_left(self._sorted, (need, NodeName(""))), len(self._sorted)):
            yield self._sorted[position][1]
