"""Text to documents: what YAML means, where each thing stands, and what is refused before anything is built."""

from io import StringIO

import pytest
from catalog_texts import MODEL, model, problems, source, texts
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from llmgw.catalog.load import load_catalog, revision_of
from llmgw.catalog.yamldoc import MAX_NODES, json_path, parse
from llmgw.errors import CatalogInvalid


def one(text: str) -> object:
    (document,), faults = parse("a.yaml", text.encode())
    assert not faults
    return document.value


def faults(text: str | bytes) -> list[str]:
    return [str(problem) for problem in parse("a.yaml", text.encode() if isinstance(text, str) else text)[1]]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: no", {"a": "no"}),
        ("a: on", {"a": "on"}),
        ("no: 1", {"no": 1}),
        ("a: 0123", {"a": 123}),
        ("a: 1.10", {"a": 1.1}),
        ("a: 24_000", {"a": 24000}),
        ("a: 0x1F", {"a": 31}),
        ("a: 1e3", {"a": 1000.0}),
        ("a: ~", {"a": None}),
        ("a:", {"a": None}),
        ("a: 'true'", {"a": "true"}),
        ("a: True", {"a": True}),
        ("a: 12:30", {"a": "12:30"}),
        ("a: [http://x/y]", {"a": ["http://x/y"]}),
        ("a: |\n  x\n  y\n", {"a": "x\ny\n"}),
        ("a: &x {b: 1}\nc: *x\n", {"a": {"b": 1}, "c": {"b": 1}}),
    ],
)
def test_yaml_1_2_decides_what_a_value_is(text: str, value: object) -> None:
    assert one(text) == value


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text("abc: #-?'\"\n&*!%@\té", max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abé -:#", max_size=4), inner, max_size=3),
    max_leaves=8,
)
pieces = st.sampled_from(
    ["a", ": ", "- ", "\n", "  ", "[", "]", "{", "}", ",", "&x ", "*x", "!t ", "? ", "|\n", ">", "'", '"', "#",
     "%Y\n", "---\n", "...\n", "<<", "1", "0x", ".nan", "~", "\t", "\\", "@", "`", "2026-01-01", "é", "\u2028"]
)  # fmt: skip
scrambled = st.lists(pieces, max_size=25).map("".join)


def dumped(value: object) -> str:
    written = StringIO()
    YAML(typ="safe", pure=True).dump(value, written)
    return written.getvalue()


