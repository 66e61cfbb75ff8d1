"""What the faster ways accept the judges accept, with equal values at equal places."""

import random
import time
from typing import Any

import pytest
from catalog_texts import model
from hypothesis import given, settings
from hypothesis import strategies as st
from test_catalog_fuzz import WHOLE, catalogs, junk
from yaml_texts import odd_text

from llmgw.catalog import accepting, schemas, yamldoc, yamlfast
from llmgw.catalog.node import Node
from llmgw.engine.manager import find_engines

ENGINES = find_engines().rules()
FAST = {kind: accepting.own(schemas.load_schema(kind.lower())) for kind in ("Model", "Cluster")}


def same(one: Node, other: Node) -> bool:
    """Equal to the last place, and 1 is not 1.0."""
    return (
        (one.value, one.place, one.keys, one.size) == (other.value, other.place, other.keys, other.size)
        and type(one.value) is type(other.value)
        and list(one.items) == list(other.items)
        and all(same(inner, other.items[key]) for key, inner in one.items.items())
    )


def accepted_alike(text: str) -> bool:
    """Whether it was accepted. Fails where the judge sees anything else in it."""
    roots = yamlfast.roots(text)
    if roots is None:
        return False
    documents, problems = yamldoc.judge("f", text)
    assert not problems, text
    assert len(documents) == len(roots), text
    assert all(same(root, document.root) for root, document in zip(roots, documents, strict=True)), text
    return True


def agree(seeds: range) -> int:
    """How many of so many odd texts were accepted."""
    return sum(accepted_alike(odd_text(random.Random(seed))) for seed in seeds)


def test_the_judge_reads_the_same_in_whatever_the_faster_reader_accepts() -> None:
    assert agree(range(4_000)) > 300


@pytest.mark.slow
def test_the_judge_reads_the_same_in_very_many_texts() -> None:
    assert agree(range(8_000, 1_000_000)) > 50_000


@pytest.mark.parametrize(
    "text",
    [
        model(),
        model(extra="description: It's here, and 100 % of it! (Why?)\n"),
        model(extra='labels: {a: "b: c # d", "e": \'f\'}\n'),
        "a: 1\n---\nb: 漢字 ä\n",
        "# a comment\na: https://h/x?y=1&z=2#f\n\n# another\n",
        "a: [1, -2, 0, 1.5, 10m, 4.7GiB, true, null, '', \"x y\", --flag]\n",
    ],
)
def test_what_people_mostly_write_is_accepted(text: str) -> None:
    assert accepted_alike(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "\n", "# nothing\n", "a: \n", "a: &x 1\n", "a: *x\n", "a: !!str 1\n", "%YAML 1.1\n---\na: no\n",
        "%FOO\n---\na: 1\n",
        "a: 1\na: 2\n", "<<: {a: 1}\n", "a:\t1\n", "a: 0123\n", "a: 2001-01-01\n", "a: .nan\n", "a: |\n  x\n",
        "a: 'x\n  y'\n",
        '["a":1]\n', "a: [b:1]\n", "? [a]\n: b\n", "1: a\n", 'a: "\\t"\n', "a: x\r\n", "\ufeffa: 1\n", "[" * 5_000,
        "a: 1\n...\n",
        "- " * 100, "a: 1\n--- b\n", "a: 1\n---\n", "a: [", "\0", "a: 99999999999999999999\n",
    ],
)  # fmt: skip
def test_anything_else_is_left_to_the_judge(text: str) -> None:
    assert yamlfast.roots(text) is None


DENSE = {
    "lists in lists": "[" * 100_000,
    "maps in maps": "{a: " * 25_000,
    "blocks in blocks": "- " * 50_000,
    "an open quote": "a: '" + "x " * 50_000,
    "complex keys": "? " * 50_000,
    "steps": "\n".join(f"{' ' * (n % 60)}k{n}:" for n in range(4_000)),
    "an open list": "- [" + "a, " * 33_000,
    "one word": "a" * 100_000,
    "keys in a row": "a: " * 33_000,
    "a folded text": "a: >\n" + " x\n" * 33_000,
    "documents": "---\n" * 25_000,
    "short blocks": "- - - - a\n" * 10_000,
    "one key again and again": "a: b\n" * 20_000,
}


def seconds(text: str) -> float:
    """CPU time that reading it takes, by whichever way."""
    started = time.process_time()
    yamldoc.parse("f", text.encode())
    return time.process_time() - started


