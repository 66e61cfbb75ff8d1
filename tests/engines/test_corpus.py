"""Ends of real processes, each told for what it was: what is recorded was provoked (collect_*.py), the rest is from
reports of what these machines cannot provoke."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from llmgw.engine import Engine, Exit, FailureKind
from llmgw_command.engine import CommandEngine
from llmgw_cpu.engine import CpuEngine
from llmgw_llamacpp.engine import LlamaCppEngine
from llmgw_vllm.engine import VllmEngine

CORPUS = Path(__file__).with_name("corpus")
ENGINES: Mapping[str, Engine] = {
    engine.name: engine for engine in (CpuEngine(), LlamaCppEngine(), CommandEngine(), VllmEngine())
}
FILES = sorted(path for path in CORPUS.rglob("*.json") if path.parent.name in ENGINES)


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_an_end_is_told_for_what_it_was(path: Path) -> None:
    case = read(path)
    verdict = ENGINES[path.parent.name].classify(Exit(**case["exit"]), case["log"])
    assert (str(verdict.kind), verdict.port_clash) == (case["kind"], case.get("port_clash", False)), verdict
    assert case["reason"] in verdict.reason
    assert "\n" not in verdict.reason
    assert len(verdict.reason) < 500


@pytest.mark.parametrize("name", ["cpu", "llamacpp"])
def test_each_kind_of_end_was_provoked(name: str) -> None:
    recorded = [read(path) for path in FILES if path.parent.name == name and read(path)["recorded"]]
    assert {case["kind"] for case in recorded} >= {FailureKind.CRASH, FailureKind.OOM, FailureKind.TERMINAL}
    assert any(case.get("port_clash") for case in recorded)
    assert any("oom_kill" in case["log"] for case in recorded)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_corpus_holds_no_path_of_the_machine_that_it_was_made_on(path: Path) -> None:
    assert str(Path.home()) not in path.read_text()
    assert str(CORPUS.parents[2]) not in path.read_text()


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
@pytest.mark.parametrize("exit", [Exit(code=0), Exit(code=1), Exit(signal=9), Exit()], ids=str)
def test_an_end_without_a_word_is_a_crash_even_with_exit_code_0(engine: Engine, exit: Exit) -> None:
    assert engine.classify(exit, "").kind is FailureKind.CRASH


@pytest.mark.parametrize(
    ("engine", "log", "damaged"),
    [
        ("cpu", "gguf_init_from_file_impl: invalid magic characters: 'evil', expected 'GGUF'", True),
        ("llamacpp", "tensor 'x' data is not within the file bounds, model is corrupted or incomplete", True),
        ("llamacpp", "unknown model architecture: 'newer'\nerror loading model: unknown model architecture", False),
        ("llamacpp", "error: invalid argument: --nonsense", False),
        ("vllm", "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata", True),
        ("vllm", "vllm: error: unrecognized arguments: --nonsense", False),
    ],
)
def test_what_may_be_a_damaged_file_is_told_from_what_is_none(engine: str, log: str, damaged: bool) -> None:
    verdict = ENGINES[engine].classify(Exit(code=1), log)
    assert (verdict.kind, verdict.damaged) == (FailureKind.TERMINAL, damaged)
