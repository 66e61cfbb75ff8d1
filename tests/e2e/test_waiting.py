"""`llmgw status --wait` for revisions that nothing serves any more, or yet: a real daemon, and pushes in a row."""

import time
from pathlib import Path

import pytest
from harness import Daemon, Repo, eventually, serving

EXTERNAL = 'apiVersion: llmgw/v1\nkind: Model\nname: one\nexternal: {url: "https://api.example.org/v1"}\n'


def waited(daemon: Daemon, revision: str, timeout: str = "40s") -> tuple[int, str, float]:
    began = time.monotonic()
    done = daemon.cli("status", "--wait", revision, "--timeout", timeout, check=False)
    return done.returncode, done.stderr, time.monotonic() - began


@pytest.mark.slow
def test_a_revision_that_was_superseded_or_invalid_ends_the_wait_at_once(tmp_path: Path) -> None:
    bare, repo = tmp_path / "catalog.git", Repo(tmp_path / "work")
    repo.git("init", "-q", "--bare", "-b", "main", str(bare))
    first = repo.commit({"a.yaml": EXTERNAL})
    repo.git("push", "-q", str(bare), "main")
    with serving(bare, tmp_path / "home") as daemon:
        assert waited(daemon, first)[0] == 0
        passed = repo.commit({"a.yaml": f"{EXTERNAL}# 2\n"})
        invalid = repo.commit({"a.yaml": EXTERNAL.replace("name", "nmae")})
        newest = repo.commit({"a.yaml": f"{EXTERNAL}# 4\n"})
        repo.git("push", "-q", str(bare), "main")
        assert waited(daemon, newest)[0] == 0
        by = f"was superseded by {newest[:12]}"
        code, told, took = waited(daemon, passed)
        assert (code, f"{passed[:12]} {by}\n" in told, took < 20) == (1, True, True), told
        code, told, took = waited(daemon, invalid[:10])
        assert (code, took < 20) == (1, True)
        assert f"{invalid[:12]} {by}; it was invalid: a.yaml:1:1: missing key 'name'" in told

        seen = repo.commit({"a.yaml": EXTERNAL.replace("external", "externl")})
        repo.git("push", "-q", str(bare), "main")
        eventually(lambda: daemon.ask("status")["catalog"]["attempted"] == seen, what="the invalid one")
        repo.git("reset", "-q", "--hard", passed)
        repo.git("push", "-q", "--force", str(bare), "main")
        assert waited(daemon, passed)[0] == 0, "it came again"
        code, told, _ = waited(daemon, seen)
        assert (code, f"{seen[:12]} was superseded by {passed[:12]}; it was invalid" in told) == (1, True), told

        aside = repo.commit({"a.yaml": f"{EXTERNAL}# 5\n"})
        code, told, _ = waited(daemon, aside, "1s")
        assert (code, f"{aside} has not come: the newest revision is {passed[:12]}" in told) == (1, True), told
