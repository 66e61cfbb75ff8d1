"""What a fleet of a thousand nodes costs: the controller, a gateway, etcd. Writes README.md beside it.

    python bench/fleet/run.py [--nodes 1000] [--seconds 60] [--gateways 1] [--write]

A real etcd with one member, a real `llmgw controller` and real gateways without requests, and simulated agents
(agents.py) that say to etcd what real ones say, over a connection each, with heartbeats every five seconds. Each node
has two devices; 200 models with as many replicas as there are nodes are placed and become ready first. Then, for a
minute each: at rest; with another load reported by 2 % of the nodes each second; with an engine that dies on 2 % of
the nodes each second. Processor time of each process over that time, from /proc. Loopback only, about seven minutes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import httpx
import psutil
from etcds import NONE, Etcd, find_etcd

HERE = Path(__file__).resolve().parent
MODELS = 200
BEGIN, END = "<!-- figures -->", "<!-- /figures -->"

MODEL = """\
apiVersion: llmgw/v1
kind: Model
name: m{number:03}
profiles:
  - name: p
    engine: command
    devices: 1
    memory: 20GiB
    host_memory: 1GiB
    options:
      command: [serve, "{{port}}"]
scaling: {{min: {replicas}, max: {replicas}}}
"""


@dataclass(frozen=True, slots=True)
class Used:
    """Shares of one core, memory in MB, and what the controller did meanwhile."""

    shares: dict[str, float]
    resident: dict[str, float]
    passes: int
    seconds: float
    launches: int


class Fleet:
    def __init__(self, home: Path, options: argparse.Namespace, etcd: Etcd) -> None:
        self.home, self.options = home, options
        self.store = f"etcd://{etcd.target}/bench"
        self.groups: dict[str, list[psutil.Process]] = {"etcd": [psutil.Process(etcd.process.pid)]}  # type: ignore[union-attr]
        self._children: list[subprocess.Popen[bytes]] = []
        self._agents: list[subprocess.Popen[bytes]] = []

    def _spawn(self, group: str, argv: list[str], **more: object) -> subprocess.Popen[bytes]:
        log = (self.home / f"{group}.log").open("ab")
        child = subprocess.Popen(argv, **{"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, **more})  # type: ignore[call-overload]
        self._children.append(child)
        self.groups.setdefault(group, []).append(psutil.Process(child.pid))
        return child  # type: ignore[no-any-return]

    def start(self) -> None:
        catalog, nodes = self.home / "catalog", self.options.nodes
        catalog.mkdir()
        for number in range(MODELS):
            replicas = nodes // MODELS + (number < nodes % MODELS)
            if replicas:
                (catalog / f"m{number:03}.yaml").write_text(MODEL.format(number=number, replicas=replicas))
        llmgw = [sys.executable, "-m", "llmgw"]
        controller = [*llmgw, "controller", str(catalog), "--name", "c", "--store", self.store]
        self._spawn("controller", [*controller, "--state", str(self.home / "c"), "--admin", "127.0.0.1:0"])
        until((self.home / "c" / "admin.json").exists, 60)
        for number in range(self.options.gateways):
            state = self.home / f"g{number}"
            argv = [*llmgw, "gateway", "--name", f"g{number}", "--store", self.store, "--state", str(state)]
            argv += ["--secret-file", str(self.home / "c" / "secret"), "--listen", "127.0.0.1:0"]
            self._spawn("gateways", [*argv, "--admin", "127.0.0.1:0"])
        self._start_agents()
        admin = json.loads((self.home / "c" / "admin.json").read_text())
        headers = {"authorization": f"Bearer {admin['token']}"}
        self.api = httpx.Client(base_url=admin["url"], headers=headers, trust_env=False, timeout=60)
        until(lambda: self.ready() >= 0.99 * nodes, 240)

    def _start_agents(self) -> None:
        nodes, share = self.options.nodes, self.options.nodes // self.options.processes
        for number in range(self.options.processes):
            argv = [sys.executable, str(HERE / "agents.py"), self.store, "--first", str(number * share)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self._agents.append(
                self._spawn("agents", [*argv, "--count", str(share), "--over", str(nodes * 0.15)], **pipes)
            )
        for agents in self._agents:
            line = agents.stdout.readline()  # type: ignore[union-attr]
            assert line == b"ready\n", line

    def ready(self) -> int:
        """Replicas; gauges of the leader's metrics."""
        return int(self.metric("llmgw_replicas{", 'phase="ready"'))

    def metric(self, name: str, label: str = "") -> float:
        """Its samples' sum."""
        lines = self.api.get("/metrics").raise_for_status().text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and label in line)

    def tell(self, line: str) -> None:
        for agents in self._agents:
            agents.stdin.write(f"{line}\n".encode())  # type: ignore[union-attr]
            agents.stdin.flush()  # type: ignore[union-attr]

    def used(self, seconds: float) -> Used:
        before, passes, launches = self._cpu(), self.metric("llmgw_passes_total"), self.metric("llmgw_launches_total")
        spent, begun = self.metric("llmgw_pass_duration_seconds_sum"), time.monotonic()
        time.sleep(seconds)
        took, after = time.monotonic() - begun, self._cpu()
        resident = {name: sum(one.memory_info().rss for one in group) / 1e6 for name, group in self.groups.items()}
        return Used(
            {name: (after[name] - before[name]) / took for name in after},
            resident,
            int(since(passes, self.metric("llmgw_passes_total"))),
            since(spent, self.metric("llmgw_pass_duration_seconds_sum")),
            int(since(launches, self.metric("llmgw_launches_total"))),
        )

    def _cpu(self) -> dict[str, float]:
        return {name: sum(sum(one.cpu_times()[:2]) for one in group) for name, group in self.groups.items()}

    def close(self) -> None:
        for child in self._children:
            if child.poll() is not None:
                print(f"{child.args!r} ended by itself", file=sys.stderr)
                for log in self.home.glob("*.log"):
                    print(f"== {log.name}\n{log.read_text()[-2000:]}", file=sys.stderr)
            child.terminate()
        for child in self._children:
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def since(before: float, after: float) -> float:
    """Of a counter that begins anew with each term of leadership: on a busy machine a lease may be lost."""
    return after - before if after >= before else after


