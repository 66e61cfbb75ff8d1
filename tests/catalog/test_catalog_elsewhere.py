"""Following a repository elsewhere, on real ones: what was there stays known, whatever becomes of the repository."""

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from catalog_texts import MODEL, commit_all, git, model
from git_server import git_server

from llmgw.catalog import mirror as mirrors
from llmgw.catalog.mirror import Mirror
from llmgw.catalog.origin import Access, Origin, Ref, RefKind
from llmgw.catalog.place import Elsewhere, Place, place_of
from llmgw.catalog.spec import SecretRef
from llmgw.catalog.watch import Observation
from llmgw.errors import CatalogUnreadable


class Pushed:
    """A bare repository, and a checkout that pushes to it. `like`: a copy of that one."""

    def __init__(self, root: Path, like: Path | None = None) -> None:
        self.bare = root / "served" / "catalog.git"
        self.work = root / "work"
        if like is not None:
            shutil.copytree(like, root, dirs_exist_ok=True, symlinks=True)
            return
        self.bare.parent.mkdir(parents=True)
        git(root, "init", "-q", "--bare", "-b", "main", "--template=", str(self.bare))
        git(root, "init", "-q", "-b", "main", "--template=", str(self.work))
        git(self.work, "remote", "add", "origin", "../served/catalog.git")
        self.push({"a.yaml": MODEL})

    def push(self, files: dict[str, str], *more: str) -> str:
        for name, text in files.items():
            (self.work / name).parent.mkdir(parents=True, exist_ok=True)
            (self.work / name).write_text(text)
        commit_all(self.work)
        git(self.work, "push", "-q", *more, "origin", "HEAD")
        return self.head

    @property
    def head(self) -> str:
        return git(self.work, "rev-parse", "HEAD")

    @property
    def url(self) -> str:
        return f"file://{self.bare}"


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pushed")
    Pushed(root)
    return root


@pytest.fixture
def pushed(once: Path, tmp_path: Path) -> Pushed:
    return Pushed(tmp_path, once)


