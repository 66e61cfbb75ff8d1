"""A fleet whose controllers follow a git server: whoever leads follows it, and none goes back to what it saw before."""

import subprocess
from pathlib import Path

import httpx
import pytest
from etcds import Etcd
from fleet import Process, running
from git_server import git_server
from harness import WEB, Repo, cluster, eventually

SECRET = "hunter2"


def applied(controller: Process) -> str | None:
    found: str | None = controller.seen("status")["catalog"]["applied"]
    return found


def leading(controller: Process) -> list[str]:
    return [row["name"] for row in controller.seen("status")["members"] if row["state"] == "leads"]


def call(controller: Process) -> int:
    """As GitLab does."""
    return httpx.post(f"{controller.address['url']}/webhook", headers={"X-Gitlab-Token": SECRET}, **WEB).status_code


@pytest.mark.slow
def test_whoever_leads_follows_the_server_and_never_goes_back(tmp_path: Path, etcd: Etcd) -> None:
    bare = tmp_path / "served" / "catalog.git"
    bare.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(bare)], check=True)
    repo = Repo(tmp_path / "work")
    repo.git("remote", "add", "origin", str(bare))

    def push(name: str) -> str:
        commit = repo.commit({"c.yaml": cluster(name=name)})
        repo.git("push", "-q", "origin", "main")
        return commit

    first = push("one")
    with git_server(tmp_path / "served") as server:
        url = f"{server.url}/catalog.git"
        more = ("--poll", "0", "--webhook-secret-env", "HOOK_SECRET")
        with running(tmp_path / "fleet", url, etcd, env={"HOOK_SECRET": SECRET}) as fleet:  # type: ignore[arg-type]
            leads, stands_by = fleet.controller("c1", *more), fleet.controller("c2", *more)
            eventually(lambda: applied(leads) == first, what="the first in force")
            assert not (stands_by.state / "source").exists(), "only the leader fetches"

            second = push("two")
            assert call(stands_by) == 202
            eventually(lambda: applied(stands_by) == second, what="the second in force")
            assert stands_by.cli("sync") == f"in force: {second[:12]}\n"

            server.stop()
            leads.kill()
            eventually(
                lambda: "source unreachable" in (stands_by.seen("status")["catalog"]["error"] or ""), within=40,
                what="another leader that reaches nothing",
            )  # fmt: skip
            assert applied(stands_by) == second

            third = push("three")
            server.start()
            eventually(lambda: call(stands_by) == 202 and applied(stands_by) == third, what="the third in force")

            leads.start()
            stands_by.kill()
            eventually(lambda: leading(leads) == ["c1"], within=40, what="the first leads again")
            assert leads.cli("sync") == f"in force: {third[:12]}\n"
            assert [row["revision"] for row in leads.seen("history")["entries"]] == [first, second, third]
