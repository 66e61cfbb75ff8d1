"""Times of supervision in the Cluster document."""

import pytest
from catalog_texts import load, texts

from llmgw.catalog.spec import SupervisionSettings
from llmgw.units import Seconds

CLUSTER = "apiVersion: llmgw/v1\nkind: Cluster\n"


def test_what_is_written_arrives_and_what_is_not_has_its_default() -> None:
    cluster = load({"a.yaml": CLUSTER + "supervision: {hang_after: 5m, probe_every: 0}\n"}).catalog.cluster
    expected = SupervisionSettings(hang_after=Seconds(300), probe_every=Seconds(0), node_grace=Seconds(60))
    assert cluster.supervision == expected


@pytest.mark.parametrize("written", ["hang_after: 5s", "node_grace: 0", "probe_every: often", "hang_afer: 2m"])
def test_what_makes_no_sense_is_refused_at_its_place(written: str) -> None:
    (problem,) = texts(CLUSTER + f"supervision: {{{written}}}\n")
    assert "$.supervision" in problem
    assert problem.startswith("a.yaml:")
