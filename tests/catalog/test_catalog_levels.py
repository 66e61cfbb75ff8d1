"""Blocks `degraded` and `minimal`: merged over their profile, judged whole, their problems shown at the block."""

import dataclasses

import pytest
from catalog_texts import load, model, source, texts

from llmgw.catalog.load import load_catalog
from llmgw.catalog.rules import Complaint, EngineRules
from llmgw.catalog.spec import ProfileSpec, SecretRef, WeightsSpec, spec_digest
from llmgw.errors import CatalogInvalid
from llmgw.ids import ModelName
from llmgw.units import MIB, Bytes

OPEN = {name: EngineRules(options_schema={}, roles=None) for name in ("cpu", "other")}


def profile(lines: str) -> ProfileSpec:
    """The one profile of a model with further lines, of engines that take anything."""
    return load_catalog(source({"a.yaml": model(profile=lines)}), OPEN).catalog.models[ModelName("qwen")].profiles[0]


def warnings(lines: str) -> list[str]:
    return [str(each) for each in load_catalog(source({"a.yaml": model(profile=lines)}), OPEN).warnings]


def test_a_level_is_the_whole_profile_with_the_block_merged_in() -> None:
    made = profile("context: 8192\nparallel: 4\nweight: 3\ntier: 2\ndegraded: {context: 4096}\nminimal: {parallel: 1}")
    plain = dataclasses.replace(made, degraded=None, minimal=None)
    assert made.degraded == dataclasses.replace(plain, context=4096)
    assert made.minimal == dataclasses.replace(plain, parallel=1)


def test_maps_are_merged_by_key_and_lists_replaced() -> None:
    made = profile(
        "options: {threads: 4, deep: {a: 1, b: [1, 2]}}\nargs: [-a, -b]\nenv: {A: x, B: {from_env: X}}\n"
        "files: {one: {source: /1}, two: {source: /2, size: 1MiB}}\n"
        "degraded:\n  options: {deep: {b: [3]}}\n  args: [-c]\n  env: {B: {from_file: /run/b}, C: y}\n"
        "  files: {two: {source: /3}}"
    ).degraded
    assert made is not None
    assert made.options == {"threads": 4, "deep": {"a": 1, "b": [3]}}
    assert made.args == ("-c",)
    assert made.env == {"A": "x", "B": SecretRef(from_file="/run/b"), "C": "y"}
    assert made.files == {"one": WeightsSpec(source="/1"), "two": WeightsSpec(source="/3")}


def test_a_file_is_replaced_whole_so_that_no_checksum_outlives_its_file() -> None:
    made = profile("draft: {source: /d, size: 2MiB}\nminimal: {weights: {source: /w}, draft: {source: /e}}").minimal
    assert made is not None
    assert (made.weights, made.draft) == (WeightsSpec(source="/w"), WeightsSpec(source="/e"))


def test_another_engine_drops_what_only_the_first_one_reads() -> None:
    lines = (
        "options: {threads: 4}\nargs: [-a]\ndraft: {source: /d}\nfiles: {one: {source: /1}}\nwrapper: [nice]\n"
        "env: {A: x}\nmemory: 100MiB\n"
    )
    other = profile(lines + "minimal: {engine: other, args: [-b]}").minimal
    assert other is not None
    assert (other.options, other.args, other.draft, other.files) == ({}, ("-b",), None, {})
    assert (other.wrapper, other.env, other.memory) == (("nice",), {"A": "x"}, Bytes(100 * MIB))
    same = profile(lines + "minimal: {engine: cpu, args: [-b]}").minimal
    assert same is not None
    assert (same.options, same.args) == ({"threads": 4}, ("-b",))


def test_a_level_on_the_cpu_has_no_devices_to_keep_to_itself() -> None:
    made = profile("devices: 1\nexclusive: true\nminimal: {devices: 0}")
    assert made.minimal is not None
    assert (made.exclusive, made.minimal.exclusive, made.minimal.devices) == (True, False, 0)


def test_a_level_changes_the_catalog_but_not_what_a_full_replica_is_launched_from() -> None:
    name = ModelName("qwen")
    assert spec_digest(name, profile("degraded: {context: 2048}")) == spec_digest(name, profile(""))


