"""One model's story in words. Pure: `now` in seconds since the Unix epoch."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from llmgw.admin.plans import RejectionRow
from llmgw.admin.shapes import ReplicaRow
from llmgw.admin.stories import DemandRow, ExplainOutput, FailureRow, FileRow, HolderRow, PlaceRow, ProfileRow
from llmgw.admin.views import count
from llmgw.cli.rows import limit, model_reason
from llmgw.cli.text import ago, short_revision, size
from llmgw.plan import Reason
from llmgw.units import format_seconds

MOST: Final = 20
"""Nodes that are told of one by one; JSON has all."""

_SOURCES: Final = {
    "declared": "declared in its profile",
    "measured": "measured when it last ran",
    "estimate": "the engine's estimate",
    "guess": "a guess from the size of its files",
}
_STEPS: Final = {
    "retry": "tried again as it is",
    "degrade": "shrunk",
    "minimal": "shrunk as far as it goes",
    "fallback": "its fallback's turn",
    "quarantine": "given up",
}


_NO: Final = {
    "loading": "not now",
    "inactive": "would be refused",
    "stopped": "would be refused",
}
"""What a refusal means to a model in that state; of the others it is one."""


def story(told: ExplainOutput, now: float) -> Iterator[str]:
    """Line by line."""
    model = told.model
    asked = "" if told.asked == model.name else f" (asked for as {told.asked})"
    since = f" since {ago(model.since, now)}" if model.since else ""
    yield f"{model.name}{asked}: {model.state}{since}"
    if reason := model_reason(model, now):
        yield _row("reason", reason)
    if model.description:
        yield _row("description", model.description)
    if told.external is not None:
        key = f", with the key in {told.external.key}" if told.external.key else ""
        yield _row("run at", f"{told.external.url}, where it is called {told.external.model}{key}")
    else:
        yield from _run_here(told, now)
    if told.events:
        yield "events"
        for event in told.events:
            yield f"  {ago(event.at, now):>12}  {event.reason}" + (f": {event.message}" if event.message else "")
    if told.advice:
        yield "what to do"
        for line in told.advice:
            yield f"  - {line}"


def _run_here(told: ExplainOutput, now: float) -> Iterator[str]:
    model = told.model
    yield _row("wanted", f"{model.wanted}" + (f": {told.why}" if told.why else ""))
    if told.demand is not None:
        yield from _demand(told.demand, now)
    yield _row("kept by", _kept_by(told))
    yield from _fallback(told)
    if told.drafts_for:
        yield _row(
            "drafts for", f"{', '.join(told.drafts_for)}: beside each of theirs, also while none is wanted itself"
        )
    yield from _profiles(told)
    devices = {device.uuid: f"{device.name} #{device.index}" for place in told.places for device in place.devices}
    for replica in told.replicas:
        yield from _replica(replica, devices, now)
    if not told.replicas:
        yield _row("replica", "none")
    yield _row("memory", _memory(told))
    yield from _places(told.places, model.state)
    for file in told.files:
        yield _row(file.role, _file(file))
    for failure in told.failures:
        yield from _failure(failure, now, running=bool(told.replicas))


def _kept_by(told: ExplainOutput) -> str:
    model, suspended = told.model, told.demand is not None and told.demand.suspended
    pinned = ", pinned: kept whatever the budget says" if model.pinned else ""
    if suspended:
        return "its suspension, whatever its priority"
    return f"priority {model.priority}{pinned}"


def _row(name: str, text: str) -> str:
    return f"{name:<12} {text}"


def _demand(row: DemandRow, now: float) -> Iterator[str]:
    bounds = f"{row.base}" if row.base == row.ceiling else f"{row.base} to {row.ceiling}"
    window = f" by the window {row.window}" if row.window else ""
    until = ""
    if row.changes_at is not None:
        change = format_seconds(max(0.0, row.changes_at - now))
        until = f", until that changes in {change} ({row.time_zone})"
    suspended = "; suspended: as it is, nothing is launched or stopped" if row.suspended else ""
    yield _row("replicas", f"{bounds}{window}{until}; {row.ready} ready, {row.starting} on the way{suspended}")
    busy = f"{count(row.running, 'request')} running, {row.waiting} waiting"
    if row.held:
        busy += f", {row.held} of them at the gateway"
    if row.measured is not None:
        busy += f"; one replica holds {row.measured} at once, as measured"
    yield _row("load", busy)
    if row.ceiling > row.base or row.extra:
        yield _row("scaling", _scaling(row, now))
    if row.on_demand:
        yield _row("asked for", _asked(row, now))


def _scaling(row: DemandRow, now: float) -> str:
    parts = [f"{row.extra} beyond the least" if row.extra else "none beyond the least"]
    if row.busy_since is not None:
        after = format_seconds(row.up_after)
        parts.append(f"busy since {ago(row.busy_since, now)}: one more when that lasted {after}")
    if row.quiet_since is not None:
        after = format_seconds(row.down_after)
        parts.append(f"quiet since {ago(row.quiet_since, now)}: one less when that lasted {after}")
    return "; ".join(parts)


def _asked(row: DemandRow, now: float) -> str:
    if row.asked_at is None:
        return "never: it is loaded for the first request"
    used = f", last used {ago(row.used_at, now)}" if row.used_at is not None else ""
    text = f"last {ago(row.asked_at, now)}{used}"
    timeout = format_seconds(row.idle_timeout)
    if row.unloads_at is None:
        return f"{text}; {_unasked(row)}"
    return f"{text}; unloaded when idle for {timeout}: in {format_seconds(max(0.0, row.unloads_at - now))}"


def _unasked(row: DemandRow) -> str:
    """Of one that nobody's asking keeps."""
    if row.base:
        return "kept by its window, asked for or not"
    if row.suspended:
        return "left as it is while it is suspended"
    if row.ready + row.starting:
        return f"idle for more than {format_seconds(row.idle_timeout)}: it is unloaded"
    return "loaded for the next request"


