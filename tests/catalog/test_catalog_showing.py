"""A model as it is judged, with where each value of it was written."""

from catalog_texts import model, source
from test_catalog_templates import BASE, extending

from llmgw.catalog import yamldoc
from llmgw.catalog.leaves import HIDDEN
from llmgw.catalog.showing import Shown, show, why_not

REST = """\
priority: 9
profiles:
  - name: gpu
    weights: {source: /srv/one.gguf}
    env: {TOKEN: {from_env: B}, SPEED: hunter2}
    args: [--x, y]
"""
FILES = {"a.yaml": extending(rest=REST), "base.yaml": BASE, "other.yaml": model("other")}


def shown(name: str = "one") -> Shown:
    found = show(source(FILES), name)
    assert found is not None
    return found


def test_each_value_is_told_with_the_line_that_it_stands_at() -> None:
    origins = shown().origins
    assert origins["$.priority"] == "a.yaml:5:11"
    assert origins["$.description"] == "base.yaml:4:14"
    assert origins["$.profiles[0].context"] == "base.yaml:12:14"
    assert origins["$.profiles[0].weights.source"] == "a.yaml:8:23"
    assert origins["$.profiles[0].args[1]"] == "a.yaml:10:17"


def test_the_text_is_the_document_as_yaml_with_the_places_as_comments() -> None:
    one = shown()
    (document,), problems = yamldoc.parse("shown.yaml", one.text.encode())
    assert not problems
    assert document.value == one.document
    lines = [tuple(line.split("#")) for line in one.text.splitlines()]
    told = {value.strip(): place.strip() for value, place in (line for line in lines if len(line) == 2)}
    assert (told["priority: 9"], told["context: 8192"]) == ("a.yaml:5:11", "base.yaml:12:14")
    assert [line[0].split(":")[0] for line in lines[:4]] == ["apiVersion", "kind", "name", "extends"]


def test_what_may_be_secret_is_hidden_and_where_it_is_read_is_not() -> None:
    env = shown().document["profiles"][0]["env"]
    assert env == {"TOKEN": {"from_env": "B"}, "SPEED": HIDDEN}
    assert "hunter2" not in shown().text


def test_a_model_without_a_template_is_shown_too() -> None:
    origins = shown("other").origins
    assert {place.partition(":")[0] for place in origins.values()} == {"other.yaml"}


def test_there_is_nothing_to_show_of_a_model_that_is_not_there() -> None:
    assert show(source(FILES), "none") is None
    assert why_not(source(FILES), "othr") == "; did you mean 'other'?"
    assert show(source({"a.yaml": extending()}), "one") is None
