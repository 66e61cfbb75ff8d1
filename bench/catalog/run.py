"""What catalogs of many models cost. Writes RESULTS.md beside it.

    python bench/catalog/run.py [--write] [--smallest 100] [--largest 10000] [--changes 15]

Cold: a process of its own reads, validates and builds models of 25 lines, each in a file of its own; CPU time of that
process after its imports, and its peak memory. One file changed: the same loader once more, one file being other.
In force: `llmgw up` on such a directory, of on-demand models that nobody asks for; the clock runs from the end of
writing one file to the last good catalog being on disk anew, which is right after it came into force. Nothing asks
the daemon anything meanwhile.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
SIZES = (100, 300, 1000, 3000, 10_000)

MODEL = """\
# yaml-language-server: $schema=../schemas/catalog.v1.schema.json
apiVersion: llmgw/v1
kind: Model
name: model-{n:05d}
description: Number {n} of many
aliases: [alias-{n:05d}]
labels: {{team: search, shelf: "{shelf}"}}
priority: {shelf}
scaling: {{on_demand: true, idle_timeout: 10m, max: 2}}
profiles:
  - name: gpu
    engine: llamacpp
    weights:
      source: https://models.example.org/m{n:05d}/Q4_K_M.gguf
      size: 4.7GiB
    context: 32768
    parallel: 4
    devices: 1
    memory: 9GiB
    options: {{flash_attn: "on"}}
    degraded: {{context: 8192}}
    minimal: {{engine: cpu, devices: 0, context: 2048, memory: 6GiB}}
  - name: cpu
    engine: cpu
    weights: {{source: /srv/models/m{n:05d}.gguf}}
    tier: 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Seconds, and MiB."""

    models: int
    read: float
    load: float
    again: float
    memory: float
    in_force: float | None = None
    cpu: float | None = None  #: of the daemon, over that time


def catalog(root: Path, models: int) -> Path:
    """A hundred directories of model files."""
    for number in range(models):
        directory = root / f"{number % 100:02d}"
        directory.mkdir(parents=True, exist_ok=True)
        text = MODEL.format(n=number, shelf=number % 100)
        (directory / f"m{number:05d}.yaml").write_text(text)
    return root


def cold(root: Path) -> dict[str, float]:
    """In this process, which has done nothing else."""
    from llmgw.catalog.load import Loader
    from llmgw.catalog.source import read_source
    from llmgw.engine.manager import find_engines
    from llmgw.weights.naming import canonical

    rules, loader = find_engines().rules(), Loader()
    started = time.process_time()
    source = read_source(root)
    read = time.process_time()
    models = len(loader.load(source, rules, canonical=canonical).catalog.models)
    loaded = time.process_time()
    name = next(iter(source.files))
    files = {**source.files, name: source.files[name].replace(b"context: 32768", b"context: 16384")}
    changed = type(source)(files=files)
    before = time.process_time()
    loader.load(changed, rules, canonical=canonical)
    again = time.process_time() - before
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"models": models, "read": read - started, "load": loaded - read, "again": again, "memory": memory}


def measured(root: Path) -> dict[str, float]:
    """`cold`, in a fresh process on one core."""
    core = min(os.sched_getaffinity(0))
    ran = subprocess.run(
        [sys.executable, __file__, "--cold", str(root)],
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        check=True,
        capture_output=True,
    )
    told: dict[str, float] = json.loads(ran.stdout)
    return told


def in_force(root: Path, home: Path, changes: int) -> tuple[float, float]:
    """Medians over so many changed files: seconds, and CPU seconds that llmgw took meanwhile."""
    state = home / "state"
    command = [sys.executable, "-m", "llmgw", "up", str(root), "--state", str(state), "--node", "bench"]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        kept = state / "last-good" / "catalog.json"
        told = [_one_change(kept, root, number, process.pid) for number in range(1, changes + 1)]
        return statistics.median(wall for wall, _ in told), statistics.median(cpu for _, cpu in told)
    finally:
        process.terminate()
        process.wait(60)


def _one_change(kept: Path, root: Path, number: int, pid: int) -> tuple[float, float]:
    before = _settled(kept)
    file = root / f"{number % 100:02d}" / f"m{number:05d}.yaml"
    file.write_text(file.read_text().replace("description: Number", "description: Once more number"))
    written, spent = time.monotonic(), _cpu(pid)
    while _stamp(kept) == before:
        time.sleep(0.002)
    return time.monotonic() - written, _cpu(pid) - spent


def _settled(kept: Path) -> int:
    """Once it has been the same for three seconds: passes over the change before are done."""
    stamp, since = _stamp(kept), time.monotonic()
    while not stamp or time.monotonic() - since < 3:
        time.sleep(0.1)
        if (now := _stamp(kept)) != stamp:
            stamp, since = now, time.monotonic()
    return stamp


def _stamp(file: Path) -> int:
    return file.stat().st_mtime_ns if file.exists() else 0


def _cpu(pid: int) -> float:
    """Of all threads, in seconds (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def write(rows: list[Row], changes: int) -> None:
    lines = [
        "# Catalogs of many models",
        "",
        f"`python bench/catalog/run.py --write` on {datetime.now(UTC):%Y-%m-%d}: Python {platform.python_version()}, "
        f"one core for loading, {os.cpu_count()} for `llmgw up`.",
        "One file a model, 25 lines each. CPU seconds of reading the files (twice, as settling wants), of loading and",
        "validating them cold, and of loading once more with one file changed; peak memory of that process. In force:",
        f"seconds from writing one file to the catalog being in force and on disk, median of {changes}, and CPU time",
        f"`llmgw up` took meanwhile. Load average of the machine then: {os.getloadavg()[1]:.1f}.",
        "",
        "| models | read | cold load | one file changed | MiB | in force | its CPU |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        told = " | " if row.in_force is None else f"{row.in_force:.2f} | {row.cpu:.2f}"
        lines.append(
            f"| {row.models:,} | {row.read:.2f} | {row.load:.2f} | {row.again:.3f} | {row.memory:.0f} | {told} |"
        )
    (HERE / "RESULTS.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--largest", type=int, default=SIZES[-1])
    parser.add_argument("--smallest", type=int, default=SIZES[0])
    parser.add_argument("--changes", type=int, default=15)
    parser.add_argument("--cold", type=Path)
    given = parser.parse_args()
    if given.cold is not None:
        print(json.dumps(cold(given.cold)))
        return
    rows = []
    for models in (size for size in SIZES if given.smallest <= size <= given.largest):
        with tempfile.TemporaryDirectory() as place:
            root = catalog(Path(place) / "catalog", models)
            told = measured(root)
            force, cpu = in_force(root, Path(place), given.changes) if given.changes else (None, None)
        rows.append(Row(**told, in_force=force, cpu=cpu))  # type: ignore[arg-type]
        print(rows[-1], flush=True)
    if given.write:
        write(rows, given.changes)


if __name__ == "__main__":
    main()
