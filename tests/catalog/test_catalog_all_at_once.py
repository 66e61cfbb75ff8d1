"""That no problem hides another one of the same document for a round."""

from collections.abc import Iterable

import pytest
from catalog_texts import ENGINES, load, model, problems, source, texts

from llmgw.catalog.load import Loader, load_catalog
from llmgw.catalog.rules import Complaint, EngineRules
from llmgw.catalog.spec import ProfileSpec
from llmgw.errors import CatalogInvalid

HEAD = "apiVersion: llmgw/v1\nkind: "
FAULTY = "contxt: 1\nfallback: nonesuch\nscaling: {min: 2, max: 1}\n"
BASE = f"{HEAD}Template\nname: base\nprofiles:\n- {{name: cpu, engine: cpu, weights: {{source: /srv/b.gguf}}}}\n"


def told(files: dict[str, str]) -> set[str]:
    """Path and message of each problem, without the keys that are known there."""
    return {_short(f"{problem.path}: {problem.message}") for problem in problems(dict(files))}


def _short(told: str) -> str:
    return told.partition("; known here: ")[0]


@pytest.mark.parametrize(
    ("head", "fault"),
    [
        (f"{HEAD}Modle\n", "a.yaml:2:7: $.kind: unknown kind 'Modle'; did you mean 'Model'?"),
        (f"{HEAD}models\n", "a.yaml:2:7: $.kind: unknown kind 'models'; did you mean 'Model'?"),
        ("apiVersion: LLMGW/v1\nkind: Model\n", "a.yaml:1:13: $.apiVersion: unknown apiVersion 'LLMGW/v1'; this llmgw"),
        ("apiVersion: llmgw/v1\nKind: Model\n", "a.yaml:1:1: no kind (found 'Kind'): write `kind: Cluster, Model or"),
        ("# no version\nkind: Model\n", "a.yaml:2:1: no apiVersion: start the document with `apiVersion: llmgw/v1`"),
    ],
)
def test_a_misspelt_head_hides_nothing_of_its_document(head: str, fault: str) -> None:
    found = texts(f"{head}{FAULTY}")
    (first,) = (line for line in found if line.startswith(fault))
    assert {_short(line.partition(": ")[2]) for line in found if line != first} == {
        "missing key 'name'",
        "missing key 'profiles' or 'external'",
        "$.contxt: unknown key 'contxt'",
        "$.fallback: no model 'nonesuch'",
        "$.scaling.max: must be at least `min` (2)",
    }


def test_what_a_document_lacks_hides_nothing_of_its_first_line() -> None:
    assert [
        line.partition(": ")[2][:20] for line in texts("nmae: a\nkind: Model\nexternal: {url: https://h/v1}\n")
    ] == [
        "missing key 'name'",
        "no apiVersion: start",
        "$.nmae: unknown key ",
    ]


@pytest.mark.parametrize("head", ["apiVersion: llmgw/v2\nkind: Model\n", f"{HEAD}Deployment\n", f"{HEAD}Scenario\n"])
def test_a_document_that_may_be_something_else_is_not_judged(head: str) -> None:
    assert len(texts(f"{head}{FAULTY}")) == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("services:\n  web: {image: x}\n", "a.yaml:1:1: no apiVersion and no kind: start the document with "),
        (
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n",
            "a.yaml:1:13: $.apiVersion: 'ConfigMap' of 'v1' is a ",
        ),
        ("apiVersion: apps/v1\nkind: Deployment\n", "a.yaml:1:13: $.apiVersion: 'Deployment' of 'apps/v1' is"),
    ],
)
def test_a_file_of_another_tool_is_one_problem_that_says_how_to_leave_it_out(text: str, told: str) -> None:
    (problem,) = texts(text)
    assert problem.startswith(told)
    assert problem.endswith(", or name the file in .llmgwignore if it is none of llmgw's")


def test_a_pointer_of_git_lfs_is_called_by_its_name() -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    assert texts(pointer) == [
        "a.yaml:1:1: a pointer of Git LFS, where the file itself belongs: keep the catalog's files out of LFS"
    ]


def test_the_name_of_a_document_with_a_misspelt_head_is_known_to_others() -> None:
    misspelt = model("one").replace("kind: Model", "kind: Modell")
    assert texts({"a.yaml": misspelt, "b.yaml": model("two", extra="fallback: one\n")}) == [
        "a.yaml:2:7: $.kind: unknown kind 'Modell'; did you mean 'Model'?"
    ]


