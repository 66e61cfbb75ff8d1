"""(wishes, catalog, Observed, now) -> Plan. One node takes part in this version.

Decision order:
 1. replicas already leaving hold their memory until they are gone: launches wait for it, but it costs nobody their
    place. They are neither kept nor stopped again;
 2. of each wished model at most one replica stays: one with the wanted spec, else a ready one, else the oldest.
    The others are stopped, and all those of models not wished;
 3. a wish whose engine, size, disk or sheer size rules the node out is refused, typed. What it was to replace
    goes on serving: stopping it would buy nothing;
 4. `residency.schedule` chooses among the rest within min(budget, capacity). Pinned and active replicas override
    the budget; pinned ones never the capacity;
 5. a launch waits until what it replaces, and what was evicted for it, is gone: evictions before launches.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from llmgw.catalog.spec import Catalog, ModelSpec, NodeSpec, ProfileSpec, spec_digest
from llmgw.facts import Footprint, NodeReport, Observed, Phase, RecoveryRecord, ReplicaFact
from llmgw.ids import ModelName, NodeName, ReplicaId, SpecDigest
from llmgw.plan import Launch, Plan, Reason, Rejection, Stop, Unschedulable, Wish
from llmgw.schedule import recovery, residency, room
from llmgw.units import Bytes, Instant, Wall, format_bytes
from llmgw.weights.lookup import on_node

LEAVING = frozenset({Phase.DRAINING, Phase.STOPPING})


def decide(wishes: Sequence[Wish], catalog: Catalog, observed: Observed, now: Instant) -> Plan:
    """The plan that brings what is observed towards what is wished. Launching what runs and stopping what is
    absent are no-ops: applied and asked again, the plan is empty."""
    draft = _Draft()
    wished = {wish.model for wish in wishes if wish.count > 0 and wish.model in catalog.models}
    staying = _one_each(draft, wished, catalog, observed)
    if not observed.nodes:
        draft.waiting.update(dict.fromkeys(wished, Reason.NO_NODE))
        return draft.finish()
    node = min(observed.nodes)
    claims = [_claim(catalog.models[name], node, staying.get(name), observed) for name in sorted(wished)]
    if observed.nodes[node].catalog != catalog.digest:
        claims = _known(claims, draft)
    _Room(node, catalog.cluster.node(node), observed, draft, now).fill(claims)
    return draft.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claim:
    """A wished model on the node: what it would be launched as, and which replica of it is there."""

    model: ModelSpec
    profile: ProfileSpec
    spec: SpecDigest
    footprint: Footprint | None
    present: ReplicaFact | None
    record: RecoveryRecord | None

    @property
    def is_current(self) -> bool:
        return self.present is not None and self.present.spec == self.spec


@dataclass(slots=True)
class _Draft:
    """A plan in the making."""

    launches: list[Launch] = field(default_factory=list)
    stops: dict[ReplicaId, Stop] = field(default_factory=dict)
    unschedulable: list[Unschedulable] = field(default_factory=list)
    keep: dict[ModelName, tuple[ReplicaId, ...]] = field(default_factory=dict)
    waiting: dict[ModelName, str] = field(default_factory=dict)
    due: list[Wall] = field(default_factory=list)

    def stop(self, replica: ReplicaFact, reason: Reason, *, eviction: bool = False) -> None:
        self.stops[replica.id] = Stop(
            replica=replica.id, model=replica.model, node=replica.node, reason=reason, eviction=eviction
        )

    def refuse(self, model: ModelName, rejection: Rejection) -> None:
        self.unschedulable.append(Unschedulable(model=model, rejections=(rejection,)))

    def finish(self) -> Plan:
        return Plan(
            launches=tuple(sorted(self.launches, key=lambda launch: launch.model)),
            stops=tuple(sorted(self.stops.values(), key=lambda stop: stop.replica)),
            unschedulable=tuple(sorted(self.unschedulable, key=lambda refused: refused.model)),
            keep=dict(sorted(self.keep.items())),
            waiting=dict(sorted(self.waiting.items())),
            due=min(self.due, default=None),
        )


def _one_each(
    draft: _Draft, wished: set[ModelName], catalog: Catalog, observed: Observed
) -> Mapping[ModelName, ReplicaFact]:
    """The replica of each wished model that stays for now; every other one that is not leaving yet is stopped."""
    staying: dict[ModelName, ReplicaFact] = {}
    for replica in sorted(observed.replicas.values(), key=lambda r: _preference(r, catalog)):
        if not replica.phase.occupies_memory or replica.phase in LEAVING:
            continue
        if replica.model not in catalog.models:
            draft.stop(replica, Reason.REMOVED)
        elif replica.model not in wished:
            draft.stop(replica, Reason.SYSTEM_STOPPED)
        elif replica.model in staying:
            same = replica.spec == staying[replica.model].spec
            draft.stop(replica, Reason.DUPLICATE if same else Reason.CHANGED)
        else:
            staying[replica.model] = replica
    return staying


def _preference(replica: ReplicaFact, catalog: Catalog) -> tuple[bool, bool, float, str]:
    model = catalog.models.get(replica.model)
    wanted = model is not None and replica.spec == spec_digest(model.name, model.profiles[0])
    return (not wanted, replica.phase is not Phase.READY, replica.since, replica.id)


def _claim(model: ModelSpec, node: NodeName, present: ReplicaFact | None, observed: Observed) -> _Claim:
    profile = model.profiles[0]
    spec = spec_digest(model.name, profile)
    return _Claim(
        model=model,
        profile=profile,
        spec=spec,
        footprint=observed.footprint(spec, node),
        present=present,
        record=observed.recovery.get((spec, node)),
    )


def _known(claims: Sequence[_Claim], draft: _Draft) -> list[_Claim]:
    """The claims that can be judged before the node has looked for the files of this catalog. Of the others, what
    runs is left as it is: a size that nobody has looked up yet is no reason to refuse."""
    for claim in claims:
        if claim.footprint is None:
            draft.waiting[claim.model.name] = "waiting for the node to look up its files"
            if claim.present is not None:
                draft.keep[claim.model.name] = (claim.present.id,)
    return [claim for claim in claims if claim.footprint is not None]


class _Room:
    """One node's memory during one pass."""

    def __init__(self, node: NodeName, policy: NodeSpec, observed: Observed, draft: _Draft, now: Instant) -> None:
        self._node = node
        self._report = observed.nodes[node]
        self._policy = policy
        self._observed = observed
        self._draft = draft
        self._now = now
        resident = [r for r in observed.replicas.values() if r.phase.occupies_memory]
        self._held: int = sum(self._cost(r) for r in resident)
        self._capacity = room.capacity(self._report.memory, policy.reserve.host, self._held)
        self._budget = room.allowed(self._capacity, policy.budget.host)

    def fill(self, claims: Sequence[_Claim]) -> None:
        """Choose among the claims, and add what follows to the draft."""
        taking_part: dict[ModelName, _Claim] = {}
        frozen: dict[ModelName, _Claim] = {}  # refused, but what runs of them stays as it is
        for claim in claims:
            rejection = self._rejection(claim)
            if rejection is not None:
                self._draft.refuse(claim.model.name, rejection)
                if claim.present is not None:
                    frozen[claim.model.name] = claim
            elif self._may_claim(claim):
                taking_part[claim.model.name] = claim
        everyone = {**taking_part, **frozen}
        beyond = self._pinned_beyond_capacity(everyone.values())
        chosen = residency.schedule(
            [self._wanted(claim, name in frozen) for name, claim in everyone.items() if name not in beyond],
            [self._resident(claim.present, name) for name, claim in everyone.items() if claim.present is not None],
            Bytes(self._budget),  # what is leaving will be gone: it delays launches, and costs nobody their place
        )
        refused: dict[str, Bytes] = dict(chosen.room)
        refused.update((name, Bytes(self._capacity)) for name in beyond)
        for name, claim in everyone.items():
            if claim.present is not None and name in chosen.evict:
                self._draft.stop(claim.present, Reason.PRESSURE, eviction=True)
            if name in refused and name not in frozen:
                self._draft.refuse(name, self._no_memory(claim, refused[name]))
            elif name in frozen or claim.is_current:
                self._keep(claim)
            else:
                self._replace_or_launch(claim)

    def _keep(self, claim: _Claim) -> None:
        if claim.present is not None and claim.present.id not in self._draft.stops:
            self._draft.keep[claim.model.name] = (claim.present.id,)

    def _replace_or_launch(self, claim: _Claim) -> None:
        """An admitted claim that does not run yet: launched once there is room for it."""
        name, footprint = claim.model.name, claim.footprint
        assert footprint is not None, "a claim without a footprint is refused before"
        if not recovery.may_try(claim.record, self._now):
            self._draft.waiting[name] = "restarting after a back-off"
            return
        if claim.present is not None:
            self._draft.stop(claim.present, Reason.CHANGED)
        if any(r.model == name and r.phase.occupies_memory for r in self._observed.replicas.values()):
            self._draft.waiting[name] = "waiting for the replica it replaces to stop"
            return
        if footprint.host > self._limit(claim) - self._held:
            self._draft.waiting[name] = "waiting for memory to be freed"
            return
        self._held += footprint.host
        self._draft.launches.append(
            Launch(model=name, profile=claim.profile, spec=claim.spec, node=self._node, footprint=footprint)
        )

    def _may_claim(self, claim: _Claim) -> bool:
        """A back-off keeps its claim on memory; quarantine must hold none that others could use."""
        if claim.record is None or claim.is_current:
            return True
        if claim.record.retry_at is not None and claim.record.retry_at > self._now.wall:
            self._draft.due.append(claim.record.retry_at)
        return not claim.record.quarantined or recovery.may_try(claim.record, self._now)

    def _rejection(self, claim: _Claim) -> Rejection | None:
        """The first filter that rules the node out, whatever else runs there."""
        why = None if claim.is_current else _engine_missing(self._report, claim.profile)
        if why is not None:
            return Rejection(node=self._node, reason=Reason.ENGINE, detail=why)
        if claim.footprint is None:
            advice = "declare `memory`, or `size` under `weights`, in the profile"
            return Rejection(node=self._node, reason=Reason.SIZE_UNKNOWN, detail=advice)
        if claim.footprint.host > self._limit(claim):
            return self._no_memory(claim, Bytes(self._limit(claim)))
        if claim.is_current:
            return None  # it runs: neither engine nor disk is needed again
        return self._no_disk(claim.profile)

    def _no_disk(self, profile: ProfileSpec) -> Rejection | None:
        missing = [spec for spec in profile.roles.values() if on_node(self._report.weights, spec) is None]
        need = Bytes(sum(spec.size or 0 for spec in missing))
        have = Bytes(max(0, self._report.disk.free - self._policy.reserve.disk))
        if need <= have:
            return None
        return Rejection(node=self._node, reason=Reason.DISK, need=need, have=have)

    def _no_memory(self, claim: _Claim, have: Bytes) -> Rejection:
        assert claim.footprint is not None, "refused before for want of a footprint"
        budget = self._policy.budget.host
        detail = "" if budget is None or claim.model.pinned else f"budget {format_bytes(budget)}"
        need = claim.footprint.host
        return Rejection(node=self._node, reason=Reason.HOST_MEMORY, need=need, have=have, detail=detail)

    def _pinned_beyond_capacity(self, claims: Iterable[_Claim]) -> set[ModelName]:
        """Pinned ones that the machine cannot hold beside what is decoding, by priority."""
        active = {c.model.name for c in claims if c.present is not None and self._observed.active(c.present)}
        used: int = sum(self._cost(c.present) for c in claims if c.present and c.model.name in active)
        beyond: set[ModelName] = set()
        for claim in sorted(claims, key=lambda c: (-c.model.priority, c.model.name)):
            if not claim.model.pinned or claim.model.name in active or claim.footprint is None:
                continue
            if used + claim.footprint.host > self._capacity:
                beyond.add(claim.model.name)
            else:
                used += claim.footprint.host
        return beyond

    def _wanted(self, claim: _Claim, frozen: bool) -> residency.Item:
        """A frozen claim is for what runs, not for what it cannot become."""
        footprint = None if frozen else claim.footprint
        if footprint is not None:
            cost = footprint.host
        else:
            assert claim.present is not None, "a frozen claim is one of what runs"
            cost = self._cost(claim.present)
        return residency.Item(
            id=claim.model.name,
            cost=cost,
            priority=claim.model.priority,
            pinned=claim.model.pinned,
            last_used=self._last_used(claim.present),
        )

    def _resident(self, replica: ReplicaFact, name: ModelName) -> residency.Item:
        return residency.Item(
            id=name,
            cost=self._cost(replica),
            active=self._observed.active(replica),
            last_used=self._last_used(replica),
        )

    def _limit(self, claim: _Claim) -> int:
        return self._capacity if claim.model.pinned else self._budget

    def _last_used(self, replica: ReplicaFact | None) -> Wall:
        return Wall(0) if replica is None else self._observed.last_used.get(replica.id, Wall(0))

    def _cost(self, replica: ReplicaFact) -> Bytes:
        """The current figure for its spec, else what it was launched with, else what it is seen to take."""
        known = self._observed.footprint(replica.spec, replica.node, replica.level) or replica.footprint
        return known.host if known is not None else (replica.resident or Bytes(0))


def _engine_missing(report: NodeReport, profile: ProfileSpec) -> str | None:
    for engine in report.engines:
        if engine.name == profile.engine:
            return None if profile.options.keys() & set(engine.own_program) else engine.why
    return f"the node has no engine {profile.engine!r}"
