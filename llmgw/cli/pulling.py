"""What `llmgw pull` shows on stderr: a bar for each download on a terminal, else a line now and then."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import Progress as Bars

from llmgw.cli.bars import columns
from llmgw.cli.text import clean, fetched, waits
from llmgw.facts import Progress

LINE_EVERY: Final = 5.0
"""Seconds between two lines about one download, where there is no terminal."""


class Shown:
    """`bars` None: lines."""

    def __init__(self, bars: Bars | None) -> None:
        self._bars = bars

    @classmethod
    @contextmanager
    def on_stderr(cls) -> "Iterator[Shown]":
        console = Console(stderr=True)
        if not console.is_terminal:
            yield cls(None)
            return
        with Bars(*columns(), console=console, transient=True, redirect_stdout=False) as bars:
            yield cls(bars)

    @contextmanager
    def one(self, source: str) -> Iterator[Callable[[Progress], None]]:
        """While one source is fetched: what is to be told of its progress."""
        name = clean(source.partition("?")[0].rpartition("/")[2])
        if self._bars is None:
            yield _Lines(name).tell
            return
        bars, task = self._bars, self._bars.add_task(name, total=None, told="")
        try:
            yield lambda one: bars.update(task, completed=one.done, total=one.total, told=_told(one))
        finally:
            bars.remove_task(task)


class _Lines:
    def __init__(self, name: str) -> None:
        self._name = name
        self._at = time.monotonic()

    def tell(self, progress: Progress) -> None:
        if time.monotonic() - self._at >= LINE_EVERY:
            self._at = time.monotonic()
            sys.stderr.write(f"{self._name}: fetched {_told(progress)}\n")
            sys.stderr.flush()


def _told(progress: Progress) -> str:
    if progress.waiting:
        return waits(progress.waits_for)
    return fetched(progress.done, progress.total, progress.rate)