@given(plain.map(dumped) | scrambled)
@settings(max_examples=300, deadline=None)
def test_what_is_accepted_here_is_what_ruamel_itself_loads(text: str) -> None:
    documents, found = parse("a.yaml", text.encode())
    if not found:
        assert [document.value for document in documents] == list(YAML(typ="safe", pure=True).load_all(text))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2\na: 3\n", "a.yaml:3:1: duplicate key 'a': the first is at a.yaml:1:1"),
        ("a: {b: 1,\n    b: 2}\n", "a.yaml:2:5: duplicate key 'b': the first is at a.yaml:1:5"),
        ("%YAML 1.1\n---\na: no\n", "a.yaml:1:1: directives are not supported"),
        ("# c\n%FOO bar\n---\na: no\n", "a.yaml:2:1: directives are not supported"),
        ("a: 1\n...\n%TAG ! x\n---\nb: 1\n", "a.yaml:3:1: directives are not supported"),
        ("a: !!str 1\n", "a.yaml:1:4: tags (!...) are not supported"),
        ("a: !!python/object:os.system x\n", "a.yaml:1:4: tags (!...) are not supported"),
        ("a: !x {b: 1}\n", "a.yaml:1:4: tags (!...) are not supported"),
        ("a: .nan\n", "a.yaml:1:4: not a number that can be used"),
        ("a: -.inf\n", "a.yaml:1:4: not a number that can be used"),
        ("a: 1e999\n", "a.yaml:1:4: not a number that can be used"),
        (f"a: {'9' * 5000}\n", "a.yaml:1:4: not a number that can be used"),
        ("a: 9223372036854775808\n", "a.yaml:1:4: not a number that can be used"),
        ("1: x\n", "a.yaml:1:1: a key must be text"),
        ("a:\n  true: x\n", "a.yaml:2:3: a key must be text"),
        ("? [x]\n: 1\n", "a.yaml:1:3: a key must be text"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", "a.yaml:3:3: merge keys (<<) are not supported"),
        ("a: 2026-01-31\n", "a.yaml:1:4: this reads as a date"),
        ("a: =\n", "a.yaml:1:4: this reads as something special"),
        ("a: *x\n", "a.yaml:1:4: an alias (*...) without an anchor"),
        ("a: &x [1, *x]\n", "a.yaml:1:11: an alias (*...) to the value that holds it"),
        ('a: "\\0"\n', "a.yaml:1:4: holds a NUL"),
        ('a: "\\ud800"\n', "a.yaml:1:4: holds a NUL or half a surrogate"),
        ("a: \x07\n", "a.yaml:1:4: a control character"),
        ("\0" * 4096, "a.yaml:1:1: a control character"),
        ("a: [1\n", "a.yaml:1:4: not valid YAML: a bracket that is never closed"),
        ("a:\n\t- b\n", "a.yaml:2:1: not valid YAML"),
        ("a: 'x\n", "a.yaml:1:4: not valid YAML"),
        ("", "a.yaml: empty file"),
        ("# nothing\n", "a.yaml: empty file"),
        ("[" * 3000, "a.yaml:1:65: nested more than 64 deep"),
        ("- " * 3000, "a.yaml:1:129: nested more than 64 deep"),
    ],
)
def test_what_yaml_allows_and_a_catalog_does_not_is_refused_with_its_place(text: str, problem: str) -> None:
    assert [found[: len(problem)] for found in faults(text)] == [problem]


def test_all_faults_of_a_file_are_found_not_the_first() -> None:
    assert [text.split(": ", 1)[0] for text in faults("a: .nan\nb: 2026-01-31\n3: x\nb: !x y\nb: 1\n")] == [
        "a.yaml:1:4",
        "a.yaml:2:4",
        "a.yaml:3:1",
        "a.yaml:4:4",
        "a.yaml:4:1",
        "a.yaml:5:1",
    ]


def test_bad_utf8_is_placed_by_line_column_and_byte() -> None:
    assert faults(b"a: 1\nb: \xc3\xa9\xff\n") == ["a.yaml:2:5: not UTF-8 at byte 10; save the file as UTF-8"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_is_called_by_its_name(encoding: str) -> None:
    assert faults("a: 1".encode(encoding)) == ["a.yaml:1:1: this is UTF-16: save the file as UTF-8"]


def test_a_merge_conflict_left_in_a_file_is_one_problem_at_its_first_line() -> None:
    left = "a: 1\n<<<<<<< HEAD\nb: 1\n=======\nb: 2\n>>>>>>> other\n"
    assert faults(left) == ["a.yaml:2:1: a merge conflict that was left here: resolve it (<<<<<<< to >>>>>>>)"]


def test_half_a_conflict_marker_in_a_text_is_text() -> None:
    assert faults("a: |\n  <<<<<<< HEAD\n  >>>>>>> other\n") == []


@pytest.mark.timeout(10)
def test_many_beginnings_of_a_conflict_without_an_end_take_no_time() -> None:
    faults("<<<<<<< \n" * 100_000)


def test_a_tab_is_told_in_a_persons_words() -> None:
    hidden = "the line holds U+2028, which ends a line though it does not look so: remove it"
    assert faults("a: b # say\u2028hello there\nc: d\n") == [f"a.yaml:1:12: not valid YAML: {hidden}"]
    assert faults("a: b\nc: 'say\u2028hello'\n") == []
    assert faults("a:\n\t- b\n") == ["a.yaml:2:1: not valid YAML: a tab where YAML wants spaces: indent with spaces"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('a: 1\nb: "foo\nc: 2\n', "a.yaml:2:4: not valid YAML: a quote that is never closed"),
        ("a: b: c\n", ": put quotes around text that holds `: `, and align the keys"),
        ("a:\n  - b: 1\n   c: 2\n", ": begin keys of one mapping in one column, and items too"),
        ("a: [{b: 1} c]\n", ": close the bracket, and put a comma between items"),
        ("a: @b\n", ": put quotes around it"),
        ('a: "C:\\models"\n', ": between single quotes a backslash is one"),
    ],
)
def test_what_is_mostly_behind_a_fault_of_syntax_is_said(text: str, told: str) -> None:
    (problem,) = faults(text)
    assert problem.endswith(told)


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    assert one("\ufeffa: 1\n") == {"a": 1}


