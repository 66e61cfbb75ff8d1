"""The built-in engines that need no large download pass the suite that plugin authors get."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from llama_server import need_llama_server

import llmgw_cpu.server
from llmgw.engine import Engine, FailureKind, HttpRequest, ProfileSpec
from llmgw.ids import EngineName, ProfileName
from llmgw.testing.engine_checks import ENGINE_CHECKS, Broken, EngineCase, Running
from llmgw_command.engine import CommandEngine
from llmgw_cpu.engine import CpuEngine
from llmgw_llamacpp.engine import LlamaCppEngine

PLAIN_SERVER = Path(__file__).with_name("plain_server.py")
LONG_ANSWER = HttpRequest(
    path="/v1/completions",
    method="POST",
    body=json.dumps({"prompt": "a", "max_tokens": 3000, "ignore_eos": True, "stream": True}).encode(),
    timeout=60,
)


GONE = Path("/nonexistent/model.gguf")


def need_xllamacpp() -> None:
    if importlib.util.find_spec("xllamacpp") is None:  # found, not imported: that would load llama.cpp here
        pytest.skip("xllamacpp is not installed")


async def slot_context(run: Running) -> int:
    """Of one slot, as llama.cpp tells it."""
    _, body = await run.send(HttpRequest(path="/slots"))
    return int(json.loads(body)[0]["n_ctx"])


def llama_case(engine: Engine, model: Path) -> EngineCase:
    profile = ProfileSpec(name=ProfileName("p"), engine=engine.name, context=8192, options={"threads": 1})
    return EngineCase(
        engine=engine,
        profile=profile,
        files={"weights": model},
        work=LONG_ANSWER,
        context_of=slot_context,
        broken=(
            Broken(profile=profile, files={"weights": GONE}, kind=FailureKind.TERMINAL),
            Broken(profile=replace(profile, context=12_000_000), kind=FailureKind.OOM),
        ),
    )


def case_cpu(model: Path) -> EngineCase:
    need_xllamacpp()
    return llama_case(CpuEngine(), model)


def case_llamacpp(model: Path) -> EngineCase:
    need_llama_server()
    # With a stream open it needs two of its pings to end, and more where others use the cores.
    return replace(llama_case(LlamaCppEngine(), model), stop_within=30)


def case_cpu_not_streamed(model: Path) -> EngineCase:
    """A stop must not wait for an answer that is made in one piece."""
    body = json.dumps({"prompt": "a", "max_tokens": 3000, "ignore_eos": True}).encode()
    return replace(case_cpu(model), work=HttpRequest(path="/v1/completions", method="POST", body=body, timeout=60))


def case_command(model: Path) -> EngineCase:
    options = {"command": [sys.executable, str(PLAIN_SERVER), "{host}", "{port}", "--key"], "probe_path": "/v1/models"}
    profile = ProfileSpec(name=ProfileName("p"), engine=EngineName("command"), options=options)
    ends = {"exit 3": FailureKind.CRASH, "echo CUDA error: out of memory >&2; exit 1": FailureKind.OOM}
    broken = [
        Broken(profile=replace(profile, options={"command": ["sh", "-c", script]}), kind=kind)
        for script, kind in ends.items()
    ]
    return EngineCase(engine=CommandEngine(), profile=profile, broken=broken)


def case_command_around_llama(model: Path) -> EngineCase:
    """The same server that `cpu` starts, spelt out by hand."""
    need_xllamacpp()
    config = (
        '{{"path": "{weights}", "model": "{model}", "host": "{host}", "port": {port}, "context": {context}, '
        '"parallel": {parallel}, "options": {{"threads": 1}}}}'
    )
    options = {"command": [sys.executable, "-P", llmgw_cpu.server.__file__, config]}
    profile = ProfileSpec(name=ProfileName("p"), engine=EngineName("command"), context=512, options=options)
    return EngineCase(engine=CommandEngine(), profile=profile, files={"weights": model})


@pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("make", [case_cpu, case_command, case_llamacpp], ids=["cpu", "command", "llamacpp"])
async def test_engine(make, check, smollm2: Path, tmp_path: Path) -> None:
    await check(make(smollm2), tmp_path)


async def test_cpu_stops_while_it_makes_an_answer_in_one_piece(smollm2: Path, tmp_path: Path) -> None:
    (check,) = (check for check in ENGINE_CHECKS if check.__name__ == "check_stops_while_answering")
    await check(case_cpu_not_streamed(smollm2), tmp_path)


async def test_command_starts_llama_with_its_placeholders_filled_in(smollm2: Path, tmp_path: Path) -> None:
    for check in ENGINE_CHECKS:
        if check.__name__ in ("check_becomes_ready_and_stops_on_sigterm", "check_refuses_requests_without_its_key"):
            await check(case_command_around_llama(smollm2), tmp_path)
