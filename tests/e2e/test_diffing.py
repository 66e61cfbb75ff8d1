"""`llmgw diff` against a running daemon."""

import json
from pathlib import Path

from harness import Repo, command, eventually, serving


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
