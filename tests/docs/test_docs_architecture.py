"""docs/architecture.md: layers, keys and transitions are those of the code."""

import importlib.util
import re
import tomllib
from typing import Any

import docs_text

from llmgw.agent.lifecycle import LEGAL
from llmgw.facts import Phase
from llmgw.ids import ContentId, Digest, ModelName, NodeName, ReplicaId, SpecDigest
from llmgw.store import keys

PAGE = docs_text.text_of("architecture")
PYPROJECT: dict[str, Any] = tomllib.loads((docs_text.ROOT / "pyproject.toml").read_text())


def test_the_layers_are_those_that_import_linter_checks() -> None:
    contracts = PYPROJECT["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    assert docs_text.blocks(docs_text.section("architecture", "## Layers"), "text")[0].splitlines() == layers


def test_the_pure_modules_are_those_that_import_linter_checks() -> None:
    contracts = PYPROJECT["tool"]["importlinter"]["contracts"]
    (pure,) = (contract["source_modules"] for contract in contracts if contract["name"].startswith("The core is pure"))
    paragraph = docs_text.section("architecture", "## Layers").partition("These are pure")[2].partition("\n\n")[0]
    assert docs_text.words(paragraph) == pure


def test_every_package_is_described_and_exists() -> None:
    described = {word for row in docs_text.rows(PAGE, "package") for word in docs_text.words(row[0])}
    package = docs_text.ROOT / "llmgw"
    there = {path.parent.name for path in package.glob("*/__init__.py")}
    there |= {path.stem for path in package.glob("*.py") if not path.stem.startswith("__")}
    plugins = set(PYPROJECT["project"]["entry-points"]["llmgw"].values())
    assert described == {f"llmgw.{name}" for name in there} | plugins
    assert all(importlib.util.find_spec(name) for name in described)


def test_every_store_key_is_in_the_table_and_no_other() -> None:
    made = {
        keys.STOPPED,
        keys.cordon(NodeName("NODE")),
        keys.api_key("NAME"),
        keys.APPLIED,
        keys.CATALOG_STATUS,
        re.sub(r"\d+", "NUMBER", keys.history(1)),
        keys.model(Digest("DIGEST"), ModelName("NAME")),
        keys.spec(ModelName("NAME"), ContentId("CONTENT")),
        keys.part(ContentId("CONTENT")),
        keys.recovery(SpecDigest("SPEC"), NodeName("NODE")),
        keys.report(NodeName("NODE")),
        keys.assignment(NodeName("NODE"), ReplicaId("REPLICA")),
        keys.endpoint(NodeName("NODE"), ReplicaId("REPLICA")),
        keys.explain(ModelName("NAME")),
        keys.measured(SpecDigest("SPEC"), NodeName("NODE")),
        keys.concurrency(SpecDigest("SPEC"), NodeName("NODE")),
        keys.ask(ModelName("MODEL")),
        keys.scaling(ModelName("MODEL")),
        keys.usage("GATEWAY"),
        keys.SUSPENDED,
        keys.PINNED,
        keys.APPROVED,
        keys.suspension(ModelName("MODEL")),
        keys.rollout(ModelName("MODEL")),
        keys.notified("NAME"),
        keys.LEADER,
        keys.CLUSTER,
        keys.member("ROLE", "NAME"),
        keys.restart("ROLE", "NAME"),
        keys.events("ROLE", "NAME"),
        keys.fetch("ENTRY"),
        keys.upkeep_order(NodeName("NODE"), "ID"),
        keys.upkeep_answer(NodeName("NODE"), "ID"),
    }
    table = {docs_text.words(row[0])[0]: row for row in docs_text.rows(PAGE, "store key")}
    assert set(table) == made
    constants = {value for name, value in vars(keys).items() if name.isupper() and isinstance(value, str)}
    assert {prefix for prefix in constants if not any(key.startswith(prefix) for key in table)} == set()
    assert {key for key, row in table.items() if row[3] == "yes"} == {
        key for key in made if key.startswith(keys.DURABLE)
    }


def test_the_transitions_are_the_legal_ones() -> None:
    rows = docs_text.rows(docs_text.section("architecture", "## A replica's life"), "phase")
    table = {Phase(docs_text.words(row[0])[0]): {Phase(word) for word in docs_text.words(row[1])} for row in rows}
    assert table == LEGAL
