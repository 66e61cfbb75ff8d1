"""Scaling, placement, fallbacks and drafts: what may be written, what arrives, and what is refused or doubted."""

import pytest
from catalog_texts import load, model, texts

from llmgw.catalog.spec import ModelSpec, NodeSpec, PlacementSpec, ScalingSettings, ScalingSpec, Window
from llmgw.ids import ModelName, NodeName
from llmgw.units import GIB, MIB, Bytes, Seconds

CLUSTER = "apiVersion: llmgw/v1\nkind: Cluster\n"
BERLIN = CLUSTER + "time_zone: Europe/Berlin\n"
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


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("scaling: {min: 2, max: 1}", "8:24: $.scaling.max: must be at least `min` (2)"),
        ("scaling: {min: -1}", "8:16: $.scaling.min: must be at least 0"),
        ("scaling: {max: 0}", "8:16: $.scaling.max: must be at least 1"),
        ("scaling: {on_demnd: true}", "8:11: $.scaling.on_demnd: unknown key 'on_demnd'; did you mean 'on_demand'?"),
        ("scaling: {windows: []}", "8:11: $.scaling.windows: unknown key 'windows'"),
        ("groups: [a, a]", "8:9: $.groups: must not hold the same entry twice"),
        ("groups: [A]", "8:10: $.groups[0]: expected a name"),
        ("suspend: yes", "8:10: $.suspend: expected true or false, found text"),
        ("placement: {pool: [gpu]}", "8:13: $.placement.pool: unknown key 'pool'; did you mean 'pools'?"),
        ("placement: {labels: {disk: 1}}", "8:28: $.placement.labels.disk: expected text, found a number"),
    ],
)
def test_what_is_wrong_in_shape_is_told_with_its_place(lines: str, problem: str) -> None:
    (found, *_) = texts(model(extra=lines + "\n"))
    assert found.startswith(f"a.yaml:{problem}")


@pytest.mark.parametrize(
    ("window", "problem"),
    [
        ("{from: '08:00', to: '08:00'}", "to: must differ from `from`; a whole day is from \"00:00\" to \"24:00\""),
        ("{from: '24:00', to: '08:00'}", "from: expected a time from \"00:00\" to \"23:59\""),
        ("{from: '8:00', to: '09:00'}", "from: expected a time from \"00:00\" to \"23:59\""),
        ("{from: '08:00', to: '24:01'}", "to: expected a time from \"00:00\" to \"24:00\""),
        ("{from: '08:60', to: '09:00'}", "from: expected a time"),
        ("{from: 800, to: '09:00'}", "from: expected a time from \"00:00\" to \"23:59\", found a number"),
        ("{to: '09:00'}", ": missing key 'from': a time from \"00:00\" to \"23:59\""),
        ("{from: '08:00', to: '09:00', min: 3, max: 2}", "max: must be at least `min` (3), or 0 for the model's own"),
        ("{days: [], from: '08:00', to: '09:00'}", "days: must not be empty"),
        ("{days: [mon, mon], from: '08:00', to: '09:00'}", "days: must not hold the same entry twice"),
        ("{days: [tues], from: '08:00', to: '09:00'}", "days[0]: must be one of mon, tue, wed, thu, fri, sat, sun"),
    ],
)  # fmt: skip
def test_a_window_that_cannot_be_is_refused(window: str, problem: str) -> None:
    (found,) = texts(model(extra=f"scaling: {{schedule: [{window}]}}\n"))
    path = "$.scaling.schedule[0]" + ("" if problem.startswith(":") else ".")
    assert found.partition("$")[0].startswith("a.yaml:8:")
    assert f"{path}{problem}" in found


@pytest.mark.parametrize(
    ("one", "other", "moment"),
    [
        ("days: [mon], from: '08:00', to: '12:00'", "days: [mon, tue], from: '11:59', to: '13:00'", "mon at 11:59"),
        ("days: [mon], from: '22:00', to: '06:00'", "days: [tue], from: '05:00', to: '07:00'", "tue at 05:00"),
        ("days: [sun], from: '22:00', to: '06:00'", "days: [mon], from: '00:00', to: '01:00'", "mon at 00:00"),
        ("days: [mon], from: '00:00', to: '01:00'", "days: [sun], from: '22:00', to: '06:00'", "mon at 00:00"),
        ("from: '00:00', to: '24:00'", "days: [sat], from: '23:59', to: '24:00'", "sat at 23:59"),
    ],
)
def test_windows_that_overlap_name_the_other_and_a_moment(one: str, other: str, moment: str) -> None:
    lines = f"scaling:\n  schedule:\n    - {{{one}, min: 1}}\n    - {{{other}, min: 2}}\n"
    (found,) = texts(model(extra=lines))
    assert found.startswith("a.yaml:11:7: $.scaling.schedule[1]: overlaps the window at a.yaml:10:7 (")
    assert found.endswith(f"both hold on {moment}")