class Following:
    """What a place has told, for a test to wait on."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.seen: list[Observation] = []
        self._more = asyncio.Event()

    async def run(self) -> None:
        async with aclosing(self.place.follow()) as states:
            async for state in states:
                self.seen.append(state)
                self._more.set()

    async def until(self, wanted: Callable[[Observation], Any]) -> Observation:
        async with asyncio.timeout(30):
            while not (self.seen and wanted(self.seen[-1])):
                self._more.clear()
                await self._more.wait()
        return self.seen[-1]

    async def now(self) -> Observation:
        """What is told of a look from now on."""
        asked = self.place.asks.ask()
        return await self.until(lambda state: state.asked >= asked)

    async def commit(self) -> str | None:
        state = await self.now()
        assert state.source is not None, state.error
        return state.source.commit

    async def trouble(self) -> str:
        state = await self.now()
        assert state.error is not None
        return str(state.error)


@asynccontextmanager
async def following(place: Place) -> AsyncIterator[Following]:
    follower = Following(place)
    task = asyncio.create_task(follower.run())
    try:
        yield follower
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def elsewhere(where: str, tmp_path: Path, **more: Any) -> Elsewhere:
    """Looked at only when asked to, if not said otherwise."""
    return Elsewhere(Origin(where=where, remote=True, **{"poll": 0, **more}), tmp_path / "home")


def branch(name: str) -> Ref:
    return Ref(kind=RefKind.BRANCH, name=name)


def tag(name: str) -> Ref:
    return Ref(kind=RefKind.TAG, name=name)


# What is followed


async def test_a_push_is_found_by_polling(pushed: Pushed, tmp_path: Path) -> None:
    async with following(elsewhere(pushed.url, tmp_path, poll=0.05)) as follower:
        first = await follower.until(lambda state: state.source)
        assert first.source is not None
        assert (dict(first.source.files), first.source.commit) == ({"a.yaml": MODEL.encode()}, pushed.head)
        second = pushed.push({"b.yaml": model("b")})
        await follower.until(lambda state: state.source and state.source.commit == second)


async def test_an_ask_is_answered_though_nothing_is_new(pushed: Pushed, tmp_path: Path) -> None:
    async with following(elsewhere(pushed.url, tmp_path)) as follower:
        assert await follower.commit() == pushed.head
        count = len(follower.seen)
        assert await follower.commit() == pushed.head
        assert len(follower.seen) == count + 1


async def test_history_that_is_written_anew_is_followed(pushed: Pushed, tmp_path: Path) -> None:
    async with following(elsewhere(pushed.url, tmp_path)) as follower:
        pushed.push({"b.yaml": model("b")})
        assert await follower.commit() == pushed.head
        git(pushed.work, "reset", "-q", "--hard", "HEAD~1")
        forced = pushed.push({"c.yaml": model("c")}, "--force")
        assert await follower.commit() == forced
        source = follower.seen[-1].source
        assert source is not None
        assert sorted(source.files) == ["a.yaml", "c.yaml"]


async def test_a_deleted_branch_is_told_and_found_again_when_it_is_back(pushed: Pushed, tmp_path: Path) -> None:
    git(pushed.work, "checkout", "-q", "-b", "prod")
    head = pushed.push({"p.yaml": model("p")})
    async with following(elsewhere(pushed.url, tmp_path, ref=branch("prod"))) as follower:
        assert await follower.commit() == head
        git(pushed.work, "push", "-q", "origin", "--delete", "prod")
        told = await follower.trouble()
        assert told.startswith("nothing to follow since 20")
        assert told.endswith("has no branch prod")
        assert await follower.trouble() == told, "told once, and since when"
        git(pushed.work, "push", "-q", "origin", "prod")
        assert await follower.commit() == head


async def test_a_branch_that_is_misspelt_is_told_which_one_is_meant(pushed: Pushed, tmp_path: Path) -> None:
    pushed.push({"a.yaml": model("a")})
    git(pushed.work, "push", "-q", "origin", "main:clusters/home")
    async with following(elsewhere(pushed.url, tmp_path, ref=branch("cluster/home"))) as follower:
        assert (await follower.trouble()).endswith("has no branch cluster/home; did you mean 'clusters/home'?")


async def test_the_default_branch_is_whatever_the_repository_calls_it(pushed: Pushed, tmp_path: Path) -> None:
    async with following(elsewhere(pushed.url, tmp_path)) as follower:
        assert await follower.commit() == pushed.head
        git(pushed.work, "checkout", "-q", "-b", "trunk")
        head = pushed.push({"t.yaml": model("t")})
        git(pushed.bare, "symbolic-ref", "HEAD", "refs/heads/trunk")
        git(pushed.bare, "branch", "-q", "-D", "main")
        assert await follower.commit() == head


async def test_a_head_without_a_commit_says_what_to_do(pushed: Pushed, tmp_path: Path) -> None:
    git(pushed.bare, "symbolic-ref", "HEAD", "refs/heads/nowhere")
    async with following(elsewhere(pushed.url, tmp_path)) as follower:
        assert "its HEAD leads to no commit: push one, or name a branch with --branch" in await follower.trouble()


async def test_a_detached_head_is_followed(pushed: Pushed, tmp_path: Path) -> None:
    first = pushed.head
    pushed.push({"b.yaml": model("b")})
    git(pushed.bare, "update-ref", "--no-deref", "HEAD", first)
    async with following(elsewhere(pushed.url, tmp_path)) as follower:
        assert await follower.commit() == first


async def test_a_moved_tag_is_followed_annotated_or_not(pushed: Pushed, tmp_path: Path) -> None:
    git(pushed.work, "tag", "live")
    git(pushed.work, "push", "-q", "origin", "live")
    async with following(elsewhere(pushed.url, tmp_path, ref=tag("live"))) as follower:
        assert await follower.commit() == pushed.head
        second = pushed.push({"b.yaml": model("b")})
        assert await follower.commit() != second, "a tag, not the branch"
        git(pushed.work, "tag", "-f", "-a", "-m", "moved", "live")
        git(pushed.work, "push", "-q", "-f", "origin", "live")
        assert await follower.commit() == second


async def test_a_name_is_a_branch_before_it_is_a_tag(pushed: Pushed, tmp_path: Path) -> None:
    git(pushed.work, "tag", "v1")
    git(pushed.work, "push", "-q", "origin", "v1")
    first = pushed.head
    async with following(elsewhere(pushed.url, tmp_path, ref=Ref(kind=RefKind.NAMED, name="v1"))) as follower:
        assert await follower.commit() == first
        git(pushed.work, "checkout", "-q", "-b", "v1")
        (pushed.work / "b.yaml").write_text(model("b"))
        commit_all(pushed.work)
        git(pushed.work, "push", "-q", "origin", "refs/heads/v1")
        assert await follower.commit() == pushed.head


async def test_a_commit_is_served_wherever_branches_go(pushed: Pushed, tmp_path: Path) -> None:
    first = pushed.head
    pushed.push({"b.yaml": model("b")})
    place = elsewhere(pushed.url, tmp_path, ref=Ref(kind=RefKind.COMMIT, name=first))
    async with following(place) as follower:
        assert await follower.commit() == first
        pushed.bare.rename(pushed.bare.with_suffix(".gone"))
        assert await follower.commit() == first, "what is here need not be asked for"


async def test_a_commit_that_is_nowhere_is_told(pushed: Pushed, tmp_path: Path) -> None:
    place = elsewhere(pushed.url, tmp_path, ref=Ref(kind=RefKind.COMMIT, name="0123456789" * 4))
    async with following(place) as follower:
        assert "has no commit 012345678901 in any branch or tag" in await follower.trouble()


async def test_a_directory_of_the_repository_is_the_catalog(pushed: Pushed, tmp_path: Path) -> None:
    pushed.push({"clusters/home/h.yaml": model("h"), ".llmgwignore": "clusters\n"})
    async with following(elsewhere(pushed.url, tmp_path, inside="clusters/home")) as follower:
        source = (await follower.now()).source
        assert source is not None
        assert list(source.files) == ["h.yaml"]
        git(pushed.work, "rm", "-q", "-r", "clusters")
        pushed.push({})
        assert "has no directory 'clusters/home'" in await follower.trouble()


async def test_earlier_revisions_can_be_read_as_far_as_they_were_fetched(pushed: Pushed, tmp_path: Path) -> None:
    for number in range(4):
        pushed.push({"a.yaml": model("a") + f"# {number}\n"})
    place = elsewhere(pushed.url, tmp_path, depth=2)
    with pytest.raises(CatalogUnreadable, match="has not been fetched yet"):
        place.read()
    async with following(place) as follower:
        await follower.now()
        assert b"# 2" in place.read(f"{mirrors.HEAD}~1").files["a.yaml"]
        assert b"# 2" in place.read("HEAD~1").files["a.yaml"]
        with pytest.raises(CatalogUnreadable, match="of what is followed, the last 2 commits are"):
            place.read("HEAD~2")


async def test_a_shallow_clone_can_be_followed_itself(pushed: Pushed, tmp_path: Path) -> None:
    pushed.push({"b.yaml": model("b")})
    git(tmp_path, "clone", "-q", "--depth", "1", pushed.url, "shallow")
    async with following(elsewhere(f"file://{tmp_path}/shallow", tmp_path)) as follower:
        assert await follower.commit() == pushed.head
    assert place_of(Origin(where=str(tmp_path / "shallow"), commits=True), tmp_path).read().commit == pushed.head


async def test_submodules_and_large_files_are_left_alone(pushed: Pushed, tmp_path: Path) -> None:
    inner = Pushed(tmp_path / "inner")
    git(pushed.work, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", inner.url, "sub")
    (pushed.work / "weights.bin").write_bytes(os.urandom(3_000_000))
    (pushed.work / "big.yaml").write_bytes(b"#" * 1_100_000)
    pushed.push({})
    async with following(elsewhere(pushed.url, tmp_path)) as follower:
        state = await follower.now()
    assert state.source is not None
    assert list(state.source.files) == ["a.yaml"]
    assert state.watcher == "ok (submodules are not read at a revision: sub)"
    assert [str(problem) for problem in state.source.problems] == [
        "big.yaml: too large: 1.0 MiB; a catalog file has at most 1.0 MiB"
    ]


# What goes wrong


async def test_a_repository_that_cannot_be_reached_is_told_with_since_when(pushed: Pushed, tmp_path: Path) -> None:
    with git_server(pushed.bare.parent) as server:
        async with following(elsewhere(f"{server.url}/catalog.git", tmp_path)) as follower:
            assert await follower.commit() == pushed.head
            server.stop()
            told = await follower.trouble()
            assert told.startswith("source unreachable since 20")
            assert told.endswith(f"{server.url}/catalog.git: nobody answers there")
            assert await follower.trouble() == told
            server.start()
            assert await follower.commit() == pushed.head


async def test_a_repository_that_hangs_is_given_up_with_all_that_git_started(
    pushed: Pushed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "ASK_TIMEOUT", 0.5)
    with git_server(pushed.bare.parent) as server:
        server.hang.set()
        async with following(elsewhere(f"{server.url}/catalog.git", tmp_path)) as follower:
            assert "it did not answer within" in await follower.trouble()
            assert not processes_with(f"{server.url}/catalog.git")


async def test_a_first_answer_that_takes_long_holds_up_nothing(
    pushed: Pushed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmgw.catalog.place.FIRST_ANSWER", 0.2)
    with git_server(pushed.bare.parent) as server:
        server.hang.set()
        async with following(elsewhere(f"{server.url}/catalog.git", tmp_path)) as follower:
            state = await follower.until(lambda state: state.error)
            assert str(state.error) == f"{server.url}/catalog.git has not answered yet"
            server.hang.clear()
            await follower.until(lambda state: state.source and state.source.commit == pushed.head)


async def test_ending_in_the_middle_of_a_fetch_leaves_no_git_behind(pushed: Pushed, tmp_path: Path) -> None:
    with git_server(pushed.bare.parent) as server:
        server.hang.set()
        async with following(elsewhere(f"{server.url}/catalog.git", tmp_path)):
            async with asyncio.timeout(30):
                while not server.seen:
                    await asyncio.sleep(0.02)
        assert not processes_with(f"{server.url}/catalog.git")


@pytest.mark.parametrize(
    "lock", ["refs/llmgw/head.lock", "shallow.lock", "packed-refs.lock", "config.lock", "HEAD.lock"]
)
async def test_a_lock_that_a_crash_left_is_cleared_once(pushed: Pushed, tmp_path: Path, lock: str) -> None:
    place = elsewhere(pushed.url, tmp_path)
    async with following(place) as follower:
        await follower.now()
        copy = tmp_path / "home" / f"{next((tmp_path / 'home').glob('*.git')).name}"
        (copy / lock).parent.mkdir(parents=True, exist_ok=True)
        (copy / lock).touch()
        (copy / "objects" / "pack" / "tmp_pack_half").write_bytes(b"half")
        inode = copy.stat().st_ino
        second = pushed.push({"b.yaml": model("b")})
        assert await follower.commit() == second
        assert not (copy / lock).exists()
        assert not (copy / "objects" / "pack" / "tmp_pack_half").exists()
        assert copy.stat().st_ino == inode, "cleared, not made anew"


async def test_a_git_of_an_earlier_daemon_is_waited_for(pushed: Pushed, tmp_path: Path) -> None:
    place = elsewhere(pushed.url, tmp_path)
    async with following(place) as follower:
        await follower.now()
    copy = next((tmp_path / "home").glob("*.git"))
    holder = subprocess.Popen(["flock", str(copy.with_suffix(".lock")), "cat"], stdin=subprocess.PIPE, process_group=0)
    try:
        async with asyncio.timeout(30):
            while not processes_with(str(copy.with_suffix(".lock"))):
                await asyncio.sleep(0.02)
        second = pushed.push({"b.yaml": model("b")})
        async with following(place) as follower:
            await asyncio.sleep(0.3)
            assert not follower.seen
            assert holder.stdin is not None
            holder.stdin.close()
            assert await follower.commit() == second
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.wait()


@pytest.mark.parametrize("harm", ["config", "objects", "HEAD", "pack"])
async def test_a_copy_that_is_broken_is_made_anew(pushed: Pushed, tmp_path: Path, harm: str) -> None:
    place = elsewhere(pushed.url, tmp_path)
    async with following(place) as follower:
        await follower.now()
        copy = next((tmp_path / "home").glob("*.git"))
        if harm == "config":
            (copy / "config").write_text("[core\n")
        elif harm == "HEAD":
            (copy / "HEAD").unlink()
        else:
            git(copy, "repack", "-q", "-a", "-d")
            for pack in (copy / "objects" / "pack").iterdir():
                pack.chmod(0o600)
                pack.write_bytes(pack.read_bytes()[:60]) if harm == "pack" else pack.unlink()
        assert await follower.commit() == pushed.head
        second = pushed.push({"b.yaml": model("b")})
        assert await follower.commit() == second


async def test_an_object_that_is_damaged_is_fetched_anew(pushed: Pushed, tmp_path: Path) -> None:
    place = elsewhere(pushed.url, tmp_path)
    async with following(place) as follower:
        await follower.now()
        copy = next((tmp_path / "home").glob("*.git"))
        oid = git(copy, "rev-parse", f"{mirrors.HEAD}:a.yaml")
        blob = copy / "objects" / oid[:2] / oid[2:]
        blob.chmod(0o600)
        blob.write_bytes(b"rot")
        assert await follower.commit() == pushed.head
        source = follower.seen[-1].source
        assert source is not None
        assert source.files["a.yaml"] == MODEL.encode()


async def test_the_copy_of_an_address_before_is_removed(pushed: Pushed, tmp_path: Path) -> None:
    other = Pushed(tmp_path / "other")
    async with following(elsewhere(pushed.url, tmp_path)) as follower:
        await follower.now()
    async with following(elsewhere(other.url, tmp_path)) as follower:
        assert await follower.commit() == other.head
    assert len(list((tmp_path / "home").glob("*.git"))) == 1


# Being let in


@pytest.mark.parametrize("kept", ["env", "file"])
async def test_a_token_lets_in_and_is_seen_nowhere(
    pushed: Pushed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    monkeypatch.setenv("CATALOG_TOKEN", "hunter2-token")
    (tmp_path / "token").write_text("hunter2-token\n")
    ref = SecretRef(from_env="CATALOG_TOKEN") if kept == "env" else SecretRef(from_file=str(tmp_path / "token"))
    arguments: list[str] = []
    with git_server(pushed.bare.parent, {"robot": "hunter2-token"}) as server:
        place = elsewhere(f"{server.url}/catalog.git", tmp_path, access=Access(token=ref, user="robot"))
        server.hang.set()
        async with following(place) as follower:
            async with asyncio.timeout(30):
                while not server.seen:
                    await asyncio.sleep(0.02)
            arguments += processes_with(f"{server.url}/catalog.git")
            server.hang.clear()
            assert await follower.commit() == pushed.head
    assert arguments
    everything = [*arguments, *(text.read_text("latin-1") for text in (tmp_path / "home").rglob("*") if text.is_file())]
    assert not [text for text in everything if "hunter2" in text or "aHVudGVyMi" in text]


async def test_a_user_in_the_address_goes_with_the_token(
    pushed: Pushed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATALOG_TOKEN", "hunter2")
    access = Access(token=SecretRef(from_env="CATALOG_TOKEN"))
    with git_server(pushed.bare.parent, {"robot": "hunter2"}) as server:
        url = f"{server.url}/catalog.git".replace("//", "//robot@")
        async with following(elsewhere(url, tmp_path, access=access)) as follower:
            assert await follower.commit() == pushed.head


async def test_a_token_does_not_follow_to_another_host(
    pushed: Pushed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATALOG_TOKEN", "hunter2")
    access = Access(token=SecretRef(from_env="CATALOG_TOKEN"), user="robot")
    with git_server(pushed.bare.parent) as other, git_server(pushed.bare.parent, {"robot": "hunter2"}) as server:
        server.elsewhere = other.url.replace("127.0.0.1", "localhost")
        async with following(elsewhere(f"{server.url}/catalog.git", tmp_path, access=access)) as follower:
            await follower.now()
    assert any(header is not None for _, header in server.seen)
    assert other.seen
    assert {header for _, header in other.seen} <= {None}


async def test_wrong_credentials_are_told_without_them(
    pushed: Pushed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATALOG_TOKEN", "hunter3")
    access = Access(token=SecretRef(from_env="CATALOG_TOKEN"), user="robot")
    with git_server(pushed.bare.parent, {"robot": "another"}) as server:
        async with following(elsewhere(f"{server.url}/catalog.git", tmp_path, access=access)) as follower:
            told = await follower.trouble()
            assert "it refuses the credentials, or wants some: name a token" in told
            assert "hunter3" not in told
            server.users = {"robot": "hunter3"}
            assert await follower.commit() == pushed.head
        async with following(elsewhere(f"{server.url}/catalog.git", tmp_path / "2")) as follower:
            assert "it refuses the credentials, or wants some" in await follower.trouble()
        async with following(elsewhere(f"{server.url}/other.git", tmp_path / "3", access=access)) as follower:
            assert "there is no such repository" in await follower.trouble()


async def test_a_token_that_is_replaced_or_missing_is_read_anew(pushed: Pushed, tmp_path: Path) -> None:
    token = tmp_path / "token"
    access = Access(token=SecretRef(from_file=str(token)))
    with git_server(pushed.bare.parent, {"x-access-token": "second"}) as server:
        async with following(elsewhere(f"{server.url}/catalog.git", tmp_path, access=access)) as follower:
            assert f"the token for git cannot be read from {token}: No such file" in await follower.trouble()
            token.write_text("\n")
            assert f"the token for git is not there: {token} is empty" in await follower.trouble()
            token.write_text("first")
            assert "refuses the credentials" in await follower.trouble()
            token.write_text("second")
            assert await follower.commit() == pushed.head


async def test_an_ssh_key_is_handed_to_ssh_by_a_file_of_ours(
    pushed: Pushed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for ssh notes its arguments and runs here what it is to run there."""
    monkeypatch.setenv("CATALOG_KEY", "-----BEGIN KEY-----\nhunter4\n-----END KEY-----")
    (tmp_path / "bin").mkdir()
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/args\nfor last; do :; done\nexec sh -c "$last"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    access = Access(ssh_key=SecretRef(from_env="CATALOG_KEY"), known_hosts="/etc/hosts known")
    async with following(elsewhere(f"git@127.0.0.1:{pushed.bare}", tmp_path, access=access)) as follower:
        assert await follower.commit() == pushed.head
    told = (tmp_path / "args").read_text()
    key = tmp_path / "home" / "ssh-key"
    assert f"-oIdentitiesOnly=yes -i {key}" in told
    assert "-oBatchMode=yes" in told
    assert "-oStrictHostKeyChecking=yes -oUserKnownHostsFile=/etc/hosts known" in told
    assert key.stat().st_mode & 0o777 == 0o600
    assert "hunter4" not in told


