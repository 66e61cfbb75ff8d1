"""A machine of a fleet is cut off from the others, and they find together again."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from etcds import Etcd
from fleet import Fleet, Load, Process, command, ready, running
from harness import Repo, alive, cluster, eventually
from networks import HUB, Network, machines

from llmgw.gateway.silence import SILENCE

MINUTE = pytest.param(60.0, marks=pytest.mark.slow)


@contextmanager
def fleet_on(tmp_path: Path, etcd_binary: str, *names: str) -> Iterator[tuple[Network, Fleet, Repo]]:
    """A fleet whose processes of these names run each on a machine of its own; etcd and the others are on the hub."""
    repo = Repo(tmp_path / "catalog")
    repo.commit({"c.yaml": cluster()})
    with machines(*names) as network:
        arguments = ("--heartbeat-interval", "50", "--election-timeout", "500")
        etcd = Etcd(etcd_binary, tmp_path / "etcd", arguments=arguments, host=HUB).start()
        wrappers = {name: network.wrapper(name) for name in names}
        try:
            with running(tmp_path / "fleet", repo.path, etcd, wrappers=wrappers) as fleet:
                yield network, fleet, repo
        finally:
            etcd.kill()


def nodes_of(controller: Process) -> list[str]:
    """Of each ready replica."""
    return sorted(row["node"] for row in controller.seen("replicas")["replicas"] if row["state"] == "ready")


def one_on_each(repo: Repo, controller: Process) -> None:
    """To be called when both agents are there: with one alone, both replicas would be on its node."""
    repo.commit({"a.yaml": command("a") + "scaling: {min: 2}\n"})
    eventually(lambda: nodes_of(controller) == ["n1", "n2"], what="a replica on each node")


def living(*agents: Process) -> list[int]:
    return [pid for agent in agents for pid in agent.engines() if alive(pid)]


@pytest.mark.slow
@pytest.mark.parametrize("away", [SILENCE + 3, MINUTE])
def test_an_agent_that_is_cut_off_is_replaced_and_drained_when_it_is_back(
    tmp_path: Path, etcd_binary: str, away: float
) -> None:
    with fleet_on(tmp_path, etcd_binary, "n1") as (network, fleet, repo):
        controller = fleet.controller("c1", "--node-grace", "5s")
        cut, other = fleet.agent("n1"), fleet.agent("n2")
        gateway = fleet.gateway("g1")
        one_on_each(repo, controller)
        with Load([gateway], "a", threads=4) as load:
            time.sleep(1)
            network.cut("n1")
            began = time.monotonic()
            eventually(lambda: nodes_of(controller).count("n2") == 2, within=40, what="another replica on n2")
            time.sleep(max(0, away - (time.monotonic() - began)))
            assert len(living(cut)) == 1, "an engine that nobody reaches goes on all the same"
            network.heal("n1")
            eventually(lambda: not living(cut), within=40, what="what was replaced gone")
        assert set(load.answers) == {200}, load.answers
        assert load.longest < SILENCE + 2, "requests that were on their way to it waited for the network"
        eventually(lambda: nodes_of(controller) == ["n2", "n2"], what="the controller's word of it")
        assert len(living(cut, other)) == 2
        eventually(lambda: "silent" not in controller.cli("status"), what="it is back")


@pytest.mark.slow
@pytest.mark.parametrize("away", [5.0, MINUTE])
def test_a_leader_that_is_cut_off_stands_by_when_it_is_back(tmp_path: Path, etcd_binary: str, away: float) -> None:
    with fleet_on(tmp_path, etcd_binary, "c1") as (network, fleet, repo):
        first, second = fleet.controller("c1"), fleet.controller("c2")
        agents = [fleet.agent(name) for name in ("n1", "n2")]
        gateway = fleet.gateway("g1")
        one_on_each(repo, first)
        before = living(*agents)

        def leads(asked: Process, who: str) -> bool:
            return any(row["name"] == who and row["state"] == "leads" for row in asked.seen("members")["members"])

        assert leads(second, "c1")
        with Load([gateway], "a") as load:
            network.cut("c1")
            began = time.monotonic()
            eventually(lambda: leads(second, "c2"), within=30, what="another leader")
            repo.commit({"b.yaml": command("b")})
            ready(second, "a", "b")
            with network.on("c1"), pytest.raises(httpx.HTTPStatusError):  # it says nothing rather than what was
                first.seen("replicas")
            time.sleep(max(0, away - (time.monotonic() - began)))
            network.heal("c1")
            eventually(lambda: leads(first, "c2"), within=30, what="c1 knowing who leads")
            eventually(lambda: len(living(*agents)) == 3, what="each launched once")
        assert set(load.answers) == {200}, load.answers
        assert set(before) < set(living(*agents)), "a replica was stopped for it"
