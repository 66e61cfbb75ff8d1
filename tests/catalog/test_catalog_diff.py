"""What differs between two catalogs, and what each difference does."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from catalog_texts import ENGINES, model, source
from hypothesis import given
from hypothesis import strategies as st

from llmgw.catalog import leaves, spec
from llmgw.catalog.diff import Change, diff
from llmgw.catalog.leaves import Effect
from llmgw.catalog.load import load_catalog
from llmgw.catalog.rules import EngineRules
from llmgw.catalog.spec import Catalog, ModelSpec, ProfileSpec, SecretRef, WeightsSpec, spec_digest
from llmgw.ids import Digest, EngineName, ModelName, ProfileName, Revision
from llmgw.units import Bytes, Seconds

CLUSTER = "---\napiVersion: llmgw/v1\nkind: Cluster\n"
OPEN = {name: EngineRules(options_schema={}, roles=None) for name in ENGINES}


def catalog(text: str) -> Catalog:
    return load_catalog(source({"a.yaml": text}), OPEN).catalog


def rows(old: str, new: str) -> list[tuple[str, str | None, str | None, str]]:
    return [(change.path, change.old, change.new, str(change.effect)) for change in diff(catalog(old), catalog(new))]


def profiles(old: str, new: str) -> list[tuple[str, str | None, str | None, str]]:
    """Of the one profile's lines."""
    found = rows(model(profile=old), model(profile=new))
    return [(path.removeprefix("profiles.cpu."), *rest) for path, *rest in found]  # type: ignore[misc]


def test_equal_contents_do_not_differ_whatever_the_revisions_and_files_are() -> None:
    one = catalog(model())
    other = load_catalog(source({"z.yml": "# hello\n" + model()}, commit="abc"), OPEN).catalog
    assert one.revision != other.revision
    assert diff(one, other) == ()


def test_a_catalog_that_was_stored_and_read_again_does_not_differ() -> None:
    whole = catalog(model(extra="scaling: {on_demand: true}\n", profile="weight: 2\ndegraded: {context: 1}") + CLUSTER)
    assert diff(whole, msgspec.json.decode(spec.canonical_json(whole), type=Catalog)) == ()


def test_models_that_come_and_go_are_told_whole() -> None:
    found = diff(catalog(model("a") + "---\n" + model("b")), catalog(model("b") + "---\n" + model("c")))
    assert [(c.model, c.path, str(c.kind), c.old, c.new, str(c.effect)) for c in found] == [
        ("a", "", "removed", "1 profile: cpu (cpu)", None, "stop"),
        ("c", "", "added", None, "1 profile: cpu (cpu)", "placement"),
    ]


def test_a_model_that_others_run_comes_and_goes_without_an_engine() -> None:
    far = "apiVersion: llmgw/v1\nkind: Model\nname: far\nexternal: {url: 'https://api.example.org/v1'}\n"
    there, gone = f"{model()}---\n{far}", model()
    assert rows(there, gone) == [("", "external: https://api.example.org/v1", None, "routing")]
    assert rows(gone, there) == [("", None, "external: https://api.example.org/v1", "routing")]


@pytest.mark.parametrize(
    ("old", "new", "row"),
    [
        ("", "context: 8192", ("context", "4096", "8192", "restart")),
        ("options: {a: {b: 1}}", "options: {a: {b: '1'}}", ("options.a.b", "1", '"1"', "restart")),
        ("options: {a: 1}", "", ("options.a", "1", None, "restart")),
        ("", "options: {a: {}}", ("options.a", None, "{}", "restart")),
        ("", "options: {a: null}", ("options.a", None, "null", "restart")),
        ("args: [-a]", "args: [-a, -b]", ("args", '["-a"]', '["-a", "-b"]', "restart")),
        ("", "devices: 2", ("devices", "0", "2", "restart")),
        ("draft: {source: /d}", "draft: {source: /e}", ("draft.source", "/d", "/e", "restart")),
        ("", "files: {x: {source: /d}}", ("files.x.source", None, "/d", "restart")),
        (
            "draft: {source: /d}",
            "draft: {source: /d, token: {from_env: T}}",
            ("draft.token", None, "{from_env: T}", "later"),
        ),
        ("draft: {source: /d}", "draft: {source: /d, insecure: true}", ("draft.insecure", None, "true", "later")),
        ("", "memory: 9GiB", ("memory", None, "9GiB", "placement")),
        ("memory: 1GiB", "memory: 1073741825", ("memory", "1GiB", "1073741825", "placement")),
        ("devices: 1", "devices: 1\nexclusive: true", ("exclusive", "false", "true", "placement")),
        ("", "weight: 2.5", ("weight", "1.0", "2.5", "routing")),
        ("", "tier: 1", ("tier", "0", "1", "routing")),
        ("", "max_requests: 8", ("max_requests", None, "8", "routing")),
        ("start_timeout: 90s", "start_timeout: 1h30m", ("start_timeout", "1m30s", "1h30m", "later")),
        ("", "degraded: {context: 2048}", ("degraded.context", None, "2048", "level")),
        ("degraded: {context: 2048}", "", ("degraded.context", "2048", None, "level")),
        ("", "minimal: {memory: 1MiB}", ("minimal.memory", None, "1MiB", "placement")),
        ("", "minimal: {start_timeout: 1m}", ("minimal.start_timeout", None, "1m", "later")),
        ("minimal: {context: 2048}", "minimal: {context: 1024}", ("minimal.context", "2048", "1024", "level")),
    ],
)
def test_a_profiles_field_is_told_with_both_values_and_what_it_does(old: str, new: str, row: object) -> None:
    assert profiles(old, new) == [row]


