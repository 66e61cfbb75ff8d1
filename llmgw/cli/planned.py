"""A plan in words. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from llmgw.admin.plans import (
    ActionRow,
    EndRow,
    FetchRow,
    GoneRow,
    NodeEndRow,
    PlacedRow,
    PlanOutput,
    RefusedRow,
    RejectionRow,
    RoomRow,
)
from llmgw.admin.views import count
from llmgw.cli.rows import limit, problem_line
from llmgw.cli.text import short_revision
from llmgw.units import format_bytes, format_seconds

SIGNS: Final = {"launch": "+", "replace": "~", "move": ">", "drain": ">", "evict": "!", "stop": "-", "route": "="}

_SUMMARY: Final = (
    ("launch", "to launch"), ("replace", "to replace"), ("move", "to move"), ("drain", "to drain"),
    ("evict", "to evict"), ("stop", "to stop"), ("route", "routed anew"),
)  # fmt: skip

MOST: Final = 20
"""Lines of one kind under one heading; JSON has all."""

_ALWAYS: Final = "in the catalog"
"""Why most models are wanted: no news."""

_UNLIKE: Final = 5
"""Models named in the last line."""

_INDENT: Final = " " * 15


_STYLES: Final = {"+": "green", "~": "yellow", ">": "cyan", "!": "red", "-": "red", "=": "blue"}


def style_of(line: str) -> str:
    """The colour of a line that an action begins with; none of the others."""
    sign = line[2:4].rstrip() if line.startswith("  ") and line[3:4] == " " else ""
    return _STYLES.get(sign, "")


def told(plan: PlanOutput, now: float = 0.0) -> Iterator[str]:
    """Line by line. `now` in seconds since the Unix epoch."""
    for problem in plan.problems:
        yield problem_line(problem)
    if not plan.valid:
        return
    for warning in plan.warnings:
        yield f"{problem_line(warning)} (warning)"
    yield _heading(plan)
    if plan.held is not None:
        yield f"It would be held: {plan.held.message}"
    for action in plan.actions:
        yield ""
        yield from _action(action)
    for row in plan.routes[:MOST]:
        yield ""
        yield f"  {SIGNS['route']} {'route':<9} {row.model}: {'; '.join(row.changes)}; nothing restarts"
    yield from _more(len(plan.routes) - MOST, "model", indent="  ")
    for heading, lines in (
        ("Cannot be placed:", list(_refused(plan.refused, plan.models))),
        ("Waiting:", list(_waiting(plan, now))),
        ("As before, since a rollout failed:", list(_returned(plan.models))),
        ("Not served then:", list(_idle(plan.models))),
        ("Nodes then:", list(_nodes(plan.nodes))),
    ):
        if lines:
            yield ""
            yield heading
            yield from (f"  {line}" for line in lines)
    yield ""
    yield _summary(plan)


def _heading(plan: PlanOutput) -> str:
    revision = f"Plan for {short_revision(plan.revision)}"
    if plan.offline:
        nodes = count(len(plan.nodes), "node")
        return f"{revision} on {nodes} that {'is' if len(plan.nodes) == 1 else 'are'} described, and idle"
    if plan.in_force is None:
        return f"{revision}; no catalog is in force yet"
    if plan.in_force == plan.revision:
        return f"{revision}, which is in force"
    return f"{revision}; in force is {short_revision(plan.in_force)}"


def _action(action: ActionRow) -> Iterator[str]:
    head = f"  {SIGNS.get(action.kind, '?')} {action.kind:<9} {action.model}"
    starts, stops = action.starts, action.stops
    if stops is None:
        assert starts is not None, "an action starts or stops something"
        yield f"{head} on {_where(starts)}"
        yield from _taking(starts)
        if starts.why and starts.why != _ALWAYS:
            yield f"{_INDENT}{starts.why}"
        return
    detail = f", {stops.detail}" if stops.detail else ""
    yield f"{head}: {_gone(stops)}: {stops.reason}{detail}"
    if starts is None:
        yield f"{_INDENT}frees {_memory(stops.host, stops.device)}"
    else:
        when = "it serves on until there is one" if action.start_first else "then"
        yield f"{_INDENT}{when} on {_where(starts)}"
        yield from _taking(starts)


def _where(row: PlacedRow) -> str:
    level = "" if row.level == "full" else f", level {row.level}"
    devices = "".join(f", {device.name} #{device.index}" for device in row.devices)
    return f"{row.node}{devices}: profile {row.profile} (engine {row.engine}{level})"


def _gone(row: GoneRow) -> str:
    level = "" if row.level == "full" else f", level {row.level}"
    return f"{row.replica} on {row.node} (profile {row.profile}{level})"


def _taking(row: PlacedRow) -> Iterator[str]:
    yield f"{_INDENT}takes {_memory(row.host, row.device)} ({row.footprint_source})"
    for file in row.fetch:
        yield f"{_INDENT}{_file(file, row.node)}"


def _file(file: FetchRow, node: str) -> str:
    if file.local:
        return f"needs {file.source}, which {node} is not known to have: put it there"
    size = "a size nobody knows yet" if file.size is None else format_bytes(file.size)
    return f"fetches {file.source} ({size})"


def _memory(host: int, device: int) -> str:
    parts = [f"{format_bytes(device)} of device memory"] if device else []
    parts += [f"{format_bytes(host)} of host memory"] if host or not device else []
    return " and ".join(parts)


def _refused(rows: Sequence[RefusedRow], models: Sequence[EndRow]) -> Iterator[str]:
    ends = {row.model: row for row in models}
    for row in rows[:MOST]:
        end = ends.get(row.model)
        placed = f" ({end.ready} of {end.wanted} placed)" if end is not None and end.ready else ""
        yield f"{row.model}{placed}: {row.summary}"
        if len({each.node for each in row.rejections}) > 1:
            several = len({each.profile for each in row.rejections}) > 1
            yield from (f"  {_rejection(each, named=several)}" for each in row.rejections[:MOST])
            yield from _more(len(row.rejections) - MOST, "refusal", indent="  ")
    yield from _more(len(rows) - MOST, "model")


def _rejection(row: RejectionRow, *, named: bool) -> str:
    """`gpu-1: device memory: needs 9.0 GiB, has 6.2 GiB, 8.0 GiB if all that may give way went`"""
    profile = f" (profile {row.profile})" if named and row.profile else ""
    text = f"{row.node}{profile}: {row.reason}"
    if row.need or row.have:
        text += f": needs {format_bytes(row.need)}, has {format_bytes(row.have)}"
        if row.freeable > row.have:
            text += f", {format_bytes(row.freeable)} if all that may give way went"
    return f"{text} ({row.detail})" if row.detail else text


def _waiting(plan: PlanOutput, now: float) -> Iterator[str]:
    for row in plan.waiting[:MOST]:
        yield f"{row.model}: {row.why}"
    yield from _more(len(plan.waiting) - MOST, "model")
    if plan.waiting and plan.due is not None and plan.due > now > 0:
        yield f"looked at again in {format_seconds(plan.due - now)}"


def _returned(rows: Sequence[EndRow]) -> Iterator[str]:
    back = [row for row in rows if row.rollout_failed]
    for row in back[:MOST]:
        yield f"{row.model}: {row.rollout_failed}"
        yield (
            f"  it is launched as {short_revision(row.spec_revision)} has it, until a revision launches it otherwise, "
            f"or `llmgw reset {row.model}` tries the failed one again"
        )
    yield from _more(len(back) - MOST, "model")


def _idle(rows: Sequence[EndRow]) -> Iterator[str]:
    """Those that nothing above speaks of."""
    quiet = [
        row for row in rows if (row.wanted == 0 and not row.ready and row.state != "ready") or row.state == "failed"
    ]
    for row in quiet[:MOST]:
        yield f"{row.model}: {row.reason or row.why or row.state}"
    yield from _more(len(quiet) - MOST, "model")


def _nodes(rows: Sequence[NodeEndRow]) -> Iterator[str]:
    """Those on which something changes; where nothing does, all."""
    changed = [row for row in rows if _differs(row)]
    shown = changed or rows
    for row in shown[:MOST]:
        yield _node(row)
        for device in row.devices:
            yield f"  {device.name} #{device.index}: {_room(device.memory)}"
    yield from _more(len(shown) - MOST, "node")
    if changed and len(rows) > len(changed):
        yield f"unchanged: {count(len(rows) - len(changed), 'node')}"


def _differs(row: NodeEndRow) -> bool:
    rooms = [row.memory, *(device.memory for device in row.devices)]
    return (
        row.replicas_before != row.replicas_after
        or row.disk_before != row.disk_after
        or any(room.before != room.after for room in rooms)
    )


def _node(row: NodeEndRow) -> str:
    cordoned = " (cordoned)" if row.cordoned else ""
    disk = _change(format_bytes(row.disk_before), format_bytes(row.disk_after))
    replicas = _change(str(row.replicas_before), str(row.replicas_after))
    return f"{row.node}{cordoned}: replicas {replicas}; memory {_room(row.memory)}; disk free {disk}"


def _room(room: RoomRow) -> str:
    most = limit(room.capacity, room.budget)
    return f"{_change(format_bytes(room.before), format_bytes(room.after))} of {format_bytes(most)}"


def _change(before: str, after: str) -> str:
    return after if before == after else f"{before} -> {after}"


def _more(left: int, noun: str, *, indent: str = "") -> Iterable[str]:
    return [f"{indent}and {count(left, f'more {noun}')}; -o json has all"] if left > 0 else []


def _summary(plan: PlanOutput) -> str:
    kinds = Counter(action.kind for action in plan.actions)
    kinds["route"] = len(plan.routes)
    parts = [f"{kinds[kind]} {text}" for kind, text in _SUMMARY if kinds[kind]]
    text = f"Plan: {', '.join(parts)}." if parts else f"Nothing to do{_why_nothing(plan)}."
    if plan.refused:
        text += f" {count(len(plan.refused), 'model')} cannot be placed."
    if plan.fetch or plan.fetch_unknown:
        unknown = f" and {count(plan.fetch_unknown, 'file')} of unknown size" if plan.fetch_unknown else ""
        text += f" {format_bytes(plan.fetch)}{unknown} to fetch."
    if plan.under_way:
        text += f" {count(plan.under_way, 'replica')} on the way already."
    if not plan.settled:
        text += f" It did not come to rest within {plan.passes} passes: there is more to come."
    return text


def _why_nothing(plan: PlanOutput) -> str:
    if plan.stopped:
        return ": stopped by the operator (`llmgw start` serves again)"
    if plan.refused or plan.waiting:
        return ""
    unlike = list(_unlike(plan.models))
    if not unlike:
        return ": what runs is what the catalog wants"
    more = f" and {len(unlike) - _UNLIKE} more" if len(unlike) > _UNLIKE else ""
    return f", though not all is as the catalog wants it: {', '.join(unlike[:_UNLIKE])}{more}"


def _unlike(rows: Sequence[EndRow]) -> Iterator[str]:
    """What stays otherwise than the catalog says."""
    for row in rows:
        if row.state == "failed":
            yield f"{row.model} is in quarantine"
        if row.rollout_failed:
            yield f"{row.model} is as {short_revision(row.spec_revision)} has it"
        if row.outdated:
            why = " while it is suspended" if row.suspended else ""
            yield f"{row.model} runs an older version{why}"