def test_a_document_with_a_misspelt_head_is_the_same_each_time_it_is_read() -> None:
    loader = Loader()
    misspelt = source({"a.yaml": model().replace("kind: Model", "Kind: Model"), "b.yaml": model("other")})
    for _ in range(2):
        with pytest.raises(CatalogInvalid, match=r"^a.yaml:1:1: no kind \(found 'Kind'\): write [^\n]*$"):
            loader.load(misspelt, ENGINES)
    assert set(loader.load(source({"a.yaml": model()}), ENGINES).catalog.models) == {"qwen"}


def test_a_template_that_is_not_there_hides_nothing_of_what_a_model_gives() -> None:
    text = (
        f"{HEAD}Model\nname: one\nextends: nowhere\n{FAULTY}profiles:\n"
        "- {name: cpu, context: 0, memory: null, engine: cpuu, weights: {size: 1GiB}}\n"
        '- {name: own, engine: command, exclusive: true, options: {helth: /, health: null}, env: {LLMGW_X: "1"}}\n'
    )
    assert told({"a.yaml": text}) == {
        "$.extends: no template 'nowhere' (there is none)",
        "$.contxt: unknown key 'contxt'",
        "$.fallback: no model 'nonesuch'",
        "$.scaling.max: must be at least `min` (2)",
        "$.profiles[0].context: must be at least 1",
        "$.profiles[0].engine: no engine 'cpuu'; did you mean 'cpu'? (installed: command, cpu)",
        "$.profiles[1].options.helth: unknown key 'helth'; did you mean 'health'?",
        "$.profiles[1].env.LLMGW_X: variables that start with LLMGW_ are llmgw's own: choose another name",
    }


def test_what_may_come_from_a_template_that_is_not_there_is_not_missed() -> None:
    text = f"{HEAD}Model\nname: one\nextends: nowhere\nprofiles:\n- {{name: own, engine: command, exclusive: true}}\n"
    assert told({"a.yaml": text}) == {"$.extends: no template 'nowhere' (there is none)"}


def test_a_misspelt_template_is_judged_as_the_one_that_was_meant() -> None:
    text = f"{HEAD}Model\nname: one\nextends: bse\nprofiles: [{{name: cpu}}, {{name: other, engine: cpu}}]\n"
    assert told({"a.yaml": text, "b.yaml": BASE}) == {
        "$.extends: no template 'bse'; did you mean 'base'?",
        "$.profiles[1]: missing key 'weights': the engine cpu loads a file",
    }


def test_a_model_is_no_template() -> None:
    text = f"{HEAD}Model\nname: one\nextends: qwen\ncontxt: 1\n"
    extends, contxt = texts({"a.yaml": text, "b.yaml": model(), "c.yaml": BASE})
    assert extends.startswith("a.yaml:4:10: $.extends: 'qwen' is a model, and only a Template can be extended: write")
    assert _short(contxt) == "a.yaml:5:1: $.contxt: unknown key 'contxt'"


def test_the_templates_that_there_are_are_named() -> None:
    text = f"{HEAD}Model\nname: one\nextends: xyz\n"
    assert told({"a.yaml": text, "b.yaml": BASE}) == {"$.extends: no template 'xyz' (there are: base)"}


def test_a_template_that_extends_what_is_not_there_hides_nothing_of_its_models() -> None:
    base = BASE.replace("name: base\n", "name: base\nextends: nowhere\n")
    assert told({"a.yaml": f"{HEAD}Model\nname: one\nextends: base\ncontxt: 1\n", "b.yaml": base}) == {
        "$.extends: no template 'nowhere' (there are: base)",
        "$.contxt: unknown key 'contxt'",
    }


def test_templates_that_extend_one_another_hide_nothing_of_their_models() -> None:
    one, other = (BASE.replace("name: base\n", f"name: {a}\nextends: {b}\n") for a, b in (("a", "b"), ("b", "a")))
    assert told({"a.yaml": f"{HEAD}Model\nname: one\nextends: a\ncontxt: 1\n", "b.yaml": one, "c.yaml": other}) == {
        "$.extends: the template extends itself: a -> b -> a",
        "$.contxt: unknown key 'contxt'",
    }


def test_aliases_of_a_template_are_told_there_alone() -> None:
    models = {f"{name}.yaml": f"{HEAD}Model\nname: {name}\nextends: base\n" for name in ("one", "two")}
    assert told({"base.yaml": f"{BASE}aliases: [x, x]\n", **models}) == {
        "$.aliases: expected no `aliases` in a template: each is of one model"
    }