def test_what_a_level_inherits_is_told_once() -> None:
    level = "\ndegraded: {context: 2048}"
    assert profiles("parallel: 1" + level, "parallel: 2" + level) == [("parallel", "1", "2", "restart")]
    dropped = "options: {a: 1}\nminimal: {engine: command}"
    assert profiles("options: {a: 1}\nminimal: {context: 1}", dropped) == [
        ("minimal.context", "1", None, "level"),
        ("minimal.engine", None, "command", "level"),
        ("minimal.options.a", None, "none", "level"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "row"),
    [
        ("", "description: x\n", ("description", '""', "x", "nothing")),
        ("labels: {a.b: x}\n", "labels: {a.b: y}\n", ('labels["a.b"]', "x", "y", "nothing")),
        ("", "aliases: [x]\n", ("aliases", "[]", '["x"]', "routing")),
        ("", "priority: 5\n", ("priority", "0", "5", "placement")),
        ("", "pinned: true\n", ("pinned", "false", "true", "placement")),
        ("", "suspend: true\n", ("suspend", "false", "true", "placement")),
        ("", "fallback: other\n", ("fallback", None, "other", "routing")),
        ("", "scaling: {max: 3}\n", ("scaling.max", "1", "3", "placement")),
        ("", "groups: [a]\n", ("groups", "[]", '["a"]', "placement")),
        ("", "placement: {spread: false}\n", ("placement.spread", "true", "false", "placement")),
        (
            "scaling: {schedule: [{from: '08:00', to: '09:00', min: 2}]}\n",
            "scaling: {schedule: [{from: '08:00', to: '09:00', min: 2, max: 3}]}\n",
            ('scaling.schedule["daily 08:00-09:00"]', "min 2", "min 2, max 3", "placement"),
        ),
        (
            "",
            "scaling: {schedule: [{from: '08:00', to: '09:00', min: 2}]}\n",
            ('scaling.schedule["daily 08:00-09:00"]', None, "min 2", "placement"),
        ),
        ("", "scaling: {idle_timeout: 90}\n", ("scaling.idle_timeout", None, "1m30s", "placement")),
    ],
)
def test_a_models_field_is_told_with_what_it_does(old: str, new: str, row: object) -> None:
    other = "---\n" + model("other")
    assert rows(model(extra=old) + other, model(extra=new) + other) == [row]


@pytest.mark.parametrize(
    ("old", "new", "row"),
    [
        ("", "name: home\n", ("name", "default", "home", "nothing")),
        ("", "time_zone: Europe/Berlin\n", ("time_zone", "UTC", "Europe/Berlin", "placement")),
        ("", "gateway: {max_body: 1MiB}\n", ("gateway.max_body", "64MiB", "1MiB", "routing")),
        ("", "defaults: {start_timeout: 1m}\n", ("defaults.start_timeout", "10m", "1m", "later")),
        ("", "defaults: {idle_timeout: 1m}\n", ("defaults.idle_timeout", "15m", "1m", "placement")),
        ("", "scaling: {up_after: 0}\n", ("scaling.up_after", "30s", "0s", "placement")),
        ("", "recovery: {stable: 500ms}\n", ("recovery.stable", "5m", "0.5s", "later")),
        ("", "weights: {bandwidth: 50MiB}\n", ("weights.bandwidth", None, "50MiB", "later")),
        ("", "weights: {mirror: false}\n", ("weights.mirror", "true", "false", "later")),
        ("", "weights: {mirror_bandwidth: 1GiB}\n", ("weights.mirror_bandwidth", None, "1GiB", "later")),
        ("", "weights: {min_age: 36h}\n", ("weights.min_age", "1d", "1d12h", "later")),
        (
            "notify: [{name: n, kind: webhook, url: 'https://a.example'}]\n",
            "notify: [{name: n, kind: webhook, url: 'https://b.example'}]\n",
            ("notify.n.url", "https://a.example", "https://b.example", "later"),
        ),
        ("", "nodes: {box: {pool: gpu}}\n", ("nodes.box.pool", "default", "gpu", "placement")),
        ("nodes: {box: {budget: {device: 1GiB}}}\n", "", ("nodes.box.budget.device", "1GiB", None, "placement")),
    ],
)
def test_a_clusters_field_is_told_with_what_it_does(old: str, new: str, row: object) -> None:
    assert rows(model() + CLUSTER + old, model() + CLUSTER + new) == [row]


