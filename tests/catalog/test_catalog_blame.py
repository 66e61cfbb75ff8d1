"""A fault of YAML's syntax is told where it is, not where the parser gives up, and as what people know it for."""

import pytest
from catalog_texts import MODEL, model, texts

from llmgw.catalog.yamldoc import parse

BRACES = 'aliases: [default]\ncommand: [srv, "{port}"]\n'


def faults(text: str) -> list[str]:
    return [str(problem).removeprefix("a.yaml:") for problem in parse("a.yaml", text.encode())[1]]


NEITHER = "neither a key with its value nor an item of a list: a key ends with a colon and a space"
THREE = "documents are separated by three dashes at the beginning of a line, `---`"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1\npriority:50\nb: 2\n", f"2:1: not valid YAML: {NEITHER}"),
        ("a: 1\n// high\nb: 2\n", f"2:1: not valid YAML: {NEITHER}"),
        ("a: 1\nb = 2\nc: 3\n", f"2:1: not valid YAML: {NEITHER}"),
        ("a: 1\n----\nb: 2\n", f"2:1: not valid YAML: {THREE}"),
        ('a: "1"\n  ---\nb: 2\n', f"2:3: not valid YAML: {THREE}"),
        ("a:\n  -name: x\n   engine: y\n", "2:3: not valid YAML: an item of a list begins with a dash and a space"),
        ("a:\n  \u2013 name: x\n    engine: y\n", "2:3: not valid YAML: U+2013 is no dash to YAML"),
        ("a:\u00a01\nb: 2\n", "1:3: not valid YAML: U+00A0 looks like a space, or like nothing"),
        ("a:\n\u00a0\u00a0b: 1\n  c: 2\n", "2:1: not valid YAML: U+00A0 looks like a space, or like nothing"),
        ("a: [srv, \u201c{port}\u201d]\n", "1:10: not valid YAML: U+201C is no quote to YAML"),
        (f'name: "qwen\n{BRACES}', "1:7: not valid YAML: a quote that is closed only on line 3: close it where"),
        ("name: ''qwen''\n", "1:9: not valid YAML: text goes on after its closing quote"),
        ("a: [default\nb: {c: d}\n", "1:4: not valid YAML: a bracket that is never closed"),
        ("a: {b: c\nd: 50\n", "1:4: not valid YAML: a bracket that is never closed"),
        ("a: 1\n<<<<<<< HEAD\nb: 1\n", "2:1: a merge conflict's marker that was left here: resolve the conflict"),
        ("a: 1\n=======\nb: 1\n", "2:1: a merge conflict's marker that was left here: resolve the conflict"),
        ("a: 1\n>>>>>>> topic\nb: 1\n", "2:1: a merge conflict's marker that was left here: resolve the conflict"),
        ("a: 1\n{% if x %}\nb: 1\n{% endif %}\n", "2:1: a placeholder of a templating tool"),
        ("a: 1\n{{- if .Values.x }}\nb: 1\n", "2:1: a placeholder of a templating tool"),
        ("a: {{ .Values.x }}\nb: 1\n", "1:4: a placeholder of a templating tool"),
        ("a:\n  - {{ x }}\n", "2:5: a placeholder of a templating tool"),
    ],
)
def test_a_mistake_is_one_problem_at_its_own_place(text: str, told: str) -> None:
    assert [each[: len(told)] for each in faults(text)] == [told]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: {b: c: d}\n", "1:9: not valid YAML: while parsing a flow mapping"),
        ("a:\n  b: 1\n   c: 2\n", "3:5: not valid YAML: mapping values are not allowed here"),
        ("a: 'x\n  y'\nb: [1, 2\n", "3:4: not valid YAML: a bracket that is never closed"),
        ("a: it\u00a0is\nb: c: d\n", "2:5: not valid YAML: mapping values are not allowed here"),
    ],
)
def test_what_is_well_in_itself_is_not_blamed(text: str, told: str) -> None:
    assert [each[: len(told)] for each in faults(text)] == [told]


def test_a_document_that_begins_without_a_line_between_is_one_problem() -> None:
    told = (
        "a.yaml:8:1: duplicate key 'apiVersion': the first is at a.yaml:1:1; where another document begins, write `---`"
    )
    assert [text[: len(told)] for text in texts(MODEL + model("other"))] == [told]


def test_a_head_that_is_written_twice_is_no_further_document() -> None:
    twice = MODEL.replace("kind: Model\n", "kind: Model\napiVersion: llmgw/v1\n")
    assert texts(twice) == ["a.yaml:3:1: duplicate key 'apiVersion': the first is at a.yaml:1:1"]


def test_a_placeholder_is_not_told_again_for_its_shape() -> None:
    (told,) = texts(model(extra="priority: {{ .Values.priority }}\n"))
    assert told.startswith("a.yaml:8:11: a placeholder of a templating tool")


def test_a_merge_key_is_one_problem_whatever_it_merges() -> None:
    assert texts(model(extra="labels:\n  <<: *common\n")) == [
        "a.yaml:9:3: merge keys (<<) are not supported: write the keys out"
    ]
