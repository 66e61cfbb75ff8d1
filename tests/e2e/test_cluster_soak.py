"""Anything of a fleet is killed at random, again and again, while requests flow."""

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import psutil
import pytest
from etcds import Etcd
from fleet import Fleet, Process, running
from harness import MESSAGES, WEB, Repo, alive, cluster, command, eventually

SERVER = [sys.executable, str(Path(__file__).parent.parent / "engines" / "answering_server.py"), "{host}", "{port}"]
REPLICAS = 2
MOST_MEMORY = 300 * 2**20


class Client:
    """Asks one gateway over and over. What fails while that gateway is dead, or has just died, is no fault."""

    def __init__(self, gateway: Process) -> None:
        self.gateway = gateway
        self.dead = True
        self.answers: Counter[str] = Counter()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        while not self._done.is_set():
            dead = self.dead
            if not dead:
                told = self._once()
                if not (told.startswith("broken") and self.dead):
                    self.answers[told] += 1
            time.sleep(0.03)

    def _once(self) -> str:
        try:
            url = f"{self.gateway.address['gateway']}/v1/chat/completions"
            answer = httpx.post(url, json={"model": "a", "messages": MESSAGES}, timeout=60, **WEB)
            return "200" if answer.status_code == 200 else answer.text
        except (httpx.HTTPError, FileNotFoundError) as error:
            return f"broken: {error!r}"

    def close(self) -> None:
        self._done.set()
        self._thread.join(70)


def ready_pids(fleet: Fleet) -> list[int]:
    """Of the ready replicas; none while nobody can tell."""
    for process in fleet.processes:
        if process.role == "controller" and process.process is not None and process.process.poll() is None:
            try:
                rows = process.seen("replicas")["replicas"]
            except (httpx.HTTPError, FileNotFoundError):
                continue
            return [row["pid"] for row in rows if row["state"] == "ready" and alive(row["pid"])]
    return []


def settled(fleet: Fleet, what: str) -> None:
    eventually(lambda: len(ready_pids(fleet)) == REPLICAS, within=60, what=f"{REPLICAS} replicas after {what}")


def disturb(fleet: Fleet, etcd: Etcd, clients: list[Client], choice: random.Random) -> str:
    """Kill one thing, and start it again a little later; engines are started by llmgw itself."""
    kind = choice.choice(["controller", "agent", "gateway", "engine", "etcd"])
    away = choice.uniform(0.1, 3)
    if kind == "engine":
        os.kill(choice.choice(ready_pids(fleet)), signal.SIGKILL)
        return kind
    if kind == "etcd":
        etcd.kill()
        time.sleep(away)
        etcd.start()
        return kind
    victim = choice.choice([process for process in fleet.processes if process.role == kind])
    its = [client for client in clients if client.gateway is victim]
    for client in its:
        client.dead = True
    victim.kill()
    time.sleep(away)
    victim.start()
    for client in its:
        client.dead = False
    return f"{kind} {victim.name}"


@pytest.mark.parametrize(
    "seconds",
    [
        float(os.environ.get("LLMGW_SOAK_SECONDS", "60")),
        pytest.param(3600, marks=[pytest.mark.slow, pytest.mark.timeout(4500)]),
    ],
)
def test_whatever_is_killed_every_request_to_a_living_gateway_is_answered(
    tmp_path: Path, etcd: Etcd, seconds: float
) -> None:
    repo = Repo(tmp_path / "catalog")
    # Engines are killed far more often than is forgiven otherwise: none is to be given up for it.
    settings = cluster(recovery={"stable": "0.5s", "backoff": "0.1s", "backoff_cap": "1s", "quarantine_retry": "5s"})
    repo.commit({"c.yaml": settings, "a.yaml": command("a", *SERVER) + f"scaling: {{min: {REPLICAS}}}\n"})
    seed = int(os.environ.get("LLMGW_SOAK_SEED", random.randrange(10**6)))
    print(f"LLMGW_SOAK_SEED={seed}")
    choice, story = random.Random(seed), list[str]()
    with running(tmp_path / "fleet", repo.path, etcd) as fleet:
        for name in ("c1", "c2"):
            fleet.controller(name)
        for name in ("n1", "n2"):
            fleet.agent(name)
        clients = [Client(fleet.gateway(name)) for name in ("g1", "g2")]
        settled(fleet, "the start")
        for client in clients:
            eventually(lambda client=client: client._once() == "200", what="a first answer")
            client.dead = False
        try:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                story.append(disturb(fleet, etcd, clients, choice))
                settled(fleet, ", ".join(story[-5:]))
        finally:
            for client in clients:
                client.close()
        print(f"{len(story)} disturbances: {Counter(each.split()[0] for each in story)}")
        told = sum((client.answers for client in clients), Counter())
        assert set(told) == {"200"}, (told, story)
        assert told["200"] > seconds
        assert len([pid for process in fleet.processes for pid in process.engines() if alive(pid)]) == REPLICAS
        for process in fleet.processes:
            assert process.process is not None
            assert psutil.Process(process.process.pid).memory_info().rss < MOST_MEMORY, process.name
