"""`git push` to a repository that `llmgw init --bare` made: what who pushes sees, and what is served then."""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness import Daemon, Repo, command, eventually, run_cli, serving

from llmgw.cli.init import begin_bare, begin_catalog
from llmgw.errors import TerminalError

EXTERNAL = 'apiVersion: llmgw/v1\nkind: Model\nname: {}\nexternal: {{url: "https://api.example.org/v1"}}\n'
INVALID = command("b").replace("engine: command", "engine: comand")


class Pushing:
    """A checkout with a bare repository to push to. `state`: of the daemon that its hooks speak to."""

    def __init__(self, root: Path, state: Path) -> None:
        self.bare = root / "catalog.git"
        begin_bare(self.bare, None, "", state)
        self.repo = Repo(root / "work")
        self.repo.git("remote", "add", "llmgw", str(self.bare))

    def push(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        words = ["git", "-C", str(self.repo.path), "push", "llmgw", *(arguments or ("main",))]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60, env=env)
        done.stderr = "\n".join(line.removeprefix("remote: ").rstrip() for line in done.stderr.splitlines())
        return done

    @property
    def served(self) -> str:
        done = subprocess.run(
            ["git", "-C", str(self.bare), "rev-parse", "--verify", "-q", "main"], capture_output=True, text=True
        )
        return done.stdout.strip()


@pytest.fixture
def pushing(tmp_path: Path) -> Pushing:
    return Pushing(tmp_path, tmp_path / "daemon" / "state")


def test_a_push_is_planned_checked_and_served(pushing: Pushing, tmp_path: Path) -> None:
    first = pushing.repo.commit({"a.yaml": command("a")})
    assert pushing.push().returncode == 0
    with serving(pushing.bare, tmp_path / "daemon") as daemon:
        daemon.ready("a")
        assert daemon.seen("status")["catalog"]["applied"] == first

        second = pushing.repo.commit({"b.yaml": command("b")})
        done = pushing.push()
        assert done.returncode == 0
        assert "+ launch    b on box" in done.stderr, "the plan"
        assert "llmgw: the daemon takes it in now" in done.stderr
        daemon.ready("a", "b")
        assert daemon.seen("status")["catalog"]["applied"] == second

        pushing.repo.commit({"b.yaml": INVALID})
        done = pushing.push()
        assert done.returncode != 0
        assert "b.yaml:6:13: $.profiles[0].engine: " in done.stderr
        assert "did you mean 'command'?" in done.stderr
        assert "llmgw: refused: 1 problem in" in done.stderr
        assert pushing.served == second
        assert daemon.seen("status")["catalog"]["applied"] == second

        pushing.repo.git("reset", "-q", "--hard", first)
        done = pushing.push("--force", "main")
        assert done.returncode == 0
        assert "- stop      b" in done.stderr
        daemon.ready("a")
        assert daemon.cli("sync").stdout == f"in force: {first[:12]}\n"


@pytest.mark.slow
def test_who_pushes_is_told_what_is_held_and_by_a_trailer_what_is_not(pushing: Pushing, tmp_path: Path) -> None:
    pushing.repo.commit({f"{name}.yaml": EXTERNAL.format(name) for name in "abcd"})
    assert pushing.push().returncode == 0
    with serving(pushing.bare, tmp_path / "daemon") as daemon:
        eventually(lambda: daemon.seen("status")["catalog"]["applied"], what="the first in force")
        held = pushing.repo.commit({"a.yaml": None, "b.yaml": None, "c.yaml": None})
        assert "It would be held: removes 3 of 4 models" in pushing.push().stderr
        eventually(lambda: daemon.seen("status")["catalog"]["attempted"] == held, what="the removal held")

        pushing.repo.git("commit", "-q", "--allow-empty", "-m", "Meant\n\nLlmgw-Approve: removal")
        assert pushing.push("main:draft").returncode == 0
        assert "held" not in daemon.cli("plan", "draft", check=False).stdout, "what is there already"
        told = pushing.push().stderr
        assert "Plan for" in told
        assert "held" not in told, "what is pushed"
        newest = pushing.repo.git("rev-parse", "HEAD")
        eventually(lambda: daemon.seen("status")["catalog"]["applied"] == newest, what="the removal in force")


