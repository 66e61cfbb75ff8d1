"""`kind: Template` and `extends`: what is merged how, and where problems are told."""

import pytest
from catalog_texts import ENGINES, load, model, problems, source, texts

from llmgw.catalog.load import Loader
from llmgw.catalog.partial import FILE, template_schema, text_of
from llmgw.catalog.schemas import load_schema, schema_directory
from llmgw.catalog.spec import ModelSpec, SecretRef
from llmgw.units import GIB

HEAD = "apiVersion: llmgw/v1\nkind: "
BASE = f"""\
{HEAD}Template
name: base
description: From the template
priority: 5
labels: {{team: search, tier: a}}
scaling: {{on_demand: true, idle_timeout: 5m}}
groups: [g, h]
profiles:
  - name: gpu
    engine: command
    context: 8192
    devices: 1
    memory: 9GiB
    env: {{TOKEN: {{from_env: A}}, SPEED: fast}}
    options: {{command: [run, "{{port}}"], health: /health}}
    weights: {{sha256: {"a" * 64}, size: 5GiB, token: {{from_env: T}}}}
  - name: cpu
    engine: cpu
    weights: {{source: /srv/base.gguf}}
    options: {{threads: 2}}
"""


def extending(name: str = "one", rest: str = "") -> str:
    return f"{HEAD}Model\nname: {name}\nextends: base\n{rest}"


def merged(rest: str = "", base: str = BASE) -> ModelSpec:
    (one,) = load({"a.yaml": extending(rest=rest), "base.yaml": base}).catalog.models.values()
    return one


WEIGHTS = "profiles: [{name: gpu, weights: {source: /srv/one.gguf}}]\n"


def test_a_model_has_what_it_leaves_out_from_its_template() -> None:
    one = merged(WEIGHTS)
    assert (one.name, one.description, one.priority) == ("one", "From the template", 5)
    assert one.scaling.on_demand
    (gpu,) = one.profiles
    assert (gpu.context, gpu.devices, gpu.memory) == (8192, 1, 9 * GIB)


def test_maps_are_merged_by_key_and_lists_are_replaced() -> None:
    one = merged(WEIGHTS + "labels: {team: chat}\ngroups: [other]\nscaling: {idle_timeout: 1m}\n")
    assert one.labels == {"team": "chat", "tier": "a"}
    assert one.groups == ("other",)
    assert (one.scaling.on_demand, one.scaling.idle_timeout) == (True, 60)


def test_profiles_are_the_models_own_list_each_over_the_templates_of_its_name() -> None:
    one = merged("profiles:\n- {name: cpu, context: 512}\n- {name: new, engine: cpu, weights: {source: /srv/n.gguf}}\n")
    assert [(profile.name, profile.context) for profile in one.profiles] == [("cpu", 512), ("new", 4096)]
    assert one.profiles[0].options == {"threads": 2}
    assert one.profiles[1].options == {}


def test_without_profiles_of_its_own_a_model_has_the_templates() -> None:
    base = BASE.replace("    weights: {sha256", "    weights: {source: /srv/gpu.gguf, sha256")
    assert [profile.name for profile in merged(base=base).profiles] == ["gpu", "cpu"]


def test_a_file_of_its_own_takes_no_checksum_or_size_from_the_template() -> None:
    weights = merged(WEIGHTS).profiles[0].weights
    assert weights is not None
    assert (weights.source, weights.sha256, weights.size) == ("/srv/one.gguf", None, None)
    assert weights.token == SecretRef(from_env="T")


def test_a_profile_of_another_engine_takes_no_options_from_the_template() -> None:
    one = merged("profiles: [{name: gpu, engine: cpu, devices: 0, weights: {source: /srv/x.gguf}}]\n")
    assert one.profiles[0].options == {}


def test_a_secret_is_one_value() -> None:
    one = merged("profiles: [{name: gpu, weights: {source: /x}, env: {TOKEN: {from_file: /b}, OTHER: o}}]\n")
    assert one.profiles[0].env == {"TOKEN": SecretRef(from_file="/b"), "SPEED": "fast", "OTHER": "o"}


def test_null_takes_away_what_the_template_says() -> None:
    one = merged(WEIGHTS.replace("weights:", "memory: null, weights:") + "labels: {tier: null}\ngroups: null\n")
    assert (one.labels, one.groups, one.profiles[0].memory) == ({"team": "search"}, (), None)


