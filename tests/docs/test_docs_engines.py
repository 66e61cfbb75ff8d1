"""docs/engines.md says what the engines are, and its tutorial works as it stands."""

import importlib
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import docs_text
import pytest

from llmgw.engine.manager import find_engines
from llmgw.testing.engine_checks import ENGINE_CHECKS
from llmgw_command.engine import CommandEngine
from llmgw_command.placeholders import PLACEHOLDERS
from llmgw_cpu.engine import CpuEngine
from llmgw_llamacpp.engine import LlamaCppEngine
from llmgw_vllm.engine import VllmEngine

ENGINES = [CpuEngine(), LlamaCppEngine(), VllmEngine(), CommandEngine()]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_every_option_of_an_engine_is_documented_and_no_other(engine: Any) -> None:
    documented = [
        docs_text.words(row[0])[0] for row in docs_text.rows(docs_text.text_of("engines"), f"`{engine.name}` option")
    ]
    assert documented == list(engine.options_schema["properties"])


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_the_documented_values_of_an_option_are_those_it_takes(engine: Any) -> None:
    for row in docs_text.rows(docs_text.text_of("engines"), f"`{engine.name}` option"):
        name = docs_text.words(row[0])[0]
        option = engine.options_schema["properties"][name]
        if "enum" in option and not row[1].startswith("as "):
            assert sorted(docs_text.words(row[1])) == sorted(option["enum"]), name
        if option.get("type") == "integer":
            assert row[1] == f"{option['minimum']} to {option['maximum']}", name


def test_every_placeholder_of_command_is_documented() -> None:
    cells = [row[0] for row in docs_text.rows(docs_text.text_of("engines"), "placeholder")]
    assert [word.strip("{}") for cell in cells for word in docs_text.words(cell)] == list(PLACEHOLDERS)


@pytest.fixture
def tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smollm2: Path) -> Iterator[Path]:
    """The tutorial's files, as somebody would copy them."""
    root = tmp_path / "llmgw-tiny"
    for name, text in docs_text.named_blocks(docs_text.section("engines", "## Tutorial: a plugin of your own")).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setenv("TINY_MODEL", str(smollm2))
    monkeypatch.syspath_prepend(root)
    monkeypatch.syspath_prepend(root / "tests")
    yield root
    for name in [name for name in sys.modules if name.partition(".")[0] in ("llmgw_tiny", "test_tiny")]:
        del sys.modules[name]


def test_the_tutorials_package_is_found_through_its_entry_point(tutorial: Path) -> None:
    assert '[project.entry-points.llmgw]\ntiny = "llmgw_tiny"' in (tutorial / "pyproject.toml").read_text()
    point = EntryPoint(name="tiny", value="llmgw_tiny", group="llmgw")
    engines = find_engines([point], cache=tutorial / "verdicts.json")
    assert (list(engines.by_name), engines.broken) == (["tiny"], {})


def test_the_tutorials_engine_takes_fewer_than_60_lines(tutorial: Path) -> None:
    assert len((tutorial / "llmgw_tiny.py").read_text().splitlines()) < 60


@pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda check: check.__name__)
async def test_the_tutorials_engine_passes_the_conformance_suite(check: Any, tutorial: Path, tmp_path: Path) -> None:
    case = importlib.import_module("test_tiny").CASE
    await check(case, tmp_path)
