"""A mind far simpler than `think`, to test the world and its checks by themselves: one replica of each model that is
wanted, on the first node with room; nothing is evicted; failures wait two minutes."""

from collections.abc import Mapping

from llmgw.catalog.spec import Catalog, ModelSpec, spec_digest
from llmgw.facts import Failure, Footprint, Phase, RecoveryRecord, ReplicaFact
from llmgw.ids import ModelName, NodeName, ReplicaId
from llmgw.plan import Launch, ModelState, ModelStatus, Plan, Reason, Stop, Wish
from llmgw.schedule.think import Known, Thought
from llmgw.units import Instant, Seconds, Wall

IDLE = Seconds(300)
LEAVING = frozenset({Phase.DRAINING, Phase.STOPPING})


def simple(known: Known, now: Instant) -> Thought:
    """One pass."""
    recovery = {
        (fact.spec, fact.node): _record(fact, fact.failure, now)
        for fact in known.observed.replicas.values()
        if fact.failure is not None
    }
    wishes = tuple(_wish(model, known, now) for model in known.catalog.models.values())
    wanted = {wish.model for wish in wishes if wish.count}
    present = _present(known)
    stops = tuple(
        Stop(replica=fact.id, model=fact.model, node=fact.node, reason=Reason.NOT_WANTED)
        for fact in sorted(present.values(), key=lambda fact: fact.id)
        if fact.model not in wanted
    )
    records = {**known.observed.recovery, **recovery}
    launches: list[Launch] = []
    taken = {node: _held(known, node) for node in known.observed.nodes}
    for model in known.catalog.models.values():
        missing = model.name in wanted and all(fact.model != model.name for fact in _residents(known))
        spec = spec_digest(model.name, model.profiles[0])
        rested = all((one.retry_at or 0) <= now.wall for (digest, _), one in records.items() if digest == spec)
        if missing and rested and known.settled:
            _launch(known, model, taken, launches)
    ready = {fact.model for fact in present.values() if fact.phase is Phase.READY}
    keep: dict[ModelName, tuple[ReplicaId, ...]] = {}
    for fact in sorted(present.values(), key=lambda fact: fact.id):
        if fact.model in wanted:
            keep[fact.model] = (*keep.get(fact.model, ()), fact.id)
    plan = Plan(launches=tuple(launches), stops=stops, keep=keep)
    return Thought(
        plan=plan,
        wishes=wishes,
        statuses=tuple(_status(wish, wish.model in ready) for wish in wishes),
        recovery=recovery,
        due=Wall(now.wall + 60) if wanted else None,
    )


def _wish(model: ModelSpec, known: Known, now: Instant) -> Wish:
    if known.stopped is not None:
        return Wish(model=model.name, count=0, why="stopped", reason=Reason.SYSTEM_STOPPED)
    if not model.scaling.on_demand:
        return Wish(model=model.name, count=1, why="in the catalog")
    ask = known.asks.get(model.name)
    used = [
        known.observed.last_used.get(fact.id, Wall(0)) if not known.observed.active(fact) else now.wall
        for fact in known.observed.replicas.values()
        if fact.model == model.name
    ]
    last = max([*used, ask.asked if ask else Wall(0)])
    count = 1 if now.wall - last <= IDLE else 0
    return Wish(model=model.name, count=count, why="asked for", asked=ask.asked if ask else None)


def _status(wish: Wish, ready: bool) -> ModelStatus:
    state = ModelState.READY if ready else ModelState.LOADING if wish.count else ModelState.INACTIVE
    return ModelStatus(model=wish.model, state=state, wanted=wish.count, asked=wish.asked)


def _record(fact: ReplicaFact, failure: Failure, now: Instant) -> RecoveryRecord:
    return RecoveryRecord(
        model=fact.model, attempts=1, last=failure, last_replica=fact.id, retry_at=Wall(now.wall + 120)
    )


def _residents(known: Known) -> list[ReplicaFact]:
    return [fact for fact in known.observed.replicas.values() if fact.phase.occupies_memory]


def _present(known: Known) -> dict[ReplicaId, ReplicaFact]:
    return {fact.id: fact for fact in _residents(known) if fact.phase not in LEAVING}


def _held(known: Known, node: NodeName) -> int:
    here = [fact for fact in _residents(known) if fact.node == node]
    return sum((known.observed.footprint(fact.spec, node, fact.level) or zero(fact)).host for fact in here)


def zero(fact: ReplicaFact) -> Footprint:
    assert fact.footprint is not None, fact
    return fact.footprint


def _launch(known: Known, model: ModelSpec, taken: dict[NodeName, int], launches: list[Launch]) -> None:
    profile = model.profiles[0]
    spec = spec_digest(model.name, profile)
    for node, report in sorted(known.observed.nodes.items()):
        footprint = known.observed.footprint(spec, node)
        if footprint is None or node in known.observed.unreachable or node in known.observed.cordons:
            continue
        if not _fits(known.catalog, node, report.memory.total - report.memory.foreign, taken, footprint):
            continue
        taken[node] += footprint.host
        launches.append(Launch(model=model.name, profile=profile, spec=spec, node=node, footprint=footprint))
        return


def _fits(catalog: Catalog, node: NodeName, there: int, taken: Mapping[NodeName, int], footprint: Footprint) -> bool:
    policy = catalog.cluster.node(node)
    room = there - policy.reserve.host
    if policy.budget.host is not None:
        room = min(room, policy.budget.host)
    return taken[node] + footprint.host <= room and not footprint.device
