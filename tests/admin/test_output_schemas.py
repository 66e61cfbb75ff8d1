"""The committed schemas of the output shapes."""

from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from llmgw.admin.schemas import ALL, file_name, schema_of, text_of

SCHEMAS = Path(__file__).parents[2] / "schemas" / "output"


@pytest.mark.parametrize("output", ALL)
def test_the_committed_schema_is_the_shape(output: str) -> None:
    committed = (SCHEMAS / file_name(output)).read_text()
    assert committed == text_of(output), "run `python -m llmgw.admin.schemas schemas/output`"


@pytest.mark.parametrize("output", ALL)
def test_each_schema_is_itself_valid(output: str) -> None:
    Draft202012Validator.check_schema(schema_of(output))


def test_no_schema_is_left_of_a_shape_that_went() -> None:
    assert {path.name for path in SCHEMAS.iterdir()} == set(map(file_name, ALL))
