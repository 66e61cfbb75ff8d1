"""Anything of a fleet is killed at random, again and again, while requests flow."""

import os
import random
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import httpx
import psutil
import pytest
from etcds import Etcd
from fleet import ENGINE, MARK, Fleet, Process, command, marked, running
from harness import MESSAGES, WEB, Repo, alive, cluster, eventually

SHORT: Final = float(os.environ.get("LLMGW_SOAK_SECONDS", "60"))
"""Of the test that is not slow. CI takes longer."""

REPLICAS: Final = 2
KINDS: Final = ("controller", "agent", "gateway", "engine", "etcd")
OTHERS: Final = ("engine", "etcd")  #: what dies while the memory of all else is measured
LEAST_MEASURED: Final = 6
MOST_MEMORY: Final = 300 * 2**20
MOST_GROWTH: Final = 4 * 2**20
"""Bytes that a process may have more in the second half of its measured time than in the first."""


class Client:
    """Asks one gateway over and over. What breaks because that gateway was killed is no fault."""

    def __init__(self, gateway: Process) -> None:
        self.gateway = gateway
        self.dead = True
        self.deaths = 0
        self.answers: Counter[str] = Counter()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def dies(self) -> None:
        """To be told before the gateway is killed."""
        self.dead = True
        self.deaths += 1

    def _ask(self) -> None:
        while not self._done.is_set():
            deaths = self.deaths
            if not self.dead:
                told = self.once()
                if not (told.startswith("broken") and self.deaths > deaths):
                    self.answers[told] += 1
            time.sleep(0.03)

    def once(self) -> str:
        began = time.monotonic()
        try:
            url = f"{self.gateway.address['gateway']}/v1/chat/completions"
            answer = httpx.post(url, json={"model": "a", "messages": MESSAGES}, timeout=60, **WEB)
            return "200" if answer.status_code == 200 else answer.text
        except (httpx.HTTPError, FileNotFoundError) as error:
            return f"broken after {time.monotonic() - began:.1f} s: {error!r}"

    def close(self) -> None:
        self._done.set()
        self._thread.join(70)


