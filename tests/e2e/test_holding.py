"""What waits for a person: removals, `sync: manual`, what is suspended, and what was gone back from."""

from pathlib import Path
from typing import Any

import pytest
from harness import Daemon, Repo, cluster, command, eventually, serving

FOUR = {f"{name}.yaml": command(name) for name in ("ant", "bee", "cat", "dog")}


def catalog(daemon: Daemon) -> Any:
    return daemon.seen("status")["catalog"]


def held(daemon: Daemon, revision: str, reason: str) -> Any:
    """Wait until that revision is held for that reason; the catalog's row."""

    def look() -> Any:
        row = catalog(daemon)
        return row if row["attempted"] == revision and row["held"] and row["held"]["reason"] == reason else None

    return eventually(look, within=30, what=f"{revision} held: {reason}")


def in_force(daemon: Daemon, revision: str) -> None:
    eventually(lambda: catalog(daemon)["applied"] == revision, within=30, what=f"{revision} in force")


def condition(daemon: Daemon, kind: str) -> Any:
    return next(row for row in catalog(daemon)["conditions"] if row["type"] == kind)


def test_a_commit_that_removes_most_models_waits_across_a_restart_until_it_is_approved(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    good = repo.commit({**FOUR, "cluster.yaml": cluster(name="home")})
    with serving(repo.path, tmp_path / "home") as daemon:
        before = daemon.ready("ant", "bee", "cat", "dog")
        bad = repo.commit({"ant.yaml": None, "bee.yaml": None, "cat.yaml": None})
        row = held(daemon, bad, "RemovalHeld")
        assert (row["applied"], row["held"]["models"]) == (good, ["ant", "bee", "cat"])
        eventually(lambda: condition(daemon, "Stalled")["status"], what="stalled")
        assert condition(daemon, "Stalled")["reason"] == "RemovalHeld"
        assert condition(daemon, "Stalled")["observed"] == bad
        told = daemon.cli("status").stdout
        assert f"llmgw approve {bad[:12]}" in told
        assert "removes 3 of 4 models in force: ant, bee, cat" in told
        assert daemon.ask("collect")["stale"] is not None, "nothing is deleted while that is open"
        assert "It would be held: removes 3 of 4 models" in daemon.cli("plan", check=False).stdout

        daemon.kill()
        daemon.start()
        held(daemon, bad, "RemovalHeld")
        after = daemon.ready("ant", "bee", "cat", "dog")
        assert {name: r["pid"] for name, r in after.items()} == {name: r["pid"] for name, r in before.items()}

        wrong = daemon.cli("approve", good, check=False)
        assert (wrong.returncode, "is not the newest revision" in wrong.stderr) == (1, True)
        assert "llmgw approve" in daemon.cli("apply", check=False).stderr
        assert f"{bad[:12]} is in force" in daemon.cli("approve", bad[:12]).stdout
        daemon.ready("dog")
        assert catalog(daemon)["held"] is None
        assert daemon.ask("approve", bad)["changed"] is False


@pytest.mark.slow
def test_a_trailer_in_a_commit_since_the_one_in_force_says_that_its_removals_are_meant(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit(FOUR)
    with serving(repo.path, tmp_path / "home") as daemon:
        daemon.ready("ant", "bee", "cat", "dog")
        repo.git("checkout", "-q", "-b", "work")
        repo.commit({"ant.yaml": None, "bee.yaml": None, "cat.yaml": None}, "Remove\n\nLlmgw-Approve: removal\n")
        repo.commit({"note.txt": "more"}, "After it")
        in_force(daemon, repo.git("rev-parse", "HEAD"))
        daemon.ready("dog")


@pytest.mark.slow
def test_what_is_protected_and_a_suspended_model_are_not_removed_unasked(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    shielded = command("bee").replace("kind: Model", "kind: Model\nprotect: true")
    good = repo.commit({**FOUR, "bee.yaml": shielded})
    with serving(repo.path, tmp_path / "home") as daemon:
        daemon.ready("ant", "bee", "cat", "dog")
        row = held(daemon, repo.commit({"bee.yaml": None}), "RemovalProtected")
        assert row["held"]["models"] == ["bee"]
        repo.git("revert", "--no-edit", "HEAD")
        eventually(lambda: catalog(daemon)["held"] is None, what="the revert is in force")

        daemon.cli("suspend", "cat")
        row = held(daemon, repo.commit({"cat.yaml": None}), "RemovalProtected")
        assert "suspended by an operator" in row["held"]["message"]
        assert row["applied"] != good
        daemon.cli("resume", "cat")
        in_force(daemon, repo.git("rev-parse", "HEAD"))
        daemon.ready("ant", "bee", "dog")


@pytest.mark.slow
def test_a_suspended_model_keeps_its_engine_through_changes_and_restarts(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"ant.yaml": command("ant"), "bee.yaml": command("bee")})
    with serving(repo.path, tmp_path / "home") as daemon:
        before = daemon.ready("ant", "bee")
        assert "left as it is" in daemon.cli("suspend", "ant").stdout
        assert daemon.ask("suspend", "ant")["changed"] is False
        changed = repo.commit({"ant.yaml": command("ant", tag="2"), "bee.yaml": command("bee", tag="2")})
        in_force(daemon, changed)
        eventually(lambda: daemon.replicas().get("bee", before["bee"])["pid"] != before["bee"]["pid"], what="bee anew")
        daemon.kill()
        daemon.start()
        assert daemon.ready("ant", "bee")["ant"]["pid"] == before["ant"]["pid"]
        (row,) = [row for row in daemon.ask("models")["models"] if row["name"] == "ant"]
        assert (row["suspended"], row["suspension"] is not None) == (True, True)
        assert "looked after again" in daemon.cli("resume", "ant").stdout
        eventually(lambda: daemon.replicas().get("ant", before["ant"])["pid"] != before["ant"]["pid"], what="ant anew")


@pytest.mark.slow
def test_a_suspended_catalog_reads_and_holds_what_comes(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"ant.yaml": command("ant")})
    with serving(repo.path, tmp_path / "home") as daemon:
        daemon.ready("ant")
        daemon.cli("suspend")
        newest = repo.commit({"bee.yaml": command("bee")})
        held(daemon, newest, "CatalogSuspended")
        assert condition(daemon, "Stalled")["status"] is False
        assert "suspended    " in daemon.cli("status").stdout
        refused = daemon.cli("approve", newest, check=False)
        assert "llmgw resume" in refused.stderr
        assert f"{newest[:12]} is next" in daemon.cli("resume").stdout
        daemon.ready("ant", "bee")


@pytest.mark.slow
def test_a_rollback_stays_across_restarts_until_resume(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    first = repo.commit({"ant.yaml": command("ant")})
    with serving(repo.path, tmp_path / "home") as daemon:
        daemon.ready("ant")
        second = repo.commit({"bee.yaml": command("bee")})
        daemon.ready("ant", "bee")
        assert f"{first[:12]} is in force" in daemon.cli("rollback").stdout
        daemon.ready("ant")
        held(daemon, second, "RolledBack")
        third = repo.commit({"cat.yaml": command("cat")})
        held(daemon, third, "RolledBack")
        daemon.kill()
        daemon.start()
        held(daemon, third, "RolledBack")
        daemon.ready("ant")
        assert f"rolled back  to {first[:12]}" in daemon.cli("status").stdout
        assert "rolled back to" in daemon.cli("rollback", first).stdout

        none = daemon.cli("rollback", check=False)
        assert "no catalog was in force before" in none.stderr
        assert "llmgw history" in daemon.cli("rollback", "feedfeed", check=False).stderr
        assert [row["revision"] for row in daemon.ask("history")["entries"]] == [first, second, first]
        daemon.cli("rollback", second[:10])
        daemon.ready("ant", "bee")
        daemon.cli("resume")
        daemon.ready("ant", "bee", "cat")
        in_force(daemon, third)


@pytest.mark.slow
def test_outside_git_a_rollback_goes_by_what_was_kept(tmp_path: Path) -> None:
    files = tmp_path / "catalog"
    files.mkdir()
    (files / "a.yaml").write_text(command("ant"))
    with serving(files, tmp_path / "home") as daemon:
        daemon.ready("ant")
        first = catalog(daemon)["applied"]
        (files / "a.yaml").write_text(command("bee"))
        daemon.ready("bee")
        daemon.cli("rollback")
        daemon.ready("ant")
        assert catalog(daemon)["applied"] == first


@pytest.mark.slow
def test_with_manual_sync_each_revision_waits_for_apply(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    first = repo.commit({"ant.yaml": command("ant"), "cluster.yaml": cluster(name="home", sync="manual")})
    with serving(repo.path, tmp_path / "home") as daemon:
        held(daemon, first, "AwaitsApply")
        assert daemon.admin("/readyz").status_code == 503
        assert f"{first[:12]} is in force" in daemon.cli("apply").stdout
        daemon.ready("ant")
        second = repo.commit({"bee.yaml": command("bee")})
        held(daemon, second, "AwaitsApply")
        daemon.kill()
        daemon.start()
        daemon.ready("ant")
        held(daemon, second, "AwaitsApply")
        assert daemon.ask("apply", second[:8])["catalog"]["applied"] == second
        daemon.ready("ant", "bee")
