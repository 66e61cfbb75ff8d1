"""`llmgw plan` against a running daemon: what it says is what then happens. Cordons and drains of a real node."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Daemon, Repo, cluster, command, eventually, serving
from jsonschema import Draft202012Validator

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "output" / "plan.v1.schema.json").read_text())


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"a.yaml": command("a"), "b.yaml": command("b")}, "two models")
    return repo


@pytest.fixture
def daemon(repo: Repo, tmp_path: Path) -> Iterator[Daemon]:
    with serving(repo.path, tmp_path / "home") as daemon:
        daemon.ready("a", "b")
        yield daemon


def planned(daemon: Daemon, *arguments: str, code: int) -> Any:
    done = daemon.cli("plan", *arguments, "--json", check=False)
    assert done.returncode == code, done.stdout + done.stderr
    value = json.loads(done.stdout)
    Draft202012Validator(SCHEMA).validate(value)
    return value


def kinds(plan: Any) -> list[tuple[str, str]]:
    return [(action["kind"], action["model"]) for action in plan["actions"]]


def test_what_is_planned_is_what_then_happens_and_then_there_is_nothing_to_do(
    daemon: Daemon, repo: Repo, tmp_path: Path
) -> None:
    assert planned(daemon, code=0)["actions"] == []
    before = daemon.replicas()

    other = tmp_path / "other"
    other.mkdir()
    (other / "all.yaml").write_text("---\n".join([command("a", tag="new"), command("c")]))
    plan = planned(daemon, str(other), code=2)
    assert kinds(plan) == [("replace", "a"), ("stop", "b"), ("launch", "c")]
    replaced, stopped, launched = plan["actions"]
    assert replaced["stops"]["replica"] == before["a"]["id"]
    assert replaced["stops"]["reason"] == "spec changed"
    assert replaced["starts"]["node"] == launched["starts"]["node"] == "box"
    assert (stopped["stops"]["replica"], stopped["stops"]["reason"]) == (before["b"]["id"], "model removed")
    (node,) = plan["nodes"]
    assert (node["replicas_before"], node["replicas_after"]) == (2, 2)
    assert node["memory"]["before"] == node["memory"]["after"] == 2 << 20
    assert {row["model"]: row["state"] for row in plan["models"]} == {"a": "ready", "c": "ready"}

    assert daemon.replicas().keys() == {"a", "b"}, "nothing was changed"
    assert [event for event in daemon.seen("events")["events"] if event["reason"] == "stopping"] == []

    repo.commit({"a.yaml": command("a", tag="new"), "b.yaml": None, "c.yaml": command("c")})
    old = before["a"]["id"]
    eventually(lambda: daemon.ready("a", "c")["a"]["id"] != old, what="a replaced")
    eventually(lambda: len(daemon.seen("replicas")["replicas"]) == 2, what="the old ones gone")
    assert planned(daemon, code=0)["actions"] == []


def test_what_changes_routes_alone_is_told_and_restarts_nothing(daemon: Daemon, repo: Repo, tmp_path: Path) -> None:
    before = {name: row["id"] for name, row in daemon.replicas().items()}
    other = tmp_path / "other"
    other.mkdir()
    named = command("a").replace("name: a\n", "name: a\naliases: [fast]\ndescription: quick\n")
    (other / "all.yaml").write_text("---\n".join([named, command("b")]))
    plan = planned(daemon, str(other), code=2)
    assert plan["actions"] == []
    ((model, changes),) = [(row["model"], row["changes"]) for row in plan["routes"]]
    assert (model, len(changes)) == ("a", 1)
    assert "aliases" in changes[0]
    assert "fast" in changes[0]
    commit = repo.commit({"a.yaml": named})
    eventually(lambda: daemon.seen("status")["catalog"]["applied"] == commit, what="the alias in force")
    assert planned(daemon, str(other), code=0)["routes"] == []
    assert {name: row["id"] for name, row in daemon.replicas().items()} == before


def test_the_daemons_own_catalog_is_planned_as_it_stands_on_disk(daemon: Daemon, repo: Repo) -> None:
    plan = planned(daemon, code=0)
    assert (plan["source"], plan["revision"]) == (str(repo.path), plan["in_force"])
    (repo.path / "c.yaml").write_text("apiVersion: llmgw/v1\nkind: Modell\n")  # which the daemon takes in never
    refused = planned(daemon, code=3)
    assert {problem["file"] for problem in refused["problems"]} == {"c.yaml"}
    text = daemon.cli("plan", check=False)
    assert (text.returncode, "waiting for git" in text.stderr) == (3, False)
    assert "unknown kind 'Modell'; did you mean 'Model'?" in text.stdout


def test_a_plan_that_waits_for_git_says_so(daemon: Daemon, repo: Repo) -> None:
    (repo.path / "c.yaml").write_text("apiVersion: llmgw/v1\nkind: Modell\n")
    lock = repo.path / ".git" / "index.lock"
    lock.touch()
    argv = [sys.executable, "-m", "llmgw", "plan", "--state", str(daemon.state)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=daemon.env) as plan:
        assert plan.stderr is not None
        first = plan.stderr.readline()
        lock.unlink()
        plan.communicate(timeout=60)
    assert f"{lock} is there: waiting for git to finish, for 10 s at most" in first
    assert plan.returncode == 3


def test_a_revision_is_planned_from_the_daemons_repository(daemon: Daemon, repo: Repo) -> None:
    repo.commit({"c.yaml": command("c")}, "one more")
    daemon.ready("a", "b", "c")
    plan = planned(daemon, "HEAD~1", code=2)
    assert kinds(plan) == [("stop", "c")]
    assert plan["revision"] == repo.git("rev-parse", "HEAD~1")
    assert planned(daemon, "HEAD", code=0)["in_force"] == repo.git("rev-parse", "HEAD")
    missing = daemon.cli("plan", "nowhere", check=False)
    assert missing.returncode == 1
    assert "no revision 'nowhere' in the repository of" in missing.stderr


def test_files_in_place_that_only_the_new_catalog_names_are_looked_at(
    daemon: Daemon, tmp_path: Path, smollm2: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    document = f"""
