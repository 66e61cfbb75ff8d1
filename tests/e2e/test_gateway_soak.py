"""Two hundred clients ask while engines are killed, the catalog is swapped and models move: none is the worse for it.

What is allowed to go wrong, and nothing else:

- an answer breaks off when the very engine that gives it is killed, and says so;
- a request that two engines were killed with is not sent to a third: 502 `engine_lost`;
- a name that the catalog in force does not have is unknown: 404;
- a key gets what it may.

There is a replica of each model, or soon will be, at any time: no request is refused for want of one.
"""

import json
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from etcds import Etcd
from fleet import MARK, Fleet, Process, marked, running
from harness import WEB, Repo, alive, cluster, command, eventually, model
from soak_clients import Crowd, Habit, Outcome

SHORT: Final = float(os.environ.get("LLMGW_GATEWAY_SOAK_SECONDS", "120"))
"""Of the test that is not slow."""
CLIENTS: Final = 200

ENGINE: Final = str(Path(__file__).parent.parent / "engines" / "naming_server.py")
NODES: Final = ("n1", "n2")
PLAIN: Final = ("chat", "completion", "embedding")
KINDS: Final = (*PLAIN, "chat", "stream", "stream", "slow", "leaver")

WARM: Final = 0.4
"""The share of the time until the gateway has whatever it keeps."""
MOST_MEMORY: Final = 150 * 2**20
MOST_GROWTH: Final = 8 * 2**20
"""Bytes that the gateway may have more in the second half of the time after that than in the first. In half an
hour that is a few hundred bytes for each request between the two."""


@dataclass(slots=True)
class Meaning:
    """What each name meant from `since`, when it was committed, until `until`, when the gateway knew otherwise."""

    names: Mapping[str, str]
    since: float
    until: float = float("inf")


@dataclass(slots=True)
class Journal:
    """What was done to the fleet. Times are monotonic."""

    kills: list[tuple[float, str, str]] = field(default_factory=list)  #: when, the model, the process id
    meanings: list[Meaning] = field(default_factory=list)
    story: list[str] = field(default_factory=list)

    def models(self, outcome: Outcome) -> set[str | None]:
        """Whatever the name may have meant while that request was there; None: nothing."""
        return {
            each.names.get(outcome.name)
            for each in self.meanings
            if each.since <= outcome.ended and each.until >= outcome.began
        }

    def fault(self, outcome: Outcome) -> str | None:
        """What is wrong with it, by the rules above."""
        if outcome.status == 200:
            return self._fault_of_answer(outcome)
        match outcome.status, outcome.said:
            case 0, "left":
                return None
            case 401, "invalid_api_key":
                fine = outcome.key == "none"
            case 403, "model_not_allowed":
                fine = outcome.key == "some" and outcome.name != "a"
            case 404, "model_not_found":
                fine = None in self.models(outcome)
            case 429, "rate_limit_exceeded":
                fine = outcome.key == "few" and outcome.retry_after
            case 502, "engine_lost":
                models = self.models(outcome)
                those = [at for at, model, _ in self.kills if model in models and outcome.began <= at <= outcome.ended]
                fine = len(those) > 1 and outcome.retry_after
            case _:
                fine = False
        return None if fine else "refused"

    def _fault_of_answer(self, outcome: Outcome) -> str | None:
        model, _, pid = outcome.engine.split("/")
        if outcome.key in ("none", "some") and (outcome.key, model) != ("some", "a"):
            return "answered"
        if model not in self.models(outcome):
            return "another model's answer"
        if outcome.said in ("whole", "left"):
            return None
        lost = outcome.said == "engine_lost" or (outcome.kind in PLAIN and outcome.said.startswith("cut off"))
        killed = any(at <= outcome.ended and pid == each for at, _, each in self.kills)
        return None if lost and killed else "broken off"