async def test_a_real_ssh_that_reaches_nobody_never_asks(pushed: Pushed, tmp_path: Path) -> None:
    async with following(elsewhere("ssh://git@127.0.0.1:1/catalog.git", tmp_path)) as follower:
        assert (await follower.trouble()).endswith("nobody answers there")


# What a repository may not do


async def test_a_repository_elsewhere_runs_nothing_here(pushed: Pushed, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (pushed.work / ".gitattributes").write_text("*.yaml filter=evil diff=evil\n")
    (pushed.work / ".gitmodules").write_text(f'[submodule "x"]\n\tpath = x\n\turl = ext::sh -c touch% {ran}\n')
    pushed.push({"b.yaml": model("b")})
    home = tmp_path / "home"
    place = elsewhere(pushed.url, tmp_path)
    async with following(place) as follower:
        await follower.now()
        copy = next(home.glob("*.git"))
        evil = tmp_path / "evil"
        evil.write_text(f"#!/bin/sh\ntouch {ran}\n")
        evil.chmod(0o755)
        (copy / "hooks").mkdir(exist_ok=True)
        for hook in ("reference-transaction", "post-merge", "pre-auto-gc", "post-index-change"):
            (copy / "hooks" / hook).write_bytes(evil.read_bytes())
            (copy / "hooks" / hook).chmod(0o755)
        for key in ("core.fsmonitor", "filter.evil.smudge", "filter.evil.clean", "core.pager", "core.sshCommand"):
            git(copy, "config", key, str(evil))
        assert await follower.commit() == pushed.head
        pushed.push({"c.yaml": model("c")})
        assert await follower.commit() == pushed.head
    assert not ran.exists()


async def test_only_the_protocol_of_the_address_is_spoken(pushed: Pushed, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    async with following(elsewhere(f"ext::sh -c touch% {ran}", tmp_path)) as follower:
        assert "not allowed" in await follower.trouble()
    assert not ran.exists()


async def test_without_git_it_is_said(pushed: Pushed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(CatalogUnreadable, match="takes git, which is not installed"):
        await Mirror(Origin(where=pushed.url, remote=True), tmp_path / "home").refresh()


# A repository on this machine


async def test_a_bare_repository_is_followed_at_its_head(pushed: Pushed, tmp_path: Path) -> None:
    place = place_of(Origin(where=str(pushed.bare)), tmp_path / "home")
    assert place.name == str(pushed.bare)
    async with following(place) as follower:
        first = await follower.until(lambda state: state.source)
        assert first.source is not None
        assert first.source.commit == pushed.head
        second = pushed.push({"b.yaml": model("b")})
        await follower.until(lambda state: state.source and state.source.commit == second)
        git(pushed.bare, "pack-refs", "--all")
        third = pushed.push({"c.yaml": model("c")})
        await follower.until(lambda state: state.source and state.source.commit == third)
        pushed.bare.rename(pushed.bare.with_suffix(".gone"))
        assert "cannot read" in str((await follower.until(lambda state: state.error)).error)
        pushed.bare.with_suffix(".gone").rename(pushed.bare)
        await follower.until(lambda state: state.source and state.source.commit == third)


async def test_of_a_checkout_only_what_is_committed_counts_where_that_is_asked_for(
    pushed: Pushed, tmp_path: Path
) -> None:
    pushed.push({"clusters/home/h.yaml": model("h")})
    work = pushed.work
    (work / "clusters" / "home" / "dirty.yaml").write_text("not even yaml: [")
    whole = place_of(Origin(where=str(work), commits=True), tmp_path)
    assert sorted(whole.read().files) == ["a.yaml", "clusters/home/h.yaml"]
    for origin in (
        Origin(where=str(work / "clusters" / "home"), commits=True),
        Origin(where=str(work), inside="clusters/home", commits=True),
        Origin(where=str(work / "clusters"), inside="home", ref=branch("main")),
        Origin(where=str(pushed.bare), inside="clusters/home"),
    ):
        source = place_of(origin, tmp_path).read()
        assert (sorted(source.files), source.commit, source.dirty) == (["h.yaml"], pushed.head, False), origin
    assert sorted(place_of(Origin(where=str(work), inside="clusters/home"), tmp_path).read().files) == [
        "dirty.yaml", "h.yaml",
    ]  # fmt: skip


async def test_a_branch_of_a_checkout_is_followed_whatever_is_checked_out(pushed: Pushed, tmp_path: Path) -> None:
    git(pushed.work, "branch", "prod")
    place = place_of(Origin(where=str(pushed.work), ref=branch("prod")), tmp_path)
    assert place.name == f"{pushed.work}#prod"
    async with following(place) as follower:
        first = await follower.commit()
        pushed.push({"b.yaml": model("b")})
        assert await follower.commit() == first
        git(pushed.work, "branch", "-f", "prod", "HEAD")
        await follower.until(lambda state: state.source and state.source.commit == pushed.head)


def processes_with(text: str) -> list[str]:
    """Command lines of living processes that have it."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if text in line and file.parent.name != str(os.getpid()):
            found.append(line)
    return found