class Soak:
    """One fleet, what was done to it, and what each process had of memory while it was left alone."""

    def __init__(self, fleet: Fleet, etcd: Etcd, clients: list[Client], choice: random.Random) -> None:
        self.fleet, self.etcd, self.clients, self.choice = fleet, etcd, clients, choice
        self.story: list[str] = []
        self.memory: dict[str, list[int]] = {process.name: [] for process in fleet.processes}
        self._began = time.monotonic()

    def run(self, seconds: float) -> None:
        """Each kind dies, however slow the machine. In the last third of the time nothing whose memory is measured."""
        kinds = self._dealt(KINDS)
        while self._spent() < seconds * 2 / 3 or len(self.story) < len(KINDS):
            several = [next(kinds) for _ in range(self.choice.choice((1, 1, 2)))]
            self.disturb(list(dict.fromkeys(several)))
        kinds = self._dealt(OTHERS)
        while self._spent() < seconds or len(self.memory["c1"]) < LEAST_MEASURED:
            self.disturb([next(kinds)])
            self.measure()
        self.settle()

    def _spent(self) -> float:
        return time.monotonic() - self._began

    def _dealt(self, kinds: Sequence[str]) -> Iterator[str]:
        """In random order, each as often as any other."""
        while True:
            yield from self.choice.sample(kinds, len(kinds))

    def disturb(self, kinds: list[str]) -> None:
        """Kill one of each kind at once, and start them again a little later; engines are started by llmgw itself.

        Half of the time the next disturbance comes in the middle of what this one has caused.
        """
        victims = [self.choice.choice(self.of(kind)) for kind in kinds if kind in ("controller", "agent", "gateway")]
        engines = self.ready_pids() if "engine" in kinds else []
        if "engine" in kinds and len(engines) < REPLICAS:  # one that is healthy is to remain
            self.settle()
            engines = self.ready_pids()
        self.story.append(f"{self._spent():.1f} {'+'.join(kinds)} {[each.name for each in victims]}")
        if engines:
            os.kill(self.choice.choice(engines), signal.SIGKILL)
        if "etcd" in kinds:
            self.etcd.kill()
        its = [client for client in self.clients if client.gateway in victims]
        for client in its:
            client.dies()
        for victim in victims:
            victim.kill()
        if kinds != ["engine"]:
            time.sleep(self.choice.uniform(0.1, 3))
        if "etcd" in kinds:
            self.etcd.start()
            if self.choice.random() < 0.5:
                time.sleep(self.choice.uniform(0, 0.5))
                self.etcd.compact()
        for victim in victims:
            victim.start()
        for client in its:
            client.dead = False
        if self.choice.random() < 0.5:
            time.sleep(self.choice.uniform(0, 1.5))
        else:
            self.settle()

    def settle(self) -> None:
        """Until there are as many engines as wanted, each of them ready: none is missing, none is double."""
        eventually(
            lambda: sorted(self.ready_pids()) == sorted(self.engines()) and len(self.engines()) == REPLICAS,
            within=60,
            what=f"{REPLICAS} replicas after {', '.join(self.story[-6:])}",
        )

    def of(self, role: str) -> list[Process]:
        return [process for process in self.fleet.processes if process.role == role]

    def ready_pids(self) -> list[int]:
        """Of the ready replicas; none while nobody can tell."""
        for process in self.of("controller"):
            try:
                rows = process.seen("replicas")["replicas"]
            except (httpx.HTTPError, FileNotFoundError):
                continue
            return [row["pid"] for row in rows if row["state"] == "ready" and alive(row["pid"])]
        return []

    def engines(self) -> list[int]:
        return [pid for pid, argv in marked(self.fleet).items() if ENGINE in argv]

    def measure(self) -> None:
        for process in self.fleet.processes:
            assert process.process is not None
            self.memory[process.name].append(psutil.Process(process.process.pid).memory_info().rss)

    def growth(self) -> dict[str, int]:
        """By process: how much more bytes it has in the second half of the time than in the first."""
        halves = {name: (all[: len(all) // 2], all[len(all) // 2 :]) for name, all in self.memory.items()}
        return {name: int(statistics.median(b) - statistics.median(a)) for name, (a, b) in halves.items()}


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(SHORT, marks=pytest.mark.timeout(SHORT + 300)),
        pytest.param(3600, marks=[pytest.mark.slow, pytest.mark.timeout(4500)]),
    ],
)
def test_whatever_is_killed_every_request_to_a_living_gateway_is_answered(
    tmp_path: Path, etcd: Etcd, seconds: float
) -> None:
    repo = Repo(tmp_path / "catalog")
    # Engines are killed far more often than is forgiven otherwise: none is to be given up for it.
    settings = cluster(recovery={"stable": "0.5s", "backoff": "0.1s", "backoff_cap": "1s", "quarantine_retry": "5s"})
    repo.commit({"c.yaml": settings, "a.yaml": command("a") + f"scaling: {{min: {REPLICAS}}}\n"})
    seed = int(os.environ.get("LLMGW_SOAK_SEED", random.randrange(10**6)))
    print(f"LLMGW_SOAK_SEED={seed}")
    home = tmp_path / "fleet"
    with running(home, repo.path, etcd, env={MARK: str(home)}) as fleet:
        for name in ("c1", "c2"):
            fleet.controller(name)
        for name in ("n1", "n2"):
            fleet.agent(name)
        clients = [Client(fleet.gateway(name)) for name in ("g1", "g2")]
        soak = Soak(fleet, etcd, clients, random.Random(seed))
        soak.settle()
        for client in clients:
            eventually(lambda client=client: client.once() == "200", what="a first answer")
            client.dead = False
        try:
            soak.run(seconds)
        finally:
            for client in clients:
                client.close()
            told = sum((client.answers for client in clients), Counter())
            print(f"{len(soak.story)} disturbances, answers: {told}", *soak.story, sep="\n")
        assert set(told) == {"200"}, told
        assert told["200"] > seconds
        print("bytes more:", soak.growth(), "of:", {name: all[-1:] for name, all in soak.memory.items()})
        assert max(soak.growth().values()) < MOST_GROWTH, soak.memory
        assert max(max(all) for all in soak.memory.values()) < MOST_MEMORY
        assert len(marked(fleet)) == len(fleet.processes) + REPLICAS, marked(fleet)
    eventually(lambda: not marked(fleet), within=30, what=f"nothing left over, but {marked(fleet)}")
