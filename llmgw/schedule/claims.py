"""What runs against what is wished: who stays, who is one too many, what is missing. Pure.

Of each wished model as many current replicas stay as are wished, the best first: ready, of the better profile, at the
fuller level, older. Outdated ones (of another spec, on a node that they may no longer be on or that is drained) stay
in the place of current ones that are not ready yet. A suspended model stays as it is.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from llmgw.catalog.spec import Catalog, ModelSpec, ProfileSpec, spec_digest
from llmgw.facts import Level, Observed, Phase, ReplicaFact
from llmgw.ids import ModelName, NodeName, ReplicaId, SpecDigest
from llmgw.memo import Once
from llmgw.plan import Levels, Reason, Stop, Wish
from llmgw.schedule.filters import Filters
from llmgw.schedule.nodes import Resident, resident_costs
from llmgw.schedule.placement import Want
from llmgw.units import Instant, Wall

LEAVING: Final = frozenset({Phase.DRAINING, Phase.STOPPING})

CLOCK_JUMP: Final = 60.0
"""Seconds beyond which a stamp that is yet to come was made by a clock since set back: it says nothing."""


@dataclass(slots=True, eq=False, kw_only=True)
class Claim:
    """A replica that is wished for and not there. `replaces`: an outdated one that serves until it is."""

    wish: Wish
    model: ModelSpec
    want: Want
    ordinal: int  #: the model's how manieth replica it would be
    replaces: Resident | None = None
    old_reason: Reason = Reason.CHANGED

    @property
    def order(self) -> tuple[object, ...]:
        """Of admission: pinned, priority, waited for, a model's first before another's second, waiting longest."""
        want = self.want
        return (
            not want.pinned, -want.priority, want.yields, self.ordinal, self.wish.since or 0.0, -want.last_used,
            self.model.name,
        )  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Sorted:
    """Everything that occupies memory, sorted out."""

    staying: list[Resident] = field(default_factory=list)  #: of each model the best first
    leaving: list[ReplicaFact] = field(default_factory=list)
    stops: dict[ReplicaId, Stop] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    costs: dict[ReplicaId, dict[str, int]] = field(default_factory=dict)
    exclusive: set[ReplicaId] = field(default_factory=set)
    drafting: set[tuple[ModelName, NodeName]] = field(default_factory=set)  #: companions that primaries need, and where
    drafts: dict[ReplicaId, ModelName] = field(default_factory=dict)

    def draft_of(self, one: Resident) -> ModelName | None:
        return self.drafts.get(one.fact.id)


def claim_of(model: ModelSpec, wish: Wish, *, ordinal: int) -> Claim:
    """A replica more of a model."""
    want = Want(
        model=model,
        priority=model.priority,
        last_used=wish.asked or Wall(0),
        yields=wish.on_demand and not wish.waited,
        on_demand=wish.on_demand,
    )
    return Claim(wish=wish, model=model, want=want, ordinal=ordinal)


def sort_out(
    wishes: Iterable[Wish], catalog: Catalog, observed: Observed, now: Instant, levels: Levels, filters: Filters
) -> Sorted:
    return _Sorting(wishes, catalog, observed, now, levels, filters).run()


def _named_drafts(catalog: Catalog) -> frozenset[ModelName]:
    profiles = (profile for model in catalog.models.values() for profile in model.profiles)
    return frozenset(profile.draft_model for profile in profiles if profile.draft_model is not None)


_drafts_of: Final = Once(_named_drafts)


class _Sorting:
    def __init__(
        self,
        wishes: Iterable[Wish],
        catalog: Catalog,
        observed: Observed,
        now: Instant,
        levels: Levels,
        filters: Filters,
    ) -> None:
        self._wishes = {wish.model: wish for wish in wishes}
        self._catalog = catalog
        self._observed = observed
        self._now = now
        self._levels = levels
        self._filters = filters
        self._found = Sorted()
        self._there: set[tuple[ModelName, NodeName]] = set()  #: live replicas' models, and where
        self._drained = {node for node, cordon in observed.cordons.items() if cordon.drain}
        self._drafts = set(_drafts_of(catalog))

    def run(self) -> Sorted:
        found, live = self._found, self._live()
        self._there = {(name, fact.node) for name, facts in live.items() for fact in facts}
        self._drafts |= {fact.draft for facts in live.values() for fact in facts if fact.draft is not None}
        for name in live.keys() - self._catalog.models.keys():
            for fact in live[name]:
                self._stop(fact, Reason.REMOVED)
        models = self._catalog.models
        stirred = live.keys() | {wish.model for wish in self._wishes.values() if wish.count}
        primaries = [name for name in models if name in stirred and name not in self._drafts]
        for name in (*primaries, *sorted(self._drafts & models.keys())):  # drafts last: who needs them?
            self._sort_model(models[name], live.get(name, []))
        self._link_drafts()
        found.claims.sort(key=lambda claim: claim.order)
        return found

    def _live(self) -> dict[ModelName, list[ReplicaFact]]:
        """By model, those that are neither leaving nor on a lost node; what each occupies is noted of all."""
        live: dict[ModelName, list[ReplicaFact]] = {}
        lost, observed = self._observed.lost, self._observed
        for id in sorted(observed.replicas):
            fact = observed.replicas[id]
            if not fact.phase.occupies_memory:
                continue
            if fact.node in observed.nodes:
                wish = self._wishes.get(fact.model)
                wanted = wish is not None and (wish.count > 0 or wish.held)
                figure = observed.footprint(fact.spec, fact.node, fact.level) if wanted else None
                self._found.costs[id] = resident_costs(fact, figure or fact.footprint)
                if fact.exclusive:
                    self._found.exclusive.add(id)
            if fact.phase in LEAVING:
                self._found.leaving.append(fact)
            elif fact.node not in lost or fact.model not in self._catalog.models:
                live.setdefault(fact.model, []).append(fact)
        return live

    def _sort_model(self, model: ModelSpec, live: Sequence[ReplicaFact]) -> None:
        wish = self._wishes.get(model.name)
        count = wish.count if wish is not None else 0
        if wish is not None and wish.held:
            for fact in sorted(live, key=lambda fact: (fact.phase is not Phase.READY, fact.since, fact.id)):
                self._stay(fact, model, wish)
            return
        if wish is None:
            wish = Wish(model=model.name, count=0, why="")
        specs = {spec_digest(model.name, profile): (index, profile) for index, profile in enumerate(model.profiles)}
        current = [fact for fact in live if self._is_current(fact, model, specs)]
        current.sort(key=lambda fact: self._preference(fact, specs))
        others = [fact for fact in live if fact not in current] if len(current) < len(live) else []
        others.sort(key=lambda fact: (fact.phase is not Phase.READY, fact.since, fact.id))
        kept = current[:count]
        for fact in kept:
            self._stay(fact, model, wish)
        self._surplus(model, wish, current[count:])
        ready = sum(fact.phase is Phase.READY for fact in kept)
        serving = [self._stay(fact, model, wish) for fact in others[: max(0, count - ready)]]
        for fact in others[max(0, count - ready) :]:
            self._stop_other(model, wish, fact)
        for ordinal in range(len(kept), count):
            self._claim(model, wish, ordinal, serving)

    def _stop_other(self, model: ModelSpec, wish: Wish, fact: ReplicaFact) -> None:
        """An outdated one. A companion whose node takes nothing new stays for as long as its primaries do."""
        needed = (model.name, fact.node) in self._found.drafting
        if needed and (fact.node in self._observed.cordons or fact.node in self._observed.unreachable):
            self._stay(fact, model, wish, companion=True)
        else:
            self._stop(fact, self._old_reason(fact) if wish.count or needed else wish.reason)

    def _surplus(self, model: ModelSpec, wish: Wish, surplus: Sequence[ReplicaFact]) -> None:
        """More than are wished: a companion may be needed; that is seen when its primaries are placed."""
        beside: set[NodeName] = set()
        for fact in surplus:
            if model.name in self._drafts and fact.node not in beside:
                beside.add(fact.node)
                self._stay(fact, model, wish, companion=True)
            elif wish.count == 0:
                self._stop(fact, wish.reason)
            else:
                scaled = model.scaling.max > 1 or model.scaling.windows
                self._stop(fact, Reason.SCALED_DOWN if scaled else Reason.DUPLICATE)

    def _claim(self, model: ModelSpec, wish: Wish, ordinal: int, serving: list[Resident]) -> None:
        claim = claim_of(model, wish, ordinal=ordinal)
        if serving:
            claim.replaces = serving.pop(0)
            claim.replaces.outdated = True
            claim.old_reason = self._old_reason(claim.replaces.fact)
        self._found.claims.append(claim)

    def _is_current(
        self, fact: ReplicaFact, model: ModelSpec, specs: Mapping[SpecDigest, tuple[int, ProfileSpec]]
    ) -> bool:
        if fact.spec not in specs:
            return False
        beside = (model.name, fact.node) in self._found.drafting  # a companion goes when its primaries are gone
        if not beside and (fact.node in self._drained or not self._filters.allowed(model, fact.node)):
            return False
        if self._has_no_draft(fact):
            return False
        if fact.launched is None or fact.level is Level.FULL:
            return True
        shrunk = self._levels.get((fact.spec, fact.level))
        return shrunk is None or spec_digest(model.name, shrunk) == fact.launched

    def _has_no_draft(self, fact: ReplicaFact) -> bool:
        """Its companion is gone, and its node's engines or devices let none come back: it has to be had elsewhere."""
        draft = None if fact.draft is None else self._catalog.models.get(fact.draft)
        return draft is not None and (draft.name, fact.node) not in self._there and self._filters.bars(draft, fact.node)

    def _preference(
        self, fact: ReplicaFact, specs: Mapping[SpecDigest, tuple[int, ProfileSpec]]
    ) -> tuple[bool, bool, int, int, float, str]:
        """What came back with its node goes, where another was placed for it meanwhile."""
        replaced = fact.id in self._observed.replaced
        return (fact.phase is not Phase.READY, replaced, specs[fact.spec][0], fact.level.depth, fact.since, fact.id)

    def _old_reason(self, fact: ReplicaFact) -> Reason:
        if fact.node in self._drained:
            return Reason.NODE_DRAINED
        return Reason.DRAFT_GONE if self._has_no_draft(fact) else Reason.CHANGED

    def _stay(self, fact: ReplicaFact, model: ModelSpec, wish: Wish, *, companion: bool = False) -> Resident:
        observed, now = self._observed, self._now.wall
        active = observed.active(fact)
        busy = active or (wish.on_demand and wish.waited)
        last_used = observed.last_used.get(fact.id, Wall(0))
        settles_at: Wall | None = None
        yields = False
        if wish.on_demand and not busy:
            stamps = [stamp for stamp in (last_used, fact.since) if stamp <= now + CLOCK_JUMP]
            settles_at = Wall(max(stamps, default=0.0) + self._catalog.cluster.scaling.min_residency)
            yields = settles_at <= now
        one = Resident(
            fact=fact,
            costs=self._found.costs.get(fact.id, {}),
            model=model,
            wish=wish,
            pinned=model.pinned,
            busy=busy,
            yields=yields,
            last_used=last_used,
            priority=model.priority,
            companion=companion,
            exclusive=fact.exclusive,
            settles_at=None if yields else settles_at,
        )
        self._found.staying.append(one)
        if fact.draft is not None:
            self._found.drafts[fact.id] = fact.draft
            self._found.drafting.add((fact.draft, fact.node))
        return one

    def _stop(self, fact: ReplicaFact, reason: Reason) -> None:
        self._found.stops[fact.id] = Stop(replica=fact.id, model=fact.model, node=fact.node, reason=reason)

    def _link_drafts(self) -> None:
        beside = {(one.fact.model, one.fact.node): one for one in self._found.staying}
        for one in self._found.staying:
            if (draft := self._found.drafts.get(one.fact.id)) is not None:
                one.draft = beside.get((draft, one.fact.node))