def test_windows_that_only_touch_do_not_overlap() -> None:
    lines = (
        "scaling: {max: 9, schedule: [{days: [sun], from: '22:00', to: '06:00', min: 2}, "
        "{days: [mon], from: '06:00', to: '24:00', min: 3}, {days: [tue], from: '00:00', to: '01:00', min: 2}]}\n"
    )
    assert warnings(model(extra=lines), BERLIN) == []


@pytest.mark.parametrize(
    ("lines", "warning"),
    [
        (
            "{on_demand: true, min: 2}",
            "8:22: $.scaling.on_demand: `min` keeps 2 loaded whether anyone asks or not: on_demand only counts in "
            "windows whose min is 0",
        ),
        (
            "{min: 0}",
            "8:16: $.scaling.min: nothing of it is ever loaded: `min` is 0, without `on_demand` and without a window "
            "that wants one",
        ),
        ("{min: 0, schedule: [{from: '01:00', to: '02:00', max: 3}]}", "8:16: $.scaling.min: nothing of it is ever"),
        ("{idle_timeout: 5m}", "8:25: $.scaling.idle_timeout: has no effect without `on_demand: true`"),
        (
            "{schedule: [{from: '01:00', to: '02:00'}]}",
            "8:22: $.scaling.schedule[0]: changes nothing: its figures are those that hold without it",
        ),
    ],
)
def test_scaling_that_will_hardly_do_what_was_meant_is_accepted_with_a_warning(lines: str, warning: str) -> None:
    (found,) = warnings(model(extra=f"scaling: {lines}\n"), BERLIN)
    assert found.startswith(f"a.yaml:{warning}")


def test_on_demand_and_a_window_that_stops_a_model_are_no_reason_to_warn() -> None:
    assert warnings(model(extra="scaling: {on_demand: true}\n")) == []
    assert warnings(model(extra="scaling: {min: 0, schedule: [{from: '08:00', to: '09:00', min: 1}]}\n"), BERLIN) == []
    assert warnings(model(extra="scaling: {schedule: [{from: '22:00', to: '06:00', min: 0}]}\n"), BERLIN) == []


def test_a_schedule_by_a_clock_that_nobody_named_is_told_once() -> None:
    lines = "scaling: {schedule: [{from: '22:00', to: '06:00', min: 0}]}\n"
    message = "is by UTC: name a `time_zone` in the Cluster document, `UTC` if that is meant"
    expected = [f"a.yaml:8:21: $.scaling.schedule: {message}"]
    assert warnings(model("a", extra=lines), model("b", extra=lines)) == expected
    assert warnings(model("a", extra=lines), CLUSTER) == expected
    assert warnings(model("a", extra=lines), CLUSTER + "time_zone: UTC\n") == []


def test_a_group_of_one_is_doubted() -> None:
    assert warnings(model("a", extra="groups: [large, larg]\n"), model("b", extra="groups: [large]\n")) == [
        "a.yaml:8:17: $.groups[1]: no other model is in the group 'larg'; did you mean 'large'?"
    ]


def test_a_fallback_is_another_model_by_its_name() -> None:
    files = {
        "a.yaml": model("a", extra="fallback: smal\n"),
        "b.yaml": model("b", extra="fallback: b\n"),
        "c.yaml": model("c", extra="fallback: tiny\n"),
        "small.yaml": model("small", extra="aliases: [tiny]\n"),
    }
    assert texts(files) == [
        "a.yaml:8:11: $.fallback: no model 'smal'; did you mean 'small'?",
        "b.yaml:8:11: $.fallback: a model cannot stand in for itself",
        "c.yaml:8:11: $.fallback: 'tiny' is an alias: write the model's name, 'small'",
    ]


def test_fallbacks_that_go_round_are_named_whole_and_once() -> None:
    files = {f"{name}.yaml": model(name, extra=f"fallback: {to}\n") for name, to in ["xa", "ab", "bc", "ca", "yx"]}
    assert texts(files) == [
        "a.yaml:8:11: $.fallback: fallbacks that lead back to where they began: a -> b -> c -> a",
    ]


def test_a_chain_of_fallbacks_is_fine() -> None:
    files = {f"{name}.yaml": model(name, extra=f"fallback: {to}\n") for name, to in ["ab", "bc", "dc"]}
    assert load({**files, "c.yaml": model("c")}).catalog.models