@pytest.fixture
def usual() -> float:
    """What 100 KB of models take the judge, here and now."""
    started = time.process_time()
    yamldoc.judge("f", "---\n".join(model(f"m{number}") for number in range(700)))
    return time.process_time() - started


@pytest.mark.parametrize("name", DENSE)
def test_100_kilobytes_of_anything_take_no_longer_than_models_many_times(name: str, usual: float) -> None:
    """What grows with the square of the text would take a hundred times as long, and other processes slow both."""
    assert seconds(DENSE[name]) < 20 * usual


@pytest.mark.slow
@pytest.mark.parametrize("name", DENSE)
def test_100_kilobytes_of_anything_take_no_more_than_a_second(name: str) -> None:
    """Of a processor that has nothing else to do: with others beside it takes up to half as long again."""
    assert min(seconds(DENSE[name]) for _ in range(3)) < 1.5


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
@settings(max_examples=300, deadline=None)
def test_no_bytes_break_the_reader(data: bytes) -> None:
    documents, problems = yamldoc.parse("f", data)
    assert documents or problems


@given(catalogs())
@settings(max_examples=100, deadline=None)
def test_the_judge_accepts_whatever_shape_the_faster_validator_accepts(data: bytes) -> None:
    documents, _ = yamldoc.parse("f", data)
    for document in documents:
        for kind in ("Model", "Cluster"):
            if FAST[kind](document.value):
                assert schemas.validator_for(kind).is_valid(document.value)


def test_the_faster_validator_accepts_what_is_valid() -> None:
    for value in WHOLE:
        assert FAST[value["kind"]](value)


AMOUNTS = ["0GiB", "0s", "1GiB", "99999999TiB", "999999999d", 0, -1, 1.5, 2**62, "1GiB ", "x", None, True]


@pytest.mark.parametrize("amount", AMOUNTS, ids=repr)
@pytest.mark.parametrize(
    "place", [("memory",), ("start_timeout",), ("weights", "size")], ids=lambda place: ".".join(place)
)
def test_figures_that_units_hide_are_judged_alike(amount: Any, place: tuple[str, ...]) -> None:
    profile: dict[str, Any] = {"name": "p", "engine": "cpu", "weights": {"source": "/a"}}
    holder = profile
    for step in place[:-1]:
        holder = holder[step]
    holder[place[-1]] = amount
    value = {"apiVersion": "llmgw/v1", "kind": "Model", "name": "m", "profiles": [profile]}
    assert FAST["Model"](value) == schemas.validator_for("Model").is_valid(value)


@pytest.mark.parametrize("engine", sorted(ENGINES))
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_options_that_are_accepted_the_judge_accepts(engine: str, data: st.DataObject) -> None:
    schema = ENGINES[engine].options_schema
    keys = st.sampled_from(sorted(schema["properties"]))
    likely = [
        inner for each in schema["properties"].values() for inner in (*each.get("examples", ()), each.get("default"))
    ]
    options = data.draw(st.dictionaries(keys, junk | st.sampled_from(likely), max_size=4))
    if accepting.of_plugin(schema)(options):
        assert not list(schemas.judge_of(schema).iter_errors(options))


def test_the_installed_engines_options_are_accepted_the_faster_way() -> None:
    taken = {name: accepting.is_plain(rules.options_schema) for name, rules in ENGINES.items()}
    assert taken == dict.fromkeys(ENGINES, True)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://127.0.0.1:9/x.json"}, {"$ref": "#/$defs/a", "$defs": {"a": {}}}, {"pattern": r"^\w+\Z"},
        {"pattern": "(?i)a"},
        {"pattern": "[a&&b]"}, {"properties": {"a": {"oneOf": [{}, {}]}}}, {"not": {"pattern": "a$"}}, {"if": {}},
        {"enum": [1.5]},
        {"$schema": "http://json-schema.org/draft-07/schema#"}, {"uniqueItems": True}, {"multipleOf": 0.1},
        {"type": "whole"}, {"items": []},
        {"format": "email"}, {"additionalItems": False},
    ],
)  # fmt: skip
def test_a_schema_of_a_plugin_that_may_mean_something_else_is_left_to_the_judge(schema: dict[str, Any]) -> None:
    assert not accepting.of_plugin(schema)({})
    assert not accepting.of_plugin(schema)("a")


def test_values_that_were_read_the_slower_way_are_for_the_judge_too() -> None:
    (plain,), _ = yamldoc.parse("f", model().encode())
    (other,), _ = yamldoc.parse("f", (model() + "description: |\n  Tall\n").encode())
    assert (plain.plain, other.plain) == (True, False)
