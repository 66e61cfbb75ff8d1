"""`llmgw explain`"""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.options import Admin, Json, Output, OutputFormat, State, state_root, wants_json

if TYPE_CHECKING:
    from llmgw.admin.shapes import ReplicaRow
    from llmgw.admin.stories import ExplainOutput, FileRow, PlaceRow


def explain(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Its name or an alias.")],
    state: State = None,
    admin: Admin = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> None:
    """Tell a model's whole story, and what to do.

    What it is wanted for, where it runs or why nowhere, its memory, weights and failures.

    \b
    Example:
      llmgw explain qwen3-8b
      llmgw explain default --json | jq -r '.advice[]'
    """
    from llmgw.admin.stories import ExplainOutput
    from llmgw.cli.client import connect
    from llmgw.cli.printing import print_json, print_line

    answer = connect(state_root(state), admin).get("explain", ExplainOutput, {"model": model})
    if wants_json(output, as_json):
        print_json(answer)
        return
    for line in story(answer, time.time()):
        print_line(line)


def story(told: "ExplainOutput", now: float) -> Iterator[str]:
    """Line by line. `now` in seconds since the Unix epoch."""
    from llmgw.cli.rows import model_reason
    from llmgw.cli.text import ago

    model = told.model
    asked = "" if told.asked == model.name else f" (asked for as {told.asked})"
    since = f" since {ago(model.since, now)}" if model.since else ""
    yield f"{model.name}{asked}: {model.state}{since}"
    if reason := model_reason(model, now):
        yield _row("reason", reason)
    if model.description:
        yield _row("description", model.description)
    yield _row("wanted", f"{model.wanted}" + (f": {told.why}" if told.why else ""))
    priority = f"priority {model.priority}" + (", pinned: kept whatever the budget says" if model.pinned else "")
    yield _row("kept by", priority)
    if told.profile is not None:
        profile = told.profile
        version = f" {profile.engine_version}" if profile.engine_version else ""
        room = f"context of {profile.context} tokens, {profile.parallel} at once"
        yield _row("profile", f"{profile.name}: engine {profile.engine}{version}, {room}")
    for replica in told.replicas:
        yield from _replica(replica, now)
    if not told.replicas:
        yield _row("replica", "none")
    yield _row("memory", _memory(told))
    for place in told.places:
        yield from _place(place)
    for file in told.files:
        yield _row(file.role, _file(file))
    yield from _failures(told, now)
    if told.events:
        yield "events"
        for event in told.events:
            yield f"  {ago(event.at, now):>12}  {event.reason}" + (f": {event.message}" if event.message else "")
    if told.advice:
        yield "what to do"
        for line in told.advice:
            yield f"  - {line}"


def _row(name: str, text: str) -> str:
    return f"{name:<12} {text}"


def _replica(row: "ReplicaRow", now: float) -> Iterator[str]:
    from llmgw.cli.text import ago, short_revision

    parts = [f"{row.id} on {row.node}: {row.state} {ago(row.since, now)}".rstrip()]
    if row.pid is not None:
        parts.append(f"pid {row.pid}")
    if row.url is not None:
        parts.append(row.url)
    parts.append(f"level {row.level}")
    yield _row("replica", ", ".join(parts))
    details = [f"of revision {short_revision(row.revision)}"]
    if row.adopted:
        details.append("its engine ran on from before llmgw was restarted")
    if row.running is not None:
        details.append(f"{row.running} requests running, {row.waiting or 0} waiting in it")
    if row.reason:
        details.append(row.reason)
    yield _row("", "; ".join(details))


def _memory(told: "ExplainOutput") -> str:
    from llmgw.cli.text import size

    model = told.model
    if model.footprint is None:
        return "not known: neither declared, nor measured, nor can the engine tell yet"
    sources = {
        "declared": "declared in its profile",
        "measured": "measured when it last ran",
        "estimate": "the engine's estimate",
        "guess": "a guess from the size of its files",
    }
    text = f"{size(model.footprint)} counted: {sources.get(model.footprint_source or '', model.footprint_source or '')}"
    taken = [
        f"{size(row.resident)} taken now"
        + (f", {size(row.resident_peak)} at most so far" if row.resident_peak is not None else "")
        for row in told.replicas
        if row.resident is not None
    ]
    return "; ".join([text, *taken])


def _place(place: "PlaceRow") -> Iterator[str]:
    from llmgw.cli.text import size

    limit = (
        f"the budget of {size(place.budget)}" if place.budget is not None else f"the {size(place.capacity)} there is"
    )
    room = f"engines hold {size(place.held)} of {limit} for them"
    if place.verdict == "refused":
        need = f" (needs {size(place.need)}, has {size(place.have)})" if place.need or place.have else ""
        detail = f": {place.detail}" if place.detail else ""
        yield _row(place.node, f"refused: {place.reason}{need}{detail}; {room}")
    else:
        yield _row(place.node, f"{'placed here' if place.verdict == 'placed' else 'nothing against it'}; {room}")
    for holder in place.holders:
        pinned = ", pinned" if holder.pinned else ""
        yield _row("", f"{size(holder.memory)} by {holder.model} ({holder.state}, priority {holder.priority}{pinned})")


def _file(file: "FileRow") -> str:
    from llmgw.cli.text import size

    if not file.here:
        declared = f"; declared as {size(file.size)}" if file.size is not None else "; its size is not known yet"
        return f"{file.source}: on no node yet{declared}"
    licence = f"licence {file.licence}" if file.licence else "licence not stated by its source"
    return f"{file.source}: on {file.node}, {size(file.size)}, {licence}"


def _failures(told: "ExplainOutput", now: float) -> Iterator[str]:
    from llmgw.cli.text import ago
    from llmgw.units import format_seconds

    for failure in told.failures:
        times = "failed once" if failure.attempts == 1 else f"failed {failure.attempts} times in a row"
        yield _row("failures", f"{times} on {failure.node}, last {ago(failure.at, now)} ({failure.kind})")
        yield _row("", failure.reason)
        if failure.retry_at is None:
            yield _row("", "not tried again before something changes")
        else:
            given_up = "given up, but for one try" if failure.quarantined else "next try"
            yield _row("", f"{given_up} in {format_seconds(max(0.0, failure.retry_at - now))}")
