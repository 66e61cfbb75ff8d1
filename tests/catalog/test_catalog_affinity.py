"""What a Model document says of its requests: which belong together, and how many a replica gets at once."""

import pytest
from catalog_texts import ENGINES, model, source, texts

from llmgw.catalog.diff import diff
from llmgw.catalog.load import Loaded, load_catalog
from llmgw.catalog.spec import AffinitySpec, Common
from llmgw.ids import ModelName

QWEN = ModelName("qwen")


def loaded(text: str) -> Loaded:
    return load_catalog(source({"a.yaml": text}), ENGINES)


def test_affinity_is_off_unless_the_document_has_it_and_whole_with_nothing_in_it() -> None:
    assert loaded(model()).catalog.models[QWEN].affinity is None
    assert loaded(model(extra="affinity: {}\n")).catalog.models[QWEN].affinity == AffinitySpec()
    given = loaded(model(extra="affinity: {by: [prefix], header: X-Chat, prefix: 9, bound: 2}\n"))
    assert given.catalog.models[QWEN].affinity == AffinitySpec(
        by=(Common.PREFIX,), header="X-Chat", prefix=9, bound=2.0
    )


@pytest.mark.parametrize(
    "wrong", ["by: []", "by: [user]", "by: [prefix, prefix]", "header: 'a b'", "prefix: 0", "bound: 0.9", "on: true"]
)
def test_what_cannot_be_meant_is_refused(wrong: str) -> None:
    assert len(texts(model(extra=f"affinity: {{{wrong}}}\n"))) == 1


def test_what_changes_of_it_restarts_nothing() -> None:
    new = model(extra="affinity: {bound: 2}\nstream_comments: true\n", profile="max_requests: 3")
    found = diff(loaded(model()).catalog, loaded(new).catalog)
    assert {(change.path, str(change.effect)) for change in found} >= {("affinity.bound", "routing")}
    assert {str(change.effect) for change in found} == {"routing"}
