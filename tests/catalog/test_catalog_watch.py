"""Following a directory: each settled state once, whatever the events do or fail to do."""

import asyncio
import errno
import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from catalog_texts import MODEL, commit_all, git, model
from watchfiles import awatch

from llmgw.catalog.asks import Asks
from llmgw.catalog.looking import COARSE
from llmgw.catalog.mounts import why_silent
from llmgw.catalog.source import Source
from llmgw.catalog.watch import Observation, follow
from llmgw.errors import CatalogUnreadable

NEVER = 600.0  #: a poll that does not come within a test: only events can have found the change
OFTEN = 0.05

Silent = Callable[[Path], str | None]


class Following:
    """What `follow` has yielded, for a test to wait on."""

    def __init__(self) -> None:
        self.seen: list[Observation] = []
        self._more = asyncio.Event()

    async def run(self, path: Path, poll: float, events: Any, silent: Silent, asks: Asks) -> None:
        async with aclosing(follow(path, poll=poll, events=events, silent=silent, asks=asks)) as states:
            async for state in states:
                self.seen.append(state)
                self._more.set()

    async def until(self, wanted: Callable[[Observation], bool]) -> Observation:
        """The newest state, once it is as wanted. Fails after a generous time."""
        async with asyncio.timeout(30):
            while not (self.seen and wanted(self.seen[-1])):
                self._more.clear()
                await self._more.wait()
        return self.seen[-1]

    async def files(self, **contents: str) -> Source:
        """Until the files are these: `a="text"` is a.yaml."""
        expected = {f"{name.replace('__', '/')}.yaml": text.encode() for name, text in contents.items()}
        state = await self.until(lambda state: state.source is not None and state.source.files == expected)
        assert state.source is not None
        return state.source


@asynccontextmanager
async def following(
    path: Path, poll: float = NEVER, events: Any = awatch, silent: Silent = why_silent, asks: Asks | None = None
) -> AsyncIterator[Following]:
    follower = Following()
    task = asyncio.create_task(follower.run(path, poll, events, silent, asks or Asks()))
    try:
        yield follower
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    directory = tmp_path / "catalog"
    directory.mkdir()
    git(directory, "init", "-q")
    (directory / "a.yaml").write_text(MODEL)
    commit_all(directory)
    return directory


async def test_what_is_there_at_first_comes_first(repo: Path) -> None:
    async with following(repo) as seen:
        source = await seen.files(a=MODEL)
        assert source.commit == git(repo, "rev-parse", "HEAD")
        assert seen.seen == [Observation(source=source)]