@pytest.mark.slow
def test_a_daemon_that_is_away_or_slow_holds_up_no_push(pushing: Pushing, tmp_path: Path) -> None:
    """One that was stopped takes connections, and does not answer."""
    first = pushing.repo.commit({"a.yaml": command("a")})
    done = pushing.push()
    assert (done.returncode, pushing.served) == (0, first)
    assert "llmgw: valid; warning: no plan can be shown: no llmgw daemon runs on" in done.stderr
    assert "llmgw: warning: no daemon could be told" in done.stderr
    with serving(pushing.bare, tmp_path / "daemon") as daemon:
        daemon.ready("a")
        assert daemon.process is not None
        daemon.process.send_signal(19)  # SIGSTOP
        try:
            second = pushing.repo.commit({"b.yaml": command("b")})
            began = time.monotonic()
            done = pushing.push()
            assert 10 < time.monotonic() - began < 60
        finally:
            daemon.process.send_signal(18)  # SIGCONT
        assert (done.returncode, pushing.served) == (0, second)
        assert "did not answer within 10 s" in done.stderr
        daemon.ready("a", "b")


def test_only_the_branch_that_is_served_is_checked(pushing: Pushing) -> None:
    pushing.repo.commit({"a.yaml": command("a")})
    pushing.repo.git("checkout", "-q", "-b", "draft")
    pushing.repo.commit({"b.yaml": INVALID})
    done = pushing.push("draft", "main")
    assert done.returncode == 0
    assert "llmgw: draft is not checked: main is what is served" in done.stderr
    assert pushing.push("draft:other", "draft:main").returncode != 0, "all or nothing"
    done = pushing.push("--delete", "main")
    assert done.returncode != 0
    assert pushing.served


@pytest.mark.parametrize("gone", ["the interpreter", "the package"])
def test_hooks_of_an_llmgw_that_is_gone_say_what_to_do(pushing: Pushing, tmp_path: Path, gone: str) -> None:
    python = tmp_path / "python"
    if gone == "the package":
        python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S "$@"\n')
        python.chmod(0o755)
    hook = pushing.bare / "hooks" / "pre-receive"
    hook.write_text(hook.read_text().replace(sys.executable, str(python)))
    pushing.repo.commit({"a.yaml": command("a")})
    done = pushing.push()
    assert (done.returncode, pushing.served) == (1, "")
    assert f"llmgw: {python} runs no llmgw any more: have one that is there do `llmgw init --bare` here" in done.stderr
    assert ("No module named 'llmgw'" in done.stderr) == (gone == "the package")


def test_who_pushes_is_told_of_submodules_which_are_not_read(pushing: Pushing, tmp_path: Path) -> None:
    inner = Repo(tmp_path / "inner")
    inner.commit({"b.yaml": INVALID})
    pushing.repo.commit({"a.yaml": command("a")})
    pushing.repo.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner.path), "more")
    pushing.repo.commit({})
    done = pushing.push()
    assert done.returncode == 0
    assert "llmgw: submodules are not read at a revision: more" in done.stderr


def test_what_a_refused_push_is_told_cannot_steer_a_terminal(pushing: Pushing) -> None:
    pushing.repo.commit({"a.yaml": "\x1b]0;owned\x07: [\n"})
    done = pushing.push()
    assert done.returncode != 0
    assert "a.yaml:1:1" in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.slow
def test_a_directory_of_the_repository_may_be_what_is_served(tmp_path: Path) -> None:
    begin_bare(tmp_path / "x.git", "prod", "home", tmp_path / "state")
    repo = Repo(tmp_path / "work")
    (repo.path / "home").mkdir()
    repo.commit({"home/a.yaml": command("a"), "broken.yaml": INVALID})
    repo.git("remote", "add", "llmgw", str(tmp_path / "x.git"))
    repo.git("push", "-q", "llmgw", "main:prod")
    repo.commit({"home/a.yaml": INVALID, "broken.yaml": None})
    with pytest.raises(subprocess.CalledProcessError) as refused:
        repo.git("push", "-q", "llmgw", "main:prod")
    assert "remote: home/a.yaml:6:13: " in refused.value.stderr


