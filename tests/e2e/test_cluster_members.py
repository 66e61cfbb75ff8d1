"""A fleet over an etcd of three members: any one of them may die."""

import time
from pathlib import Path

import httpx
import pytest
from etcds import Etcd, free_ports
from fleet import Load, Process, command, ready, running
from harness import Repo, eventually


class Members(list[Etcd]):
    @property
    def target(self) -> str:
        return ",".join(member.target for member in self)


def three(binary: str, directory: Path) -> Members:
    ports = free_ports(6)
    pairs = [ports[at : at + 2] for at in (0, 2, 4)]
    cluster = ",".join(f"m{number}=http://127.0.0.1:{peer}" for number, (_, peer) in enumerate(pairs))
    return Members(
        Etcd(binary, directory, name=f"m{number}", ports=pair, arguments=("--initial-cluster", cluster))
        for number, pair in enumerate(pairs)
    )


def serves(controller: Process, model: str) -> bool:
    try:
        rows = controller.seen("replicas")["replicas"]
    except httpx.HTTPStatusError:  # the members are electing a leader
        return False
    return any(row["model"] == model and row["state"] == "ready" for row in rows)


@pytest.mark.slow
def test_each_of_three_members_is_killed_in_turn_and_changes_go_on(tmp_path: Path, etcd_binary: str) -> None:
    members = three(etcd_binary, tmp_path / "etcd")
    repo = Repo(tmp_path / "catalog")
    repo.commit({"m.yaml": command("m") + "scaling: {min: 2}\n"})
    try:
        for member in members:
            member.spawn()
        for member in members:
            member.wait()
        with running(tmp_path / "fleet", repo.path, members) as fleet:
            controllers = [fleet.controller(name) for name in ("c1", "c2")]
            agents = [fleet.agent(name) for name in ("n1", "n2")]
            gateways = [fleet.gateway(name) for name in ("g1", "g2")]
            eventually(lambda: len(ready(controllers[0], "m")["m"]) == 2, what="two replicas")
            before = {pid for agent in agents for pid in agent.engines()}
            with Load(gateways, "m") as load:
                for number, member in enumerate(members):
                    member.kill()
                    name = f"x{number}"
                    repo.commit({f"{name}.yaml": command(name)})
                    for controller in controllers:
                        eventually(lambda c=controller, n=name: serves(c, n), within=60, what=f"{name} ready")
                    time.sleep(5)
                    member.start()
            assert set(load.answers) == {200}, load.answers
            after = {pid for agent in agents for pid in agent.engines()}
            assert before < after, "what ran was left alone"
            assert len(after) == 2 + len(members)
            assert all(process.process is not None and process.process.poll() is None for process in fleet.processes)
    finally:
        for member in members:
            member.kill()
