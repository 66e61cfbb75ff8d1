"""Cold start through llmgw against starting the same engine by hand. Writes RESULTS.md beside it.

    python bench/coldstart/run.py [--rounds 10] [--write]

Through llmgw: `llmgw stop`, until the engine is gone; then `llmgw start` and at once a streamed request, which the
gateway holds; the clock runs from the event `launched`, which is written as the launch is decided, to the first token.
By hand: the argv that the plugin makes, /health asked every 5 ms, the same request sent to the engine itself; the
clock runs from the spawn to the first token. Both in turn, so that they share what else the machine does; the file's
pages are warm. Wants xllamacpp; llama-server's rows are left out where none is found. Loopback only.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "e2e"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import httpx
import small_model
from harness import Daemon, Repo, eventually, serving

from llmgw.engine import Engine, ProfileSpec, Slot
from llmgw.engine.api import KEY_VARIABLE
from llmgw.facts import Level
from llmgw.ids import ModelName, NodeName, ProfileName, ReplicaId
from llmgw.testing.engine_checks import free_port
from llmgw_cpu.engine import CpuEngine
from llmgw_llamacpp import binary
from llmgw_llamacpp.engine import LlamaCppEngine

REQUEST = {"model": "cold", "prompt": "One, two, three,", "max_tokens": 4, "temperature": 0, "stream": True}
ALLOWED_SHARE, ALLOWED_MORE, SHORT = 1.05, 0.150, 3.0
EVENT = "launched"


def first_token(client: httpx.Client, url: str, key: str | None = None) -> float | None:
    """When the first chunk arrived, by the wall clock; None: refused for now."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with client.stream("POST", f"{url}/v1/completions", json=REQUEST, headers=headers) as got:
        if got.status_code != 200:
            got.read()
            return None
        for line in got.iter_lines():
            if line.startswith("data: {"):
                return time.time()
    return None


def by_hand(client: httpx.Client, engine: Engine, profile: ProfileSpec, model: Path, scratch: Path) -> float:
    slot = Slot(
        replica=ReplicaId("r"), model=ModelName("cold"), node=NodeName("n"), host="127.0.0.1", port=free_port(),
        directory=scratch, files={"weights": model},
    )  # fmt: skip
    spec = engine.launch(profile, slot, Level.FULL)
    env = {**os.environ, **spec.env, **dict.fromkeys((KEY_VARIABLE, *spec.key_variables), "key")}
    with (scratch / "log").open("wb") as log:
        began = time.time()
        process = subprocess.Popen(spec.argv, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        while True:
            try:
                if client.get(f"{spec.url}/health").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.005)
        found = first_token(client, spec.url, "key")
        assert found is not None
        return found - began
    finally:
        process.kill()
        process.wait()


def through_llmgw(client: httpx.Client, daemon: Daemon) -> float:
    daemon.cli("stop")
    eventually(lambda: not daemon.ask("replicas")["replicas"], within=60, what="the engine's end")
    daemon.cli("start")
    found = eventually(lambda: first_token(client, daemon.gateway), within=60, what="an answer")
    launched = [event for event in events(daemon) if event["reason"] == EVENT and event["subject"] == "model/cold"]
    return found - float(launched[-1]["at"])


def events(daemon: Daemon) -> list[dict[str, Any]]:
    return list(daemon.ask("events")["events"])


def document(engine: Engine, profile: ProfileSpec, model: Path) -> str:
    return json.dumps(
        {
            "apiVersion": "llmgw/v1",
            "kind": "Model",
            "name": "cold",
            "profiles": [
                {
                    "name": "p", "engine": engine.name, "weights": {"source": f"file://{model}"},
                    "context": profile.context, "options": dict(profile.options),
                }
            ],
        }
    )  # fmt: skip


def compare(engine: Engine, model: Path, scratch: Path, rounds: int) -> tuple[list[float], list[float]]:
    profile = ProfileSpec(name=ProfileName("p"), engine=engine.name, context=4096, options={"threads": 1})
    repo = Repo(scratch / "catalog")
    repo.commit({"cold.yaml": document(engine, profile, model)})
    hand, gateway = [], []
    # One client for all, made beforehand: making one costs as much as a tenth of a start.
    client = httpx.Client(timeout=120, trust_env=False)
    with client, serving(repo.path, scratch / "home") as daemon:
        eventually(lambda: first_token(client, daemon.gateway), within=120, what="the first answer")
        for _ in range(rounds):
            gateway.append(through_llmgw(client, daemon))
            daemon.cli("stop")
            eventually(lambda: not daemon.ask("replicas")["replicas"], within=60, what="the engine's end")
            hand.append(by_hand(client, engine, profile, model, scratch))
            print(f"{engine.name}: by hand {hand[-1]:.3f} s, through llmgw {gateway[-1]:.3f} s", flush=True)
    return hand, gateway


def row(engine: Engine, hand: list[float], gateway: list[float]) -> str:
    alone, through = statistics.median(hand), statistics.median(gateway)
    allowed = alone + ALLOWED_MORE if alone < SHORT else alone * ALLOWED_SHARE
    met = "yes" if through <= allowed else "**no**"
    return (
        f"| `{engine.name}` | {alone:.3f} | {through:.3f} | {1000 * (through - alone):+.0f} ms "
        f"| x {through / alone:.2f} | {allowed:.3f} | {met} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--write", action="store_true", help="write RESULTS.md")
    arguments = parser.parse_args()
    load, rows = os.getloadavg()[0], []
    engines: list[Engine] = [CpuEngine(), *([LlamaCppEngine()] if binary.default() else [])]
    for engine in engines:
        with tempfile.TemporaryDirectory() as scratch:
            rows.append(row(engine, *compare(engine, small_model.smollm2(), Path(scratch), arguments.rounds)))
    text = f"""# Cold start

`python bench/coldstart/run.py --rounds {arguments.rounds} --write` on {datetime.now(UTC):%Y-%m-%d}: {os.cpu_count()} \
cores, SmolLM2-135M-Instruct Q4_1, context 4096.
From the launch decided (by hand: the spawn) to the first token; medians, in turn. Load average before: {load:.1f}.
Allowed: 1.05 x, or 150 ms more where the engine alone takes under 3 s.

| engine | by hand, s | through llmgw, s | more | ratio | allowed, s | met |
|---|---|---|---|---|---|---|
""" + "\n".join(rows)
    print(text)
    if arguments.write:
        Path(__file__).with_name("RESULTS.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
