"""`llmgw simulate`"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmgw.cli.exits import ExitCode
from llmgw.cli.options import Json, Output, OutputFormat, wants_json

if TYPE_CHECKING:
    from llmgw.admin.simulations import SimulateOutput


def simulate(
    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO", readable=False, help="The scenario's file.")],
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", min=0, help="Of chance. Default: the scenario's.")
    ] = None,
    chart: Annotated[
        Path | None,
        typer.Option("--chart", metavar="FILE", readable=False, help="Write memory over time to FILE.svg."),
    ] = None,
    events: Annotated[
        int, typer.Option("--events", metavar="N", min=0, help="Also print the last N things that happened.")
    ] = 0,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> int:
    """Play days of traffic and failures in seconds.

    On machines that need not exist. What decides is what decides in `llmgw up`; machines, engines and clients are
    simulated. Exit 3 when the scenario or its catalog is invalid.

    \b
    Example:
      llmgw simulate monday.yaml
      llmgw simulate monday.yaml --seed 2 --chart memory.svg
    """
    from llmgw.admin.simulations import SimulateOutput
    from llmgw.admin.views import problem_rows
    from llmgw.cli import logs
    from llmgw.cli.printing import note, print_json
    from llmgw.errors import CatalogInvalid, UsageError

    logs.configure()
    if chart is not None and chart.suffix.lower() != ".svg":
        raise UsageError(f"--chart {chart}: charts are SVG: give it a name that ends in .svg")
    try:
        answer = _play(scenario, seed, events)
    except CatalogInvalid as error:
        answer = SimulateOutput(valid=False, scenario=str(scenario), problems=problem_rows(error.problems))
    if chart is not None and answer.valid:
        _draw(answer, chart)
    if wants_json(output, as_json):
        print_json(answer)
    else:
        _print(answer)
    if not answer.valid:
        note("nothing is simulated: correct what is listed above")
        return ExitCode.INVALID_CATALOG
    return ExitCode.FINE


def _play(path: Path, seed: int | None, events: int) -> "SimulateOutput":
    from llmgw.cli.simulated import outcome
    from llmgw.engine.manager import find_engines
    from llmgw.testing.scenario import load_scenario
    from llmgw.testing.simulation import play

    engines = find_engines()
    scenario = load_scenario(path, engines.rules())
    with _progress() as progress:
        world = play(scenario, engines, seed=seed, progress=progress, events=events)
    return outcome(scenario, world, scenario.seed if seed is None else seed)


@contextmanager
def _progress() -> Iterator[Callable[[float], None]]:
    """A bar on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("simulating", total=1.0)
        yield lambda share: bars.update(task, completed=share)


def _draw(answer: "SimulateOutput", chart: Path) -> None:
    from llmgw.cli.printing import note
    from llmgw.cli.simulated import drawn

    chart.write_text(drawn(answer), encoding="utf-8")
    note(f"memory over time: {chart}")


def _print(answer: "SimulateOutput") -> None:
    from llmgw.cli.printing import print_line, print_table
    from llmgw.cli.rows import problem_line
    from llmgw.cli.simulated import MEMORY_HEADERS, MODEL_HEADERS, memory_rows, model_rows, summary, told

    for problem in answer.problems:
        print_line(problem_line(problem))
    if not answer.valid:
        return
    for event in answer.events:
        print_line(told(event))
    for line in summary(answer):
        print_line(line)
    print_table(MODEL_HEADERS, model_rows(answer))
    print_line("")
    print_table(MEMORY_HEADERS, memory_rows(answer))