def test_a_second_init_keeps_which_directory_is_checked_and_which_daemon_is_told(tmp_path: Path) -> None:
    bare = tmp_path / "x.git"
    hook = bare / "hooks" / "pre-receive"
    command = [sys.executable, "-m", "llmgw", "init", "--bare", str(bare)]
    env = {name: value for name, value in os.environ.items() if name != "LLMGW_STATE"}
    begin_bare(bare, "prod", "clusters/my home", tmp_path / "state")
    before = hook.read_text()
    again = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert hook.read_text() == before
    assert "--path 'clusters/my home'" in again.stdout

    subprocess.run([*command, "--path", ".", "--state", str(tmp_path / "other")], check=True, env=env)
    assert "--below" not in hook.read_text()
    assert str(tmp_path / "other") in hook.read_text()


def test_a_second_init_brings_hooks_up_to_date_and_leaves_others_alone(tmp_path: Path) -> None:
    pushing = Pushing(tmp_path, tmp_path / "state")
    hook = pushing.bare / "hooks" / "pre-receive"
    hook.write_text(hook.read_text().replace("exec ", "exit 9 # exec "))
    again = run_cli("init", "--bare", str(pushing.bare), "--state", str(tmp_path / "state"))
    assert "replaced its hooks" in again.stdout
    assert "exit 9" not in hook.read_text()
    assert os.access(hook, os.X_OK)

    own = "#!/bin/sh\necho my own; exit 0\n"
    hook.write_text(own)
    with pytest.raises(TerminalError) as refused:
        begin_bare(pushing.bare, None, "", tmp_path / "state")
    assert f"{hook} is not llmgw's, and stays as it is" in str(refused.value)
    words = [sys.executable, "-P", "-m", "llmgw.cli.githook", "pre-receive", "--state", str(tmp_path / "state")]
    assert shlex.join(words) in str(refused.value)
    assert hook.read_text() == own


def test_a_users_own_hooks_path_does_not_get_around_the_check(pushing: Pushing, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".gitconfig").write_text(f"[core]\n\thooksPath = {tmp_path}/none\n[safe]\n\tdirectory = *\n")
    pushing.repo.commit({"a.yaml": INVALID})
    assert pushing.push(env={**os.environ, "HOME": str(tmp_path / "home")}).returncode != 0


def test_init_takes_no_place_that_is_something_else(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "file").touch()
    with pytest.raises(TerminalError, match="is there, and no bare repository"):
        begin_bare(tmp_path / "x", None, "", tmp_path / "state")
    assert run_cli("init", "--branch", "main", str(tmp_path / "y")).returncode == 64


def test_a_catalog_that_init_began_is_valid(tmp_path: Path) -> None:
    done = run_cli("init", str(tmp_path / "begun"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "begun" / ".git").is_dir()
    assert run_cli("validate", str(tmp_path / "begun")).returncode == 0
    with pytest.raises(TerminalError, match="already: nothing was written"):
        begin_catalog(tmp_path / "begun")


@pytest.mark.slow
def test_the_daemon_finds_a_push_that_nobody_told_it_of(pushing: Pushing, tmp_path: Path) -> None:
    daemon = Daemon(pushing.bare, tmp_path / "other")
    try:
        daemon.start()
        eventually(lambda: "has no commit yet" in (daemon.seen("status")["catalog"]["error"] or ""), what="nothing yet")
        pushing.repo.commit({"a.yaml": command("a")})
        assert pushing.push().returncode == 0
        eventually(lambda: daemon.seen("status")["catalog"]["applied"], what="the first in force")
        second = pushing.repo.commit({"a.yaml": command("a", tag="2")})
        assert "no daemon could be told" in pushing.push().stderr
        eventually(lambda: daemon.seen("status")["catalog"]["applied"] == second, within=30, what="the push in force")
    finally:
        daemon.close()
