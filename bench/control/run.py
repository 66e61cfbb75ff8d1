"""The control plane's costs: commit to catalog in force, and what an idle llmgw takes. Writes RESULTS.md beside it.

    python bench/control/run.py [--commits 40] [--idle 30]

Commit to in force: ten models, each a process; a commit changes one model's description; the clock runs from the
end of `git commit` to the first answer of the admin API that names the new revision as applied.
Idle: one ready model on the CPU and no requests; CPU time and memory of the llmgw process from /proc, without the
engine. A run of a minute or two, on loopback only.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import httpx

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

SERVER = """\
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("content-length", "2"); self.end_headers(); self.wfile.write(b"ok")
    def log_message(self, *_): pass
HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


class Llmgw:
    """`llmgw up` on a repository, and its admin API."""

    def __init__(self, catalog: Path, home: Path) -> None:
        self.state = home / "state"
        argv = [sys.executable, "-m", "llmgw", "up", str(catalog), "--state", str(self.state)]
        argv += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        self.log = (home / "up.log").open("wb")
        self.process = subprocess.Popen(argv, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)
        until((self.state / "admin.json").exists, 30)
        admin = json.loads((self.state / "admin.json").read_text())
        headers = {"authorization": f"Bearer {admin['token']}"}
        self.api = httpx.Client(base_url=admin["url"], headers=headers, trust_env=False)

    def applied(self) -> str | None:
        answer = self.api.get("/api/v1/status").json()
        revision: str | None = answer["catalog"]["applied"]
        return revision

    def ready(self) -> int:
        return sum(r["state"] == "ready" for r in self.api.get("/api/v1/replicas").json()["replicas"])

    def close(self) -> None:
        subprocess.run([sys.executable, "-m", "llmgw", "down", "--state", str(self.state)], check=False)
        self.process.wait(60)
        self.log.close()


def until(condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("gave up waiting; is the machine very busy?")
        time.sleep(0.01)


def git(repo: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=bench", "-c", "user.email=bench@example.org"]
    done = subprocess.run(["git", "-C", str(repo), *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(repo: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (repo / name).write_text(text)
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "change")
    return git(repo, "rev-parse", "HEAD")


def command_model(number: int, server: Path, description: str = "") -> str:
    return f"""\
apiVersion: llmgw/v1
kind: Model
name: m{number}
description: "{description}"
profiles:
  - name: p
    engine: command
    memory: 64MiB
    options:
      command: ["{sys.executable}", "-S", "{server}", "{{port}}"]
      health: /
"""


def commit_to_in_force(home: Path, commits: int) -> list[float]:
    """Seconds from the end of each `git commit` to the revision being applied."""
    repo, server = home / "catalog", home / "server.py"
    repo.mkdir(parents=True)
    server.write_text(SERVER)
    git(repo, "init", "-q")
    commit(repo, {f"m{n}.yaml": command_model(n, server) for n in range(10)})
    llmgw = Llmgw(repo, home)
    try:
        until(lambda: llmgw.ready() == 10, 120)
        times = []
        for number in range(commits):
            revision = commit(repo, {"m3.yaml": command_model(3, server, f"change {number}")})
            start = time.monotonic()
            until(lambda revision=revision: llmgw.applied() == revision, 30)
            times.append(time.monotonic() - start)
        return times
    finally:
        llmgw.close()


def idle(home: Path, seconds: float) -> tuple[float, float]:
    """Share of one core, and resident MiB, of an llmgw that serves one model nobody asks."""
    home.mkdir(parents=True)
    llmgw = Llmgw(ROOT / "catalog-examples" / "quickstart", home)
    try:
        until(lambda: llmgw.ready() == 1, 300)
        time.sleep(5)
        before = cpu_seconds(llmgw.process.pid)
        time.sleep(seconds)
        used = cpu_seconds(llmgw.process.pid) - before
        return used / seconds, resident_mib(llmgw.process.pid)
    finally:
        llmgw.close()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure llmgw's control plane.")
    parser.add_argument("--commits", type=int, default=40)
    parser.add_argument("--idle", type=float, default=30.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        times = commit_to_in_force(Path(folder) / "commits", options.commits)
        share, resident = idle(Path(folder) / "idle", options.idle)
    p50, p90 = statistics.median(times), sorted(times)[int(0.9 * (len(times) - 1))]
    table = f"""\
# Control plane

{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, Python {sys.version.split()[0]}.
Made by `python bench/control/run.py`.

| what | figure | aim |
|---|---|---|
| commit to catalog in force, ten models, no engine change, p50 of {len(times)} | {p50:.3f} s | 0.3 s |
| the same, p90 | {p90:.3f} s | |
| idle with one ready model: share of one core over {options.idle:.0f} s | {100 * share:.2f} % | 2 % |
| the same: resident memory, without the engine | {resident:.0f} MiB | 150 MB |
"""
    (HERE / "RESULTS.md").write_text(table)
    print(table)


if __name__ == "__main__":
    main()
