"""docs/cli.md has every command, with its options and an example."""

import re

import docs_text
import pytest
from typer.main import get_command

from llmgw.cli.exits import ExitCode
from llmgw.cli.main import make_app

COMMANDS = get_command(make_app()).commands  # type: ignore[attr-defined]


def test_every_command_has_a_section_and_no_other() -> None:
    assert re.findall(r"^## (\S+)$", docs_text.text_of("cli"), re.MULTILINE) == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_options_are_the_documented_ones(name: str) -> None:
    text = docs_text.section("cli", f"## {name}")
    listed = re.search(r"^Options: (.*?)(?:\. Exit|\.$|\. Their)", text, re.MULTILINE | re.DOTALL)
    assert listed is not None
    documented = {word for word in docs_text.words(listed[1]) if re.fullmatch(r"--[a-z-]+|[A-Z]+", word)}
    options = [param for param in COMMANDS[name].params if "--help" not in param.opts]
    assert documented == {
        param.metavar if param.param_type_name == "argument" else max(param.opts, key=len) for param in options
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_an_example_and_its_exit_codes(name: str) -> None:
    text = docs_text.section("cli", f"## {name}")
    assert any(f"llmgw {name}" in block for block in docs_text.blocks(text, "sh"))
    assert "Exit:" in text


def test_the_exit_codes_are_the_documented_ones() -> None:
    assert [int(row[0]) for row in docs_text.rows(docs_text.text_of("cli"), "exit code")] == list(ExitCode)


def test_the_flags_of_up_in_operations_are_all_there_with_their_variables() -> None:
    documented = {docs_text.words(row[0])[0]: docs_text.words(row[1]) for row in _flags()}
    for param in COMMANDS["up"].params:
        if "--help" in param.opts:
            continue
        name = param.metavar if param.param_type_name == "argument" else max(param.opts, key=len)
        assert documented.pop(name) == ([param.envvar] if param.envvar else []), name
    assert documented == {}


def _flags() -> list[list[str]]:
    return docs_text.rows(docs_text.text_of("operations"), "flag")
