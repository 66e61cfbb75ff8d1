"""Downloads that ended early: listed, gone on with, and removed as carefully as entries are."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers import Site, serve

from llmgw.catalog.spec import WeightsSpec
from llmgw.clock import SystemClock
from llmgw.ids import Revision
from llmgw.units import Bytes, Instant, Mono, Seconds, Wall
from llmgw.weights import partial
from llmgw.weights.cache import Cache
from llmgw.weights.collector import listing
from llmgw.weights.doomed import Refusal
from llmgw.weights.naming import entry_name
from llmgw.weights.removal import finish, remove
from llmgw.weights.upkeep import Asker, Upkeep

CONTENT = bytes(range(256)) * 4_000
LATER = Wall(time.time() + 3600)


@pytest.fixture
def site() -> Iterator[Site]:
    with serve() as served:
        served.files["/m/model.bin"] = CONTENT
        yield served


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").write_text("years of work")
    return tmp_path / "cache"


def open_cache(root: Path) -> Cache:
    made = Cache(root, cluster_id="c1", clock=SystemClock())
    made.open()
    return made


def leave(root: Path, site: Site, stop: int = 500_000) -> Path:
    """A download that its asker gave up after `stop` bytes."""
    cache, spec = open_cache(root), WeightsSpec(source=f"{site.url}/m/model.bin")
    site.stall_at = stop

    async def begin() -> None:
        fetch = asyncio.ensure_future(cache.fetch(spec, reserve=Bytes(0), progress=lambda _: None))
        async with asyncio.timeout(30):
            while sum(path.stat().st_size for path in root.glob("partial-*/entry/files/*")) < stop:
                await asyncio.sleep(0.01)
        fetch.cancel()
        await asyncio.gather(fetch, return_exceptions=True)

    asyncio.run(begin())
    site.stall_at = None
    return root / f"kept-{entry_name(spec.source, None)}"


def end(root: Path, name: str, *, min_age: float = 0, now: Wall = LATER) -> None:
    remove(root, name, cluster="c1", now=now, min_age=Seconds(min_age))


def tree(path: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for one in sorted(path.rglob("*")):
        name = str(one.relative_to(path))
        if one.is_symlink():
            found[name] = os.readlink(one)
        else:
            found[name] = one.read_bytes() if one.is_file() else "something else"
    return found


def test_it_is_listed_with_its_source_and_bytes_and_is_no_weights_to_anybody(root: Path, site: Site) -> None:
    kept = leave(root, site)
    cache, source = open_cache(root), f"{site.url}/m/model.bin"
    (fact,) = cache.facts([])
    assert (fact.entry, fact.source, fact.unfinished, fact.complete) == (kept.name, source, True, False)
    assert 500_000 <= fact.size < 502_000
    assert cache.locate(WeightsSpec(source=source)) is None
    now = Instant(Mono(0), Wall(fact.last_wanted + 100))
    (listed,) = listing([fact], wanted=[], history=[], min_age=Seconds(50), keep_revisions=0, now=now)
    assert str(listed) == "removable: unfinished, last wanted 1m40s ago"
    (listed,) = listing([fact], wanted=[], history=[], min_age=Seconds(500), keep_revisions=0, now=now)
    assert "too young" in str(listed)
    assert listing([fact], wanted=[source], history=[], min_age=Seconds(0), keep_revisions=0, now=now) == ()


def test_it_goes_whole_once_it_is_old_enough_and_nothing_else_does(root: Path, site: Site, tmp_path: Path) -> None:
    kept = leave(root, site)
    with pytest.raises(Refusal, match="younger than 2h"):
        end(root, kept.name, min_age=7200)
    end(root, kept.name, min_age=1800)
    assert os.listdir(root) == [".llmgw-cache"]
    assert (tmp_path / "precious" / "thesis.tex").exists()


async def test_the_audit_log_tells_of_it_and_nobody_removes_one_that_is_gone_on_with(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    with serve() as site:
        site.files["/m/model.bin"] = CONTENT
        kept = await asyncio.to_thread(leave, root, site)
        cache = open_cache(root)
        upkeep = Upkeep(cache, node="n1", log=tmp_path / "collected.log", clock=SystemClock())
        assert upkeep.source_of(kept.name) == f"{site.url}/m/model.bin"
        site.stall_at = 1000
        spec = WeightsSpec(source=f"{site.url}/m/model.bin")
        fetch = asyncio.ensure_future(cache.fetch(spec, reserve=Bytes(0), progress=lambda _: None))
        await asyncio.sleep(0)
        with pytest.raises(Refusal, match="being fetched"):
            await upkeep.remove(kept.name, min_age=Seconds(0), asker=Asker(by="me"))
        fetch.cancel()
        await asyncio.gather(fetch, return_exceptions=True)
        await upkeep.remove(kept.name, min_age=Seconds(0), asker=Asker(by="me", revision="r1"))
    lines = [json.loads(line) for line in (tmp_path / "collected.log").read_text().splitlines()]
    assert [(line["what"], line["entry"], line["revision"]) for line in lines] == [
        ("removing", kept.name, "r1"),
        ("removed", kept.name, "r1"),
    ]
    assert Revision(lines[0]["revision"]) == "r1"


def _record(kept: Path) -> Path:
    (found,) = kept.glob("resume-*.json")
    return found


def _rewrite(file: Path, /, **changes: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda kept: (kept / "notes").write_text("mine"), "did not fetch"),
        (lambda kept: (kept / "entry" / "notes").write_text("mine"), "did not fetch"),
        (lambda kept: (kept / "entry" / "files" / "thesis.tex").write_text("mine"), "did not fetch"),
        (lambda kept: (kept / "entry" / "files" / "more").mkdir(), "did not fetch"),
        (lambda kept: (kept / "link").symlink_to(kept.parent.parent / "precious"), "did not fetch"),
        (lambda kept: os.mkfifo(kept / "promised.json"), "."),
        (lambda kept: os.link(kept / "entry/files/model.bin", kept.parent.parent / "second"), "2 names"),
        (lambda kept: (kept / "resume").unlink(), "does not say"),
        (lambda kept: _rewrite(kept / "resume", entry="v1-sha256-" + "0" * 64), "does not say"),
        (lambda kept: _rewrite(kept / "resume", v=2), "does not say"),
        (lambda kept: _rewrite(_record(kept), path="../../../../precious/thesis.tex"), "no file below it"),
        (lambda kept: _record(kept).write_text("{"), "cannot be read"),
        (lambda kept: _record(kept).unlink(), "did not fetch"),
    ],
)
def test_anything_that_llmgw_did_not_put_there_keeps_it(
    change: Callable[[Path], object], match: str, root: Path, site: Site
) -> None:
    kept = leave(root, site)
    change(kept)
    before = tree(root.parent)
    with pytest.raises(Refusal, match=match):
        end(root, kept.name)
    assert tree(root.parent) == before


@pytest.mark.parametrize("level", ["", "entry", "entry/files"])
def test_links_at_any_level_are_not_followed(level: str, root: Path, site: Site) -> None:
    kept = leave(root, site)
    there = kept / level if level else kept
    moved = root.parent / "elsewhere"
    there.rename(moved)
    there.symlink_to(moved)
    before = tree(root.parent)
    with pytest.raises(Refusal):
        end(root, kept.name)
    assert tree(root.parent) == before


def test_one_that_a_process_has_open_stays(root: Path, site: Site) -> None:
    kept = leave(root, site)
    with open(kept / "entry/files/model.bin", "rb"), pytest.raises(Refusal, match="a process has"):
        end(root, kept.name)
    end(root, kept.name)


def test_killed_at_any_point_its_removal_is_finished_by_the_next(root: Path, site: Site) -> None:
    leave(root, site)
    code = (
        "import sys\nfrom pathlib import Path\nfrom llmgw.weights.removal import remove\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "remove(Path(sys.argv[1]), sys.argv[2], cluster='c1', now=4e9, min_age=0)\n"
    )
    dice = random.Random(5)
    template = root.parent / "template"
    (kept,) = root.glob("kept-*")
    kept.rename(template)
    known = json.loads(_record(template).read_text())
    for number in range(300):  # a repository of many small files
        record = {**known, "path": f"d{number % 7}/f{number}"}
        (template / f"resume-{number:016x}.json").write_text(json.dumps(record))
        path = template / "entry" / "files" / f"d{number % 7}" / f"f{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    for _ in range(6):
        subprocess.run(["cp", "-a", str(template), str(kept)], check=True)
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(root), kept.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        child.stdin.write(b"\n")
        child.stdin.flush()
        time.sleep(dice.uniform(0, 0.08))
        child.send_signal(signal.SIGKILL)
        child.communicate()
        finish(root, cluster="c1", now=Wall(time.time()), idle=Seconds(0))
        assert not [name for name in os.listdir(root) if name.startswith("removing-")]
        if kept.exists():
            assert tree(kept).keys() == tree(template).keys()
            end(root, kept.name)
        assert os.listdir(root) == [".llmgw-cache"]


def test_one_with_a_user_s_file_in_it_gives_no_room_to_others_and_outlives_its_week(root: Path, site: Site) -> None:
    kept = leave(root, site)
    (kept / "entry" / "files" / "notes").write_text("mine")
    assert partial.drop_kept(root, but="v1-sha256-" + "0" * 64) is False
    assert partial.remove_stale(root, Wall(time.time() + 30 * 86_400)) == []
    assert (kept / "entry" / "files" / "notes").read_text() == "mine"
    (kept / "entry" / "files" / "notes").unlink()
    assert partial.drop_kept(root, but=kept.name.removeprefix("kept-")) is False
    assert partial.drop_kept(root, but="v1-sha256-" + "0" * 64) is True
    assert not kept.exists()


async def test_a_dead_process_s_download_is_put_aside_while_the_daemon_runs(root: Path, tmp_path: Path) -> None:
    with serve() as site:
        site.files["/m/model.bin"] = CONTENT
        kept = await asyncio.to_thread(leave, root, site)
    cache = open_cache(root)
    with subprocess.Popen(["true"]) as dead:
        dead.wait()
    own = partial._self()
    kept.rename(root / f"partial-{own.boot}-{own.namespace}-{dead.pid}-1-00000000")
    assert cache.facts([]) == ()
    await Upkeep(cache, node="n1", log=tmp_path / "log", clock=SystemClock()).finish()
    assert [fact.entry for fact in cache.facts([])] == [kept.name]