class Catalog:
    """The models, each change of them a commit."""

    def __init__(self, repo: Repo, weights: Path | None, choice: random.Random) -> None:
        """`weights`: of a model that a real engine serves, where there is to be one."""
        self.repo, self.weights, self.choice = repo, weights, choice
        self.tags = dict.fromkeys("abcde", 0)
        self.home = "n1"  #: of c
        self.called = "a"  #: what the alias `first` means
        self.comes = True  #: e is there
        self.number = 0

    def change(self) -> str:
        """Anything of it, by chance."""
        what = self.choice.choice(("tag", "tag", "move", "move", "alias", "comes", "words"))
        if what == "tag":
            name = self.choice.choice("abc")
            self.tags[name] += 1
            what = f"{name} is replaced"
        elif what == "move":
            self.home = NODES[self.home == "n1"]
            what = f"c moves to {self.home}"
        elif what == "alias":
            self.called = self.choice.choice([name for name in "abc" if name != self.called])
            what = f"first means {self.called}"
        elif what == "comes":
            self.comes = not self.comes
            what = f"e {'comes' if self.comes else 'goes'}"
        self.commit()
        return what

    def commit(self) -> None:
        self.number += 1
        on_demand = "scaling: {on_demand: true, idle_timeout: 3s}\n"
        files: dict[str, str | None] = {
            "a.yaml": self._model("a", "scaling: {min: 2}\n"),
            "b.yaml": self._model("b", "scaling: {min: 2}\n", "    max_requests: 6\n"),
            "c.yaml": self._model("c", f"placement: {{nodes: [{self.home}]}}\n"),
            "d.yaml": self._model("d", on_demand),
        }
        if self.comes or (self.repo.path / "e.yaml").exists():
            files["e.yaml"] = self._model("e", "") if self.comes else None
        if self.weights is not None:
            files["real.yaml"] = model("real", self.weights, parallel=2, description=str(self.number))
        self.repo.commit(files)

    def _model(self, name: str, more: str, profile: str = "") -> str:
        tag = str(self.tags[name])
        argv = command(name, sys.executable, "-S", "-E", ENGINE, "{host}", "{port}", name, tag, tag=tag) + profile
        aliases = "aliases: [first]\n" if self.called == name else ""
        return f"{argv}{aliases}description: '{self.number}'\n{more}"

    @property
    def names(self) -> Mapping[str, str]:
        models = [name for name in ("a", "b", "c", "d", "e", "real") if (self.repo.path / f"{name}.yaml").exists()]
        return {name: name for name in models} | {"first": self.called}


class Soak:
    """The fleet and what is done to it; what its gateway has of memory meanwhile."""

    def __init__(self, fleet: Fleet, catalog: Catalog, journal: Journal, choice: random.Random) -> None:
        self.fleet, self.catalog, self.journal, self.choice = fleet, catalog, journal, choice
        self.controller, self.gateway = (self.of(role)[0] for role in ("controller", "gateway"))
        self.memory: list[int] = []
        self.token = ""
        self._known: set[int] = set()  #: engines that were ready when last looked at
        self._began = time.monotonic()

    def of(self, role: str) -> list[Process]:
        return [process for process in self.fleet.processes if process.role == role]

    def key(self, name: str, *limits: str) -> str:
        token: str = json.loads(self.controller.cli("keys", "create", name, *limits, "--json"))["token"]
        return token

    def run(self, seconds: float) -> None:
        self._began = time.monotonic()
        deeds = self._dealt()
        while (spent := time.monotonic() - self._began) < seconds:
            time.sleep(self.choice.uniform(1, 3))
            next(deeds)()
            if spent > seconds * WARM:
                self.memory.append(self.process(self.gateway).memory_info().rss)

    def _dealt(self) -> Iterator[Any]:
        """In random order, each as often as any other."""
        while True:
            yield from self.choice.sample([self.kill, self.kill, self.swap, self.swap], 4)

    def kill(self) -> None:
        """One engine, which has been ready for longer than a moment: what dies at each start is given up."""
        ready = {row["pid"]: row["model"] for row in self.rows() if row["state"] == "ready"}
        if those := sorted(self._known & ready.keys()):
            pid = self.choice.choice(those)
            self.tell(f"{ready[pid]} {pid} is killed")
            self.journal.kills.append((time.monotonic(), ready[pid], str(pid)))
            with suppress(ProcessLookupError):  # one on demand, unloaded just now
                os.kill(pid, signal.SIGKILL)
        self._known = ready.keys() - self._known

    def swap(self) -> None:
        """Another catalog, and until the gateway goes by it."""
        before, since = self.journal.meanings[-1], time.monotonic()
        self.tell(self.catalog.change())
        self.journal.meanings.append(Meaning(self.catalog.names, since))
        eventually(self.known, within=30, what=f"the gateway's knowing of {self.journal.story[-1]}")
        before.until = time.monotonic()

    def known(self) -> bool:
        """Whether the gateway goes by the catalog as it is."""
        headers = {"authorization": f"Bearer {self.token}"} if self.token else {}
        answer = httpx.get(f"{self.gateway.address['gateway']}/v1/models", headers=headers, **WEB)
        listed = answer.json().get("data", [])
        names = {name: each["id"] for each in listed for name in (each["id"], *each["aliases"])}
        number = str(self.catalog.number)
        return names == self.catalog.names and {each["description"] for each in listed} == {number}

    def tell(self, what: str) -> None:
        self.journal.story.append(f"{time.monotonic() - self._began:.1f} {what}")

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.controller.seen("replicas")["replicas"]
        return rows

    def settle(self) -> None:
        """Until there are as many engines as wanted, all of them ready: none is missing, none is left over."""
        wanted = Counter({"a": 2, "b": 2} | {name: 1 for name in ("c", "e", "real") if name in self.catalog.names})

        def settled() -> bool:
            rows = [row for row in self.rows() if row["model"] != "d"]
            return all(row["state"] == "ready" for row in rows) and Counter(row["model"] for row in rows) == wanted

        eventually(settled, within=60, what=f"the wanted replicas after {', '.join(self.journal.story[-6:])}")

    @staticmethod
    def process(process: Process) -> psutil.Process:
        assert process.process is not None
        return psutil.Process(process.process.pid)

    def descriptors(self) -> dict[str, int]:
        """By role, since models move; besides the gateway's connections to engines that live."""
        found: Counter[str] = Counter()
        for each in self.fleet.processes:
            found[each.role] += self.process(each).num_fds()
        ports = {urlsplit(row["url"]).port for row in self.rows() if row["url"] and alive(row["pid"])}
        kept = [
            one
            for one in self.process(self.gateway).net_connections("tcp")
            if one.status == psutil.CONN_ESTABLISHED and one.raddr and one.raddr.port in ports
        ]
        found[self.gateway.role] -= len(kept)
        return found

    def busy(self) -> dict[str, int]:
        """Engines that work on a request still."""
        urls = {row["model"]: row["url"] for row in self.rows() if row["state"] == "ready" and row["model"] != "real"}
        told = {name: httpx.get(f"{url}/health", **WEB).json()["running"] for name, url in urls.items()}
        return {name: running for name, running in told.items() if running}

    def growth(self) -> int:
        half = len(self.memory) // 2
        return int(statistics.median(self.memory[half:]) - statistics.median(self.memory[:half]))


