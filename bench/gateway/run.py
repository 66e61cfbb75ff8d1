"""Compare gateways in front of the same cheap engine: CPU time per request and per 64-chunk stream, and memory.

    python bench/gateway/run.py [--seconds 5] [--rounds 2] [--only llmgw,nginx] [--write]

llmgw checks an API key, applies its limits, counts and writes an access log; the others do none of it.
nginx (which reads no body: a floor, not a rival), vllm-router (with its cheapest policy, and with the one that it has
if it is told of none) and LiteLLM take part where they are installed. The load comes from wrk. CPU time is the figure
to compare, over a gateway's whole process tree: throughput on a machine that also runs the engine and the load says
little.

Then all that are fast enough get the same rates of requests: quarters of what vllm-router can take at its cheapest
(llmgw, where it is not there), by arrivals.py: at random, whatever the answers take. What is compared is the 99th
percentile of the time that an answer takes, less that of the engine asked without a gateway. `--write` puts the tables
into RESULTS.md, and draws latency.svg.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psutil

from llmgw.cli.chart import line_chart
from llmgw.store.tokens import new_token

HERE = Path(__file__).resolve().parent
BODY = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "You are a helpful assistant."},
        {
            "role": "user",
            "content": "Hello! Which of these trains gets me to Lisbon before noon, and where do I change?",
        },
    ],
    "max_tokens": 64,
}
NGINX = """\
worker_processes 1; daemon off; pid {tmp}/nginx.pid; error_log {tmp}/nginx.err;
events {{ worker_connections 2048; }}
http {{
  access_log off; client_body_temp_path {tmp}/body; proxy_temp_path {tmp}/proxy;
  fastcgi_temp_path {tmp}/fastcgi; uwsgi_temp_path {tmp}/uwsgi; scgi_temp_path {tmp}/scgi;
  upstream engine {{ server 127.0.0.1:{upstream}; keepalive 256; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""
LITELLM = """\
model_list:
  - model_name: m
    litellm_params: {{model: openai/m, api_base: "http://127.0.0.1:{upstream}/v1", api_key: none}}
general_settings: {{disable_spend_logs: true}}
"""


TOKEN = new_token()[1]
"""An API key of llmgw's, which all contenders are sent: of them it alone looks at it."""


@dataclass(frozen=True)
class Figures:
    """One round. Times in microseconds of CPU per unit, `rate` in requests a second, `memory` in bytes."""

    rate: float
    request: float
    stream: float
    memory: int
    errors: int


@dataclass(frozen=True)
class Contender:
    """A gateway: `command(port, upstream, tmp)` starts it; None: not installed here."""

    name: str
    command: Callable[[int, int, Path], Sequence[str] | None]
    paced: bool = True  #: it can take the rates at which latency is compared


def llmgw(port: int, upstream: int, tmp: Path) -> Sequence[str]:
    return [sys.executable, str(HERE / "serve.py"), str(port), str(upstream), TOKEN, str(tmp / "access.log")]


def nginx(port: int, upstream: int, tmp: Path) -> Sequence[str] | None:
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        return None
    (tmp / "nginx.conf").write_text(NGINX.format(tmp=tmp, port=port, upstream=upstream))
    return [program, "-c", str(tmp / "nginx.conf"), "-e", str(tmp / "nginx.err")]


def vllm_router(port: int, upstream: int, tmp: Path) -> Sequence[str] | None:
    """With the cheapest of its policies."""
    command = vllm_router_by_prefix(port, upstream, tmp)
    return None if command is None else [*command, "--policy", "round_robin"]


def vllm_router_by_prefix(port: int, upstream: int, tmp: Path) -> Sequence[str] | None:
    """With the policy that it has if it is told of none: a prompt goes where its beginning was read."""
    program = _installed("vllm-router")
    if program is None:
        return None
    where = ["--worker-urls", f"http://127.0.0.1:{upstream}", "--host", "127.0.0.1", "--port", str(port)]
    return [program, *where, "--prometheus-port", str(free_port())]


def litellm(port: int, upstream: int, tmp: Path) -> Sequence[str] | None:
    program = _installed("litellm")
    if program is None:
        return None
    (tmp / "litellm.yaml").write_text(LITELLM.format(upstream=upstream))
    return [program, "--config", str(tmp / "litellm.yaml"), "--host", "127.0.0.1", "--port", str(port)]


def _installed(program: str) -> str | None:
    return shutil.which(program, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


CONTENDERS = (
    Contender("nginx", nginx),
    Contender("llmgw", llmgw),
    Contender("vllm-router", vllm_router),
    Contender("vllm-router (cache_aware)", vllm_router_by_prefix, paced=False),
    Contender("LiteLLM", litellm, paced=False),
)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextlib.contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[psutil.Process]:
    """A process for as long as the block runs. Its children end with it."""
    env = os.environ | {"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=env) as process:
        tree = psutil.Process(process.pid)
        try:
            yield tree
        finally:
            family = [*tree.children(recursive=True), tree] if process.poll() is None else []
            process.terminate()
            _, alive = psutil.wait_procs(family, timeout=3)
            for member in alive:
                member.kill()


def wait_until_answering(url: str, seconds: float) -> None:
    """Raises TimeoutError when a request is not answered with 200 by then."""
    end = time.monotonic() + seconds
    data = json.dumps(BODY).encode()
    while time.monotonic() < end:
        fields = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
        request = urllib.request.Request(url, data, fields)
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=2) as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise TimeoutError(f"nothing answers at {url}")


def cpu_seconds(tree: psutil.Process) -> float:
    members = [tree, *tree.children(recursive=True)]
    return sum(times.user + times.system for times in (member.cpu_times() for member in members))


def load(url: str, tmp: Path, *, stream: bool, connections: int, seconds: float) -> tuple[int, float, int]:
    """Run wrk: answers, answers a second, and how many of them were errors."""
    body = json.dumps(BODY | ({"stream": True} if stream else {}))
    script = tmp / "load.lua"
    script.write_text(
        f'wrk.method="POST"; wrk.headers["content-type"]="application/json"\n'
        f'wrk.headers["authorization"]="Bearer {TOKEN}"\nwrk.body={json.dumps(body)}\n'
    )
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "-s", str(script), url]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    answers, rate = re.search(r"(\d+) requests in", out), re.search(r"Requests/sec:\s*([\d.]+)", out)
    assert answers is not None, out
    assert rate is not None, out
    errors = sum(map(int, re.findall(r"Non-2xx or 3xx responses: (\d+)", out)))
    for counts in re.findall(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", out):
        errors += sum(map(int, counts))
    return int(answers.group(1)), float(rate.group(1)), errors


SHARES: Final = (0.25, 0.5, 0.75)
"""Of the rate that is too much for vllm-router."""


def percentile(url: str, *, rate: float, seconds: float) -> float:
    """Milliseconds that 99 % of the answers take at most, at so many requests a second, each at its own time."""
    command = [sys.executable, str(HERE / "arrivals.py"), url, TOKEN, f"{rate:.1f}", f"{seconds:g}"]
    out = subprocess.run(command, input=json.dumps(BODY).encode(), capture_output=True, check=True).stdout
    told = json.loads(out)
    assert told["bad"] < 0.001, told
    return float(told["p99"])


def added(
    contenders: Sequence[Contender], upstream: int, tmp: Path, rates: Sequence[float], seconds: float
) -> dict[str, list[float]]:
    """By name and rate, what a gateway adds to the 99th percentile, in milliseconds. Not negative: that is noise."""
    found: dict[str, list[float]] = {}
    for rate in rates:
        bare = percentile(f"http://127.0.0.1:{upstream}/v1/chat/completions", rate=rate, seconds=seconds)
        for contender in contenders:
            port = free_port()
            command = contender.command(port, upstream, tmp)
            if command is None:
                continue
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            with running(command, tmp / f"{contender.name}.log"):
                wait_until_answering(url, 120)
                late = percentile(url, rate=rate, seconds=seconds)
            found.setdefault(contender.name, []).append(max(0.0, late - bare))
    return found


def latency_table(
    rates: Sequence[float], rounds: Sequence[dict[str, list[float]]]
) -> tuple[str, dict[str, list[float]]]:
    """Medians over the rounds, as a table and by name."""
    names = list(rounds[0])
    medians = {
        name: [statistics.median(each[name][at] for each in rounds) for at in range(len(rates))] for name in names
    }
    lines = [f"| gateway | {' | '.join(f'at {rate:,.0f} req/s' for rate in rates)} |", "|---" * (len(rates) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(f'{value:.2f}' for value in medians[name])} |" for name in names]
    return "\n".join(lines), medians


def measure(contender: Contender, command: Sequence[str], port: int, tmp: Path, seconds: float) -> Figures:
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    with running(command, tmp / f"{contender.name}.log") as tree:
        wait_until_answering(url, 120)
        load(url, tmp, stream=False, connections=16, seconds=1)
        start = cpu_seconds(tree)
        requests, rate, errors = load(url, tmp, stream=False, connections=16, seconds=seconds)
        middle = cpu_seconds(tree)
        streams, _, more = load(url, tmp, stream=True, connections=64, seconds=seconds)
        end = cpu_seconds(tree)
        memory = sum(member.memory_info().rss for member in [tree, *tree.children(recursive=True)])
    return Figures(rate, (middle - start) / requests * 1e6, (end - middle) / streams * 1e6, memory, errors + more)


def table(found: dict[str, list[Figures]]) -> str:
    """Medians over the rounds, with what each costs in nginx's terms."""
    base = found.get("nginx")
    floor = statistics.median(f.request for f in base) if base else 0.0
    floor_stream = statistics.median(f.stream for f in base) if base else 0.0
    lines = [
        "| gateway | req/s | CPU us/request | x nginx | CPU us/stream | x nginx | RSS MB | errors |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, rounds in found.items():
        request, stream = (statistics.median(getattr(f, what) for f in rounds) for what in ("request", "stream"))
        rate, memory = statistics.median(f.rate for f in rounds), statistics.median(f.memory for f in rounds)
        ratios = [f"{value / low:.2f}" if low else "-" for value, low in ((request, floor), (stream, floor_stream))]
        cells = [name, f"{rate:,.0f}", f"{request:.1f}", ratios[0], f"{stream:,.0f}", ratios[1], f"{memory / 1e6:.0f}"]
        lines.append(f"| {' | '.join(cells)} | {sum(f.errors for f in rounds)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--write", action="store_true", help="put the table into RESULTS.md")
    chosen = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("wrk is needed: apt-get install wrk")
    only = {name.casefold() for name in chosen.only.split(",") if name}
    contenders = [each for each in CONTENDERS if not only or each.name.casefold() in only]
    busy = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as directory:
        tmp, upstream = Path(directory), free_port()
        with running([sys.executable, str(HERE / "upstream.py"), str(upstream)], tmp / "upstream.log"):
            found = costs(contenders, upstream, tmp, rounds=chosen.rounds, seconds=chosen.seconds)
            base = found.get("vllm-router") or found.get("llmgw") or []
            rates = [share * statistics.median(each.rate for each in base) for share in SHARES if base]
            paced = [each for each in contenders if each.paced]
            late = [added(paced, upstream, tmp, rates, chosen.seconds) for _ in range(chosen.rounds if rates else 0)]
    text = table(found)
    print(text)
    medians: dict[str, list[float]] = {}
    if late:
        second, medians = latency_table(rates, late)
        text += (
            "\n\nMilliseconds added to the 99th percentile, at quarters of vllm-router's rate. A pause of the whole "
            "machine counts with all that was due in it, so these differ from run to run, by as much as twofold; the "
            f"last column is near what two cores can do with engine and load beside it:\n\n{second}"
        )
        print(second)
    if chosen.write:
        write_results(text, chosen.rounds, chosen.seconds, busy)
        curves = {name: list(zip(rates, values, strict=True)) for name, values in medians.items()}
        if curves:
            title = "What a gateway adds to the 99th percentile"
            (HERE / "latency.svg").write_text(
                line_chart(curves, title=title, x_label="requests a second", y_label="ms added")
            )


def costs(
    contenders: Sequence[Contender], upstream: int, tmp: Path, *, rounds: int, seconds: float
) -> dict[str, list[Figures]]:
    found: dict[str, list[Figures]] = {}
    for number in range(rounds):  # contenders take turns, so that noise falls on all
        for contender in contenders:
            port = free_port()
            command = contender.command(port, upstream, tmp)
            if command is None:
                continue
            figures = measure(contender, command, port, tmp, seconds)
            found.setdefault(contender.name, []).append(figures)
            print(f"round {number + 1}: {contender.name}: {figures}", file=sys.stderr)
    return found


def write_results(text: str, rounds: int, seconds: float, busy: float) -> None:
    """Anew, but for what other benchmarks put under headings of their own."""
    results = HERE / "RESULTS.md"
    before = results.read_text() if results.exists() else ""
    others = re.search(r"\n## .*", before, re.DOTALL)
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    results.write_text(
        f"# Gateways side by side\n\n`python bench/gateway/run.py --rounds {rounds} --seconds {seconds:g} --write` on "
        f"{datetime.now(UTC):%Y-%m-%d}: {machine}; medians; engine and load generator on the same cores.\n"
        f"Load average before the first round, from other work: {busy:.1f}.\n"
        "Other work lowers the rates; CPU time for each unit hardly changes with it, so compare that.\n"
        "llmgw checks an API key, applies its limits, counts and writes an access log; the others do none of it.\n"
        "nginx reads no request body and knows no models: it is the floor, not a rival. vllm-router takes turns among "
        "engines; (cache_aware) is what it does if it is told nothing. An error is an answer other than 2xx, or none "
        "within wrk's 2 s.\n\n"
        f"{text}\n\n![latency](latency.svg)\n{others.group() if others else ''}"
    )


if __name__ == "__main__":
    main()