def test_a_name_that_may_stand_in_a_file_that_cannot_be_read_is_not_missed() -> None:
    files = {"a.yaml": model("a", extra="fallback: b\nplacement: {pools: [gpu]}\n"), "b.yaml": "apiVersion: ["}
    assert [problem.partition(":")[0] for problem in texts(files)] == ["b.yaml"]


def test_a_model_that_drafts_is_another_and_has_no_draft_itself() -> None:
    files = {
        "a.yaml": model("a", profile="draft: {model: a}"),
        "b.yaml": model("b", profile="draft: {model: smal}"),
        "c.yaml": model("c", profile="draft: {model: d}"),
        "d.yaml": model("d", profile="draft: {model: small}"),
        "e.yaml": model("e", profile="degraded: {draft: {model: nine}}"),
        "f.yaml": model("f", profile="draft: {model: paired}", extra="groups: [pair, other]\n"),
        "paired.yaml": model("paired", extra="groups: [pair]\n"),
        "small.yaml": model("small"),
    }
    assert texts(files) == [
        "a.yaml:8:20: $.profiles[0].draft.model: a model cannot draft for itself",
        "b.yaml:8:20: $.profiles[0].draft.model: no model 'smal'; did you mean 'small'?",
        "c.yaml:8:20: $.profiles[0].draft.model: 'd' has a draft of its own (d.yaml:8:5): one that drafts has none",
        "e.yaml:8:31: $.profiles[0].degraded.draft.model: no model 'nine'",
        "f.yaml:8:20: $.profiles[0].draft.model: 'paired' shares the group 'pair': they could never run beside each "
        "other",
    ]


def test_pools_and_nodes_are_those_of_the_cluster_document() -> None:
    lines = "placement: {pools: [default, gup, edge], nodes: [gpu-3, box]}\n"
    assert texts({"a.yaml": model(extra=lines), "c.yaml": CLUSTER + NODES}) == [
        "a.yaml:8:30: $.placement.pools[1]: no pool 'gup' in the Cluster document; did you mean 'gpu'?",
        "a.yaml:8:35: $.placement.pools[2]: no pool 'edge' in the Cluster document (there are: default, gpu)",
        "a.yaml:8:50: $.placement.nodes[0]: no node 'gpu-3' in the Cluster document; did you mean 'gpu-2'?",
    ]


def test_without_nodes_in_the_cluster_document_any_node_may_be_named_and_the_default_pool() -> None:
    assert warnings(model(extra="placement: {pools: [default], nodes: [box]}\n")) == []
    (found,) = texts(model(extra="placement: {pools: [gpu]}\n"))
    assert "no pool 'gpu' in the Cluster document (there are: default)" in found


@pytest.mark.parametrize(
    ("placement", "possible"),
    [
        ("{labels: {disk: fast}}", True),
        ("{labels: {disk: slow}}", False),
        ("{pools: [gpu], nodes: [box]}", False),
        ("{pools: [gpu], nodes: [box, gpu-2]}", True),
        ("{nodes: [gpu-2], labels: {disk: fast}}", False),
        ("{pools: [default]}", True),
        ("{spread: false}", True),
    ],
)
def test_a_placement_that_no_listed_node_fulfils_is_doubted(placement: str, possible: bool) -> None:
    found = warnings(model(extra=f"placement: {placement}\n"), CLUSTER + NODES)
    message = "no node that the Cluster document lists fulfils all of it: the model can be placed nowhere"
    assert found == ([] if possible else [f"a.yaml:8:12: $.placement: {message}"])


def test_a_time_zone_is_one_that_there_is() -> None:
    assert texts(CLUSTER + "time_zone: Europe/Berln\n") == [
        "a.yaml:3:12: $.time_zone: no time zone 'Europe/Berln'; did you mean 'Europe/Berlin'?"
    ]
    (found,) = texts(CLUSTER + "time_zone: ../../etc/passwd\n")
    assert "no time zone" in found
    assert "expected text" in texts(CLUSTER + "time_zone: 1\n")[0]


def test_profiles_have_names_of_their_own() -> None:
    assert texts(model(extra="  - {name: cpu, engine: cpu, weights: {source: /b}}\n")) == [
        "a.yaml:8:12: $.profiles[1].name: 'cpu' is already the profile at a.yaml:5:11"
    ]


def test_exclusive_needs_devices() -> None:
    assert texts(model(profile="exclusive: true")) == [
        "a.yaml:8:16: $.profiles[0].exclusive: needs `devices` above 0: it keeps other replicas off them"
    ]
    assert load({"a.yaml": model(profile="exclusive: true\ndevices: 1")}).catalog.models
