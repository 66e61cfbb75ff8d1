"""`llmgw bench`: how many requests at once a replica holds."""

import secrets
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from llmgw.cli.options import Admin, Json, Output, OutputFormat, State, state_root, wants_json
from llmgw.errors import UsageError

if TYPE_CHECKING:
    from llmgw.admin.capacities import BenchOutput, BenchStepRow, CapacityRow
    from llmgw.cli.benching import Bench
    from llmgw.cli.capacity import Step
    from llmgw.cli.client import AdminClient
    from llmgw.cli.measure import Limits

_WIDE: Final = 78  #: columns of the chart, at most
_HEADERS: Final = ("AT ONCE", "FIRST P50", "P95", "BETWEEN P50", "P95", "TOKENS/S", "REQUESTS", "VERDICT")


def bench(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Its name or an alias. Only --show goes without.")
    ] = None,
    profile: Annotated[str | None, typer.Option("--profile", help="A replica of this profile.")] = None,
    replica: Annotated[str | None, typer.Option("--replica", metavar="ID", help="This very replica.")] = None,
    ttft: Annotated[str, typer.Option("--ttft", metavar="TIME", help="Target: to the first token.")] = "2s",
    itl: Annotated[str, typer.Option("--itl", metavar="TIME", help="Target: from one token to the next.")] = "100ms",
    prompt_tokens: Annotated[int, typer.Option("--prompt-tokens", min=1, help="Of each request, about.")] = 256,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=2, help="Of each answer.")] = 64,
    max_concurrency: Annotated[
        int, typer.Option("--max-concurrency", min=1, max=1024, help="Requests at once that are tried at most.")
    ] = 256,
    requests: Annotated[int, typer.Option("--requests", min=1, help="Of each step, at least.")] = 12,
    chart: Annotated[Path | None, typer.Option("--chart", metavar="FILE", help="Write a chart there, as SVG.")] = None,
    no_store: Annotated[
        bool, typer.Option("--no-store", help="Do not keep the result: scaling goes on as is.")
    ] = False,
    show: Annotated[bool, typer.Option("--show", help="List what was measured so far, and measure nothing.")] = False,
    state: State = None,
    admin: Admin = None,
    output: Output = OutputFormat.TABLE,
    as_json: Json = False,
) -> None:
    """Measure how many requests at once a replica holds.

    One replica is loaded, past the gateway, with 1, 2, 4, ... requests at once, while 95 of 100 meet the target.
    Scaling counts with what comes of it.

    \b
    Example:
      llmgw bench qwen3-8b
      llmgw bench qwen3-8b --ttft 500ms --itl 50ms --chart qwen3.svg
      llmgw bench --show
    """
    from llmgw.cli.benching import Bench
    from llmgw.cli.client import connect

    if show:
        _show(connect(state_root(state), admin), model, as_json=wants_json(output, as_json))
        return
    if model is None:
        raise UsageError("name the model to measure; `llmgw bench --show` lists what was measured so far")
    if admin is not None:
        raise UsageError("a replica is measured from the daemon's own machine: run this there, without --admin")
    if chart is not None and not chart.absolute().parent.is_dir():
        raise UsageError(f"--chart {chart}: there is no directory {chart.absolute().parent}")
    limits = _limits(ttft, itl, prompt_tokens, max_tokens, max_concurrency, requests)
    found = Bench.of(connect(state_root(state), None), state_root(state), model, profile, replica)
    _run(found, limits, chart=chart, store=not no_store, as_json=wants_json(output, as_json))


def _limits(ttft: str, itl: str, prompt_tokens: int, max_tokens: int, most: int, requests: int) -> "Limits":
    from llmgw.cli.capacity import Target
    from llmgw.cli.measure import Limits

    return Limits(
        target=Target(ttft=_time(ttft, "--ttft"), itl=_time(itl, "--itl")),
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        most=most,
        least=requests,
    )