def test_a_draft_that_is_a_model_takes_the_place_of_a_file() -> None:
    base = BASE.replace("    memory: 9GiB\n", "    memory: 9GiB\n    draft: {source: /srv/d.gguf, size: 1GiB}\n")
    files = {
        "a.yaml": extending(rest="profiles: [{name: gpu, weights: {source: /x}, draft: {model: small}}]\n"),
        "base.yaml": base,
        "small.yaml": model("small"),
    }
    gpu = load(files).catalog.models["one"].profiles[0]  # type: ignore[index]
    assert (gpu.draft, gpu.draft_model) == (None, "small")


def test_templates_may_extend_templates() -> None:
    middle = f"{HEAD}Template\nname: middle\nextends: base\npriority: 7\n"
    files = {
        "a.yaml": extending(rest=WEIGHTS).replace("extends: base", "extends: middle"),
        "b.yaml": BASE,
        "c.yaml": middle,
    }
    one = load(files).catalog.models["one"]  # type: ignore[index]
    assert (one.priority, one.description) == (7, "From the template")


def test_macros_and_levels_work_in_templates() -> None:
    base = BASE.replace('[run, "{port}"]', '["${RUN}", "{port}"]').replace(
        "    memory: 9GiB\n", "    memory: 9GiB\n    degraded: {context: 512}\n"
    )
    files = {
        "a.yaml": extending(rest=WEIGHTS),
        "b.yaml": base,
        "c.yaml": f"{HEAD}Cluster\nmacros: {{RUN: /bin/run}}\n",
    }
    gpu = load(files).catalog.models["one"].profiles[0]  # type: ignore[index]
    assert gpu.options["command"] == ["/bin/run", "{port}"]
    assert gpu.degraded is not None
    assert (gpu.degraded.context, gpu.degraded.memory) == (512, 9 * GIB)


def test_a_problem_is_told_where_the_value_was_written() -> None:
    base = BASE.replace("context: 8192", "contxt: 8192").replace("priority: 5", "priority: high")
    rest = "profiles: [{name: gpu, weights: {source: /x}, parallel: none}]\n"
    assert texts({"a.yaml": extending(rest=rest), "base.yaml": base}) == [
        "a.yaml:5:57: $.profiles[0].parallel: expected a whole number, found text",
        "base.yaml:5:11: $.priority: expected a whole number, found text",
        "base.yaml:12:5: $.profiles[0].contxt: unknown key 'contxt'; did you mean 'context'?",
    ]


def test_what_shows_only_in_models_is_told_once_with_how_many_they_are() -> None:
    base = BASE.replace("engine: command", "engine: comand")
    files = {f"{name}.yaml": extending(name, WEIGHTS) for name in ("one", "two", "three")} | {"t.yaml": base}
    assert texts(files) == [
        "t.yaml:11:13: $.profiles[0].engine: no engine 'comand'; did you mean 'command'? (installed: command, cpu); "
        "so in the model 'one' and 2 more"
    ]


def test_what_a_model_lacks_is_told_at_the_model() -> None:
    assert texts({"a.yaml": extending(rest="profiles: [{name: gpu}]\n"), "base.yaml": BASE}) == [
        "base.yaml:17:14: $.profiles[0].weights: missing key 'source': hf://ORG/REPO/FILE, https://HOST/PATH, "
        "pypi://DISTRIBUTION==VERSION/PATH/IN/WHEEL, file:///PATH or an absolute path; so in the model 'one'"
    ]
    assert texts({"a.yaml": extending(rest="profiles: [{name: nwe, context: 1}]\n"), "base.yaml": BASE}) == [
        "a.yaml:5:12: $.profiles[0]: missing key 'engine'"
    ]


def test_a_template_that_is_not_there_is_told_with_a_name_that_is() -> None:
    files = {"a.yaml": extending(rest=WEIGHTS).replace("extends: base", "extends: bse"), "base.yaml": BASE}
    assert texts(files) == ["a.yaml:4:10: $.extends: no template 'bse'; did you mean 'base'?"]
    assert texts({**files, "c.yaml": "a: ["}) == [
        "c.yaml:1:5: not valid YAML: while parsing a flow node, expected the node content, but found '<stream end>'"
    ]


