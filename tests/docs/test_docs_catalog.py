"""docs/catalog.md names every key there is, with its default and what a change does."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docs_text
import pytest

from llmgw.catalog.load import load_catalog
from llmgw.catalog.rules import EngineRules
from llmgw.catalog.schemas import load_schema
from llmgw.catalog.source import Source
from llmgw.catalog.spec import LAUNCH_FIELDS
from llmgw.engine.manager import find_engines
from llmgw.fleet import load_fleet
from llmgw.testing.scenario import load_scenario
from llmgw.weights.naming import canonical

KINDS = ("Model", "Cluster")


def keys(node: dict[str, Any], root: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key of a schema with its own schema; a mapping of fixed keys stands for them alone."""
    if node.get("$ref") == "#/$defs/level":
        yield path, node  # a part of a profile, whose keys stand in the table already
        return
    if "$ref" in node:
        node = {**root["$defs"][node["$ref"].rpartition("/")[2]], **node}
    properties = node.get("properties")
    if path and properties is None:
        yield path, node
    for name, inner in (properties or {}).items():
        yield from keys(inner, root, f"{path}.{name}" if path else name)
    if isinstance(more := node.get("additionalProperties"), dict) and _has_keys(more, root):
        yield from keys(more, root, f"{path}.NAME")
    if isinstance(items := node.get("items"), dict) and _has_keys(items, root):
        yield from keys(items, root, f"{path}[]")


def _has_keys(node: dict[str, Any], root: dict[str, Any]) -> bool:
    target = root["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node
    return "properties" in target


def split(kind: str) -> tuple[dict[str, dict[str, Any]], set[str]]:
    """Keys that work, and those that wait."""
    root = load_schema(kind.lower())
    found = dict(keys(root, root))
    waiting = {path for path, node in found.items() if node.get("x-not-supported-yet") is True}
    return {path: node for path, node in found.items() if path not in waiting}, waiting


def documented(kind: str) -> dict[str, list[str]]:
    return {docs_text.words(row[0])[0]: row for row in docs_text.rows(docs_text.text_of("catalog"), f"{kind} key")}


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_that_works_is_documented_and_no_other(kind: str) -> None:
    assert sorted(documented(kind)) == sorted(split(kind)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_that_waits_is_listed(kind: str) -> None:
    cells = {row[0]: row[1] for row in docs_text.rows(docs_text.section("catalog", "## Not supported yet"), "where")}
    assert set(docs_text.words(cells[kind])) == split(kind)[1]


@pytest.mark.parametrize("kind", KINDS)
def test_documented_defaults_are_the_schemas(kind: str) -> None:
    for path, node in split(kind)[0].items():
        if "default" in node:
            default = node["default"]
            text = default if isinstance(default, str) and default else json.dumps(default)
            assert docs_text.words(documented(kind)[path][2]) == [text], path


def test_what_replaces_an_engine_is_what_it_is_launched_from() -> None:
    for path, row in documented("Model").items():
        if path.startswith("profiles[]."):
            field = path.removeprefix("profiles[].").partition(".")[0]
            how_it_comes = path.endswith((".insecure", ".token.from_env", ".token.from_file"))
            assert (row[4] == "replaced") == (field in LAUNCH_FIELDS and not how_it_comes), path


def engines() -> dict[str, EngineRules]:
    """The installed ones and the tutorial's, whose options its own test checks."""
    tutorial = {"type": "object", "additionalProperties": False, "properties": {"threads": {"type": "integer"}}}
    return {**find_engines().rules(), "tiny": EngineRules(options_schema=tutorial)}


EXAMPLES = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in docs_text.pages()
    for number, block in enumerate(docs_text.blocks(page.read_text("utf-8"), "yaml"), start=1)
]


@pytest.mark.parametrize("block", EXAMPLES)
def test_every_catalog_and_fleet_in_the_documentation_is_valid(block: str, tmp_path: Path) -> None:
    if "\nkind: Scenario\n" in block:
        (tmp_path / "scenario.yaml").write_text(block)
        load_scenario(tmp_path / "scenario.yaml", engines())
    elif "\nkind: Fleet\n" in block:
        load_fleet("fleet.yaml", block.encode())
    else:
        load_catalog(Source(files={"example.yaml": block.encode()}), engines(), canonical=canonical)


def test_the_full_example_uses_every_key() -> None:
    text = "\n".join(docs_text.blocks(docs_text.section("catalog", "## A full example"), "yaml"))
    for kind in KINDS:
        for path in split(kind)[0]:
            word = path.rpartition(".")[2]
            assert f"{word}:" in text or word == "from_file", path


def test_links_between_pages_lead_somewhere() -> None:
    for page in docs_text.pages():
        for target, anchor in docs_text.links(page):
            file = (page.parent / target).resolve() if target else page
            assert file.exists(), f"{page.name}: {target}"
            if anchor:
                assert anchor in docs_text.anchors(Path(file)), f"{page.name}: {target}#{anchor}"
