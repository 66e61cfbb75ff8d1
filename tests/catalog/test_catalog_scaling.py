"""Scaling, placement, fallbacks and drafts: what may be written, what arrives, and what is refused or doubted."""

import pytest
from catalog_texts import load, model, texts

from llmgw.catalog.spec import ModelSpec, NodeSpec, PlacementSpec, ScalingSettings, ScalingSpec, Window
from llmgw.ids import ModelName, NodeName
from llmgw.units import GIB, MIB, Bytes, Seconds

CLUSTER = "apiVersion: llmgw/v1\nkind: Cluster\n"
NODES = """\
nodes:
  gpu-1: {pool: gpu, labels: {disk: fast}, budget: {device: 20GiB}, reserve: {device: 1GiB}}
  gpu-2: {pool: gpu}
  box: {}
"""


def only(extra: str, *more: str) -> ModelSpec:
    """The model `qwen` with further lines, beside other documents."""
    return load({"a.yaml": "---\n".join((model(extra=extra), *more))}).catalog.models[ModelName("qwen")]


def scaling(text: str) -> ScalingSpec:
    return only(f"scaling: {text}\n").scaling


def warnings(*documents: str) -> list[str]:
    return [str(warning) for warning in load({"a.yaml": "---\n".join(documents)}).warnings]


def test_everything_about_how_many_and_where_arrives_in_the_values() -> None:
    spec = only(
        "suspend: true\nfallback: small\ngroups: [large, night]\n"
        "placement: {pools: [gpu, default], nodes: [gpu-1], labels: {disk: fast}, spread: false}\n"
        "scaling:\n  min: 1\n  max: 3\n  on_demand: false\n"
        "  schedule: [{days: [mon, fri], from: '08:00', to: '24:00', min: 2, max: 4}]\n",
        model("small"),
        CLUSTER + NODES,
    )
    assert (spec.suspend, spec.fallback, spec.groups) == (True, "small", ("large", "night"))
    assert spec.placement == PlacementSpec(
        pools=("gpu", "default"), nodes=(NodeName("gpu-1"),), labels={"disk": "fast"}, spread=False
    )
    assert spec.scaling == ScalingSpec(
        min=1, max=3, windows=(Window(days=(0, 4), start=480, end=1440, min=2, max=4),)
    )  # fmt: skip


def test_everything_about_the_whole_arrives_in_the_values() -> None:
    cluster = load({
        "a.yaml": CLUSTER + NODES + "time_zone: Europe/Berlin\ndefaults: {idle_timeout: 20m}\n"
        "scaling: {up_waiting: 2.5, up_after: 10s, down_after: 1m, min_residency: 5s}\n"
    }).catalog.cluster  # fmt: skip
    assert (cluster.time_zone, cluster.defaults.idle_timeout) == ("Europe/Berlin", 1200)
    assert cluster.scaling == ScalingSettings(
        up_waiting=2.5, up_after=Seconds(10), down_after=Seconds(60), min_residency=Seconds(5)
    )
    node = cluster.node(NodeName("gpu-1"))
    assert (node.pool, node.labels, node.budget.device, node.reserve.device) == (
        "gpu", {"disk": "fast"}, Bytes(20 * GIB), Bytes(GIB),
    )  # fmt: skip
    assert cluster.node(NodeName("gpu-2")) == NodeSpec(pool="gpu")
    assert cluster.node(NodeName("elsewhere")).reserve.device == 512 * MIB


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("{}", ScalingSpec()),
        ("{on_demand: true}", ScalingSpec(min=0, max=1, on_demand=True)),
        ("{on_demand: true, idle_timeout: 5m}", ScalingSpec(min=0, on_demand=True, idle_timeout=Seconds(300))),
        ("{on_demand: true, idle_timeout: 0}", ScalingSpec(min=0, on_demand=True, idle_timeout=None)),
        ("{min: 3}", ScalingSpec(min=3, max=3)),
        ("{max: 3}", ScalingSpec(min=1, max=3)),
        ("{on_demand: true, min: 2}", ScalingSpec(min=2, max=2, on_demand=True)),
    ],
)
def test_figures_that_are_left_out_follow_from_the_others(written: str, meant: ScalingSpec) -> None:
    assert scaling(written) == meant


def test_a_windows_figures_that_are_left_out_are_the_models_own() -> None:
    spec = scaling("{min: 2, max: 3, schedule: [{from: '22:00', to: '06:00', max: 5}, {from: '12:00', to: '13:00'}]}")
    assert spec.windows == (
        Window(days=(0, 1, 2, 3, 4, 5, 6), start=1320, end=360, min=2, max=5),
        Window(days=(0, 1, 2, 3, 4, 5, 6), start=720, end=780, min=2, max=0),
    )


def test_several_profiles_arrive_in_their_order_with_what_routes_between_them() -> None:
    spec = only("  - {name: b, engine: cpu, weights: {source: /b}, weight: 2, tier: 1, devices: 2, exclusive: true}\n")
    assert [(p.name, p.weight, p.tier, p.devices, p.exclusive) for p in spec.profiles] == [
        ("cpu", 1.0, 0, 0, False),
        ("b", 2.0, 1, 2, True),
    ]


def test_a_draft_is_a_file_or_another_model() -> None:
    lines = "    draft: {model: small}\n"
    profile = only(lines, model("small")).profiles[0]
    assert (profile.draft, profile.draft_model) == (None, "small")
    assert "draft" not in profile.roles


def test_a_draft_that_is_both_or_neither_is_told_what_it_may_be() -> None:
    expected = "expected {source: ...}, a file that the same process loads, or {model: NAME}, a model of the catalog"
    for draft in "{source: /d, model: small}", "{}":
        found = texts(model(profile=f"draft: {draft}") + "---\n" + model("small"))
        assert f"a.yaml:8:12: $.profiles[0].draft: {expected}" in found
    (alone,) = texts(model(profile="draft: {size: 1GiB, model: small}") + "---\n" + model("small"))
    assert alone == "a.yaml:8:13: $.profiles[0].draft.size: 'size' needs 'source' beside it"