def test_profiles_are_told_apart_by_name_and_one_that_is_only_renamed_restarts_nothing() -> None:
    more = "  - {name: b, engine: cpu, weights: {source: /b}}\n"
    assert rows(model(), model(extra=more)) == [("profiles.b", None, "cpu", "placement")]
    assert rows(model(extra=more), model()) == [("profiles.b", "cpu", None, "restart")]
    renamed = more.replace("name: b", "name: c").replace("}}", "}, tier: 1}")
    assert rows(model(extra=more), model(extra=renamed)) == [
        ("profiles.b.name", "b", "c", "nothing"),
        ("profiles.b.tier", "0", "1", "routing"),
    ]


def test_another_order_of_profiles_is_a_difference() -> None:
    head, _, first = model().partition("profiles:\n")
    second = "  - {name: b, engine: cpu, weights: {source: /b}}\n"
    one, other = f"{head}profiles:\n{first}{second}", f"{head}profiles:\n{second}{first}"
    assert rows(one, other) == [("profiles", "cpu, b", "b, cpu", "placement")]


def test_what_may_be_a_secret_is_never_shown() -> None:
    old = "env: {A: hunter2, B: {from_env: X}}\noptions: {api_key: hunter2, deep: [{token: hunter2}], max_tokens: 5}\n"
    old += "args: [--api-key, hunter2, --password=hunter2, --auth-token, -x]\nwrapper: [w, --secret, hunter2]"
    new = old.replace("hunter2", "hunter3").replace("from_env: X", "from_file: /run/b").replace("5", "6")
    found = diff(catalog(model(profile=old)), catalog(model(profile=new)))
    assert "hunter" not in repr(found)
    assert {change.path.removeprefix("profiles.cpu."): (change.old, change.new) for change in found} == {
        "env.A": ("(hidden)", "(hidden)"),
        "env.B": ("{from_env: X}", "{from_file: /run/b}"),
        "options.api_key": ("(hidden)", "(hidden)"),
        "options.deep": ('[{"token": "(hidden)"}]', '[{"token": "(hidden)"}]'),
        "options.max_tokens": ("5", "6"),
        "args": ('["--api-key", "(hidden)", "--password=(hidden)", "--auth-token", "-x"]',) * 2,
        "wrapper": ('["w", "--secret", "(hidden)"]',) * 2,
    }


@pytest.mark.parametrize(
    ("kind", "effects", "apart"),
    [
        (spec.ModelSpec, leaves.OF_MODEL, {"name", "profiles"}),
        (spec.ProfileSpec, leaves.OF_PROFILE, {"name"}),
        (spec.ClusterSpec, leaves.OF_CLUSTER, set()),
    ],
)
def test_every_field_of_a_catalog_has_an_effect(kind: type, effects: Mapping[str, Effect], apart: set[str]) -> None:
    assert set(effects) | apart == {field.name for field in dataclasses.fields(kind)}


def test_what_restarts_an_engine_is_what_it_is_launched_from() -> None:
    restarting = {field for field, effect in leaves.OF_PROFILE.items() if effect is Effect.RESTART}
    assert restarting == set(spec.LAUNCH_FIELDS)


weights = st.builds(WeightsSpec, source=st.sampled_from(["/a", "/b"]), size=st.none() | st.just(Bytes(5)))
scalars = st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["", "1", "x", "none", "null"])
options = st.dictionaries(
    st.sampled_from(["a", "b.c", "api_key"]),
    st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.just("k"), inner), max_leaves=3
    ),
    max_size=2,
)
references = [SecretRef(from_env="X"), SecretRef(from_file="/x")]
plain = st.fixed_dictionaries(
    {},
    optional={
        "weights": weights, "draft": weights, "draft_model": st.just(ModelName("d")), "context": st.integers(1, 2),
        "files": st.dictionaries(st.sampled_from(["x", "y"]), weights, max_size=1), "options": options,
        "args": st.lists(st.sampled_from(["-a", "--token", "s"]), max_size=2).map(tuple), "tier": st.integers(0, 1),
        "env": st.dictionaries(st.just("A"), st.sampled_from(["1", "2", *references])),
        "memory": st.none() | st.just(Bytes(1)), "start_timeout": st.none() | st.just(Seconds(1)),
    },
)  # fmt: skip


def profile(values: Mapping[str, Any]) -> ProfileSpec:
    return ProfileSpec(name=ProfileName("p"), engine=EngineName("cpu"), **values)


def of(one: ProfileSpec) -> Catalog:
    spec = ModelSpec(name=ModelName("m"), profiles=(one,))
    return Catalog(revision=Revision("r"), digest=Digest("d"), models={spec.name: spec})


@given(plain, plain)
def test_a_profile_is_told_to_restart_its_engines_exactly_when_they_are_launched_from_something_else(
    old: Mapping[str, Any], new: Mapping[str, Any]
) -> None:
    before, after = profile(old), profile(new)
    found: tuple[Change, ...] = diff(of(before), of(after))
    name = ModelName("m")
    assert any(c.effect is Effect.RESTART for c in found) == (spec_digest(name, before) != spec_digest(name, after))
    assert bool(found) == (spec.canonical_json(before) != spec.canonical_json(after))  # to Python, True is 1
