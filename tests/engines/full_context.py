"""The peak memory of an engine process that was asked as much as it can take: a full context in every slot."""

import asyncio
import json
from pathlib import Path

from llmgw.engine import HttpRequest, ProfileSpec, WeightsFact
from llmgw.testing.engine_checks import EngineCase, Running, running
from llmgw.units import Bytes, Wall
from llmgw.weights import split
from llmgw.weights.manifest import metadata_of

_ANSWER = 8  #: tokens


async def peak_memory(case: EngineCase, directory: Path) -> int:
    """Bytes resident at most over its life, of all its processes, after one full-context prompt in each slot."""
    async with running(case, directory) as run:
        await run.wait_ready()
        await asyncio.gather(*(_fill(run, case.profile, slot) for slot in range(case.profile.parallel)))
        return sum(_peak(process.pid) for process in run.group())


async def _fill(run: Running, profile: ProfileSpec, slot: int) -> None:
    # Numbers are one token each: a prompt of known length, of which no part is another slot's.
    prompt = [1000 + (slot * 7919 + number * 31) % 20_000 for number in range(profile.context - _ANSWER - 8)]
    if profile.options.get("embeddings"):
        path, body = "/v1/embeddings", {"input": prompt[: int(profile.options.get("ubatch_size", 512)) - 8]}
    else:
        path, body = "/completion", {"prompt": prompt, "n_predict": _ANSWER, "id_slot": slot, "ignore_eos": True}
    status, answer = await run.send(HttpRequest(path=path, method="POST", body=json.dumps(body).encode(), timeout=600))
    assert status == 200, answer


def _peak(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def fact(path: Path) -> WeightsFact:
    """What the weights cache would say of a file in place."""
    size = sum(part.stat().st_size for part in split.parts(path))
    return WeightsFact(
        source=f"file://{path}", entry=None, size=Bytes(size), last_wanted=Wall(0), metadata=metadata_of(path)
    )
