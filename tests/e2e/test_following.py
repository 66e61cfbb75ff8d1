"""The catalog's directory itself: swapped, missing, bad from the start, changed ten times in a second."""

import os
import shutil
from pathlib import Path

from harness import Daemon, Repo, command, eventually, serving


def pids(daemon: Daemon) -> dict[str, int]:
    return {model: replica["pid"] for model, replica in daemon.replicas().items()}


def release(path: Path, *models: str) -> Path:
    path.mkdir()
    for name in models:
        (path / f"{name}.yaml").write_text(command(name))
    return path


def test_a_link_that_is_swapped_leads_to_the_new_release_from_then_on(tmp_path: Path) -> None:
    link, fresh = tmp_path / "current", tmp_path / "fresh"
    link.symlink_to(release(tmp_path / "one", "a"))
    with serving(link, tmp_path / "home") as daemon:
        before = daemon.ready("a")["a"]
        second = release(tmp_path / "two", "a", "b")
        fresh.symlink_to(second)
        fresh.replace(link)
        assert daemon.ready("a", "b")["a"]["pid"] == before["pid"]
        (second / "c.yaml").write_text(command("c"))
        daemon.ready("a", "b", "c")
        (tmp_path / "one" / "d.yaml").write_text(command("d"))
        fresh.symlink_to(release(tmp_path / "three", "a"))
        fresh.replace(link)
        assert daemon.ready("a")["a"]["pid"] == before["pid"]


def test_a_directory_that_vanishes_and_comes_back_costs_no_engine(tmp_path: Path) -> None:
    catalog = release(tmp_path / "catalog", "a")
    with serving(catalog, tmp_path / "home") as daemon:
        before = daemon.ready("a")["a"]
        shutil.rmtree(catalog)
        eventually(lambda: daemon.ask("status")["catalog"]["error"], what="being told that the catalog is gone")
        assert "SourceUnavailable" in daemon.cli("status").stdout
        assert pids(daemon) == {"a": before["pid"]}
        release(catalog, "a", "b")
        assert daemon.ready("a", "b")["a"]["pid"] == before["pid"]
        for file in catalog.iterdir():  # emptied by mistake: no catalog at all, rather than one without models
            file.unlink()
        eventually(lambda: daemon.ask("status")["catalog"]["problems"], what="being told that the catalog is empty")
        assert set(pids(daemon)) == {"a", "b"}


def test_llmgw_stays_up_with_a_bad_first_catalog_and_serves_once_it_is_right(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": command("a").replace("memory", "memry")})
    with serving(repo.path, tmp_path / "home") as daemon:
        eventually(lambda: daemon.ask("status")["catalog"]["problems"], what="the problem")
        assert daemon.admin("/readyz").status_code == 503
        assert "NoCatalog" in daemon.cli("status").stdout
        refused = daemon.post(model="a", messages=[])
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
        repo.commit({"a.yaml": command("a")})
        daemon.ready("a")
        assert daemon.admin("/readyz").status_code == 200


def test_ten_commits_at_once_come_to_one_generation_of_engines(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": command("a"), "b.yaml": command("b")})
    with serving(repo.path, tmp_path / "home") as daemon:
        before = daemon.ready("a", "b")
        for number in range(10):
            revision = repo.commit({"a.yaml": command("a", tag=str(number))})

        def settled() -> bool:
            status = daemon.ask("status")["catalog"]
            return status["applied"] == status["attempted"] == revision

        eventually(settled, what="the last commit in force")

        def of_the_last() -> bool:
            now = daemon.ready("a", "b")
            assert now["b"]["pid"] == before["b"]["pid"]
            try:
                environment = Path(f"/proc/{now['a']['pid']}/environ").read_bytes()
            except OSError:  # replaced just now
                return False
            return b"TAG=9" in environment.split(b"\0")

        eventually(of_the_last, what="the engine of the last commit")
        eventually(lambda: not os.path.exists(f"/proc/{before['a']['pid']}"), what="the first engine gone")
        events = daemon.ask("events", "--limit", "1000")["events"]
        launched = [event for event in events if event["reason"] == "launched" and event["subject"] == "model/a"]
        assert len(launched) <= 4, "one at the start, one for the first commits, one for the last"