def test_an_alias_bomb_ends_at_a_bound_of_values() -> None:
    levels = ["a: &a [x,x,x,x,x,x,x,x,x,x]"]
    for name, before in zip("bcdefghi", "abcdefgh", strict=True):
        levels.append(f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]")
    (problem,) = faults("\n".join(levels))
    assert f"more than {MAX_NODES:,} values in one file" in problem


def test_aliases_within_the_bound_are_values_like_any_other() -> None:
    assert one("a: &a [1, 2]\nb: [*a, *a]\n") == {"a": [1, 2], "b": [[1, 2], [1, 2]]}


def test_keys_and_values_both_have_places() -> None:
    (document,), _ = parse("a.yaml", b"top:\n  inner:  [x, yy]\n")
    assert document.place(("top", "inner"), at_key=True) == (2, 3)
    assert document.place(("top", "inner")) == (2, 11)
    assert document.place(("top", "inner", 1)) == (2, 15)
    assert document.place(("top", "gone")) == (2, 3)


def test_json_paths_quote_keys_that_are_no_words() -> None:
    assert json_path(("profiles", 0, "env", "A B")) == '$.profiles[0].env["A B"]'


def test_several_documents_in_a_file_keep_their_own_places() -> None:
    found = texts(MODEL + "---\n" + model("other", extra="colour: red\n"))
    assert [line.partition(";")[0] for line in found] == ["a.yaml:16:1: $.colour: unknown key 'colour'"]


def test_an_empty_document_between_others_is_told_apart_from_an_empty_file() -> None:
    assert [(p.line, p.message.split(":")[0]) for p in problems(MODEL + "---\n---\n" + model("b"))] == [
        (9, "empty document")
    ]


def test_a_faulty_file_does_not_colour_how_the_next_is_read() -> None:
    found = texts({"a.yaml": "%YAML 1.1\n---\na: no\n", "b.yaml": model(extra="pinned: no\n")})
    assert found[1].startswith("b.yaml:8:9: $.pinned: expected true or false, found text: YAML 1.2 reads yes, no")


@given(st.binary(max_size=200) | st.text(max_size=120).map(str.encode))
@example(b"%")
@example(b"--- !")
@example(b"&")
@example(b"a: !<")
@example(b"? ? ?")
@example(b"---\n...\n...\n")
@example(b"\xef\xbb\xbf")
@settings(max_examples=300, deadline=None)
def test_arbitrary_bytes_are_at_worst_an_invalid_catalog(data: bytes) -> None:
    given_source = source({"a.yaml": data})
    assert revision_of(given_source)
    with pytest.raises(CatalogInvalid):
        load_catalog(given_source, {})


@given(scrambled)
@settings(max_examples=300, deadline=None)
def test_scrambled_yaml_is_at_worst_an_invalid_catalog(text: str) -> None:
    with pytest.raises(CatalogInvalid):
        load_catalog(source({"a.yaml": text}), {})
