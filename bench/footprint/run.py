"""Estimated against measured memory of the llama.cpp engines. Writes the table of docs/footprints.md.

    python bench/footprint/run.py [--write]

Each setting is started, every slot is given a prompt of its full context, and the process's peak resident memory
(VmHWM: anonymous and mapped pages) is held against the estimate that placement would have used. Wants xllamacpp; the
rows of llama-server are left out where none is found. Minutes on two cores, loopback only.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "engines"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import full_context
import gguf_files
import small_model

from llmgw.engine import Engine, Level, ProfileSpec
from llmgw.ids import ProfileName
from llmgw.testing.engine_checks import EngineCase
from llmgw.units import MIB
from llmgw_cpu.engine import CpuEngine
from llmgw_llamacpp import binary
from llmgw_llamacpp.engine import LlamaCppEngine

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "footprints.md"
MARKS = ("<!-- table -->", "<!-- end of table -->")
SHARE, LEAST = 0.15, 150 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    engine: Engine
    what: str
    profile: ProfileSpec
    files: dict[str, Path]


def profile(engine: Engine, context: int, parallel: int, **options: Any) -> ProfileSpec:
    return ProfileSpec(
        name=ProfileName("p"), engine=engine.name, context=context, parallel=parallel, options={"threads": 1, **options}
    )


def settings(model: Path, scratch: Path) -> Iterator[Setting]:
    both = [
        (4096, 1, {}, "f16 cache"),
        (1024, 4, {}, "f16 cache"),
        (2048, 2, {"cache_type_k": "q8_0", "cache_type_v": "q8_0", "flash_attn": "on"}, "q8_0 cache"),
        (2048, 1, {"ubatch_size": 1024}, "ubatch_size 1024"),
        (2048, 1, {"flash_attn": "off"}, "without flash attention"),
        (512, 1, {"embeddings": True, "pooling": "mean"}, "embeddings"),
    ]
    engines: list[Engine] = [CpuEngine(), *([LlamaCppEngine()] if binary.default() else [])]
    for engine in engines:
        for context, parallel, options, what in both:
            chosen = profile(engine, context, parallel, **options)
            yield Setting(engine=engine, what=what, profile=chosen, files={"weights": model})
        repacked = {"weights": gguf_files.requantised(model, scratch / "q4_0.gguf")}
        chosen = profile(engine, 2048, 1)
        yield Setting(engine=engine, what="Q4_0 weights, which it repacks", profile=chosen, files=repacked)
    if binary.default():
        engine = LlamaCppEngine()
        first, *_ = gguf_files.split(model, scratch, 3)
        adapter = gguf_files.adapter(scratch / "lora.gguf", rank=64)
        chosen = profile(engine, 1024, 2)
        yield Setting(engine=engine, what="itself as draft", profile=chosen, files={"weights": model, "draft": model})
        beside = {"weights": first, "lora": adapter}
        yield Setting(engine=engine, what="three files, and a LoRA adapter", profile=chosen, files=beside)
        chosen = profile(engine, 2048, 1, mmap=False)
        yield Setting(engine=engine, what="weights copied, not mapped", profile=chosen, files={"weights": model})


async def measure(setting: Setting) -> tuple[int, int]:
    """Estimated and measured bytes."""
    facts = {role: full_context.fact(path) for role, path in setting.files.items()}
    estimate = setting.engine.footprint(setting.profile, facts, Level.FULL)
    assert estimate is not None
    case = EngineCase(engine=setting.engine, profile=setting.profile, files=setting.files)
    with tempfile.TemporaryDirectory() as scratch:
        return estimate.host, await full_context.peak_memory(case, Path(scratch))


def row(setting: Setting, estimate: int, peak: int) -> str:
    chosen, off = setting.profile, estimate - peak
    within = abs(off) <= max(SHARE * peak, LEAST)
    return (
        f"| `{setting.engine.name}` | {chosen.context} x {chosen.parallel} | {setting.what} | {estimate / MIB:.0f} "
        f"| {peak / MIB:.0f} | {off / MIB:+.0f} ({off / peak:+.0%}) | {'yes' if within else '**no**'} |"
    )


def table(rows: list[str]) -> str:
    versions = [f"xllamacpp {CpuEngine().fingerprint().version}"]
    if (path := binary.default()) is not None:
        versions.append(f"llama-server {binary.version(path)}")
    head = [
        f"Made by `python bench/footprint/run.py --write` on {datetime.now(UTC):%Y-%m-%d}: {os.cpu_count()} cores, "
        f"{'; '.join(versions)}; SmolLM2-135M-Instruct Q4_1.",
        "",
        "| engine | context x parallel | setting | estimate, MiB | peak, MiB | off by | within |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into docs/footprints.md")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for setting in settings(small_model.smollm2(), Path(scratch)):
            rows.append(row(setting, *asyncio.run(measure(setting))))
            print(rows[-1], flush=True)
    if arguments.write:
        before, _, rest = DOCUMENT.read_text().partition(MARKS[0])
        after = rest.partition(MARKS[1])[2]
        DOCUMENT.write_text(f"{before}{MARKS[0]}\n{table(rows)}\n{MARKS[1]}{after}")
    return 1 if any("**no**" in each for each in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