def habits(soak: Soak, count: int) -> list[Habit]:
    """Most may ask for everything, and keep their connection."""
    names = ("a", "a", "b", "b", "c", "e", "first")
    everything, few = soak.key("all"), soak.key("few", "--concurrency", "3")
    some = soak.key("some", "--model", "a")
    soak.token = everything
    usual = {"names": names, "kinds": KINDS, "key": "all", "token": everything, "pause": (1.0, 4.0)}
    found = [
        *(Habit(names=["a", "b"], kinds=PLAIN, key="some", token=some, pause=(2, 6)) for _ in range(5)),
        *(Habit(names=["a"], kinds=PLAIN, key="none", token="sk-of-another-place", pause=(3, 9)) for _ in range(3)),
        *(Habit(names=names, kinds=KINDS, key="few", token=few, pause=(0.5, 2)) for _ in range(8)),
        *(Habit(names=["d"], kinds=KINDS, key="all", token=everything, pause=(3, 9)) for _ in range(2)),
    ]
    if soak.catalog.weights is not None:
        found += [Habit(names=["real"], kinds=["chat", "completion"], key="all", token=everything, pause=(2, 6))] * 3
    left = count - len(found)
    return [*found, *(Habit(**usual, kept=number % 5 != 0) for number in range(left))]


@contextmanager
def soaking(tmp_path: Path, etcd: Etcd, weights: Path | None, seed: int) -> Iterator[Soak]:
    """A fleet of two nodes that has come to rest."""
    choice = random.Random(seed)
    repo = Repo(tmp_path / "catalog")
    # Engines are killed far more often than is forgiven otherwise: none is to be given up for it.
    recovery = {"stable": "0.3s", "backoff": "0.1s", "backoff_cap": "1s", "quarantine_retry": "5s"}
    repo.commit({"cluster.yaml": cluster(recovery=recovery)})
    catalog, home = Catalog(repo, weights, choice), tmp_path / "fleet"
    catalog.commit()
    with running(home, repo.path, etcd, env={MARK: str(home)}) as fleet:
        fleet.controller("c1")
        for node in NODES:
            fleet.agent(node)
        fleet.gateway("g1", "--access-log", str(tmp_path / "access.log"))
        soak = Soak(fleet, catalog, Journal(meanings=[Meaning(catalog.names, time.monotonic())]), choice)
        eventually(soak.known, what="the gateway's knowing of the catalog")
        soak.settle()
        yield soak
    eventually(lambda: not marked(fleet), within=30, what=f"nothing left over, but {marked(fleet)}")


