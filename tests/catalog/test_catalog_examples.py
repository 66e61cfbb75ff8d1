"""Every catalog that we show people is one that loads."""

from pathlib import Path

import pytest

from llmgw.catalog.load import load_catalog
from llmgw.catalog.schemas import schema_directory
from llmgw.catalog.source import read_source
from llmgw.engine.manager import find_engines

ENGINES = find_engines().rules()
EXAMPLES = Path(__file__).parents[2] / "catalog-examples"


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir()))
def test_an_example_is_valid_without_a_warning(name: str) -> None:
    loaded = load_catalog(read_source(EXAMPLES / name), ENGINES)
    assert loaded.catalog.models
    assert not loaded.warnings


@pytest.mark.parametrize("file", sorted(EXAMPLES.rglob("*.y*ml")), ids=lambda file: file.name)
def test_an_examples_first_line_leads_editors_to_the_schema(file: Path) -> None:
    first = file.read_text().splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=")
    target = (file.parent / first.partition("=")[2]).resolve()
    schema = "fleet" if file.name == "fleet.yaml" else "catalog"
    assert target == (schema_directory() / f"{schema}.v1.schema.json").resolve()


def test_the_quickstart_is_one_checked_model_under_the_name_default() -> None:
    catalog = load_catalog(read_source(EXAMPLES / "quickstart"), ENGINES).catalog
    (model,) = catalog.models.values()
    weights = model.profiles[0].weights
    assert "default" in model.aliases
    assert weights is not None
    assert weights.sha256 is not None
    assert weights.size == 98_362_432
