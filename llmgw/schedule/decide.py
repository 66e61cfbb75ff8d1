"""(wishes, catalog, Observed, now) -> Plan.

Decision order:
 1. replicas already leaving hold their memory until they are gone: launches wait for it, but it costs nobody their
    place. They are neither kept nor stopped again;
 2. `claims` sorts out what runs: who stays, who is one too many, what is missing. An outdated replica serves until
    its replacement is ready;
 3. a node that holds more than its limits allow loses what `residency.schedule` does not keep there;
 4. what is missing is placed in order of admission (`placement`): where there is room, else where room is on its way,
    else in the place of what comes after it. A replacement drives nobody out but its predecessor, unless it must;
 5. a launch waits until what it replaces, and what was evicted for it, is gone: evictions before launches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from llmgw.catalog.spec import Catalog, ModelSpec, spec_digest
from llmgw.facts import Level, Observed, RecoveryRecord
from llmgw.ids import ModelName, NodeName, ReplicaId, SpecDigest
from llmgw.plan import Launch, Levels, Plan, Reason, Rejection, Stop, Unschedulable, Wish
from llmgw.schedule import recovery, residency
from llmgw.schedule.claims import Claim, Sorted, claim_of, sort_out
from llmgw.schedule.eviction import Evictions
from llmgw.schedule.filters import Filters
from llmgw.schedule.nodes import Nodes, Place, Resident
from llmgw.schedule.placement import Draft, Placement, Spot, Timing, Want, Way
from llmgw.schedule.refusals import Refusals
from llmgw.units import Instant, Wall

NO_LEVELS: Final[Levels] = MappingProxyType({})

BACKING_OFF: Final = "restarting after a back-off"
REPLACING: Final = "waiting for the replica it replaces to stop"
FREEING: Final = "waiting for memory to be freed"
UNSETTLED: Final = "waiting for nodes to report"
GAVE_WAY: Final = "gave way: others need the memory; the next request loads it"
LOOKING: Final = "waiting for the node to look up its files"


def decide(
    wishes: Sequence[Wish],
    catalog: Catalog,
    observed: Observed,
    now: Instant,
    *,
    levels: Levels = NO_LEVELS,
    settled: bool = True,
) -> Plan:
    """The plan that brings what is observed towards what is wished. Launching what runs and stopping what is
    absent are no-ops: applied and asked again, the plan is empty.

    `settled` False: nodes may be missing that are about to report; nothing is launched or evicted.
    """
    return _Pass(wishes, catalog, observed, now, levels).run(settled=settled)


@dataclass(slots=True)
class _Draft:
    """A plan in the making."""

    launches: list[Launch] = field(default_factory=list)
    stops: dict[ReplicaId, Stop] = field(default_factory=dict)
    refused: dict[ModelName, tuple[Rejection, ...]] = field(default_factory=dict)
    waiting: dict[ModelName, str] = field(default_factory=dict)
    gave_way: set[ModelName] = field(default_factory=set)
    against: dict[ModelName, tuple[Rejection, ...]] = field(default_factory=dict)
    due: list[Wall] = field(default_factory=list)

    def wait(self, model: ModelName, why: str) -> None:
        self.waiting.setdefault(model, why)

    def give_way(self, model: ModelName) -> None:
        self.gave_way.add(model)
        self.wait(model, GAVE_WAY)

    def stop(self, one: Resident, reason: Reason, *, eviction: bool = False, detail: str = "") -> None:
        fact = one.fact
        self.stops[fact.id] = Stop(
            replica=fact.id, model=fact.model, node=fact.node, reason=reason, eviction=eviction, detail=detail
        )

    def finish(self, keep: Mapping[ModelName, tuple[ReplicaId, ...]], nodes: int) -> Plan:
        return Plan(
            launches=tuple(sorted(self.launches, key=lambda launch: (launch.model, launch.node, launch.devices))),
            stops=tuple(sorted(self.stops.values(), key=lambda stop: stop.replica)),
            unschedulable=tuple(
                Unschedulable(model=model, rejections=rejections, nodes=nodes)
                for model, rejections in sorted(self.refused.items())
            ),
            keep=dict(sorted(keep.items())),
            waiting=dict(sorted(self.waiting.items())),
            gave_way=frozenset(self.gave_way),
            against=dict(sorted(self.against.items())),
            due=min(self.due, default=None),
        )


class _Pass:
    def __init__(
        self, wishes: Sequence[Wish], catalog: Catalog, observed: Observed, now: Instant, levels: Levels
    ) -> None:
        self._catalog = catalog
        self._observed = observed
        self._now = now
        self._plan = _Draft()
        self._filters = Filters(catalog, observed)
        self._sorted: Sorted = sort_out(wishes, catalog, observed, now, levels, self._filters)
        self._nodes = Nodes(catalog, observed, self._sorted.costs, self._sorted.exclusive)
        self._placement = Placement(catalog, observed, now, levels, self._nodes, self._filters)
        self._evictions = Evictions(self._nodes, self._filters, self._placement)
        self._refusals = Refusals(catalog, observed, self._nodes, self._filters, self._placement)
        self._coming: set[tuple[ModelName, NodeName]] = set()  #: what was promised room, for its own sake
        self._records: dict[SpecDigest, dict[NodeName, RecoveryRecord]] = {}
        for (spec, node), record in observed.recovery.items():
            self._records.setdefault(spec, {})[node] = record

    def run(self, *, settled: bool) -> Plan:
        self._plan.stops.update(self._sorted.stops)
        self._take_places()
        if not self._observed.nodes or not settled:
            for claim in self._sorted.claims:
                self._plan.wait(claim.model.name, UNSETTLED if self._observed.nodes else Reason.NO_NODE)
        else:
            self._shed()
            self._nodes.index()
            for claim in self._sorted.claims:
                self._admit(claim)
            self._drafts()
        return self._plan.finish(self._kept(), len(self._observed.nodes))

    # -- what is there

    def _take_places(self) -> None:
        """Everyone who stays has their place; what is going leaves the ledger of what is to come."""
        for one in self._sorted.staying:
            place = self._nodes.places.get(one.fact.node)
            if place is not None:
                place.staying.append(one)
                place.room.stay(one.costs, alone=one.exclusive)
                self._nodes.settle(place, one.model)
                self._placement.draft_for[one.model.name, place.name] = True
        staying = {one.fact.id for one in self._sorted.staying}
        for id, costs in self._sorted.costs.items():
            if id in staying:
                continue
            fact = self._observed.replicas[id]
            if (place := self._nodes.places.get(fact.node)) is not None:
                place.room.leave(costs, alone=id in self._sorted.exclusive)
                self._note_going(place, fact.model)

    def _note_going(self, place: Place, model: ModelName) -> None:
        for group in self._catalog.models[model].groups if model in self._catalog.models else ():
            place.going.setdefault(group, set()).add(model)

    def _shed(self) -> None:
        """Where more is held than the limits allow, a budget that shrank, say: who is not kept has to go."""
        for place in self._nodes.places.values():
            rivals = any(len(models) > 1 for models in place.groups.values())
            if not (place.staying and (rivals or place.room.over)):
                continue
            items = [one.item() for one in place.staying]
            chosen = residency.schedule(items, items, place.room.limit)
            for one in [one for one in place.staying if one.fact.id in chosen.evict]:
                self._evict(one, "the node's limits" if not rivals else "a model of its group")
                if not (one.companion or one.outdated):
                    self._sorted.claims.append(claim_of(one.model, one.wish, ordinal=0))
        self._sorted.claims.sort(key=lambda claim: claim.order)

    def _evict(self, one: Resident, whom: str) -> None:
        place = self._nodes.places[one.fact.node]
        reason = Reason.DRAFT_UNUSED if one.companion else Reason.PRESSURE
        self._plan.stop(one, reason, eviction=True, detail=f"for {whom}")
        self._leave(place, one)

    def _leave(self, place: Place, one: Resident) -> None:
        place.staying.remove(one)
        place.room.leave(one.costs, alone=one.exclusive)
        self._nodes.unsettle(place, one.model)
        self._nodes.changed(place)
        self._nodes.moved.add(place.name)
        self._placement.draft_for[one.model.name, place.name] = one.model.name in place.models

    # -- what is missing

    def _admit(self, claim: Claim) -> None:
        """Launch it, have it wait for room, or refuse it."""
        name = claim.model.name
        want = claim.want
        refused: list[Rejection] = []
        busy: list[Resident] | None = None
        for way in self._ways(claim.model):
            if (text := self._unknown(way)) is not None:
                self._plan.wait(name, text)
                return
            elsewhere = bool(self._filters.eligible(way.model, way.profile).set - way.shut)
            hold = recovery.hold_until(way.records, self._catalog.cluster.recovery, self._now, elsewhere=elsewhere)
            if hold is not None:
                self._back_off(claim, way, want, hold)
                return
            spot = self._find(claim, way, want)
            if spot is not None:
                self._carry_out(claim, spot)
                return
            busy = busy or self._evictions.in_the_way(way, replace(want, yields=False))
            refused += self._refusals.of(way, want)
        if busy is not None and want.yields:
            self._plan.give_way(name)
        elif busy is not None:
            self._wait_for(claim, busy)
            self._plan.against.setdefault(name, tuple(refused))
        elif any(one.reason is Reason.QUARANTINED for one in refused):
            self._plan.against.setdefault(name, tuple(refused))
        else:
            self._plan.refused.setdefault(name, tuple(refused))
        old = claim.replaces
        if (
            old is not None and claim.old_reason is Reason.NODE_DRAINED and old.fact.id not in self._plan.stops
        ):  # the operator wants the node empty
            self._plan.stop(old, Reason.NODE_DRAINED)

    def _ways(self, model: ModelSpec) -> list[Way]:
        found: list[Way] = []
        for profile in model.profiles:
            spec = spec_digest(model.name, profile)
            records = self._records.get(spec, {})
            shut = frozenset(node for node, one in records.items() if not recovery.may_try(one, self._now))
            self._plan.due.extend(
                one.retry_at for one in records.values() if one.retry_at is not None and one.retry_at > self._now.wall
            )
            found.append(Way(model=model, profile=profile, spec=spec, records=records, shut=shut))
        return found

    def _unknown(self, way: Way) -> str | None:
        """A size that nobody has looked up yet is no reason to refuse."""
        if (way.spec, Level.FULL) in self._observed.footprints or self._placement.was_measured(way.spec):
            return None
        asked = (report for name, report in self._observed.nodes.items() if name not in self._observed.unreachable)
        return LOOKING if any(report.catalog != self._catalog.digest for report in asked) else None

    def _find(self, claim: Claim, way: Way, want: Want) -> Spot | None:
        """At once, soon, or in the place of others; its predecessor is the first that has to go."""
        if (spot := self._placement.find(way, want, Timing.NOW)) is not None:
            return spot
        old = claim.replaces
        if old is None or old.fact.node not in self._nodes.places or old.fact.id in self._plan.stops:
            return self._placement.find(way, want, Timing.SOON) or self._evictions.find(way, want)
        place = self._nodes.places[old.fact.node]
        self._leave(place, old)
        spot = self._placement.find(way, want, Timing.SOON) or self._evictions.find(way, want)
        if spot is None:
            self._return(place, old)
        else:
            self._plan.stop(old, claim.old_reason)
        return spot

    def _return(self, place: Place, one: Resident) -> None:
        place.staying.append(one)
        place.room.promise(one.costs, alone=one.exclusive)
        self._nodes.settle(place, one.model)
        self._nodes.changed(place)
        self._placement.draft_for[one.model.name, place.name] = True

    def _back_off(self, claim: Claim, way: Way, want: Want, until: Wall) -> None:
        """It keeps its claim on memory, where there is some."""
        self._plan.wait(claim.model.name, BACKING_OFF)
        self._plan.due.append(until)
        open_way = Way(model=way.model, profile=way.profile, spec=way.spec, records=way.records, shut=frozenset())
        spot = self._placement.find(open_way, want, Timing.NOW) or self._placement.find(open_way, want, Timing.SOON)
        if spot is not None:
            self._promise(spot, want)

    def _carry_out(self, claim: Claim, spot: Spot) -> None:
        name = claim.model.name
        for one in spot.evict:
            if one.fact.id not in self._plan.stops:
                self._evict(one, name)
                if one.yields:
                    self._plan.give_way(one.fact.model)
                self._plan.wait(one.fact.model, f"makes room for {name}")
        self._promise(spot, claim.want)
        self._coming.add((name, spot.place.name))
        self._placement.draft_for[name, spot.place.name] = True
        if claim.replaces is not None and claim.replaces.fact.id in self._plan.stops:
            self._plan.wait(name, REPLACING)
        elif spot.timing is not Timing.NOW:
            self._plan.wait(name, self._freeing(spot))
        elif spot.draft is not None:
            self._launch_draft(spot.draft, spot.place, name)
            self._plan.wait(name, f"waiting for its draft {spot.draft.model.name}")
        elif (draft := spot.profile.draft_model) is not None and not spot.place.has(draft, ready=True):
            self._plan.wait(name, f"waiting for its draft {draft}")
        else:
            self._launch(claim.model, spot, spot.way.spec, spot.place, claim.wish.why)

    def _freeing(self, spot: Spot) -> str:
        if spot.timing is Timing.SOON:
            going = spot.place.models.get(spot.way.model.name, 0) and any(
                fact.model == spot.way.model.name for fact in self._sorted.leaving
            )
            return REPLACING if going else FREEING
        names = sorted({one.fact.model for one in spot.evict})
        return f"{FREEING}: {', '.join(names)} makes room" if len(names) == 1 else f"{FREEING} by {', '.join(names)}"

    def _promise(self, spot: Spot, want: Want) -> None:
        place = spot.place
        place.promised.append((spot.all_costs, want))
        take = place.room.take if spot.timing is Timing.NOW else place.room.promise
        take(spot.costs, alone=spot.profile.exclusive)
        if spot.draft is not None:
            take(spot.draft.costs)
        self._nodes.settle(place, spot.way.model)
        self._nodes.changed(place)
        self._filters.will_fetch(spot.profile, place.name)
        if spot.draft is not None:
            self._nodes.settle(place, spot.draft.model)
            self._filters.will_fetch(spot.draft.profile, place.name)
        if spot.profile.draft_model is not None:
            for one in place.staying:
                one.needed |= one.fact.model == spot.profile.draft_model
            self._sorted.drafting.add((spot.profile.draft_model, place.name))
            self._placement.draft_for[spot.profile.draft_model, place.name] = True

    def _launch(self, model: ModelSpec, what: Spot | Draft, spec: SpecDigest, place: Place, why: str) -> None:
        full = what.level is Level.FULL
        self._plan.launches.append(
            Launch(
                model=model.name,
                profile=what.profile,
                spec=spec,
                node=place.name,
                footprint=what.footprint,
                level=what.level,
                launched=None if full else spec_digest(model.name, what.profile),
                devices=what.devices,
                why=why,
            )
        )

    def _wait_for(self, claim: Claim, busy: Sequence[Resident]) -> None:
        """Those in its way are in use, or came just now: it waits for them, for as long as its clients do."""
        names = ", ".join(sorted({one.fact.model for one in busy})) or "others that are waited for"
        self._plan.wait(claim.model.name, f"waiting for memory that is in use by {names}")
        self._plan.due.extend(one.settles_at for one in busy if one.settles_at is not None)

    # -- companions

    def _drafts(self) -> None:
        """Each kept primary has its draft beside it; a draft that serves nobody, and is not wanted itself, goes."""
        for model, place in sorted(self._sorted.drafting):
            there = self._nodes.places.get(place)
            if there is not None and not self._has(there, model):
                self._launch_missing_draft(model, there)
        for one in self._sorted.staying:
            unused = one.companion and (one.fact.model, one.fact.node) not in self._sorted.drafting
            if unused and one.fact.id not in self._plan.stops:
                self._plan.stop(one, Reason.DRAFT_UNUSED)

    def _has(self, place: Place, name: ModelName) -> bool:
        """Whether one of the model stays there, is launched, or comes for its own sake."""
        return (
            place.has(name)
            or (name, place.name) in self._coming
            or any(launch.model == name and launch.node == place.name for launch in self._plan.launches)
        )

    def _launch_missing_draft(self, name: ModelName, place: Place) -> None:
        primaries = [one for one in place.staying if self._sorted.draft_of(one) == name]
        if not primaries or name not in self._catalog.models:
            return  # its primary waits for room, and so does it; or it left, and what drafted with it goes too
        way = self._ways(self._catalog.models[name])[0]
        if place.name in way.shut:
            self._plan.wait(name, BACKING_OFF)
            return
        draft = self._placement.draft(name, place.name)
        if draft is not None and place.room.fits(draft.costs):
            place.room.take(draft.costs)
            self._nodes.settle(place, draft.model)
            self._filters.will_fetch(draft.profile, place.name)
            self._launch_draft(draft, place, primaries[0].model.name)
        elif self._filters.bars(self._catalog.models[name], place.name):
            self._plan.wait(name, f"cannot run on {place.name}, beside {primaries[0].model.name}")
        else:
            self._plan.wait(name, FREEING)

    def _launch_draft(self, draft: Draft, place: Place, primary: ModelName) -> None:
        self._launch(draft.model, draft, draft.spec, place, f"to draft for {primary}")

    def _kept(self) -> dict[ModelName, tuple[ReplicaId, ...]]:
        keep: dict[ModelName, list[ReplicaId]] = {}
        for one in self._sorted.staying:
            if one.fact.id not in self._plan.stops:
                keep.setdefault(one.fact.model, []).append(one.fact.id)
        return {model: tuple(ids) for model, ids in keep.items()}
