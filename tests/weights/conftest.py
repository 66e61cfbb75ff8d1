"""A cache in a temporary directory, and pip cut off from everything but what the test gives it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from llmgw.clock import SystemClock
from llmgw.units import Instant, Mono, Wall
from llmgw.weights.api import WeightSource
from llmgw.weights.cache import Cache
from llmgw.weights.registry import by_scheme


class HandClock(SystemClock):
    """A clock whose wall time the test moves."""

    def __init__(self, wall: float = 1_000_000.0) -> None:
        self.wall = wall

    def now(self) -> Instant:
        return Instant(Mono(self.wall), Wall(self.wall))


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def cache(tmp_path: Path, clock: HandClock) -> Cache:
    made = Cache(tmp_path / "cache", cluster_id="c1", clock=clock)
    made.open()
    return made


@pytest.fixture
def cache_with(tmp_path: Path) -> Callable[[WeightSource], Cache]:
    """A cache that knows one kind of source."""

    def make(source: WeightSource) -> Cache:
        made = Cache(tmp_path / "cache", cluster_id="c1", clock=SystemClock(), sources=by_scheme((source,)))
        made.open()
        return made

    return make


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of wheels: all that pip can see."""
    directory = tmp_path / "wheels"
    directory.mkdir()
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory
