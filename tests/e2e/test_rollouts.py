"""A change whose engines fail: the model, and no other, goes on as it was."""

import sys
from pathlib import Path
from typing import Any

import pytest
from harness import PLAIN_SERVER, Daemon, Repo, cluster, command, eventually, model, serving

BROKEN = [sys.executable, "-c", "import sys; sys.exit('it cannot start')"]
QUICK = cluster(name="home", recovery={"backoff": "0.1s", "backoff_cap": "0.1s", "stable": "1s"})


def row(daemon: Daemon, name: str) -> Any:
    return next(each for each in daemon.seen("models")["models"] if each["name"] == name)


def condition(daemon: Daemon, kind: str) -> Any:
    return next(each for each in daemon.seen("status")["catalog"]["conditions"] if each["type"] == kind)


def failed(daemon: Daemon, name: str, revision: str) -> Any:
    def look() -> Any:
        told = row(daemon, name)
        return told if (told["rollout_failed"] or "").startswith(revision[:12]) else None

    return eventually(look, within=40, what=f"the rollout of {revision} failed")


def test_a_broken_change_leaves_the_model_as_it_was_and_a_fix_is_rolled_out(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    good = repo.commit({"ant.yaml": command("ant"), "bee.yaml": command("bee"), "cluster.yaml": QUICK})
    with serving(repo.path, tmp_path / "home") as daemon:
        before = daemon.ready("ant", "bee")
        bad = repo.commit({"ant.yaml": command("ant", *BROKEN), "bee.yaml": command("bee", tag="2")})
        waited = daemon.cli("status", "--wait", bad[:12], "--timeout", "40s", check=False)
        assert waited.returncode == 1, "--wait"
        assert f"{bad[:12]} is stalled: RolloutFailed: ant: " in waited.stderr
        told = failed(daemon, "ant", bad)
        assert (told["state"], told["spec_revision"]) == ("ready", good)
        assert daemon.replicas()["ant"]["pid"] == before["ant"]["pid"], "it served all along"
        assert row(daemon, "bee")["spec_revision"] == bad, "the others are as the new revision has them"
        eventually(lambda: condition(daemon, "Stalled")["status"], what="stalled")
        stalled = condition(daemon, "Stalled")
        assert (stalled["reason"], stalled["observed"]) == ("RolloutFailed", bad)
        assert "ant" in stalled["message"]
        planned = daemon.cli("plan", check=False)
        assert planned.returncode == 0, "there is nothing to do"
        assert f"As before, since a rollout failed:\n  ant: {bad[:12]} failed: " in planned.stdout
        assert f"it is launched as {good[:12]} has it, until" in planned.stdout

        daemon.kill()
        daemon.start()
        assert daemon.ready("ant", "bee")["ant"]["pid"] == before["ant"]["pid"]
        assert failed(daemon, "ant", bad)["state"] == "ready", "it is not tried again by a restart"

        fixed = repo.commit({"ant.yaml": command("ant", tag="3")})
        daemon.cli("status", "--wait", fixed, "--timeout", "40s")
        assert daemon.replicas()["ant"]["pid"] != before["ant"]["pid"]
        assert row(daemon, "ant")["spec_revision"] == fixed
        eventually(lambda: condition(daemon, "Ready")["status"], what="ready")


@pytest.mark.slow
def test_a_fix_does_not_wait_for_the_back_offs_of_what_it_fixes(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    slow = cluster(name="home", recovery={"backoff": "10m", "backoff_cap": "10m"})
    repo.commit({"ant.yaml": command("ant"), "cluster.yaml": slow})
    with serving(repo.path, tmp_path / "home") as daemon:
        before = daemon.ready("ant")["ant"]
        repo.commit({"ant.yaml": command("ant", *BROKEN)})
        eventually(lambda: row(daemon, "ant")["attempts"] == 1, what="a first failure")
        repo.commit({"ant.yaml": command("ant", tag="3")})
        eventually(lambda: daemon.replicas().get("ant", before)["pid"] != before["pid"], within=30, what="the fix")


@pytest.mark.slow
def test_reset_rolls_a_failed_revision_out_again(tmp_path: Path) -> None:
    repo, flag = Repo(tmp_path / "catalog"), tmp_path / "flag"
    script = (
        f"import os, sys; os.path.exists({str(flag)!r}) or sys.exit('no flag'); os.execv(sys.argv[1], sys.argv[1:])"
    )
    waiting = [sys.executable, "-c", script, *PLAIN_SERVER]
    repo.commit({"ant.yaml": command("ant"), "cluster.yaml": QUICK})
    with serving(repo.path, tmp_path / "home") as daemon:
        before = daemon.ready("ant")["ant"]
        bad = repo.commit({"ant.yaml": command("ant", *waiting)})
        failed(daemon, "ant", bad)
        flag.touch()
        assert "rolled out again" in daemon.cli("reset", "ant").stdout
        eventually(lambda: daemon.replicas().get("ant", before)["pid"] != before["pid"], what="the new one")
        assert row(daemon, "ant")["rollout_failed"] is None


@pytest.mark.slow
def test_real_weights_that_are_broken_bring_the_real_model_back(tmp_path: Path, smollm2: Path) -> None:
    """With no room for both the old engine goes first, and is started again."""
    torn = tmp_path / "torn.gguf"
    torn.write_bytes(smollm2.read_bytes()[: 2**20])
    repo = Repo(tmp_path / "catalog")
    tight = cluster(name="home", nodes={"box": {"budget": {"host": "1GiB"}}})
    room = {"profile_more": "    memory: 700MiB"}
    good = repo.commit({"a.yaml": model("only", smollm2, **room), "cluster.yaml": tight})
    with serving(repo.path, tmp_path / "home") as daemon:
        before = daemon.ready("only")["only"]
        bad = repo.commit({"a.yaml": model("only", torn, **room)})
        told = failed(daemon, "only", bad)
        assert told["spec_revision"] == good
        after = daemon.ready("only")["only"]
        assert after["pid"] != before["pid"]
        assert "Paris" in daemon.chat("only", max_tokens=16)
