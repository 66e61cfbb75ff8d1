"""A forecast in an output's shape. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from llmgw.admin.plans import (
    ActionRow,
    DeviceEndRow,
    DeviceRef,
    EndRow,
    FetchRow,
    GoneRow,
    NodeEndRow,
    PlacedRow,
    PlanOutput,
    RefusedRow,
    RejectionRow,
    RoomRow,
    RouteRow,
    WaitingRow,
)
from llmgw.catalog.diff import Change, ChangeKind, diff
from llmgw.catalog.leaves import Effect
from llmgw.catalog.spec import Catalog, spec_digest
from llmgw.facts import DeviceFact, NodeReport, Observed, Phase, ReplicaFact
from llmgw.ids import ModelName, NodeName, ReplicaId
from llmgw.plan import Reason, Rejection, Unschedulable
from llmgw.schedule import room
from llmgw.schedule.forecast import Coming, Forecast, Going, on_device, size_of
from llmgw.schedule.think import Known
from llmgw.units import Bytes
from llmgw.weights.naming import canonical, is_local

_KINDS: Mapping[Reason, str] = {Reason.CHANGED: "replace", Reason.DRAFT_GONE: "replace", Reason.NODE_DRAINED: "drain"}
"""What a stop is called whose model is launched anew. Any other is a move."""

_FOR_GOOD = frozenset({Reason.SCALED_DOWN, Reason.DUPLICATE, Reason.NOT_WANTED, Reason.IDLE})
"""Why a replica is stopped that nothing takes the place of."""

_STEADY = frozenset({Phase.READY, Phase.FAILED, Phase.STOPPED})


def plan_output(
    seen: Forecast, *, in_force: str | None = None, offline: bool = False, routes: tuple[RouteRow, ...] = ()
) -> PlanOutput:
    """`in_force`: the revision that is served now; `routes`: what changes beside replicas."""
    actions = tuple(_actions(seen))
    fetched = {
        (action.starts.node, row.source): row.size
        for action in actions
        if action.starts is not None
        for row in action.starts.fetch
        if not row.local
    }
    thought = seen.thought.plan
    spoken_of = {
        *(action.model for action in actions),
        *(refusal.model for refusal in thought.unschedulable),
        *thought.waiting,
    }
    routed = tuple(row for row in routes if row.model not in spoken_of)
    return PlanOutput(
        valid=True,
        revision=seen.end.catalog.revision,
        in_force=in_force,
        offline=offline,
        stopped=seen.begin.stopped is not None,
        changes=bool(actions or routed),
        settled=seen.settled,
        passes=seen.passes,
        under_way=sum(fact.phase not in _STEADY for fact in seen.begin.observed.replicas.values()),
        due=seen.thought.due if seen.thought.plan.waiting else None,
        fetch=Bytes(sum(size for size in fetched.values() if size is not None)),
        fetch_unknown=sum(size is None for size in fetched.values()),
        actions=actions,
        routes=routed,
        refused=tuple(map(_refused, seen.thought.plan.unschedulable)),
        waiting=tuple(WaitingRow(model=model, why=why) for model, why in seen.thought.plan.waiting.items()),
        models=tuple(_models(seen)),
        nodes=tuple(_node(seen, name) for name in sorted(seen.begin.observed.nodes)),
    )


def route_rows(before: Catalog, after: Catalog) -> tuple[RouteRow, ...]:
    """What changes how requests are treated, and restarts nothing, by model. Models that come or go are among them."""
    rows: dict[ModelName, list[str]] = {}
    for change in diff(before, after):
        if change.model is not None and (change.effect is Effect.ROUTING or not change.path):
            rows.setdefault(change.model, []).append(_change(change))
    return tuple(RouteRow(model=model, changes=tuple(changes)) for model, changes in rows.items())


def _change(change: Change) -> str:
    """`aliases: + fast`, `profiles.gpu.weight: 1 -> 2`, `added (external: https://api.example.org/v1)`"""
    match change.kind:
        case ChangeKind.ADDED | ChangeKind.REMOVED if not change.path:
            return f"{change.kind} ({change.new or change.old})"
        case ChangeKind.ADDED:
            return f"{change.path}: + {change.new}"
        case ChangeKind.REMOVED:
            return f"{change.path}: - {change.old}"
        case ChangeKind.CHANGED:
            return f"{change.path}: {change.old} -> {change.new}"


def _actions(seen: Forecast) -> Iterator[ActionRow]:
    """In the order of passes. A stop and the launch that takes its place are one."""
    devices = {d.uuid: d for report in seen.begin.observed.nodes.values() for d in report.devices}
    sizes = {fact.source: fact.size for report in seen.begin.observed.nodes.values() for fact in report.weights}
    pairs = _pairs(seen)
    followed = {coming.replica for coming in pairs.values()}
    rows = []
    for going in seen.stops:
        coming = pairs.get(going.fact.id)
        rows.append(
            ActionRow(
                kind=_kind(going, coming),
                model=going.stop.model,
                number=going.number if coming is None else min(going.number, coming.number),
                starts=None if coming is None else _starts(coming, devices, sizes),
                stops=_stops(going),
                start_first=coming is not None and coming.number < going.number,
            )
        )
    rows += [
        ActionRow(
            kind="launch",
            model=coming.launch.model,
            number=coming.number,
            starts=_starts(coming, devices, sizes),
            stops=None,
        )
        for coming in seen.launches
        if coming.replica not in followed
    ]
    yield from sorted(rows, key=lambda row: (row.number, row.model, row.stops is None))


def _pairs(seen: Forecast) -> dict[ReplicaId, Coming]:
    """Of each stopped replica the launch of the same model that takes its place: also one made before, so that
    something serves throughout, unless it had to make room."""
    pairs: dict[ReplicaId, Coming] = {}
    free = sorted(seen.launches, key=lambda coming: coming.number)
    for going in seen.stops:
        if going.stop.reason in _FOR_GOOD:
            continue
        match = [
            coming
            for coming in free
            if coming.launch.model == going.stop.model
            and coming.replica != going.fact.id
            and (coming.number >= going.number or not going.stop.eviction)
        ]
        if match:
            pairs[going.fact.id] = match[0]
            free.remove(match[0])
    return pairs


def _kind(going: Going, coming: Coming | None) -> str:
    if coming is not None:
        return _KINDS.get(going.stop.reason, "move")
    if going.stop.reason is Reason.NODE_DRAINED:
        return "drain"
    return "evict" if going.stop.eviction else "stop"


def _starts(coming: Coming, devices: Mapping[str, DeviceFact], sizes: Mapping[str, Bytes]) -> PlacedRow:
    launch = coming.launch
    return PlacedRow(
        node=launch.node,
        profile=launch.profile.name,
        engine=launch.profile.engine,
        level=launch.level,
        devices=tuple(
            DeviceRef(uuid=uuid, name=devices[uuid].name, index=devices[uuid].index)
            for uuid in launch.devices
            if uuid in devices
        ),
        host=launch.footprint.host,
        device=launch.footprint.device,
        footprint_source=launch.footprint.source,
        fetch=tuple(
            FetchRow(source=spec.source, size=size_of(spec, sizes), local=is_local(canonical(spec.source)))
            for spec in coming.missing
        ),
        why=launch.why,
    )


def _stops(going: Going) -> GoneRow:
    fact, footprint = going.fact, going.fact.footprint
    return GoneRow(
        replica=fact.id,
        node=fact.node,
        profile=fact.profile,
        level=fact.level,
        host=footprint.host if footprint is not None else fact.resident or Bytes(0),
        device=footprint.device if footprint is not None else Bytes(0),
        reason=going.stop.reason,
        detail=going.stop.detail,
    )


def _refused(refused: Unschedulable) -> RefusedRow:
    return RefusedRow(
        model=refused.model, summary=str(refused), rejections=tuple(map(rejection_row, refused.rejections))
    )


def rejection_row(rejection: Rejection) -> RejectionRow:
    return RejectionRow(
        node=rejection.node,
        reason=rejection.reason,
        need=rejection.need,
        have=rejection.have,
        freeable=rejection.freeable,
        detail=rejection.detail,
        profile=rejection.profile,
    )


def _models(seen: Forecast) -> Iterator[EndRow]:
    ready, outdated = Counter[ModelName](), Counter[ModelName]()
    models = seen.end.catalog.models
    current = {spec_digest(model.name, profile) for model in models.values() for profile in model.profiles}
    for fact in seen.end.observed.replicas.values():
        if fact.phase is Phase.READY and fact.node not in seen.end.observed.lost:
            ready[fact.model] += 1
            outdated[fact.model] += fact.spec not in current
    drafting: dict[ModelName, list[str]] = {}
    for model in models.values():
        for draft in {profile.draft_model for profile in model.profiles if profile.draft_model is not None}:
            drafting.setdefault(draft, []).append(model.name)
    for status in seen.thought.statuses:
        yield EndRow(
            model=status.model,
            state=status.state,
            reason=status.reason,
            wanted=status.wanted,
            ready=ready[status.model],
            why=status.why,
            outdated=outdated[status.model],
            suspended=models[status.model].suspend,
            drafts_for=tuple(sorted(drafting.get(status.model, ()))),
            rollout_failed=status.rollout_failed or None,
            spec_revision=status.spec_revision,
        )


def _node(seen: Forecast, name: NodeName) -> NodeEndRow:
    report, policy = seen.begin.observed.nodes[name], seen.end.catalog.cluster.node(name)
    before, after = _here(seen.begin, name), _here(seen.end, name)
    held = sum(map(_host, before))
    return NodeEndRow(
        node=name,
        pool=policy.pool,
        cordoned=name in seen.end.observed.cordons,
        replicas_before=len(before),
        replicas_after=len(after),
        memory=RoomRow(
            capacity=room.capacity(report.memory, policy.reserve.host, held),
            budget=policy.budget.host,
            before=Bytes(held),
            after=Bytes(sum(map(_host, after))),
        ),
        devices=tuple(_devices(report, seen, before, after)),
        disk_before=report.disk.free,
        disk_after=seen.end.observed.nodes[name].disk.free,
    )


def _devices(
    report: NodeReport, seen: Forecast, before: Iterable[ReplicaFact], after: Iterable[ReplicaFact]
) -> Iterator[DeviceEndRow]:
    policy = seen.end.catalog.cluster.node(report.node)
    for device in room.usable(report):
        held = sum(on_device(fact, device.uuid) for fact in before)
        memory = RoomRow(
            capacity=room.device_capacity(device, policy.reserve.device, held),
            budget=policy.budget.device,
            before=Bytes(held),
            after=Bytes(sum(on_device(fact, device.uuid) for fact in after)),
        )
        yield DeviceEndRow(uuid=device.uuid, name=device.name, index=device.index, memory=memory)


def _here(known: Known, node: NodeName) -> list[ReplicaFact]:
    return [f for f in _replicas(known.observed) if f.node == node and f.phase.occupies_memory]


def _replicas(observed: Observed) -> Iterable[ReplicaFact]:
    return observed.replicas.values()


def _host(fact: ReplicaFact) -> Bytes:
    return fact.footprint.host if fact.footprint is not None else fact.resident or Bytes(0)