async def test_events_bring_each_change_without_waiting_for_a_poll(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("1")
    async with following(tmp_path) as seen:
        await seen.files(a="1")
        (tmp_path / "a.yaml").write_text("2")
        await seen.files(a="2")
        for text in ("3", "4"):  # an atomic save, and one more
            (tmp_path / ".new").write_text(text)
            (tmp_path / ".new").replace(tmp_path / "a.yaml")
            await seen.files(a=text)
        (tmp_path / "sub" / "deep").mkdir(parents=True)
        (tmp_path / "sub" / "deep" / "b.yaml").write_text("b")
        await seen.files(a="4", sub__deep__b="b")
        (tmp_path / "sub" / "deep" / "b.yaml").write_text("c")
        await seen.files(a="4", sub__deep__b="c")
        (tmp_path / ".llmgwignore").write_text("sub\n")
        await seen.files(a="4")


async def test_a_commit_of_files_already_there_is_a_new_state(repo: Path) -> None:
    async with following(repo) as seen:
        await seen.files(a=MODEL)
        (repo / "a.yaml").write_text(model("b"))
        assert (await seen.files(a=model("b"))).dirty
        head = commit_all(repo)
        state = await seen.until(lambda state: state.source is not None and not state.source.dirty)
        assert state.source is not None
        assert state.source.commit == head
        git(repo, "checkout", "-q", "-b", "other")
        git(repo, "reset", "-q", "--hard", "HEAD~1")
        assert not (await seen.files(a=MODEL)).dirty


async def test_the_same_bytes_written_again_are_no_new_state(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("1")
    async with following(tmp_path) as seen:
        await seen.files(a="1")
        (tmp_path / "a.yaml").write_text("1")
        (tmp_path / "README").write_text("1")
        (tmp_path / "b.yaml").write_text("2")
        await seen.files(a="1", b="2")
        assert len(seen.seen) == 2


async def test_a_link_that_is_swapped_leads_to_the_new_target_from_then_on(tmp_path: Path) -> None:
    for name in ("v1", "v2"):
        (tmp_path / name / "catalog").mkdir(parents=True)
        (tmp_path / name / "catalog" / "a.yaml").write_text(name)
    (tmp_path / "current").symlink_to("v1")
    (tmp_path / "catalog").symlink_to("current/catalog")
    async with following(tmp_path / "catalog") as seen:
        await seen.files(a="v1")
        (tmp_path / "next").symlink_to("v2")
        (tmp_path / "next").replace(tmp_path / "current")
        await seen.files(a="v2")
        (tmp_path / "v2" / "catalog" / "a.yaml").write_text("v2 changed")
        await seen.files(a="v2 changed")


async def test_a_directory_that_is_removed_and_made_anew_is_followed_again(tmp_path: Path) -> None:
    root = tmp_path / "catalog"
    root.mkdir()
    (root / "a.yaml").write_text("1")
    async with following(root) as seen:
        await seen.files(a="1")
        for text in ("2", "3"):
            (root / "a.yaml").unlink()
            root.rmdir()
            gone = await seen.until(lambda state: state.source is None)
            assert isinstance(gone.error, CatalogUnreadable)
            root.mkdir()
            (root / "a.yaml").write_text(text)
            await seen.files(a=text)


async def test_a_directory_that_is_not_there_yet_is_found_when_it_comes(tmp_path: Path) -> None:
    async with following(tmp_path / "not" / "yet", poll=OFTEN) as seen:
        await seen.until(lambda state: state.error is not None)
        (tmp_path / "not" / "yet").mkdir(parents=True)
        (tmp_path / "not" / "yet" / "a.yaml").write_text("1")
        await seen.files(a="1")


async def test_a_file_name_that_is_no_utf8_does_not_end_the_watch(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("1")
    async with following(tmp_path) as seen:
        await seen.files(a="1")
        (tmp_path / os.fsdecode(b"\xff.txt")).write_text("x")
        (tmp_path / "a.yaml").write_text("2")
        await seen.files(a="2")
        (tmp_path / "a.yaml").write_text("3")
        await seen.files(a="3")
        assert {state.watcher for state in seen.seen} == {"ok"}


async def test_events_that_never_come_are_made_up_for_by_polling(tmp_path: Path) -> None:
    async def silent(*_: str, **__: Any) -> AsyncGenerator[set[Any], None]:
        await asyncio.Event().wait()
        yield set()

    (tmp_path / "a.yaml").write_text("1")
    async with following(tmp_path, poll=OFTEN, events=silent) as seen:
        await seen.files(a="1")
        (tmp_path / "a.yaml").write_text("2")
        await seen.files(a="2")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "OS file watch limit reached"),
        OSError(errno.EMFILE, "Too many open files"),
        RuntimeError("whatever the library says"),
        ExceptionGroup("unhandled errors in a TaskGroup", [OSError(errno.ENOSPC, "limit reached")]),
    ],
    ids=["ENOSPC", "EMFILE", "internal", "group"],
)
async def test_a_watch_that_cannot_be_had_is_said_and_polling_goes_on(tmp_path: Path, error: Exception) -> None:
    async def failing(*_: str, **__: Any) -> AsyncGenerator[set[Any], None]:
        raise error
        yield set()

    (tmp_path / "a.yaml").write_text("1")
    async with following(tmp_path, poll=OFTEN, events=failing) as seen:
        state = await seen.until(lambda state: state.watcher != "ok")
        assert state.watcher.startswith("degraded: ")
        assert state.source is not None
        (tmp_path / "a.yaml").write_text("2")
        await seen.files(a="2")


