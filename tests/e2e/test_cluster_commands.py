"""Commands over a fleet, and what each of its processes tells."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from etcds import Etcd
from fleet import Load, Process, catalog, command, pids, post, ready, running
from harness import WEB, eventually, run_cli


def test_a_node_is_drained_through_a_standby_and_no_request_is_lost(tmp_path: Path, etcd: Etcd) -> None:
    repo = catalog(tmp_path, a=command("a"))
    with running(tmp_path / "fleet", repo.path, etcd) as fleet:
        first, standby = fleet.controller("c1"), fleet.controller("c2")
        fleet.agent("n1")
        gateway = fleet.gateway("g1")
        assert ready(first, "a")["a"][0]["node"] == "n1"
        fleet.agent("n2")

        def nodes() -> list[str]:
            return [row["node"] for row in first.seen("replicas")["replicas"]]

        with Load([gateway], "a") as load:
            standby.cli("drain", "n1")
            eventually(lambda: nodes() == ["n2"], within=40, what="the replica on n2 alone")
            standby.cli("uncordon", "n1")
            standby.cli("cordon", "n2")
            repo.commit({"b.yaml": command("b")})
            assert [row["node"] for row in ready(first, "a", "b")["b"]] == ["n1"]
        assert set(load.answers) == {200}, load.answers


def test_restart_has_every_process_begin_anew_while_engines_serve(tmp_path: Path, etcd: Etcd) -> None:
    repo = catalog(tmp_path, a=command("a"))
    with running(tmp_path / "fleet", repo.path, etcd) as fleet:
        controller, _other = fleet.controller("c1"), fleet.controller("c2")
        fleet.agent("n1")
        gateway = fleet.gateway("g1")
        ready(controller, "a")
        eventually(lambda: post(gateway, "a").status_code == 200, what="an answer")
        engines, before = pids(controller), controller.seen("members")["members"]
        with Load([gateway], "a", kept=False) as load:
            done = run_cli("restart", "--state", str(controller.state), "--json")
        assert done.returncode == 0, done.stderr
        assert set(load.answers) == {200}, load.answers
        after = controller.seen("members")["members"]
        assert {row["instance"] for row in before} & {row["instance"] for row in after} == set()
        assert {row["pid"] for row in before} == {row["pid"] for row in after}, "each in its place"
        order = [line.removeprefix("restarting ") for line in done.stderr.splitlines()]
        assert order == ["agent n1", "gateway g1", "controller c2", "controller c1"]
        assert pids(controller) == engines


def two_agents(controller: Process) -> list[dict[str, Any]] | None:
    found = [row for row in controller.seen("members")["members"] if row["role"] == "agent"]
    return found if len(found) == 2 else None


@pytest.mark.slow
def test_logs_events_and_plans_are_had_from_any_controller(tmp_path: Path, etcd: Etcd) -> None:
    repo = catalog(tmp_path, a=command("a", "sh", "-c", "echo hello from the engine; exec sleep 1000"))
    with running(tmp_path / "fleet", repo.path, etcd) as fleet:
        first, second = fleet.controller("c1"), fleet.controller("c2")
        fleet.agent("n1", "--address", "127.0.0.2"), fleet.agent("n2", "--address", "127.0.0.2")
        eventually(lambda: pids(first), what="an engine")
        agents = eventually(lambda: two_agents(first), what="both agents")
        assert [row["url"].rpartition(":")[0] for row in agents] == ["http://127.0.0.2"] * 2
        for controller in (first, second):
            eventually(
                lambda controller=controller: "hello from the engine" in controller.cli("logs", "a"), what="a log"
            )
            assert "launched" in controller.cli("events")
            plan = run_cli("plan", "--state", str(controller.state))
            assert plan.returncode == 0, plan.stderr
        missing = run_cli("logs", "nothing", "--state", str(first.state))
        assert missing.returncode == 1
        assert "no model 'nothing'" in missing.stderr


def test_each_process_tells_its_own_metrics_and_the_leader_those_of_the_nodes(tmp_path: Path, etcd: Etcd) -> None:
    repo = catalog(tmp_path, a=command("a"))
    with running(tmp_path / "fleet", repo.path, etcd) as fleet:
        first, second = fleet.controller("c1"), fleet.controller("c2")
        agent, gateway = fleet.agent("n1"), fleet.gateway("g1")
        ready(first, "a")
        told = {process.name: process.get("/metrics").text for process in (first, second, agent, gateway)}
        assert all("llmgw_info" in text and "process_cpu_seconds_total" in text for text in told.values())
        assert {name for name, text in told.items() if "llmgw_node_disk_free_bytes" in text} == {"c1"}
        assert {name for name, text in told.items() if "llmgw_passes_total" in text} == {"c1"}
        assert {name for name, text in told.items() if "llmgw_gateway_connections" in text} == {"g1"}
        assert 'llmgw_agent_replicas{phase="ready"} 1.0' in told["n1"]
        assert agent.get("/api/v1/status").status_code == 404
        assert "ask a controller" in agent.get("/api/v1/status").text


@pytest.mark.slow
def test_who_does_not_belong_to_the_cluster_is_told_why(tmp_path: Path, etcd: Etcd) -> None:
    repo = catalog(tmp_path, a=command("a"))
    with running(tmp_path / "fleet", repo.path, etcd) as fleet:
        fleet.controller("c1")

        def refused(*arguments: str, home: str) -> str:
            done = run_cli("agent", "--store", fleet.store, "--state", str(tmp_path / home), "--admin", "0", *arguments)
            assert done.returncode == 1, done.stderr
            return done.stderr

        assert "--secret-file" in refused(home="none")
        open_to_all = tmp_path / "open"
        open_to_all.write_text((fleet.home / "secret").read_text())
        open_to_all.chmod(0o644)
        assert "chmod 600" in refused("--secret-file", str(open_to_all), home="open-state")
        other = tmp_path / "other"
        other.write_text("0" * 64)
        other.chmod(0o600)
        assert "not the secret of the cluster" in refused("--secret-file", str(other), home="other-state")
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "cluster-id").write_text("0123456789abcdef\n")
        secret = str(fleet.home / "secret")
        assert "belongs to the cluster 0123456789abcdef" in refused("--secret-file", secret, home="elsewhere")
        fleet.agent("n1")
        here = fleet.processes[-1]
        again = run_cli("agent", "--store", fleet.store, "--state", str(here.state), "--secret-file", secret)
        assert again.returncode == 1
        assert here.process is not None
        assert str(here.process.pid) in again.stderr, "whose state directory it is"
        twice = refused("--secret-file", secret, "--node", "n1", home="twice")
        assert "another agent named n1 runs on" in twice
        assert "give this one another name" in twice


@pytest.mark.slow
def test_a_log_is_followed_through_a_controller(tmp_path: Path, etcd: Etcd) -> None:
    said = "n=0; while true; do n=$((n+1)); echo line $n; sleep 0.2; done"
    repo = catalog(tmp_path, a=command("a", "sh", "-c", said))
    with running(tmp_path / "fleet", repo.path, etcd) as fleet:
        controller = fleet.controller("c1")
        fleet.agent("n1")
        eventually(lambda: pids(controller), what="an engine")
        url, token = controller.address["url"], controller.address["token"]
        headers = {"authorization": f"Bearer {token}"}
        asked = {"model": "a", "follow": "true", "lines": "0"}
        with httpx.stream("GET", f"{url}/api/v1/logs", params=asked, headers=headers, timeout=20, **WEB) as answer:
            lines = answer.iter_lines()
            assert [json.loads(next(lines))["text"].split()[0] for _ in range(3)] == ["line"] * 3
