"""A loader that has seen earlier revisions says of each revision what one would that has not."""

import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from calls import calls_of
from catalog_texts import ENGINES, load, model, source
from hypothesis import given, settings
from hypothesis import strategies as st
from test_catalog_fuzz import WHOLE, catalogs
from test_catalog_templates import BASE, WEIGHTS, extending
from yaml_texts import odd_text

from llmgw.catalog import schemas, yamldoc
from llmgw.catalog.load import Loaded, Loader, load_catalog
from llmgw.catalog.rules import EngineRules
from llmgw.catalog.spec import canonical_json
from llmgw.errors import CatalogInvalid, Problem

CLUSTER = "apiVersion: llmgw/v1\nkind: Cluster\nmacros: {{M: {macro}, N: [a, b]}}\nnodes: {{box: {{pool: {pool}}}}}\n"
PARTS: Mapping[str, list[str]] = {
    "a.yaml": [model("a"), model("a", "priority: 5\n"), model("b"), model("a", "fallback: b\n"), "a: ["],
    "b.yaml": [model("b", "aliases: [a]\n"), model("b"), model("b", "fallback: a\ngroups: [g]\n"),
        model("b") + "---\n" + model("c")],
    "c.yaml": [
        CLUSTER.format(macro="x", pool="p"), CLUSTER.format(macro="y", pool="p"), CLUSTER.format(macro="x", pool="q"),
        CLUSTER.format(macro="[z]", pool="p"), CLUSTER.format(macro="x", pool="p") + "time_zone: Nowhere/None\n",
    ],
    "d.yaml": [
        model("d", "placement: {pools: [p]}\n", 'args: ["${M}", "${N}"]'), model("d", "", 'args: ["${M} ${N}"]'),
        model("d", "", "context: 8192\ndegraded: {context: 8192}"), model("d", "", "description: |\n  x"),
    ],
    "t.yaml": [BASE, BASE.replace("priority: 5", "priority: 6"), BASE.replace("name: base", "name: bse"),
        BASE.replace("8192", "no")],
    "u.yaml": [extending("u", WEIGHTS), extending("u"), extending("u", WEIGHTS.replace("gpu", "cpu"))],
}  # fmt: skip


def said(loader: Loader | None, files: Mapping[str, str], engines: Mapping[str, EngineRules]) -> Loaded | list[Problem]:
    try:
        here = source(files)
        return load_catalog(here, engines) if loader is None else loader.load(here, engines)
    except CatalogInvalid as invalid:
        return list(invalid.problems)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_what_was_seen_before_changes_no_answer(data: st.DataObject) -> None:
    loader, files = Loader(), {}
    engines = dict(ENGINES)
    for _ in range(data.draw(st.integers(2, 6))):
        for name in data.draw(st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=3, unique=True)):
            text = data.draw(st.sampled_from([*PARTS[name], None]))
            files.pop(name, None) if text is None else files.update({name: text})
        if data.draw(st.integers(0, 5)) == 0:
            engines["cpu"] = replace(engines["cpu"], needs_weights=not engines["cpu"].needs_weights)
        assert said(loader, files, engines) == said(None, files, engines)


def test_what_did_not_change_is_the_very_value() -> None:
    loader = Loader()
    files = {"a.yaml": model("a"), "b.yaml": model("b")}
    before = loader.load(source(files), ENGINES).catalog.models
    after = loader.load(source({**files, "b.yaml": model("b", "priority: 3\n")}), ENGINES).catalog.models
    assert after["a"] is before["a"]  # type: ignore[index]
    assert after["b"] != before["b"]  # type: ignore[index]


def test_with_a_hub_of_the_clusters_own_too_what_did_not_change_is_the_very_value() -> None:
    cluster = "apiVersion: llmgw/v1\nkind: Cluster\nweights: {hub_endpoint: https://hub.example.org}\n"
    files = {f"{name}.yaml": model(name).replace("/srv/", "hf://org/repo/") for name in "ab"} | {"c.yaml": cluster}
    loader = Loader()
    before = loader.load(source(files), ENGINES).catalog
    assert "https://hub.example.org" in str(before.models["a"])  # type: ignore[index]
    files["b.yaml"] += "priority: 3\n"
    after = loader.load(source(files), ENGINES).catalog
    assert after == load(files).catalog
    assert after.models["a"] is before.models["a"]  # type: ignore[index]
    elsewhere = {**files, "c.yaml": cluster.replace("hub.", "other.")}
    assert loader.load(source(elsewhere), ENGINES).catalog == load(elsewhere).catalog
    without = {**files, "c.yaml": cluster.replace("weights: {hub_endpoint: https://hub.example.org}", "name: x")}
    assert loader.load(source(without), ENGINES).catalog == load(without).catalog


