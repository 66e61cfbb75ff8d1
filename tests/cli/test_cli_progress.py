"""The reporter over a live store."""

import asyncio
import io
from collections.abc import Sequence
from typing import Any

import daemon_seeds as seed
import pytest
from rich.console import Console

from llmgw.cli.narrate import Fetch
from llmgw.cli.progress import PlainScreen, Reporter, TerminalScreen
from llmgw.ids import ReplicaId
from llmgw.plan import ModelState
from llmgw.units import Instant, Mono, Wall

URL = "http://127.0.0.1:8080"


class QuickClock:
    """Time passes only by looking."""

    def __init__(self) -> None:
        self._mono = 0.0

    def now(self) -> Instant:
        self._mono += 1.0
        return Instant(Mono(self._mono), Wall(seed.NOW + self._mono))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class Recorder:
    """A screen that keeps what it was shown."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.shown: list[Sequence[Fetch]] = []
        self.closed = False

    def say(self, line: str) -> None:
        self.lines.append(line)

    def fetching(self, fetches: Sequence[Fetch], now: float) -> None:
        self.shown.append(fetches)

    def close(self) -> None:
        self.closed = True


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


async def test_the_reporter_follows_the_store_and_prints_ready_once(capsys: pytest.CaptureFixture[str]) -> None:
    seeds, screen = await seed.full(), Recorder()
    task = asyncio.create_task(Reporter(QuickClock(), screen)(seeds.store, URL))
    await until(lambda: any("fetching its weights" in line for line in screen.lines))
    assert [fetch.model for fetch in screen.shown[-1]] == ["smol"]
    assert capsys.readouterr().out == ""
    await seeds.explain(seed.told(seed.SMOL, ModelState.READY, replica=ReplicaId("r2")))
    await seeds.report(seed.ready("r1", seed.QWEN), seed.ready("r2", seed.SMOL))
    await until(lambda: "smol: ready" in screen.lines)
    await seeds.status(applied=seed.GOOD, attempted=seed.BAD, problems=(seed.PROBLEM,))
    await until(lambda: any("is invalid" in line for line in screen.lines))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    out = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in out] == ["ready:", "curl"]
    assert URL in out[0]
    assert screen.closed


async def test_a_reader_that_left_ends_the_report_and_nothing_else() -> None:
    class Gone(Recorder):
        def say(self, line: str) -> None:
            raise BrokenPipeError

    seeds = await seed.full()
    async with asyncio.timeout(30):
        await Reporter(QuickClock(), Gone())(seeds.store, URL)


async def test_control_characters_in_a_reason_do_not_reach_the_screen() -> None:
    seeds, screen = await seed.full(), Recorder()
    await seeds.explain(seed.told(seed.SMOL, ModelState.FAILED, "bad \x1b[2J file"))
    task = asyncio.create_task(Reporter(QuickClock(), screen)(seeds.store, URL))
    await until(lambda: any("failed" in line for line in screen.lines))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert "smol: failed: bad [2J file" in screen.lines


def test_without_a_terminal_progress_is_a_line_every_two_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    screen = PlainScreen()
    for second in range(6):
        screen.fetching([Fetch(model=seed.SMOL, done=second * 10, total=100, rate=10.0)], float(second))
    assert capsys.readouterr().err.splitlines() == [
        "smol: fetched 20 B of 100 B (20 %), 10 B/s, 8.0s left",
        "smol: fetched 40 B of 100 B (40 %), 10 B/s, 6.0s left",
    ]


def test_on_a_terminal_there_is_a_bar_while_something_is_fetched() -> None:
    written = io.StringIO()
    screen = TerminalScreen(Console(file=written, force_terminal=True, width=80))
    screen.fetching([Fetch(model=seed.SMOL, done=0, total=None, rate=None)], 0.0)
    screen.fetching([Fetch(model=seed.SMOL, done=50, total=100, rate=10.0)], 1.0)
    screen.say("qwen: ready [in bold]")
    screen.fetching([], 2.0)
    screen.close()
    assert "smol" in written.getvalue()
    assert "50 B of 100 B (50 %), 10 B/s, 5.0s left" in written.getvalue()
    assert "qwen: ready [in bold]" in written.getvalue()