apiVersion: llmgw/v1
kind: Model
name: smol
profiles:
  - {{name: cpu, engine: cpu, context: 512, weights: {{source: "file://{smollm2}"}}}}
"""
    (other / "all.yaml").write_text("---\n".join([command("a"), command("b"), document]))
    plan = planned(daemon, str(other), code=2)
    assert kinds(plan) == [("launch", "smol")]
    starts = plan["actions"][0]["starts"]
    assert (starts["footprint_source"], starts["fetch"]) == ("estimate", [])
    assert starts["host"] > 90 << 20


def test_a_cordoned_node_takes_nothing_new_and_keeps_what_it_has(daemon: Daemon, repo: Repo) -> None:
    kept = daemon.replicas()["a"]["id"]
    daemon.cli("cordon", "box")
    repo.commit({"c.yaml": command("c")})
    story = eventually(lambda: _unschedulable(daemon, "c"), what="c refused")
    assert "cordoned" in story["reason"]
    plan = planned(daemon, code=0)
    assert [row["model"] for row in plan["refused"]] == ["c"]
    assert plan["nodes"][0]["cordoned"] is True
    assert daemon.replicas()["a"]["id"] == kept
    daemon.cli("uncordon", "box")
    daemon.ready("a", "b", "c")
    subjects = [(e["subject"], e["reason"]) for e in daemon.seen("events")["events"] if e["subject"] == "node/box"]
    assert subjects == [("node/box", "cordoned"), ("node/box", "uncordoned")]


def test_a_drained_node_is_emptied_and_filled_again(daemon: Daemon) -> None:
    daemon.cli("drain", "box")
    eventually(lambda: not daemon.seen("replicas")["replicas"], what="the node empty")
    told = {row["name"]: (row["state"], row["reason"]) for row in daemon.seen("models")["models"]}
    assert told["a"] == told["b"] == ("unschedulable", told["a"][1])
    assert "cordoned" in told["a"][1]
    assert planned(daemon, code=0)["nodes"][0]["replicas_after"] == 0
    events = [(e["reason"], e["message"]) for e in daemon.seen("events")["events"]]
    assert [reason for reason, message in events if "node drained" in message] == ["stopping", "stopping"]
    daemon.cli("uncordon", "box")
    daemon.ready("a", "b")


def test_a_cordon_outlives_the_daemon(daemon: Daemon) -> None:
    daemon.cli("cordon", "box")
    daemon.kill()
    daemon.start()
    eventually(lambda: daemon.seen("nodes")["nodes"], what="the node's report")
    assert daemon.seen("nodes")["nodes"][0]["cordon"]["drain"] is False


def test_what_a_request_would_lead_to_is_told_without_one(repo: Repo, tmp_path: Path) -> None:
    lazy = command("lazy").replace("name: lazy\n", "name: lazy\nscaling: {on_demand: true}\n")
    repo.commit({"b.yaml": None, "lazy.yaml": lazy})
    with serving(repo.path, tmp_path / "home") as daemon:
        daemon.ready("a")
        assert planned(daemon, code=0)["actions"] == []
        assert kinds(planned(daemon, "--asked", "lazy", code=2)) == [("launch", "lazy")]
        assert planned(daemon, code=0)["actions"] == [], "nobody has asked"
        unknown = daemon.cli("plan", "--asked", "lasy", check=False)
        assert (unknown.returncode, unknown.stdout) == (1, "")
        assert "no model 'lasy' in the catalog; did you mean 'lazy'?" in unknown.stderr


def _unschedulable(daemon: Daemon, name: str) -> Any:
    rows = {row["name"]: row for row in daemon.seen("models")["models"]}
    return rows.get(name) if name in rows and rows[name]["state"] == "unschedulable" else None


def test_room_that_has_to_be_made_is_told_before_it_is_made(repo: Repo, tmp_path: Path) -> None:
    budget = cluster(nodes={"box": {"budget": {"host": "1500KiB"}}})
    repo.commit({"b.yaml": None, "cluster.yaml": budget.replace("1500KiB", "1536KiB")})
    with serving(repo.path, tmp_path / "home") as daemon:
        before = daemon.ready("a")["a"]["id"]
        other = tmp_path / "other"
        other.mkdir()
        first = command("first").replace("name: first\n", "name: first\npriority: 5\n")
        (other / "all.yaml").write_text("---\n".join([command("a"), first, (repo.path / "cluster.yaml").read_text()]))
        plan = planned(daemon, str(other), code=2)
        assert kinds(plan) == [("evict", "a"), ("launch", "first")]
        assert plan["actions"][0]["stops"]["replica"] == before
        assert plan["actions"][0]["number"] < plan["actions"][1]["number"]
        assert [row["model"] for row in plan["refused"]] == ["a"]
