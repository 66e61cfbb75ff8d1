"""Downloads and large caches. Writes README.md beside it.

    python bench/weights/run.py [--size BYTES] [--rounds N] [--entries N] [--folder DIR] [--write]

The same file over loopback by curl and by llmgw, in turn, so that what else the machine does falls on both alike. A
server of its own hands it out by sendfile. llmgw hashes it, makes it durable and publishes it; curl does none of that.
Then a cache of many entries: opening it, a report, `llmgw collect`. In a temporary directory below --folder, or on
/dev/shm where there is one: what is measured is llmgw, not the disk. Loopback only, some minutes.
"""

import argparse
import logging
import os
import platform
import statistics
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import structlog

sys.path.insert(0, str(Path(__file__).resolve().parent))

import fetching
import many

from llmgw.units import format_bytes

HERE = Path(__file__).resolve().parent
MEMORY = Path("/dev/shm")


def downloads(folder: Path, size: int, rounds: int) -> list[str]:
    curls, ours = fetching.measure(folder, size, rounds)
    ratio = statistics.median(curl / our for curl, our in zip(curls, ours, strict=True))
    rows = [(name, statistics.median(took), min(took)) for name, took in (("curl", curls), ("llmgw", ours))]
    lines = [f"| {format_bytes(size)} by | median, s | best, s | best rate |", "|---|---|---|---|"]
    lines += [f"| {name} | {mid:.2f} | {best:.2f} | {format_bytes(round(size / best))}/s |" for name, mid, best in rows]
    best = min(curls) / min(ours)
    return [
        *lines,
        "",
        f"llmgw at {ratio:.2f} of curl's speed (median of {rounds} pairs), {best:.2f} best against best; goal: 0.8.",
    ]


def caches(folder: Path, entries: int) -> list[str]:
    many.fill(folder, entries)
    told = many.measure(folder)
    rows = [
        ("opening it, s", f"{told['open']:.2f}"),
        ("the first report, s", f"{told['first report']:.2f}"),
        ("each of the next, s", f"{told['a report']:.2f}"),
        ("entries in a report; the others follow as these go", f"{told['told']:,.0f}"),
        ("`llmgw collect`, the admin API's answer, s", f"{told['collect']:.2f}"),
        ("memory for all of that", format_bytes(round(told["memory"]))),
        ("judging all entries, were they in one report, s", f"{many.judge(entries):.2f}"),
    ]
    return [f"| a cache of {entries:,} entries | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1 << 30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, default=MEMORY if MEMORY.is_dir() else None)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        first = downloads(Path(folder), args.size, args.rounds)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        second = caches(Path(folder), args.entries)
    load = os.getloadavg()[0]
    about = (
        f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores (load {load:.0f}), Python {platform.python_version()}."
    )
    how = "Made by `python bench/weights/run.py --write`; what is measured and how is said there."
    text = "\n".join(["# Weights", "", about, how, "", *first, "", *second, ""])
    sys.stdout.write(text)
    if args.write:
        (HERE / "README.md").write_text(text)


if __name__ == "__main__":
    main()