def report(soak: Soak, outcomes: list[Outcome]) -> None:
    told = Counter((outcome.kind, outcome.status, outcome.said) for outcome in outcomes)
    print(f"{len(outcomes)} requests:", *(f"{count} {each}" for each, count in sorted(told.items())), sep="\n  ")
    print(f"{len(soak.journal.story)} disturbances:", *soak.journal.story, sep="\n  ")
    print(f"bytes more: {soak.growth()}, of {soak.memory}")


def outcome(**changes: Any) -> Outcome:
    made: dict[str, Any] = {"kind": "stream", "name": "a", "key": "all", "began": 10.0, "ended": 12.0, "said": "whole"}
    return Outcome(**{**made, "status": 200, "engine": "a/0/7", **changes})


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, None),
        ({"name": "first"}, None),
        ({"name": "first", "engine": "b/0/8"}, "another model's answer"),
        ({"name": "first", "engine": "b/0/8", "ended": 20.0}, None),  # it came to mean that meanwhile
        ({"said": "engine_lost", "engine": "a/0/9"}, None),
        ({"said": "engine_lost"}, "broken off"),
        ({"said": "5 events of 12", "engine": "a/0/9"}, "broken off"),
        ({"said": "hangs", "status": 0}, "refused"),
        ({"said": "model_loading", "status": 503, "retry_after": True}, "refused"),
        ({"said": "engine_lost", "status": 502, "retry_after": True}, "refused"),  # one engine was killed, not two
        ({"said": "model_not_found", "status": 404}, "refused"),
        ({"said": "model_not_found", "status": 404, "name": "e"}, None),
        ({"said": "rate_limit_exceeded", "status": 429, "retry_after": True}, "refused"),
        ({"said": "rate_limit_exceeded", "status": 429, "retry_after": True, "key": "few"}, None),
        ({"key": "some", "name": "b", "engine": "b/0/8"}, "answered"),
        ({"key": "none"}, "answered"),
    ],
)
def test_what_must_not_happen_is_told_from_what_may(changes: dict[str, Any], fault: str | None) -> None:
    names = {"a": "a", "b": "b", "first": "a"}
    meanings = [Meaning(names, since=0, until=16), Meaning({**names, "first": "b"}, since=15)]
    journal = Journal(kills=[(11.0, "a", "9")], meanings=meanings)
    assert journal.fault(outcome(**changes)) == fault


@pytest.mark.parametrize(
    ("seconds", "real"),
    [
        pytest.param(SHORT, False, marks=[pytest.mark.soak, pytest.mark.timeout(SHORT + 300)]),
        pytest.param(1800, True, marks=[pytest.mark.slow, pytest.mark.timeout(2400)]),
    ],
)
def test_no_request_is_lost_while_engines_are_killed_catalogs_swapped_and_models_moved(
    tmp_path: Path, etcd: Etcd, seconds: float, real: bool, request: pytest.FixtureRequest
) -> None:
    seed = int(os.environ.get("LLMGW_SOAK_SEED", random.randrange(10**6)))
    print(f"LLMGW_SOAK_SEED={seed}")
    with soaking(tmp_path, etcd, request.getfixturevalue("smollm2") if real else None, seed) as soak:
        where = urlsplit(soak.gateway.address["gateway"])
        wanted = habits(soak, CLIENTS)
        before = soak.descriptors()
        crowd = Crowd((where.hostname or "", where.port or 0), wanted, seed).start()
        try:
            soak.run(seconds)
        finally:
            outcomes = crowd.close()
            report(soak, outcomes)
        faults = [(fault, outcome) for outcome in outcomes if (fault := soak.journal.fault(outcome)) is not None]
        assert not faults, f"{len(faults)} of {len(outcomes)}: {faults[:20]}"
        assert len([outcome for outcome in outcomes if outcome.said == "whole"]) > CLIENTS * seconds / 20
        assert soak.growth() < MOST_GROWTH, soak.memory
        assert max(soak.memory) < MOST_MEMORY, soak.memory
        soak.settle()
        eventually(lambda: not soak.busy(), within=30, what="engines that work for nobody")
        eventually(
            lambda: all(count <= before[role] + 2 for role, count in soak.descriptors().items()),
            within=30,
            what=f"as many open files as before, {before}; now {soak.descriptors()}",
        )
