"""The chart of a measurement: both times as shares of their targets, by requests at once."""

from collections.abc import Sequence
from typing import Any

from llmgw.admin.capacities import BenchOutput, BenchStepRow
from llmgw.cli.chart import Mark, Points, line_chart, text_chart


def svg(told: BenchOutput) -> str:
    marks = [Mark(1.0, "target")]
    if told.holds:
        marks.append(Mark(told.holds, f"holds {told.holds}", vertical=True))
    return line_chart(_series(told), marks=marks, **_labels(told))


def text(told: BenchOutput, *, width: int, encoding: str | None) -> str:
    marks = [Mark(1.0, "the target")]
    return text_chart(_series(told), marks=marks, width=width, height=14, encoding=encoding, **_labels(told))


def _labels(told: BenchOutput) -> dict[str, Any]:
    return {
        "title": f"{told.model}, profile {told.profile}, on {told.node}",
        "x_label": "requests at once",
        "y_label": "95th percentile as a share of its target",
    }


def _series(told: BenchOutput) -> dict[str, Points]:
    steps: Sequence[BenchStepRow] = told.steps
    return {
        f"to the first token (target {told.ttft:g} s)": [
            (step.at_once, step.ttft_p95 / told.ttft) for step in steps if step.ttft_p95 is not None
        ],
        f"between tokens (target {told.itl * 1000:g} ms)": [
            (step.at_once, step.itl_p95 / told.itl) for step in steps if step.itl_p95 is not None
        ],
    }