def _fallback(told: ExplainOutput) -> Iterator[str]:
    if told.fallback is not None:
        does = "serves in its place now" if told.fallback.serves else "would serve in its place if recovery gave up"
        yield _row("fallback", f"{told.fallback.model} {does}")
    if told.stands_in_for:
        yield _row("serves for", f"{', '.join(told.stands_in_for)}, which cannot be had now")


def _profiles(told: ExplainOutput) -> Iterator[str]:
    """In the catalog's order; that which is used, or tried next, as it is run."""
    level = "" if told.level == "full" else f", level {told.level}"
    used = told.profile.name if told.profile is not None else None
    rows = told.profiles or ((told.profile,) if told.profile is not None else ())
    for index, each in enumerate(rows):
        label = "" if index else "profile"
        if told.profile is not None and each.name == used:
            before = "used: " if index else ""
            yield _row(label, f"{before}{_profile(told.profile)}{level}")
        elif each.passed_over is not None:
            yield _row(label, f"{_profile(each)}; not used: {each.passed_over}")
        else:
            yield _row(label, f"{'or ' if index else ''}{_profile(each)}")


def _profile(row: ProfileRow) -> str:
    version = f" {row.engine_version}" if row.engine_version else ""
    devices = f", {count(row.devices, 'accelerator')}" if row.devices else ""
    room = f"context of {row.context} tokens, {row.parallel} at once"
    return f"{row.name}: engine {row.engine}{version}{devices}, {room}"


def _replica(row: ReplicaRow, devices: Mapping[str, str], now: float) -> Iterator[str]:
    parts = [f"{row.id} on {row.node}: {row.state} {ago(row.since, now)}".rstrip()]
    if row.devices:
        parts.append("on " + " and ".join(devices.get(uuid, uuid) for uuid in row.devices))
    if row.pid is not None:
        parts.append(f"pid {row.pid}")
    if row.url is not None:
        parts.append(row.url)
    parts.append(f"level {row.level}")
    yield _row("replica", ", ".join(parts))
    details = [f"profile {row.profile} of revision {short_revision(row.revision)}"]
    if row.adopted:
        details.append("its engine ran on from before llmgw was restarted")
    if row.running is not None:
        details.append(f"{count(row.running, 'request')} running, {row.waiting or 0} waiting in it")
    if row.reason:
        details.append(row.reason)
    yield _row("", "; ".join(details))


def _memory(told: ExplainOutput) -> str:
    model = told.model
    if model.footprint is None:
        return "not known: neither declared, nor measured, nor can the engine tell yet"
    source = _SOURCES.get(model.footprint_source or "", model.footprint_source or "")
    device = next((row.footprint_device for row in told.replicas if row.footprint_device), None)
    more = f" of the host's and {size(device)} of accelerators'" if device else ""
    taken = [
        f"{size(row.resident)} taken now"
        + (f", {size(row.resident_peak)} at most so far" if row.resident_peak is not None else "")
        for row in told.replicas
        if row.resident is not None
    ]
    return "; ".join([f"{size(model.footprint)}{more} counted: {source}", *taken])


