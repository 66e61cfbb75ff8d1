"""A daemon tells a forge and a webhook how commits fare."""

import re
from pathlib import Path

import pytest
from etcds import Etcd
from fleet import Process, running
from forges import Call, forge
from harness import Daemon, Repo, cluster, command, eventually, serving

TOKEN = "hunter2-token"


def stated(calls: list[Call], commit: str) -> list[str]:
    """The states that the forge was given for a commit, in order."""
    return [call.json["state"] for call in calls if call.path == f"/api/v1/repos/team/catalog/statuses/{commit}"]


def heard(calls: list[Call], commit: str) -> list[str]:
    return [call.json["event"] for call in calls if call.path == "/hook" and call.json["revision"] == commit]


def test_a_forge_is_told_of_each_commit_and_a_restart_repeats_nothing(tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    with forge() as server:
        ci = {"name": "ci", "kind": "gitea", "url": server.url, "repository": "team/catalog"}
        hook = {"name": "hook", "kind": "webhook", "url": f"{server.url}/hook"}
        notify = [{**ci, "token": {"from_env": "FORGE_TOKEN"}}, hook]
        first = repo.commit({"cluster.yaml": cluster(notify=notify), "a.yaml": command("a")})
        with serving(repo.path, tmp_path / "daemon", env={"FORGE_TOKEN": TOKEN}) as daemon:
            server.wait(lambda calls: stated(calls, first) == ["pending", "success"])
            server.wait(lambda calls: heard(calls, first)[-1:] == ["ready"])

            wrong = repo.commit({"a.yaml": command("a").replace("engine: command", "engine: comand")})
            calls = server.wait(lambda calls: stated(calls, wrong) == ["failure"] and bool(heard(calls, wrong)))
            (said,) = [call.json["description"] for call in calls if call.path.endswith(f"/statuses/{wrong}")]
            assert said.startswith("a.yaml:6:13: $.profiles[0].engine: ")

            # A daemon that is killed before it noted an answer tells it again.
            eventually(lambda: sent(daemon, "ci") + sent(daemon, "hook") == len(server.calls), what="answers noted")
            begins_anew(daemon)
            last = repo.commit({"a.yaml": command("a", tag="new")})
            calls = server.wait(lambda calls: stated(calls, last)[-1:] == ["success"])
            assert stated(calls, first) == ["pending", "success"]
            assert stated(calls, wrong) == ["failure"]
            assert heard(calls, wrong) == ["invalid"]
            logged = daemon.output.read_text()
            assert TOKEN not in logged
            assert f"{server.url}/hook" not in logged, "the address of a webhook may be all that keeps strangers out"
            assert sent(daemon, "ci") in (1, 2), "pending was replaced by success, or was not"


def sent(daemon: Daemon | Process, target: str) -> int:
    metrics = daemon.get("/metrics") if isinstance(daemon, Process) else daemon.admin("/metrics")
    found = re.search(rf'llmgw_notifications_total{{outcome="sent",target="{target}"}} (\d+)', metrics.text)
    return int(found.group(1)) if found else 0


def begins_anew(daemon: Daemon) -> None:
    daemon.kill()
    daemon.start()
    daemon.ready("a")


def leads(controller: Process) -> bool:
    return [row["name"] for row in controller.seen("status")["members"] if row["state"] == "leads"] == [controller.name]


@pytest.mark.slow
def test_in_a_fleet_the_leader_tells_and_the_next_one_repeats_nothing(tmp_path: Path, etcd: Etcd) -> None:
    repo = Repo(tmp_path / "catalog")
    with forge() as server:
        ci = {"name": "ci", "kind": "gitea", "url": server.url, "repository": "team/catalog"}
        notify = [{**ci, "token": {"from_env": "FORGE_TOKEN"}}]
        first = repo.commit({"c.yaml": cluster(notify=notify)})
        with running(tmp_path / "fleet", repo.path, etcd, env={"FORGE_TOKEN": TOKEN}) as fleet:
            one, other = fleet.controller("c1"), fleet.controller("c2")
            server.wait(lambda calls: stated(calls, first)[-1:] == ["success"])
            eventually(lambda: sent(one, "ci") == len(server.calls), what="the answer noted")
            assert sent(other, "ci") == 0
            told = stated(server.calls, first)
            one.kill()
            eventually(lambda: leads(other), within=40, what="another leader")
            second = repo.commit({"c.yaml": cluster(notify=notify, protect=True)})
            calls = server.wait(lambda calls: stated(calls, second)[-1:] == ["success"])
            assert stated(calls, first) == told