def test_a_model_without_a_usable_name_still_says_what_it_names() -> None:
    draft = "draft: {model: nowhere}"
    twice = model("a", extra="fallback: nonesuch\n", profile=draft), model("a", extra="fallback: nonesuch\n")
    found = texts({"a.yaml": twice[0], "b.yaml": twice[1], "c.yaml": twice[1].replace("name: a\n", "name: A\n")})
    assert [line.partition(":")[0] for line in found if "no model 'nonesuch'" in line] == ["a.yaml", "b.yaml", "c.yaml"]
    assert sum("no model 'nowhere'" in line for line in found) == 1


def test_a_template_may_take_away_what_a_profile_of_another_says() -> None:
    files = {
        "base.yaml": BASE.replace("engine: cpu,", "engine: cpu, memory: 1GiB,"),
        "over.yaml": f"{HEAD}Template\nname: over\nextends: base\nprofiles: [{{name: cpu, memory: null}}]\n",
        "one.yaml": f"{HEAD}Model\nname: one\nextends: over\n",
    }
    (one,) = load(files).catalog.models.values()
    assert one.profiles[0].memory is None


def test_a_fault_elsewhere_in_a_document_keeps_no_engine_from_saying_what_is_wrong() -> None:
    def check(spec: ProfileSpec) -> Iterable[Complaint]:
        yield Complaint(path=("context",), message="not so long")

    text = model(profile="context: 9", extra="labels: {a: 1}\n") + "  - {name: b, engine: cpu, weights: {source: 1}}\n"
    text = text.replace("labels: {a: 1}\n", "") + "labels: {a: 1}\n"
    engines = {"cpu": EngineRules(options_schema={}, check=check)}
    with pytest.raises(CatalogInvalid) as caught:
        load_catalog(source({"a.yaml": text}), engines)
    assert [problem.path for problem in caught.value.problems] == [
        "$.profiles[0].context",
        "$.profiles[1].weights.source",
        "$.labels.a",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (model(extra="min: 1\n"), "8:1: $.min: unknown key 'min'; it belongs under 'scaling'"),
        (
            model(extra="context: 1\n"),
            "8:1: $.context: unknown key 'context'; it belongs into a profile, under 'profiles'",
        ),
        (
            model(profile="priority: 1\n"),
            "8:5: $.profiles[0].priority: unknown key 'priority'; it belongs to the document",
        ),
        (model(extra="scaling: {tier: 1}\n"), "8:11: $.scaling.tier: unknown key 'tier'; it belongs into a profile"),
        (model(extra="url: x\n"), "8:1: $.url: unknown key 'url'; it belongs under 'external'"),
        (f"{HEAD}Cluster\nmin_age: 1d\n", "3:1: $.min_age: unknown key 'min_age'; it belongs under 'weights'"),
    ],
)
def test_a_key_that_has_its_place_elsewhere_is_told_with_that(text: str, told: str) -> None:
    (problem,) = texts(text)
    assert problem.removeprefix("a.yaml:").startswith(told)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("“1GiB”", "; U+201C is no quote to YAML: write \" or '"),
        ("1GiB\u200b", "; it holds U+200B, which is not to be seen: remove it"),
        ("1\u00a0GiB", "; it holds U+00A0, which is not to be seen: remove it"),
    ],
)
def test_characters_that_were_pasted_along_are_named(value: str, told: str) -> None:
    assert texts(model(profile=f"memory: {value}\n")) == [
        f"a.yaml:8:13: $.profiles[0].memory: expected a size such as 24GiB or 500MB{told}"
    ]
    assert texts(model("two").replace("/srv/two.gguf", "“/srv/two.gguf”"))[0].endswith("write \" or '")


def test_a_fraction_where_a_whole_number_belongs_is_not_called_a_number() -> None:
    assert texts(model(extra="priority: 0.5\n")) == [
        "a.yaml:8:11: $.priority: expected a whole number, found one that is not whole"
    ]


def test_of_a_value_of_the_wrong_kind_nothing_else_is_told() -> None:
    drafts = texts(model(profile="draft: /srv/d.gguf\n"))
    assert len([each for each in drafts if "$.profiles[0].draft: expected" in each]) == 1
    assert texts(model(extra="scaling: {min: -0.5}\n")) == [
        "a.yaml:8:16: $.scaling.min: expected a whole number, found one that is not whole"
    ]
