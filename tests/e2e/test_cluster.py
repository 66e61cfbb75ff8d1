"""Controllers, agents and gateways apart: any of them dies, and what serves goes on."""

import os
import signal
import time
from pathlib import Path

import pytest
from etcds import Etcd
from fleet import Load, catalog, command, leader, pids, post, ready, running
from harness import eventually, model

from llmgw.store.election import TTL


def test_a_chat_through_each_gateway_of_a_fleet(tmp_path: Path, etcd: Etcd, smollm2: Path) -> None:
    repo = catalog(tmp_path, a=model("small", smollm2))
    with running(tmp_path / "fleet", repo.path, etcd) as fleet:
        first = fleet.controller("c1")
        second = fleet.controller("c2")
        agents = [fleet.agent(name, "--address", "127.0.0.2") for name in ("n1", "n2")]
        gateways = [fleet.gateway("g1"), fleet.gateway("g2")]
        assert ready(first, "small")["small"][0]["url"].startswith("http://127.0.0.2:")
        for gateway in gateways:
            answer = post(gateway, "small")
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["message"]["content"]
        for controller in (first, second):
            status = controller.seen("status")
            assert {(row["role"], row["name"]) for row in status["members"]} == {
                ("controller", "c1"), ("controller", "c2"), ("agent", "n1"), ("agent", "n2"),
                ("gateway", "g1"), ("gateway", "g2"),
            }  # fmt: skip
            assert [row["name"] for row in status["nodes"]] == ["n1", "n2"]
        shown = second.cli("status")
        assert "leader       c1" in shown
        assert "standbys     c2" in shown
        assert len([agent for agent in agents if agent.engines()]) == 1


def test_the_leader_is_killed_under_load_and_nothing_happens_but_a_new_leader(tmp_path: Path, etcd: Etcd) -> None:
    repo = catalog(tmp_path, a=command("a") + "scaling: {min: 2}\n", b=command("b"))
    with running(tmp_path / "fleet", repo.path, etcd) as fleet:
        first, second = fleet.controller("c1"), fleet.controller("c2")
        for name in ("n1", "n2"):
            fleet.agent(name)
        gateways = [fleet.gateway("g1"), fleet.gateway("g2")]
        eventually(lambda: len(ready(first, "a", "b")["a"]) == 2, what="two replicas of a")
        assert leader(first, second) == "c1"
        before = pids(second)
        with Load(gateways, "a") as load:
            time.sleep(1)
            first.kill()
            eventually(lambda: leader(second) == "c2", within=30, what="another leader")
            time.sleep(2)
        assert set(load.answers) == {200}, load.answers
        assert pids(second) == before, "a replica was started or stopped for it"
        repo.commit({"b.yaml": command("b", tag="new")})
        eventually(lambda: pids(second).keys() != before.keys(), what="the new leader follows the catalog")
        eventually(lambda: post(gateways[0], "b").status_code == 200, what="the changed model")
        first.start()
        assert leader(first, second) == "c2"
        assert any(event["reason"] == "leads" for event in first.seen("events")["events"])


def test_the_leader_and_every_engine_die_at_once_and_requests_wait_for_both(tmp_path: Path, etcd: Etcd) -> None:
    repo = catalog(tmp_path, a=command("a"))
    with running(tmp_path / "fleet", repo.path, etcd) as fleet:
        first, second = fleet.controller("c1"), fleet.controller("c2")
        fleet.agent("n1")
        gateway = fleet.gateway("g1")
        ready(first, "a")
        eventually(lambda: post(gateway, "a").status_code == 200, what="an answer")
        with Load([gateway], "a", threads=4) as load:
            first.kill()
            for pid in pids(second).values():
                os.kill(pid, signal.SIGKILL)
            eventually(lambda: leader(second) == "c2", within=30, what="another leader")
            ready(second, "a")
            time.sleep(1)
        assert set(load.answers) == {200}, load.answers


def test_a_leader_that_was_paused_stands_by_when_it_goes_on(tmp_path: Path, etcd: Etcd) -> None:
    repo = catalog(tmp_path, a=command("a"))
    with running(tmp_path / "fleet", repo.path, etcd) as fleet:
        first, second = fleet.controller("c1"), fleet.controller("c2")
        fleet.agent("n1")
        ready(first, "a")
        before = pids(second)
        assert first.process is not None
        first.process.send_signal(signal.SIGSTOP)
        try:
            eventually(lambda: leader(second) == "c2", within=30, what="another leader")
        finally:
            first.process.send_signal(signal.SIGCONT)
        repo.commit({"b.yaml": command("b")})
        ready(second, "a", "b")
        eventually(
            lambda: first.seen("events")["events"][-1]["reason"] and leader(first) == "c2", what="c1 standing by"
        )
        assert before.items() <= pids(second).items()
        assert len(pids(second)) == 2, "each was launched once"