async def test_a_watch_that_works_again_is_no_longer_degraded(tmp_path: Path) -> None:
    calls = 0

    async def failing_twice(*paths: str, **options: Any) -> AsyncGenerator[set[Any], None]:
        nonlocal calls
        calls += 1
        if calls <= 2:
            raise OSError(errno.ENOSPC, "limit reached")
        async with aclosing(awatch(*paths, **options)) as batches:
            async for batch in batches:
                yield batch

    (tmp_path / "a.yaml").write_text("1")
    async with following(tmp_path, events=failing_twice) as seen:
        await seen.until(lambda state: state.watcher.startswith("degraded: "))
        await seen.until(lambda state: state.watcher == "ok")
        (tmp_path / "a.yaml").write_text("2")
        await seen.files(a="2")


async def test_a_burst_of_commits_ends_at_the_last_with_few_states_between(repo: Path) -> None:
    async with following(repo) as seen:
        await seen.files(a=MODEL)
        for number in range(10):
            (repo / "a.yaml").write_text(model(f"m{number}"))
            await asyncio.to_thread(commit_all, repo)
        head = git(repo, "rev-parse", "HEAD")
        await seen.until(lambda state: state.source is not None and state.source.commit == head)
        assert all(state.error is None for state in seen.seen)
        assert len(seen.seen) <= 11


async def test_a_stale_lock_is_told_beside_the_watchers_state(repo: Path) -> None:
    lock = repo / ".git" / "index.lock"
    lock.touch()
    os.utime(lock, (1, 1))
    async with following(repo) as seen:
        state = await seen.until(lambda state: state.source is not None)
        assert state.watcher.startswith("ok (.git/index.lock has not changed for 10 s")
        lock.unlink()
        await seen.until(lambda state: state.watcher == "ok")


async def test_nothing_is_left_running_once_the_follower_ends(tmp_path: Path) -> None:
    async with following(tmp_path) as seen:
        await seen.until(lambda state: state.source is not None)
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
    assert not [thread.name for thread in threading.enumerate() if "atch" in thread.name]


@dataclass(frozen=True)
class Mounted:
    mountpoint: str
    fstype: str


@pytest.mark.parametrize(
    ("kind", "silent"),
    [("nfs4", True), ("cifs", True), ("9p", True), ("fuse.sshfs", True), ("ext4", False), ("fuse.bindfs", False)],
)
def test_a_file_system_that_others_write_to_is_known_for_what_it_is(kind: str, silent: bool) -> None:
    mounts = [Mounted("/", "ext4"), Mounted("/srv", "nfs"), Mounted("/srv/here", kind), Mounted("/srv/he", "nfs")]
    told = why_silent(Path("/srv/here/catalog"), lambda: mounts)
    assert (told is not None) == silent
    if told is not None:
        assert f"lies on {kind}" in told


def test_of_mounts_on_one_place_the_last_is_seen_and_here_none_is_silent(tmp_path: Path) -> None:
    mounts = [Mounted("/", "ext4"), Mounted("/srv", "nfs"), Mounted("/srv", "xfs")]
    assert why_silent(Path("/srv/catalog"), lambda: mounts) is None
    assert why_silent(Path("/other"), list) is None
    assert why_silent(tmp_path) is None


async def test_on_a_network_file_system_polling_finds_changes_and_status_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("1")
    calls = []

    async def unused(*_: str, **__: Any) -> AsyncGenerator[set[Any], None]:
        calls.append(1)
        yield set()

    async with following(tmp_path, poll=OFTEN, events=unused, silent=lambda path: f"{path} lies on nfs4") as seen:
        await seen.files(a="1")
        assert seen.seen[-1].watcher == f"degraded: polling every 0.05 s: {tmp_path} lies on nfs4"
        (tmp_path / "a.yaml").write_text("2")
        await seen.files(a="2")
    assert calls == [], "no watch is held that would be of no use"


