"""What an operator can do about one model, in lines. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from llmgw.admin.shapes import ModelRow, ReplicaRow
from llmgw.admin.stories import FailureRow, HolderRow, PlaceDeviceRow, PlaceRow
from llmgw.plan import ModelState, Reason
from llmgw.units import format_bytes

_SMALLER: Final = "lower its `context` or `parallel`, or take smaller weights"


def advice(
    model: ModelRow,
    replicas: Sequence[ReplicaRow],
    places: Sequence[PlaceRow],
    failures: Sequence[FailureRow],
    *,
    stopped: bool,
    ended: bool = True,
) -> Iterator[str]:
    """Nothing where there is nothing to do. `places`: that the controller refused it; `ended`: an engine of it has, and
    left a log."""
    if stopped:
        yield "`llmgw start` serves again"
        return
    if model.rollout_failed:
        yield f"its newest spec failed: put that right in the catalog, or try it again by `llmgw reset {model.name}`"
        if ended:
            yield f"`llmgw logs --previous {model.name}` has what the engine said last that failed"
    if model.suspension is not None:
        yield f"`llmgw resume {model.name}` has it looked after again"
    match model.state:
        case ModelState.READY:
            yield f'ask it something: `llmgw run {model.name} "Hello"`'
            if places:
                yield from _refusals(model, places)
        case ModelState.UNSCHEDULABLE:
            yield from _refusals(model, places)
        case ModelState.FAILED:
            yield from _failed(model, failures, ended=ended)
        case ModelState.LOADING:
            yield from _loading(model, replicas, failures, ended=ended)
            if places:
                yield from _refusals(model, places)
        case ModelState.INACTIVE:
            yield "it is not wanted now: the catalog says when it is, and a request asks for one that is on demand"


def _loading(
    model: ModelRow, replicas: Sequence[ReplicaRow], failures: Sequence[FailureRow], *, ended: bool
) -> Iterator[str]:
    if any(replica.state == "starting" for replica in replicas):
        yield f"`llmgw logs -f {model.name}` shows how far its engine is"
    elif any(replica.state == "fetching" for replica in replicas):
        yield "its weights are on their way: `llmgw status` shows how far"
    elif not failures:
        yield "`llmgw events -f` shows what happens next"
    if failures and ended:
        yield f"`llmgw logs --previous {model.name}` has what its engine said last"


def _failed(model: ModelRow, failures: Sequence[FailureRow], *, ended: bool) -> Iterator[str]:
    if ended:
        yield f"`llmgw logs --previous {model.name}` has what its engine said last"
    kinds = {failure.kind for failure in failures}
    if "terminal" in kinds:
        yield "trying again as it is cannot help: put right what the reason names, in the catalog or on the node"
    if "oom" in kinds:
        yield f"it ran out of memory: {_SMALLER}, or stop what else uses memory there"
    if "hang" in kinds:
        yield "if it needs longer to load, raise its `start_timeout`"
    yield f"`llmgw reset {model.name}` has it tried anew at once, and so does a commit that changes its profile"


def _refusals(model: ModelRow, places: Sequence[PlaceRow]) -> Iterator[str]:
    refused = [place for place in places if place.verdict == "refused" or place.reason]
    possible = [place for place in refused if place.reason != Reason.PLACEMENT]
    refused = possible or refused  # where others could take it, those that it is kept from are no news
    for place in refused:
        match place.reason:
            case Reason.HOST_MEMORY:
                yield from _no_memory(model, place)
            case Reason.DEVICE_MEMORY:
                yield from _no_device_memory(model, place)
            case Reason.DEVICES:
                yield f"{place.node}: ask for fewer `devices`, or add a profile that needs none"
            case Reason.CORDONED:
                yield f"{place.node}: `llmgw uncordon {place.node}` takes it back into use"
            case Reason.UNREACHABLE:
                yield f"{place.node}: it stopped reporting: see that it runs, and llmgw on it"
            case Reason.PLACEMENT:
                yield f"{place.node}: the model's `placement` rules it out ({place.detail})"
            case Reason.QUARANTINED:
                yield f"{place.node}: it failed there too often: `llmgw reset {model.name}` has it tried anew"
            case Reason.GROUP:
                yield f"{place.node}: models of one group never share a node ({place.detail})"
            case Reason.DRAFT:
                yield f"{place.node}: its draft model has to be there too, and cannot ({place.detail})"
            case Reason.DISK:
                yield from _no_disk(place)
            case Reason.SIZE_UNKNOWN | Reason.NO_FILE:
                yield f"{place.node}: {place.detail}"
            case Reason.ENGINE:
                yield f"{place.node}: `llmgw doctor` there tells how to get the engine {model.engine}"
    if not places:
        yield "no node has reported: is llmgw running there?"


def _no_disk(place: PlaceRow) -> Iterator[str]:
    # Where there is nothing to have, the reserve is short of something too.
    lacking = format_bytes(place.need - place.have) if place.have else f"more than {format_bytes(place.need)}"
    figures = f" ({place.detail})" if place.detail else ""
    yield f"{place.node}: free {lacking} where weights are kept{figures}: `llmgw collect` lists what is not wanted"
    yield f"or lower `reserve.disk` of {place.node}, or use another `--cache`"


def _no_memory(model: ModelRow, place: PlaceRow) -> Iterator[str]:
    if place.budget is not None and not model.pinned and place.held + place.need <= place.capacity:
        yield f"{place.node}: raise `budget.host` of the node, or set `pinned` on the model to go beyond it"
    elif place.need > place.capacity:
        less = "declare less `memory`, if it takes less" if model.footprint_source == "declared" else _SMALLER
        yield f"{place.node}: engines can have {format_bytes(place.capacity)} there, whatever else is stopped: {less}"
        return
    limit = place.capacity if place.budget is None or model.pinned else min(place.capacity, place.budget)
    yield from _held(model, place, "memory is", [(limit, {each.replica: each.memory for each in place.holders})])
    if model.footprint_source in ("estimate", "guess"):
        yield f"its need is {_article(model.footprint_source)}: if you know better, declare `memory` in its profile"


def _no_device_memory(model: ModelRow, place: PlaceRow) -> Iterator[str]:
    there = max((device.capacity for device in place.devices), default=0)
    if place.need > there:
        most = format_bytes(there)
        yield f"{place.node}: an accelerator has {most} for engines, whatever else is stopped: {_SMALLER}"
        return
    budget = next((device.budget for device in place.devices if device.budget is not None), None)
    if budget is not None and place.need > budget and not model.pinned:
        yield f"{place.node}: raise `budget.device` of the node, or set `pinned` on the model to go beyond it"
        return
    yield from _held(model, place, "accelerators are", [_room_on(device, model, place) for device in place.devices])


def _room_on(device: PlaceDeviceRow, model: ModelRow, place: PlaceRow) -> tuple[int, Mapping[str, int]]:
    here = [each for each in place.holders if not each.devices or device.uuid in each.devices]
    limit = device.capacity if device.budget is None or model.pinned else min(device.capacity, device.budget)
    return limit, {each.replica: each.device // max(1, len(each.devices)) for each in here}


def _held(model: ModelRow, place: PlaceRow, what: str, rooms: Sequence[tuple[int, Mapping[str, int]]]) -> Iterator[str]:
    """Who holds it, by what would have each give way. `rooms`: the most for engines, of the host or of each device, and
    what each replica has of it.

    What is pinned or suspended gives way to nobody; what has a lower priority does so once it is idle, and so does an
    equal that is on demand; the rest only to a higher priority.
    """
    memory: dict[str, int] = {}
    for _, there in rooms:
        for replica, held in there.items():
            memory[replica] = memory.get(replica, 0) + held
    holders = [each for each in place.holders if memory.get(each.replica, 0) > 0]
    fixed = [each for each in holders if each.pinned or each.suspended]
    movable = [each for each in holders if each not in fixed]
    in_time = [each for each in movable if model.pinned or _gives_way_in_time(model, each)]
    above = [each for each in movable if each not in in_time]

    def names(some: Sequence[HolderRow]) -> str:
        return ", ".join(_holder(each, memory[each.replica]) for each in some[:5])

    def would_do(staying: Sequence[HolderRow]) -> bool:
        return any(most - sum(there.get(each.replica, 0) for each in staying) >= place.need for most, there in rooms)

    if in_time and would_do([*fixed, *above]):
        yield f"{place.node}: {what} held by {names(in_time)}, {_who(in_time)} way once idle: nothing needs doing"
    elif above and would_do(fixed):
        idle = " once they are idle" if any(each.busy for each in movable) else ""
        yield (
            f"{place.node}: {what} held by {names(above)}: a higher `priority` than theirs has it served in their "
            f"place{idle}"
        )
    elif fixed:
        yield (
            f"{place.node}: {what} held by {names(fixed)}, {_who(fixed)} way to nothing, whatever the priority: lift "
            f"{_lift(fixed)}, or place one of them elsewhere"
        )


def _gives_way_in_time(model: ModelRow, holder: HolderRow) -> bool:
    return holder.priority < model.priority or (holder.priority == model.priority and holder.on_demand)


def _holder(row: HolderRow, memory: int) -> str:
    marks = [f"priority {row.priority}"]
    marks += [word for word, so in (("pinned", row.pinned), ("suspended", row.suspended), ("busy", row.busy)) if so]
    return f"{row.model} ({format_bytes(memory)}, {', '.join(marks)})"


def _who(some: Sequence[HolderRow]) -> str:
    return "which gives" if len(some) == 1 else "which give"


def _lift(fixed: Sequence[HolderRow]) -> str:
    keys = ["`pinned`"] if any(each.pinned for each in fixed) else []
    keys += ["`suspend`"] if any(each.suspended for each in fixed) else []
    return " or ".join(keys)


def _article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"