def _places(places: Sequence[PlaceRow], state: str) -> Iterator[str]:
    for place in places[:MOST]:
        yield from _place(place, state)
    if len(places) > MOST:
        yield _row("", f"and {count(len(places) - MOST, 'more node')}; -o json has all")


def _place(place: PlaceRow, state: str) -> Iterator[str]:
    most = f"the budget of {size(place.budget)}" if place.budget is not None else f"the {size(place.capacity)} there is"
    room = f"engines hold {size(place.held)} of {most} for them"
    refusals = place.refusals or _only(place)
    verdict = "placed here" if place.verdict == "placed" else _NO.get(state, "refused") if refusals else ""
    if place.verdict == "refused" and len(refusals) == 1:
        alone = refusals[0].reason == Reason.QUARANTINED
        verdict, refusals = _refusal(refusals[0]) if alone else f"{verdict}: {_refusal(refusals[0])}", ()
    elif place.cordon is not None and not refusals:
        cordon = f"{'being drained' if place.cordon.drain else 'cordoned'} by {place.cordon.by}"
        verdict = f"{verdict}; {cordon}" if verdict else cordon
    holds = "holds the weights" if place.holds_weights else ""
    yield _row(place.node, "; ".join(filter(None, (verdict, holds, room))))
    several = len({refusal.profile for refusal in refusals}) > 1
    for refusal in refusals:
        more = "no further one" if place.verdict == "placed" else _NO.get(state, "refused")
        profile = f" as profile {refusal.profile}" if several and refusal.profile else ""
        yield _row("", f"{more}{profile}: {_refusal(refusal)}")
    for device in place.devices:
        most = size(limit(device.capacity, device.budget))
        yield _row("", f"{device.name} #{device.index}: {size(device.counted)} counted of {most} for engines")
    for holder in place.holders:
        yield _row("", _holder(holder))


def _only(place: PlaceRow) -> tuple[RejectionRow, ...]:
    """Of a daemon that tells one refusal of a node."""
    if place.verdict != "refused":
        return ()
    return (
        RejectionRow(
            node=place.node, reason=place.reason, need=place.need, have=place.have, freeable=0, detail=place.detail
        ),
    )


def _refusal(row: RejectionRow) -> str:
    """`host memory (needs 9.0 GiB, has 6.2 GiB; evicting what may give way would make 8.0 GiB): budget 10.0 GiB`"""
    text = row.reason
    if row.need or row.have:
        freed = f"; evicting what may give way would make {size(row.freeable)}" if row.freeable > row.have else ""
        text += f" (needs {size(row.need)}, has {size(row.have)}{freed})"
    return f"{text}: {row.detail}" if row.detail else text


def _holder(row: HolderRow) -> str:
    pinned = (", pinned" if row.pinned else "") + (", suspended" if row.suspended else "")
    memory = f"{size(row.device)} of accelerators' and {size(row.memory)}" if row.device else size(row.memory)
    return f"{memory} by {row.model} ({row.state}, priority {row.priority}{pinned})"


def _file(file: FileRow) -> str:
    if not file.here:
        large = f"{size(file.size)} to fetch" if file.size is not None else "its size is not known yet"
        return f"{file.source}: on no node yet; {large}"
    licence = f"licence {file.licence}" if file.licence else "licence not stated by its source"
    return f"{file.source}: on {file.node}, {size(file.size)}, {licence}"


def _failure(row: FailureRow, now: float, *, running: bool) -> Iterator[str]:
    """`running`: there is a replica again."""
    times = row.attempts + row.delays
    often = "failed once" if times <= 1 else f"failed {times} times in a row"
    profile = f" as profile {row.profile}" if row.profile else ""
    yield _row("failures", f"{often} on {row.node}{profile}, last {ago(row.at, now)} ({row.kind})")
    yield _row("", row.reason)
    step = _STEPS.get(row.action, row.action)
    level = f" to level {row.level}" if row.level != "full" else ""
    if row.retry_at is None:
        yield _row("", f"{step}{level}: not tried again before something changes")
    elif running and row.retry_at <= now:
        yield _row("", f"{step}{level}, and tried again since: forgotten when it stays up")
    elif row.retry_at <= now:
        yield _row("", f"{step}{level}: tried again as soon as nothing else stands against it")
    else:
        wait = format_seconds(row.retry_at - now)
        given_up = "given up, but for one try" if row.quarantined else f"{step}{level}: next try"
        yield _row("", f"{given_up} in {wait}")