def until(condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("gave up waiting; is the machine very busy?")
        time.sleep(0.2)


def table(found: dict[str, Used], options: argparse.Namespace) -> str:
    load = os.getloadavg()[1]
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores (load {load:.0f}), Python {sys.version.split()[0]},"
        f" {options.nodes:,} nodes, {options.gateways} gateways.",
        f"Made by `python bench/fleet/run.py --write`. Shares of one core over {options.seconds:.0f} s.",
        "",
        "| | controller | each gateway | etcd | all simulated agents | passes | time in them | launches |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for what, used in found.items():
        share = {name: f"{100 * value:.1f} %" for name, value in used.shares.items()}
        gateway = used.shares.get("gateways", 0.0) / max(1, options.gateways)
        lines.append(
            f"| {what} | {share['controller']} | {100 * gateway:.1f} % | {share['etcd']} | {share['agents']}"
            f" | {used.passes} | {used.seconds:.1f} s | {used.launches} |"
        )
    last = found[next(reversed(found))].resident
    lines += ["", f"Resident at the end: controller {last['controller']:.0f} MB, etcd {last['etcd']:.0f} MB"]
    lines[-1] += f", gateways {last.get('gateways', 0.0):.0f} MB."
    return "\n".join(lines)


def run(home: Path, options: argparse.Namespace, etcd: Etcd) -> str:
    fleet, found = Fleet(home, options, etcd), {}
    try:
        begun = time.monotonic()
        fleet.start()
        print(f"all ready after {time.monotonic() - begun:.0f} s", {k: round(v) for k, v in fleet._cpu().items()})
        time.sleep(10)
        rate = options.nodes / 50
        for what, told in {
            "at rest": "rest",
            f"{rate:g} nodes a second report another load": f"loads {rate / options.processes}",
            f"on {rate:g} nodes a second an engine dies": f"deaths {rate / options.processes}",
        }.items():
            fleet.tell(told)
            time.sleep(3)
            found[what] = fleet.used(options.seconds)
            print(what, found[what], flush=True)
        return table(found, options)
    finally:
        fleet.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what a large fleet costs.")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2, help="that the simulated agents are in")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    binary = find_etcd()
    if binary is None:
        raise SystemExit(NONE)
    with tempfile.TemporaryDirectory() as folder:
        etcd = Etcd(binary, Path(folder)).start()
        try:
            text = run(Path(folder), options, etcd)
        finally:
            etcd.kill()
    print(text)
    if options.write:
        readme = (HERE / "README.md").read_text()
        head, tail = readme.split(BEGIN)[0], readme.split(END)[1]
        (HERE / "README.md").write_text(f"{head}{BEGIN}\n{text}\n{END}{tail}")


if __name__ == "__main__":
    main()
