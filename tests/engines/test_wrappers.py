"""`wrapper` around every engine: what people put there, all at once."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_engine_conformance import case_command, case_cpu, case_llamacpp

from llmgw.testing.engine_process import running

CPU = min(os.sched_getaffinity(0))
WRAPPER = (
    *("taskset", "-c", str(CPU)),
    *("nice", "-n", "5"),
    *("env", "WRAPPED=twice over"),
    *("sh", "-c", 'exec "$@"', "sh"),
)


@pytest.mark.parametrize("make", [case_cpu, case_command, case_llamacpp], ids=["cpu", "command", "llamacpp"])
async def test_an_engine_runs_under_taskset_nice_env_and_a_shell(make: Any, smollm2: Path, tmp_path: Path) -> None:
    case = make(smollm2)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    async with running(replace(case, profile=replace(case.profile, wrapper=WRAPPER)), tmp_path) as run:
        await run.wait_ready()
        pid = run.process.pid
        assert os.sched_getaffinity(pid) == {CPU}
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, before + 5)
        assert b"WRAPPED=twice over\0" in Path(f"/proc/{pid}/environ").read_bytes()
        run.process.terminate()
        await run.ended(case.stop_within)
