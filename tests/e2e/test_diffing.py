"""`llmgw diff` against a running daemon."""

import json
from pathlib import Path

from harness import Repo, cluster, command, eventually, serving


def test_what_is_in_force_is_compared_with_the_files_a_revision_and_another_directory(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    first = repo.commit({"a.yaml": command("a")})
    repo.commit({"a.yaml": command("a", tag="new")})
    with serving(repo.path, tmp_path / "home") as daemon:
        daemon.ready("a")
        assert daemon.cli("diff", check=False).returncode == 0

        older = daemon.cli("diff", "HEAD~1", "applied", "--json", check=False)
        assert older.returncode == 2, older.stderr
        value = json.loads(older.stdout)
        assert (value["old"], value["restarts"]) == (first, ["a"])
        assert [row["path"] for row in value["changes"]] == ["profiles.p.env.TAG"]

        other = tmp_path / "other"
        other.mkdir()
        (other / "b.yaml").write_text(command("b"))
        shown = daemon.cli("diff", "applied", str(other), check=False)
        assert shown.returncode == 2
        assert shown.stdout.startswith("- a  removed: its engines are ended\n+ b  added: 1 profile: p (command)\n")

        (repo.path / "b.yaml").write_text("apiVersion: [")
        eventually(lambda: daemon.cli("diff", check=False).returncode == 3, what="the invalid catalog on disk")
        assert "b.yaml:1:" in daemon.cli("diff", check=False).stdout


EASY = """\
description: other words
aliases: [another]
labels: {team: search}
priority: 7
pinned: true
fallback: b
groups: [g]
placement: {pools: [default], spread: false}
scaling:
  max: 2
  schedule: [{from: "00:00", to: "24:00", min: 1, max: 3}]
"""


def test_what_is_told_to_restart_nothing_restarts_nothing(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": command("a"), "b.yaml": command("b")})
    with serving(repo.path, tmp_path / "home") as daemon:
        before = daemon.ready("a", "b")["a"]["id"]
        more = "    memory: 2MiB\n    weight: 3\n    tier: 1\n    start_timeout: 9m\n"
        easy = command("a").replace("    memory: 1MiB\n", more)
        easy += "    degraded: {memory: 1MiB}\n" + EASY
        second = repo.commit({"a.yaml": easy, "c.yaml": cluster(name="home", time_zone="Europe/Berlin")})
        told = json.loads(daemon.cli("diff", "HEAD~1", "HEAD", "--json", check=False).stdout)
        assert told["restarts"] == []
        assert len(told["changes"]) == 18
        eventually(lambda: daemon.seen("status")["catalog"]["applied"] == second, what="the second catalog in force")
        # The plain server answers no POST; under a name that nobody has, the gateway itself would say 404.
        eventually(lambda: daemon.post(model="another", messages=[]).status_code == 501, what="the new alias")
        assert daemon.ready("a", "b")["a"]["id"] == before

        repo.commit({"a.yaml": easy.replace("memory: 2MiB", "memory: 2MiB\n    parallel: 2")})
        assert json.loads(daemon.cli("diff", "HEAD~1", "HEAD", "--json", check=False).stdout)["restarts"] == ["a"]
        eventually(lambda: daemon.ready("a", "b")["a"]["id"] != before, what="a replaced")
