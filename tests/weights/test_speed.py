"""The rate of a download: what it is made of, and that all who ask hear of it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import Site, serve

from llmgw.catalog.spec import FetchLimits, WeightsSpec
from llmgw.clock import SystemClock
from llmgw.facts import Progress
from llmgw.units import Bytes
from llmgw.weights.cache import Cache
from llmgw.weights.speed import WINDOW, Speed


@pytest.fixture
def site() -> Iterator[Site]:
    with serve() as served:
        yield served


@pytest.fixture
def real(tmp_path: Path) -> Cache:
    made = Cache(tmp_path / "cache", cluster_id="c1", clock=SystemClock())
    made.open()
    return made


def test_a_rate_needs_a_second_and_leaves_out_what_an_earlier_attempt_brought() -> None:
    speed = Speed()
    assert speed.note(100.0, 5_000_000) is None
    assert speed.note(100.9, 5_000_900) is None
    assert speed.note(101.0, 5_001_000) == 1000


def test_a_rate_looks_back_ten_seconds_and_falls_while_nothing_comes() -> None:
    speed = Speed()
    for second in range(31):
        rate = speed.note(float(second), min(second, 20) * 100)
        if second == 20:
            assert rate == 100
        if second == 25:
            assert rate == pytest.approx(50)
    assert rate == 0


def test_a_download_that_starts_anew_has_no_rate_of_what_is_gone() -> None:
    speed = Speed()
    for second in range(5):
        speed.note(float(second), second * 100)
    assert speed.note(5.0, 10) is None
    assert speed.note(7.0, 30) == 10


def test_telling_often_costs_no_memory_and_no_sharpness() -> None:
    speed = Speed()
    rate = None
    for tick in range(200_000):
        rate = speed.note(tick / 1000, tick)
    assert rate == pytest.approx(1000, rel=0.01)
    assert len(speed._seen) < 8 * WINDOW


def test_left_is_known_where_size_and_rate_are() -> None:
    assert Progress(done=Bytes(20), total=Bytes(100), rate=4.0).left == 20
    assert Progress(done=Bytes(20), rate=4.0).left is None
    assert Progress(done=Bytes(20), total=Bytes(100), rate=0.0).left is None


async def test_all_who_want_a_file_hear_its_rate_and_that_it_waits_for_its_turn(real: Cache, site: Site) -> None:
    site.files["/a"] = site.files["/b"] = bytes(3_000_000)
    limits = FetchLimits(bandwidth=Bytes(2_000_000), parallel=1)
    heard: dict[str, list[Progress]] = {"first": [], "same": [], "next": []}

    def fetch(path: str, who: str) -> "asyncio.Future[Path]":
        spec = WeightsSpec(source=f"{site.url}{path}")
        return asyncio.ensure_future(real.fetch(spec, reserve=Bytes(0), progress=heard[who].append, limits=limits))

    first, same = fetch("/a", "first"), fetch("/a", "same")
    while not site.gets:
        await asyncio.sleep(0.01)
    following = fetch("/b", "next")
    await asyncio.gather(first, same)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    for who in ("first", "same"):
        rates = [progress.rate for progress in heard[who] if progress.rate is not None]
        assert rates
        assert rates[-1] == pytest.approx(2_000_000, rel=0.4)
    assert heard["first"][-1] == Progress(done=Bytes(3_000_000), total=Bytes(3_000_000))
    assert any(progress.waiting for progress in heard["next"])
    assert not any(progress.waiting for progress in heard["first"])


async def test_a_server_that_stalls_is_told_of_by_a_rate_that_falls(real: Cache, site: Site) -> None:
    site.files["/a"], site.stall_at = bytes(4_000_000), 3_000_000
    heard: list[Progress] = []
    limits = FetchLimits(bandwidth=Bytes(2_500_000))
    fetch = asyncio.ensure_future(
        real.fetch(WeightsSpec(source=f"{site.url}/a"), reserve=Bytes(0), progress=heard.append, limits=limits)
    )
    async with asyncio.timeout(30):
        while not [p for p in heard if p.rate is not None]:
            await asyncio.sleep(0.05)
        highest = max(p.rate or 0 for p in heard)
        while not (heard[-1].done >= 2_900_000 and (heard[-1].rate or 0) < 0.7 * highest):
            highest = max(highest, heard[-1].rate or 0)
            await asyncio.sleep(0.05)
    fetch.cancel()
    await asyncio.gather(fetch, return_exceptions=True)
