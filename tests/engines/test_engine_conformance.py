"""Both built-in engines pass the suite that plugin authors get."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from llama_server import need_llama_server

import llmgw_cpu.server
from llmgw.engine import HttpRequest, ProfileSpec
from llmgw.ids import EngineName, ProfileName
from llmgw.testing.engine_checks import ENGINE_CHECKS, EngineCase
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


def need_xllamacpp() -> None:
    if importlib.util.find_spec("xllamacpp") is None:  # found, not imported: that would load llama.cpp here
        pytest.skip("xllamacpp is not installed")


def case_cpu(model: Path) -> EngineCase:
    need_xllamacpp()
    profile = ProfileSpec(
        name=ProfileName("p"), engine=EngineName("cpu"), context=4096, options={"threads": 1, "verbosity": 3}
    )
    return EngineCase(engine=CpuEngine(), profile=profile, files={"weights": model}, work=LONG_ANSWER)


def case_llamacpp(model: Path) -> EngineCase:
    need_llama_server()
    profile = ProfileSpec(name=ProfileName("p"), engine=EngineName("llamacpp"), context=4096, options={"threads": 1})
    return EngineCase(engine=LlamaCppEngine(), profile=profile, files={"weights": model}, work=LONG_ANSWER)


def case_cpu_not_streamed(model: Path) -> EngineCase:
    """A stop must not wait for an answer that is made in one piece."""
    case = case_cpu(model)
    body = json.dumps({"prompt": "a", "max_tokens": 3000, "ignore_eos": True}).encode()
    work = HttpRequest(path="/v1/completions", method="POST", body=body, timeout=60)
    return EngineCase(engine=case.engine, profile=case.profile, files=case.files, work=work)


def case_command(model: Path) -> EngineCase:
    options = {"command": [sys.executable, str(PLAIN_SERVER), "{host}", "{port}", "--key"], "probe_path": "/v1/models"}
    profile = ProfileSpec(name=ProfileName("p"), engine=EngineName("command"), options=options)
    return EngineCase(engine=CommandEngine(), profile=profile)


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
