"""Controllers, agents and gateways apart: any of them dies, and what serves goes on."""

import signal
import time
from pathlib import Path

import pytest
from etcds import Etcd
from fleet import Load, Process, post, ready, running
from harness import Repo, command, eventually, model, run_cli


def catalog(tmp_path: Path, **documents: str) -> Repo:
    repo = Repo(tmp_path / "catalog")
    repo.commit({f"{name}.yaml": text for name, text in documents.items()})
    return repo


def leader(*controllers: Process) -> str | None:
    for controller in controllers:
        if controller.process is not None and controller.process.poll() is None:
            rows = controller.seen("members")["members"]
            return next((row["name"] for row in rows if row["state"] == "leads"), None)
    return None


def test_a_chat_through_each_gateway_of_a_fleet(tmp_path: Path, etcd: Etcd, smollm2: Path) -> None:
    repo = catalog(tmp_path, a=model("small", smollm2))
    with running(tmp_path / "fleet", repo.path, etcd) as fleet:
        first = fleet.controller("c1")
        second = fleet.controller("c2")
        agents = [fleet.agent("n1"), fleet.agent("n2")]
        gateways = [fleet.gateway("g1"), fleet.gateway("g2")]
        ready(first, "small")
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
