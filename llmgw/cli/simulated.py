"""What a simulated world came to, as an answer, as tables and as a chart. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from llmgw.admin.simulations import SimulatedEventRow, SimulatedMemoryRow, SimulatedModelRow, SimulateOutput
from llmgw.cli.axes import Unit
from llmgw.cli.chart import Mark, line_chart
from llmgw.cli.text import size
from llmgw.testing.scenario import Scenario
from llmgw.testing.world import World
from llmgw.testing.world_tally import HOST, ModelTally, percentile
from llmgw.units import format_seconds

POINTS: Final = 500

MODEL_HEADERS: Final = (
    "MODEL", "REQUESTS", "SERVED", "HELD", "HOLD P50", "HOLD P95", "REFUSED", "FAILED", "LOADS", "EVICTED", "FAILURES",
)  # fmt: skip
MEMORY_HEADERS: Final = ("NODE", "MEMORY", "TOTAL", "MEAN", "PEAK")


def outcome(scenario: Scenario, world: World, seed: int) -> SimulateOutput:
    """The answer. Models that nobody asked for and nothing was done for are told too."""
    names = {*world.controller.catalog.models, *scenario.catalog.models, *world.tally.models}
    waiting = world.gateway.held
    return SimulateOutput(
        valid=True,
        scenario=scenario.name,
        description=scenario.description,
        seed=seed,
        began=scenario.rules.began,
        duration=scenario.duration,
        passes=world.tally.passes,
        models=tuple(_model(name, world.tally.of(name), waiting.get(name, 0)) for name in sorted(names)),
        memory=tuple(_memory(world, scenario.duration)),
        events=tuple(_event(line) for line in world.story),
    )


def _event(line: str) -> SimulatedEventRow:
    at, _, message = line.strip().partition(" ")
    return SimulatedEventRow(at=float(at), message=message)


def _model(name: str, one: ModelTally, in_hand: int) -> SimulatedModelRow:
    return SimulatedModelRow(
        model=name,
        arrived=one.arrived,
        served=one.served,
        held=one.held,
        hold_p50=percentile(one.waits, 0.5),
        hold_p95=percentile(one.waits, 0.95),
        hold_max=max(one.waits, default=None),
        refused=dict(sorted(one.refused.items())),
        failed=dict(sorted(one.failed.items())),
        waiting=in_hand,
        loads=one.loads,
        evictions=one.evictions,
        failures=dict(sorted(one.failures.items())),
    )


def _memory(world: World, duration: float) -> Iterator[SimulatedMemoryRow]:
    for node in world.nodes.values():
        for what, total in ((HOST, node.total), *((uuid, one.total) for uuid, one in node.devices.items())):
            series = world.tally.memory.get((node.name, what), [])
            yield SimulatedMemoryRow(
                node=node.name,
                device=None if what == HOST else what,
                total=total,
                mean=round(_mean(series, duration)),
                peak=round(max((taken for _, taken in series), default=0)),
                points=tuple((at, round(taken)) for at, taken in thinned(series, duration)),
            )


def _mean(series: Sequence[tuple[float, float]], duration: float) -> float:
    """Over all of the time; before the first point nothing is known, and nothing ran."""
    ends = [*(at for at, _ in series[1:]), duration]
    return sum(taken * (end - at) for (at, taken), end in zip(series, ends, strict=False)) / duration


def thinned(series: Sequence[tuple[float, float]], duration: float) -> Iterator[tuple[float, float]]:
    """At most POINTS: of each stretch of time the most, what was there at its beginning included."""
    if len(series) <= POINTS:
        yield from series
        return
    stretch, last, at = duration / POINTS, 0.0, 0
    for number in range(POINTS):
        most = last
        while at < len(series) and (series[at][0] < (number + 1) * stretch or number == POINTS - 1):
            last = series[at][1]
            most = max(most, last)
            at += 1
        yield number * stretch, most


# -- on a terminal


def summary(answer: SimulateOutput) -> Iterator[str]:
    """What it is about, and its figures in short."""
    if answer.description:
        yield answer.description
    arrived, served = sum(one.arrived for one in answer.models), sum(one.served for one in answer.models)
    what = f"{format_seconds(answer.duration)}, seed {answer.seed}, {answer.passes} passes"
    yield f"{answer.scenario}: {what}; {arrived} requests, {served} served"


def model_rows(answer: SimulateOutput) -> list[tuple[str, ...]]:
    return [
        (
            one.model,
            str(one.arrived),
            str(one.served),
            str(one.held),
            _seconds(one.hold_p50),
            _seconds(one.hold_p95),
            _counts(one.refused),
            _counts(one.failed),
            str(one.loads),
            str(one.evictions),
            _counts(one.failures),
        )
        for one in answer.models
    ]


def memory_rows(answer: SimulateOutput) -> list[tuple[str, ...]]:
    return [(one.node, one.device or "host", size(one.total), size(one.mean), size(one.peak)) for one in answer.memory]


def told(event: SimulatedEventRow) -> str:
    return f"{_clock(event.at)} {event.message}"


def _clock(at: float) -> str:
    """`2d 03:04:05`"""
    days, rest = divmod(int(at), 86400)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}d {clock}"


def _seconds(value: float | None) -> str:
    return "" if value is None else format_seconds(value)


def _counts(counts: Mapping[str, int]) -> str:
    """`12 model_loading, 3 engine_lost`, the most first; 0 for none."""
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {what}" for what, count in ranked) or "0"


def drawn(answer: SimulateOutput) -> str:
    """An SVG document: memory in use, a line for each node's host memory and each of its devices."""
    series = {f"{one.node} {one.device or 'host'}": _stretched(one, answer.duration) for one in answer.memory}
    totals = {one.total for one in answer.memory}
    marks = [Mark(total, f"all of {size(total)}") for total in sorted(totals)] if len(totals) <= 2 else []
    return line_chart(
        series,
        title=f"{answer.scenario}: memory in use",
        x_label="time",
        y_label="memory",
        marks=marks,
        step=True,
        x_unit=Unit.SECONDS,
        y_unit=Unit.BYTES,
    )


def _stretched(one: SimulatedMemoryRow, duration: float) -> list[tuple[float, float]]:
    """With the last value held to the end."""
    points = [(float(at), float(taken)) for at, taken in one.points]
    return [*points, (duration, points[-1][1])] if points and points[-1][0] < duration else points