def test_macros_are_replaced_in_levels_too() -> None:
    text = model(profile="degraded: {options: {x: '${A}'}, args: ['${B}']}\nminimal: {args: ['${C}']}")
    cluster = "---\napiVersion: llmgw/v1\nkind: Cluster\nmacros: {A: one, B: [-t, '2']}\n"
    with pytest.raises(CatalogInvalid) as caught:
        load_catalog(source({"a.yaml": text + cluster}), OPEN)
    assert [str(each) for each in caught.value.problems] == [
        "a.yaml:9:22: $.profiles[0].minimal.args[0]: unknown macro 'C' (the Cluster document names macros; "
        "$${ is a literal ${)"
    ]
    made = load_catalog(source({"a.yaml": text.replace("${C}", "${A}") + cluster}), OPEN)
    degraded = made.catalog.models[ModelName("qwen")].profiles[0].degraded
    assert degraded is not None
    assert (degraded.options, degraded.args) == ({"x": "one"}, ("-t", "2"))


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("{}", "8:15: $.profiles[0].degraded: expected what changes, such as {context: 8192}"),
        ("4096", "8:15: $.profiles[0].degraded: expected what changes, such as {context: 8192}, found a number"),
        ("{contxt: 1}", "8:16: $.profiles[0].degraded.contxt: unknown key 'contxt'; did you mean 'context'?"),
        ("{context: 0}", "8:25: $.profiles[0].degraded.context: must be at least 1"),
        ("{weight: 1}", "8:16: $.profiles[0].degraded.weight: unknown key 'weight'"),
        ("{minimal: {context: 1}}", "8:16: $.profiles[0].degraded.minimal: unknown key 'minimal'"),
        ("{engine: cpuu}", "8:24: $.profiles[0].degraded.engine: no engine 'cpuu'; did you mean 'cpu'?"),
        ("{engine: command}", "8:15: $.profiles[0].degraded: missing key 'command'"),
        ("{options: {thread: 1}}", "8:26: $.profiles[0].degraded.options.thread: unknown key 'thread'; did you"),
        ("{options: {threads: 0}}", "8:35: $.profiles[0].degraded.options.threads: must be at least 1"),
        ("{draft: {source: /d}}", "8:16: $.profiles[0].degraded.draft: the engine cpu has no use for 'draft'"),
        ("{env: {LLMGW_X: a}}", "8:22: $.profiles[0].degraded.env.LLMGW_X: variables that start with LLMGW_"),
        ("{exclusive: true}", "8:27: $.profiles[0].degraded.exclusive: needs `devices` above 0"),
    ],
)  # fmt: skip
def test_problems_of_a_block_are_shown_in_the_block(block: str, problem: str) -> None:
    (found,) = texts(model(profile=f"degraded: {block}"))
    assert found.startswith(f"a.yaml:{problem}")


def test_what_a_block_inherits_and_cannot_be_is_shown_at_the_block() -> None:
    text = model(profile="options: {command: [x]}\nminimal: {engine: cpu, options: {command: [x]}}")
    (found,) = texts(text.replace("engine: cpu\n", "engine: command\n", 1))
    assert found.startswith("a.yaml:9:38: $.profiles[0].minimal.options.command: unknown key 'command'")
    strict = {"cpu": EngineRules(options_schema={}, roles=None, check=lambda each: complaints(each))}
    with pytest.raises(CatalogInvalid) as caught:
        load_catalog(source({"a.yaml": model(profile="parallel: 3\ndegraded: {context: 2048}")}), strict)
    assert [str(each) for each in caught.value.problems] == [
        "a.yaml:9:15: $.profiles[0].degraded.parallel: not with so small a context"
    ]


def complaints(each: ProfileSpec) -> list[Complaint]:
    """An engine that takes one request at a time in a small context."""
    small = each.context < 4096 and each.parallel > 1
    return [Complaint(path=("parallel",), message="not with so small a context")] if small else []


def test_a_fault_of_the_profile_is_not_told_again_for_each_level() -> None:
    text = model(profile="options: {threads: 0}\ndegraded: {context: 2048}\nminimal: {options: {threads: 0}}")
    assert texts(text) == [
        "a.yaml:8:24: $.profiles[0].options.threads: must be at least 1",
        "a.yaml:10:34: $.profiles[0].minimal.options.threads: must be at least 1",
    ]


def test_a_level_that_is_no_smaller_is_accepted_with_a_warning() -> None:
    assert warnings("context: 8192\ndegraded: {context: 8192}") == [
        "a.yaml:9:15: $.profiles[0].degraded: changes nothing of the profile, so it is no smaller and is passed over"
    ]
    assert warnings("memory: 100MiB\ndegraded: {context: 2048}") == []
    assert warnings("memory: 100MiB\ndegraded: {context: 2048, memory: 0.5GiB}") == [
        "a.yaml:9:39: $.profiles[0].degraded.memory: is no less than the profile's, so that the level is passed over"
    ]
    assert warnings("memory: 100MiB\ndevices: 1\nminimal: {devices: 0, memory: 1GiB}") == []
    assert warnings("memory: 100MiB\ndegraded: {context: 2048, memory: 50MiB}") == []


def test_a_level_of_an_engine_that_is_lost_is_accepted_with_a_warning_at_the_block() -> None:
    engines = {**OPEN, "gone": EngineRules(options_schema={}, roles=None, lost="its plugin is broken")}
    loaded = load_catalog(source({"a.yaml": model(profile="minimal: {engine: gone}")}), engines)
    (warning,) = map(str, loaded.warnings)
    assert warning.startswith("a.yaml:8:23: $.profiles[0].minimal.engine: its plugin is broken;")


def test_a_secret_in_a_block_is_never_shown() -> None:
    found = "\n".join(
        texts(model(profile="degraded: {env: {A: [hunter2]}, args: hunter2, options: {threads: hunter2}}"))
    )
    assert found.count("degraded") == 3
    assert "hunter2" not in found


def test_blocks_load_in_one_catalog_with_engines_of_their_own() -> None:
    text = model(profile="degraded: {engine: command, options: {command: [x, '{port}']}}")
    loaded = load({"a.yaml": text}).catalog.models[ModelName("qwen")].profiles[0]
    assert loaded.degraded is not None
    assert loaded.degraded.engine == "command"
