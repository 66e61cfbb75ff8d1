"""Sizes without a unit."""

import pytest
from catalog_texts import load, model

CLUSTER = "apiVersion: llmgw/v1\nkind: Cluster\n"


def warned(text: str) -> list[str]:
    return [str(each).removeprefix("a.yaml:") for each in load({"a.yaml": model(), "b.yaml": text}).warnings]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (model("m", profile="memory: 8"), "b.yaml:8:13: $.profiles[0].memory: is 8 bytes: write a unit"),
        (model("m", profile="host_memory: 512"), "b.yaml:8:18: $.profiles[0].host_memory: is 512 bytes: write"),
        (f"{CLUSTER}nodes: {{a: {{budget: {{host: 16}}}}}}\n", "b.yaml:3:28: $.nodes.a.budget.host: is 16 bytes: wr"),
        (f"{CLUSTER}nodes: {{a: {{reserve: {{disk: 10}}}}}}\n", "b.yaml:3:29: $.nodes.a.reserve.disk: is 10 bytes"),
        (f"{CLUSTER}gateway: {{max_body: 64}}\n", "b.yaml:3:21: $.gateway.max_body: is 64 bytes: write a unit"),
    ],
)
def test_a_number_of_a_few_bytes_is_doubted(text: str, told: str) -> None:
    assert [each[: len(told)] for each in warned(text)] == [told]


def test_what_a_level_inherits_is_told_once_and_what_it_gives_is_told_there() -> None:
    inherits = model("m", profile="memory: 8\ndegraded: {context: 512}")
    assert [each.partition(": is")[0] for each in warned(inherits)] == ["b.yaml:8:13: $.profiles[0].memory"]
    gives = model("m", profile="memory: 8GiB\ndegraded: {memory: 4}")
    assert [each.partition(": is")[0] for each in warned(gives)] == ["b.yaml:9:24: $.profiles[0].degraded.memory"]


@pytest.mark.parametrize("size", ["8B", "1048576", "8GiB"])
def test_bytes_that_are_meant_are_not_doubted(size: str) -> None:
    assert warned(model("m", profile=f"memory: {size}")) == []


def test_nothing_kept_in_reserve_is_not_doubted() -> None:
    assert warned(f"{CLUSTER}nodes: {{a: {{reserve: {{host: 0, disk: 0}}}}}}\n") == []