async def test_a_link_that_is_swapped_away_from_a_network_file_system_is_watched_from_then_on(tmp_path: Path) -> None:
    for name in ("nfs", "disk"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.yaml").write_text(name)
    (tmp_path / "catalog").symlink_to("nfs")

    def silent(path: Path) -> str | None:
        return "on nfs" if path.resolve().name == "nfs" else None

    async with following(tmp_path / "catalog", poll=OFTEN, silent=silent) as seen:
        await seen.files(a="nfs")
        assert "degraded" in seen.seen[-1].watcher
        (tmp_path / "next").symlink_to("disk")
        (tmp_path / "next").replace(tmp_path / "catalog")
        await seen.files(a="disk")
        await seen.until(lambda state: state.watcher == "ok")


async def test_polling_alone_is_fine_where_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("1")
    async with following(tmp_path, poll=OFTEN, events=None) as seen:
        await seen.files(a="1")
        assert seen.seen[-1].watcher == "ok (polling every 0.05 s)"
        (tmp_path / "a.yaml").write_text("2")
        await seen.files(a="2")


async def test_a_config_map_whose_data_link_is_swapped_is_followed(tmp_path: Path) -> None:
    """As Kubernetes does it: files are links through `..data`, a link to a directory with a time stamp."""
    for stamp, text in (("..2026_1", "1"), ("..2026_2", "2")):
        (tmp_path / stamp).mkdir()
        (tmp_path / stamp / "a.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("..2026_1")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    async with following(tmp_path) as seen:
        await seen.files(a="1")
        (tmp_path / "..data_tmp").symlink_to("..2026_2")
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")
        await seen.files(a="2")


async def test_a_change_has_that_file_read_and_an_ask_every_file(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"m{number}.yaml").write_text("name: old")
    await asyncio.sleep(COARSE + 0.1)  # from then on their times tell of a further writing
    asks = Asks()
    async with following(tmp_path, asks=asks) as seen:
        first = (await seen.until(lambda state: state.source is not None)).source
        (tmp_path / "m7.yaml").write_text("name: new")
        second = (await seen.until(lambda state: state.source != first)).source
        assert first is not None
        assert second is not None
        assert [name for name, data in second.files.items() if data is not first.files[name]] == ["m7.yaml"]
        asks.ask()
        third = (await seen.until(lambda state: state.asked == asks.number)).source
        assert third == second
        assert not [name for name, data in third.files.items() if data is second.files[name]]


SHORT_OF_INSTANCES = """
import asyncio, ctypes, os, sys
from contextlib import aclosing
from pathlib import Path
from llmgw.catalog.watch import follow

os.setresuid(64999, 0, 0)  # limits go by the real user, access to files by the effective one
inotify = ctypes.CDLL(None, use_errno=True).inotify_init
taken = []
while (one := inotify()) >= 0:
    taken.append(one)
directory = Path(sys.argv[1])

async def main():
    async with aclosing(follow(directory, poll=0.05)) as states:
        async for state in states:
            text = state.source and state.source.files["a.yaml"].decode()
            if state.watcher != "ok" and text == "1":
                print(state.watcher, flush=True)
                (directory / "a.yaml").write_text("2")
            elif text == "2" and taken:
                print("found 2", flush=True)
                while taken:
                    os.close(taken.pop())
            elif text == "2" and state.watcher == "ok":
                print("ok again", flush=True)
                return

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_where_the_systems_limit_is_reached_polling_finds_changes_until_there_is_room_again(tmp_path: Path) -> None:
    """For a user of its own, whose limit concerns nobody else."""
    (tmp_path / "a.yaml").write_text("1")
    argv = [sys.executable, "-c", SHORT_OF_INSTANCES, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    limited, *rest = done.stdout.splitlines()
    assert limited.startswith("degraded: polling every 0.05 s: ")
    assert rest == ["found 2", "ok again"]