@pytest.mark.parametrize("away", [20.0, pytest.param(70.0, marks=pytest.mark.slow)])
def test_etcd_is_away_for_a_while_and_what_serves_goes_on(tmp_path: Path, etcd: Etcd, away: float) -> None:
    repo = catalog(tmp_path, a=command("a") + "scaling: {min: 2}\n")
    with running(tmp_path / "fleet", repo.path, etcd) as fleet:
        controllers = [fleet.controller("c1"), fleet.controller("c2")]
        for name in ("n1", "n2"):
            fleet.agent(name)
        gateways = [fleet.gateway("g1"), fleet.gateway("g2")]
        eventually(lambda: len(ready(controllers[0], "a")["a"]) == 2, what="two replicas of a")
        before = pids(controllers[0])
        with Load(gateways, "a") as load:
            etcd.kill()
            repo.commit({"b.yaml": command("b")})
            time.sleep(away)
            etcd.start()
            ready(controllers[0], "a", "b", within=40)
            time.sleep(2)
        assert set(load.answers) == {200}, load.answers
        assert before.items() <= pids(controllers[0]).items(), "what ran was left alone"
        assert all(process.process is not None and process.process.poll() is None for process in fleet.processes)
        eventually(lambda: post(gateways[1], "b").status_code == 200, what="the gateway knows what is new")
        controllers[1].cli("stop")
        eventually(lambda: post(gateways[0], "a").status_code == 503, what="the switch")
        eventually(lambda: not pids(controllers[0]), what="no engine left")
        assert "stopped" in controllers[0].cli("status")
        controllers[0].cli("start")
        ready(controllers[1], "a", "b")


@pytest.mark.slow
def test_an_agent_that_is_killed_takes_its_engines_over_when_it_is_back(tmp_path: Path, etcd: Etcd) -> None:
    repo = catalog(tmp_path, a=command("a"))
    with running(tmp_path / "fleet", repo.path, etcd) as fleet:
        controller = fleet.controller("c1", "--node-grace", "1s")
        agent = fleet.agent("n1")
        gateway = fleet.gateway("g1")
        ready(controller, "a")
        before = pids(controller)
        agent.kill()
        assert post(gateway, "a").status_code == 200
        eventually(
            lambda: "silent       the agents of n1" in controller.cli("status"), within=30, what="its absence told"
        )
        brake = lambda: [event for event in controller.seen("events")["events"] if event["reason"] == "brake"]  # noqa: E731
        eventually(brake, within=30, what="the brake, since all nodes are silent")
        time.sleep(3)  # more than the grace: without the brake its endpoint would be withdrawn
        assert post(gateway, "a").status_code == 200
        agent.start()
        eventually(lambda: "silent" not in controller.cli("status"), what="it is back")
        assert pids(controller) == before
        assert [row["adopted"] for row in controller.seen("replicas")["replicas"]] == [True]


def test_a_node_that_is_gone_has_its_replicas_elsewhere_and_what_was_replaced_goes(tmp_path: Path, etcd: Etcd) -> None:
    pinned = "placement: {nodes: [n1]}\n"
    repo = catalog(tmp_path, a=command("a") + pinned)
    with running(tmp_path / "fleet", repo.path, etcd) as fleet:
        controller = fleet.controller("c1", "--node-grace", "3s")
        first, _second = fleet.agent("n1"), fleet.agent("n2")
        gateway = fleet.gateway("g1")
        ready(controller, "a")
        old = pids(controller)
        repo.commit({"a.yaml": command("a")})  # it may be anywhere now, and stays where it is
        eventually(lambda: controller.seen("status")["catalog"]["applied"].startswith(repo.git("rev-parse", "HEAD")))
        assert pids(controller) == old
        first.kill()
        moved = lambda: [row for row in ready(controller, "a")["a"] if row["node"] == "n2"]  # noqa: E731
        eventually(moved, within=40, what="a replica on n2")
        assert post(gateway, "a").status_code == 200
        first.start()
        eventually(lambda: not pids(controller).items() & old.items(), within=40, what="the old replica drained")
        eventually(lambda: [row["node"] for row in controller.seen("replicas")["replicas"]] == ["n2"])
        assert post(gateway, "a").status_code == 200


@pytest.mark.slow
def test_a_gateway_that_died_holds_no_drain_up(tmp_path: Path, etcd: Etcd) -> None:
    repo = catalog(tmp_path, a=command("a"), b=command("b"))
    with running(tmp_path / "fleet", repo.path, etcd) as fleet:
        controller = fleet.controller("c1")
        fleet.agent("n1")
        dead, gateway = fleet.gateway("g1"), fleet.gateway("g2")
        ready(controller, "a", "b")
        eventually(lambda: post(dead, "b").status_code == 200, what="an answer")
        dead.kill()
        repo.commit({"b.yaml": None})
        eventually(lambda: len(pids(controller)) == 1, within=30, what="the engine of b gone, without the dead's word")
        assert post(gateway, "a").status_code == 200
        assert "g1" not in controller.cli("status")


def test_a_leader_that_is_told_to_end_hands_over_at_once(tmp_path: Path, etcd: Etcd) -> None:
    repo = catalog(tmp_path, a=command("a"))
    with running(tmp_path / "fleet", repo.path, etcd) as fleet:
        first, second = fleet.controller("c1"), fleet.controller("c2")
        fleet.agent("n1")
        ready(first, "a")
        first.kill(signal.SIGTERM)
        ended = time.time()
        eventually(lambda: leader(second) == "c2", within=30, what="another leader")
        (since,) = [row["since"] for row in second.seen("members")["members"] if row["name"] == "c2"]
        assert since - ended < TTL / 2, "its lease was waited for"
        assert "c1" not in [row["name"] for row in second.seen("members")["members"]], "it says that it has left"
