"""The line that a problem points at, without what may be a secret."""

import pytest
from catalog_texts import model, texts

from llmgw.catalog.excerpts import WIDTH, excerpt, redacted


def shown(text: str, line: int = 1, column: int = 1) -> str:
    found = excerpt(text.encode(), line, column)
    assert found is not None
    return found.text


def test_the_caret_stands_below_the_column() -> None:
    found = excerpt(b"a: 1\nname: Not a name\n", 2, 7)
    assert found is not None
    assert found.lines(2) == ("     2 | name: Not a name", "       |       ^")


def test_the_caret_counts_wide_characters_as_two() -> None:
    found = excerpt("name: 模型 x".encode(), 1, 10)
    assert found is not None
    line, caret = found.lines(1)
    assert (line.index("x"), caret.index("^")) == (18, 20)


def test_of_another_encoding_no_line_is_shown() -> None:
    assert excerpt("a: 1\n".encode("utf-16"), 1, 1) is None


def test_a_long_line_is_cut_around_the_caret() -> None:
    text = "a: " + "x" * 500
    found = excerpt(text.encode(), 1, 300)
    assert found is not None
    assert len(found.text) == WIDTH
    assert (found.text[0], found.text[-1]) == ("…", "…")
    assert 0 < found.caret < WIDTH


@pytest.mark.parametrize("place", [(0, 0), (5, 1), (2, 1)])
def test_where_nothing_stands_there_is_nothing_to_show(place: tuple[int, int]) -> None:
    assert excerpt(b"a: 1\n\nb: 2\n", *place) is None


@pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\x85"])
def test_lines_are_those_of_yaml_and_editors(odd: str) -> None:
    text = f"description: a{odd}b\r\nenv: {{KEY: 'one{odd}hunter2'}}\nlast: x\n"
    assert shown(text, 3) == "last: x"
    assert "hunter2" not in shown(text, 2)
    document = model().replace("name:", f"description: 'a{odd}b'\nnmae:", 1)
    (line,) = [number for number, text in enumerate(document.split("\n"), 1) if text.startswith("nmae")]
    assert f"a.yaml:{line}:1: $.nmae" in "\n".join(texts(document))


def test_bytes_that_are_no_text_are_shown_all_the_same() -> None:
    assert shown("ok: x").startswith("ok")
    found = excerpt(b"a: \xff\xfe", 1, 4)
    assert found is not None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("env: {API: hunter2}", 1),
        ("env:\n  API: hunter2", 2),
        ("env:\n  # the key\n\n  API: |\n    hunter2", 5),
        ("env:\n  API: >-\n    x\n    hunter2", 4),
        ("options:\n  api_key: hunter2", 2),
        ("token: hunter2", 1),
        ('"password": "hunter2"', 1),
        ("weights: {source: x, token: hunter2}", 1),
        ("args: [--api-key, hunter2, --x]", 1),
        ("args: ['--api-key', 'hunter2']", 1),
        ("args: [--api-key=hunter2]", 1),
        ("source: https://me:hunter2@host/x", 1),
        ("source: https://hunter2@host/x", 1),
        ("description: hf_hunter2hunter2", 1),
        ("env:\n  API: [\n    hunter2,\n  ", 3),
    ],
)
def test_what_may_be_a_secret_is_not_shown(text: str, line: int) -> None:
    assert "hunter2" not in redacted(text.splitlines(), line - 1)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("env: {API: {from_env: SHOWN}}", 1),
        ("env:\n  API: {from_env: SHOWN}", 2),
        ("token: {from_file: /SHOWN}  # why", 1),
        ("token:\n  from_env: SHOWN", 2),
        ("env:\n  A: x\nname: SHOWN", 3),
        ("name: SHOWN", 1),
        ("args: [--threads, SHOWN]", 1),
        ("source: https://host/SHOWN", 1),
    ],
)
def test_what_is_no_secret_is_shown(text: str, line: int) -> None:
    where = text.splitlines()
    if "env: {API" in text:
        assert redacted(where, line - 1).startswith("env:")  # of several values on one line none is shown
    else:
        assert "SHOWN" in redacted(where, line - 1)


def test_a_name_that_is_nearly_an_alias_leads_to_the_models_name() -> None:
    small = model("qwen", "aliases: [gpt-4o-mini]\n")
    asking = model("other", "fallback: gpt-4o-mni\n")
    assert texts({"a.yaml": small, "b.yaml": asking}) == [
        "b.yaml:8:11: $.fallback: no model 'gpt-4o-mni'; did you mean 'qwen', of the alias 'gpt-4o-mini'?"
    ]
