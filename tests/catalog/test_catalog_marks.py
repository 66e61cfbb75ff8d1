"""The marks of a disk between which weights are collected by themselves."""

import pytest
from catalog_texts import MODEL, load, problems

CLUSTER = "apiVersion: llmgw/v1\nkind: Cluster\n"


def test_both_marks_arrive_and_neither_is_there_by_default() -> None:
    given = load({"a.yaml": MODEL, "c.yaml": f"{CLUSTER}weights: {{collect_above: 90, collect_below: 75}}\n"})
    weights = given.catalog.cluster.weights
    assert (weights.collect_above, weights.collect_below) == (90, 75)
    assert load({"a.yaml": MODEL}).catalog.cluster.weights.collect_above is None


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("{collect_above: 80, collect_below: 80}", "$.weights.collect_below", "less than `collect_above` (80)"),
        ("{collect_below: 80}", "$.weights.collect_below", "needs `collect_above`"),
        ("{collect_above: 100}", "$.weights.collect_above", "99"),
    ],
)
def test_marks_that_make_no_sense_are_refused(text: str, path: str, message: str) -> None:
    (found,) = problems({"a.yaml": MODEL, "c.yaml": f"{CLUSTER}weights: {text}\n"})
    assert (found.file, found.path) == ("c.yaml", path)
    assert message in found.message