@pytest.mark.parametrize("models", [10, 100])
def test_a_change_of_one_model_has_one_model_judged_and_no_other_looked_into(models: int) -> None:
    files = {f"m{n:03}.yaml": model(f"m{n:03}", f"aliases: [alias-{n}]\ngroups: [g]\n") for n in range(models)}
    loader, asked = Loader(), []

    def canonical(text: str) -> str:
        asked.append(text)
        return text

    before = loader.load(source(files), ENGINES, canonical=canonical).catalog
    whole = len(asked)
    asked.clear()
    changed = {**files, "m007.yaml": files["m007.yaml"] + "fallback: m003\n"}
    with calls_of(yamldoc.parse) as seen:
        after = loader.load(source(changed), ENGINES, canonical=canonical).catalog
    assert whole == models * len(asked)
    assert set(asked) == {"/srv/m007.gguf"}
    assert {each["file"] for each in seen} == {"m007.yaml"}
    assert [name for name, each in after.models.items() if each is not before.models[name]] == ["m007"]


def test_places_that_were_forgotten_are_told_again() -> None:
    loader = Loader()
    files = {"a.yaml": model("a", "", "degraded: {context: 9}"), "u.yaml": extending("u", WEIGHTS), "t.yaml": BASE}
    loader.load(source(files), ENGINES)
    with pytest.raises(CatalogInvalid) as caught:
        loader.load(source({**files, "z.yaml": model("u", "aliases: [a]\n")}), ENGINES)
    told = [(problem.line, problem.column, problem.message.rpartition(" at ")[2]) for problem in caught.value.problems]
    assert told == [(3, 7, "u.yaml:3:7"), (8, 11, "a.yaml:3:7")]


def test_macros_of_all_documents_together_have_a_bound_whether_seen_before_or_not() -> None:
    cluster = f"apiVersion: llmgw/v1\nkind: Cluster\nmacros: {{BIG: {'x' * 200_000}}}\n"
    files = {f"m{n:02}.yaml": model(f"m{n:02}", "", 'args: ["${BIG}"]') for n in range(30)} | {"z.yaml": cluster}
    loader = Loader()
    few = dict(list(files.items())[:5]) | {"z.yaml": cluster}
    loader.load(source(few), ENGINES)
    found = said(loader, files, ENGINES)
    assert found == said(None, files, ENGINES)
    assert isinstance(found, list)
    assert "macros come to more than" in found[-1].message


def test_the_digest_is_that_of_the_documents_whatever_way_it_is_worked_out() -> None:
    catalog = load({"a.yaml": model("b"), "b.yaml": model("a")}).catalog
    whole = canonical_json([list(catalog.models.values()), catalog.cluster])
    assert catalog.digest == hashlib.sha256(whole).hexdigest()


def loads_or_is_told(files: Mapping[str, str | bytes]) -> None:
    """Anything else that is raised fails the test."""
    try:
        load(files)
    except CatalogInvalid as invalid:
        told = invalid.problems
    else:
        return
    assert told


@given(
    st.lists(
        st.binary(max_size=120) | st.text(max_size=120).map(lambda text: text.encode("utf-8", "surrogatepass")),
        max_size=3,
    )
)
@settings(max_examples=150, deadline=None)
def test_no_bytes_in_catalog_files_break_the_loader(parts: list[bytes]) -> None:
    loads_or_is_told({f"{number}.yaml": data for number, data in enumerate(parts)})


def test_no_odd_text_breaks_the_loader() -> None:
    for seed in range(600):
        rng = random.Random(seed)
        loads_or_is_told({"a.yaml": odd_text(rng), "b.yaml": model("b")})


@given(catalogs(), catalogs())
@settings(max_examples=60, deadline=None)
def test_what_loads_has_the_shape_that_it_must(one: bytes, two: bytes) -> None:
    """Nothing gets past the schema: a catalog that loads is made of documents that the judge accepts."""
    for data in (one, two):
        try:
            load({"a.yaml": data})
        except CatalogInvalid:
            continue
        documents, problems = yamldoc.judge("a.yaml", data.decode())
        assert not problems
        for document in documents:
            assert schemas.validator_for(document.value["kind"]).is_valid(document.value)


def test_the_documents_that_are_spoilt_there_load() -> None:
    text: Any = "\n---\n".join(map(json.dumps, WHOLE))
    assert load({"a.yaml": text}).catalog.models