def _time(text: str, option: str) -> float:
    from llmgw.units import parse_seconds

    try:
        found = parse_seconds(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error
    if found <= 0:
        raise UsageError(f"{option} {text}: it must be more than 0")
    return found


def _run(bench: "Bench", limits: "Limits", *, chart: Path | None, store: bool, as_json: bool) -> None:
    """Measure, keep, show. Raises BenchFailed where nothing is held."""
    from llmgw.cli.benchchart import svg
    from llmgw.cli.measure import BenchFailed, missed
    from llmgw.cli.printing import note, print_json

    row = bench.replica
    note(f"measuring replica {row.id} of {row.model} (profile {row.profile}) on {row.node}, past the gateway")
    progress = _Progress()
    try:
        steps = bench.measure(limits, secrets.randbits(32), progress)
    except KeyboardInterrupt:
        progress.clear()
        note("interrupted: nothing was kept")
        raise
    finally:
        progress.clear()
    failed = missed(steps, limits.target)
    stored = bench.keep(steps) if store and failed is None else False
    told = bench.output(limits, steps, stored=stored)
    if as_json:
        print_json(told)
    else:
        _print(told)
    if chart is not None:
        chart.write_text(svg(told), encoding="utf-8")
        note(f"the chart is in {chart}")
    if failed is not None:
        raise BenchFailed(f"{failed}; nothing was kept")


class _Progress:
    """Says on stderr how far it is: a line that is written over on a terminal, else one for each step."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()

    def requests(self, at_once: int, done: int, needed: int) -> None:
        if self._terminal:
            sys.stderr.write(f"\r\x1b[K{at_once} at once: {done} of {needed} requests …")
            sys.stderr.flush()

    def step(self, step: "Step") -> None:
        cells = _cells(step)
        self._say(f"{step.at_once} at once: first token {cells[2]}, between tokens {cells[4]} (p95): {step.verdict}")

    def warn(self, text: str) -> None:
        self._say(f"warning: {text}")

    def clear(self) -> None:
        if self._terminal:
            sys.stderr.write("\r\x1b[K")

    def _say(self, text: str) -> None:
        from llmgw.cli.printing import note

        self.clear()
        note(text)


def _cells(step: "Step | BenchStepRow") -> tuple[str, ...]:
    verdict = str(step.verdict)
    if step.error is not None:
        verdict += f": {step.failed} of {step.requests} failed, the first: {step.error}"
    times = (step.ttft_p50, step.ttft_p95, step.itl_p50, step.itl_p95)
    return (
        str(step.at_once),
        *map(_shown, times),
        f"{step.tokens_per_second:.1f}",
        str(step.requests),
        verdict,
    )


def _shown(seconds: float | None) -> str:
    """`1.25s`, `84ms`"""
    if seconds is None:
        return ""
    return f"{seconds:.2f}s" if seconds >= 1 else f"{seconds * 1000:.0f}ms"


def _print(told: "BenchOutput") -> None:
    from llmgw.cli.benchchart import text
    from llmgw.cli.printing import print_line, print_table

    print_table(_HEADERS, [_cells(step) for step in told.steps])
    if len(told.steps) > 1:
        width = min(_WIDE, shutil.get_terminal_size().columns - 1)
        sys.stdout.write("\n" + text(told, width=width, encoding=sys.stdout.encoding) + "\n")
    if told.holds:
        print_line(_summary(told))


def _summary(told: "BenchOutput") -> str:
    more = " (more were not tried: --max-concurrency)" if told.at_most else ""
    kept = "not kept: scaling goes on as it was"
    if told.stored:
        kept = f"kept for profile {told.profile} on {told.node}: scaling counts with it"
    elif told.level != "full":
        kept = f"not kept: the replica is shrunk to level {told.level}, and scaling counts with full ones"
    held = "1 request" if told.holds == 1 else f"{told.holds} requests at once"
    target = f"{told.ttft:g} s to the first token and {told.itl * 1000:g} ms between tokens"
    return (
        f"{told.model} holds {held} on {told.node} within {target}{more}, "
        f"with {told.tokens_per_second:.1f} tokens a second; {kept}"
    )


def _show(client: "AdminClient", model: str | None, *, as_json: bool) -> None:
    from llmgw.admin.capacities import CapacitiesOutput
    from llmgw.cli.printing import print_json, print_line, print_table

    found = client.get("capacities", CapacitiesOutput, {} if model is None else {"model": model})
    if as_json:
        print_json(found)
    elif not found.capacities:
        print_line("nothing was measured yet; `llmgw bench MODEL` does it")
    else:
        print_table(_SHOWN, _rows(found.capacities))


_SHOWN: Final = ("MODEL", "PROFILE", "NODE", "AT ONCE", "FIRST P95", "BETWEEN P95", "TOKENS/S", "MEASURED")


def _rows(found: "Sequence[CapacityRow]") -> list[tuple[str, ...]]:
    import time

    from llmgw.cli.text import ago

    now = time.time()
    return [
        (
            row.model,
            row.profile,
            row.node,
            str(row.requests),
            _shown(row.ttft),
            _shown(row.itl),
            f"{row.tokens_per_second:.1f}",
            ago(row.at, now),
        )
        for row in found
    ]