def test_a_model_that_could_not_be_merged_is_no_missing_name_to_others() -> None:
    files = {"a.yaml": extending().replace("base", "none"), "b.yaml": model("b", "fallback: one\n")}
    assert texts(files) == ["a.yaml:4:10: $.extends: no template 'none' (there is none)"]


def test_templates_that_extend_themselves_are_told_once_with_the_round() -> None:
    text = f"{HEAD}Template\nname: a\nextends: b\n---\n{HEAD}Template\nname: b\nextends: a\n"
    assert texts({"t.yaml": text, "m.yaml": extending().replace("base", "a")}) == [
        "t.yaml:9:10: $.extends: the template extends itself: a -> b -> a"
    ]


def test_a_chain_of_templates_has_an_end() -> None:
    text = "---\n".join(f"{HEAD}Template\nname: t{n}\nextends: t{n + 1}\n" for n in range(12))
    assert "more than 8 templates that extend one another" in texts(text)[0]


def test_two_templates_of_one_name_are_told_and_a_model_may_have_it() -> None:
    assert texts({"a.yaml": BASE, "b.yaml": BASE}) == [
        "b.yaml:3:7: $.name: 'base' is already the template at a.yaml:3:7"
    ]
    files = {"a.yaml": extending("base", WEIGHTS), "b.yaml": BASE}
    assert list(load(files).catalog.models) == ["base"]


def test_a_misspelt_key_of_a_template_is_compared_with_what_a_template_may_have() -> None:
    found = texts(BASE + "alisases: [x]\nvariant: []\nadaptr_of: x\npinnd: true\n")
    assert [line.partition("; known here: ")[0] for line in found] == [
        "a.yaml:22:1: $.alisases: unknown key 'alisases'",
        "a.yaml:23:1: $.variant: unknown key 'variant'",
        "a.yaml:24:1: $.adaptr_of: unknown key 'adaptr_of'",
        "a.yaml:25:1: $.pinnd: unknown key 'pinnd'; did you mean 'pinned'?",
    ]
    assert "did you mean 'aliases'?" in texts(extending(rest="alisases: [x]\n") + f"---\n{BASE}")[0]


def test_a_template_names_no_aliases() -> None:
    assert texts(BASE + "aliases: [x]\n") == [
        "a.yaml:22:10: $.aliases: expected no `aliases` in a template: each is of one model"
    ]


def test_a_template_that_nothing_extends_is_a_warning() -> None:
    warnings = [str(warning) for warning in load({"a.yaml": model(), "b.yaml": BASE}).warnings]
    assert warnings == ["b.yaml:3:7: $.name: nothing extends the template 'base'"]
    assert not load({"a.yaml": extending(rest=WEIGHTS + "groups: []\n"), "b.yaml": BASE}).warnings


@pytest.mark.parametrize("wanted", ["[base]", "3", "Base", "''"])
def test_extends_is_a_name(wanted: str) -> None:
    found = problems({"a.yaml": model(extra=f"extends: {wanted}\n")})
    assert {problem.path for problem in found} == {"$.extends"}


def test_the_committed_schema_is_made_from_the_models() -> None:
    assert (schema_directory() / FILE).read_text("utf-8") == text_of(template_schema(load_schema("model")))


def test_models_follow_their_template_when_it_changes() -> None:
    loader = Loader()
    files = {"a.yaml": extending(rest=WEIGHTS), "b.yaml": BASE, "c.yaml": model("other")}
    before = loader.load(source(files), ENGINES).catalog.models
    files["b.yaml"] = BASE.replace("priority: 5", "priority: 6")
    after = loader.load(source(files), ENGINES).catalog.models
    assert [models["one"].priority for models in (before, after)] == [5, 6]  # type: ignore[index]


def test_a_template_may_take_away_what_the_one_it_extends_says() -> None:
    middle = f"{HEAD}Template\nname: middle\nextends: base\npriority: null\nlabels: {{tier: null}}\n"
    files = {
        "a.yaml": extending(rest=WEIGHTS).replace("extends: base", "extends: middle"),
        "b.yaml": BASE,
        "c.yaml": middle,
    }
    one = load(files).catalog.models["one"]  # type: ignore[index]
    assert (one.priority, one.labels) == (0, {"team": "search"})
