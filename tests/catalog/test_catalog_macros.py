"""Macros: what the Cluster document names, and profiles use as `${NAME}`."""

from typing import Any

import pytest
from catalog_texts import ENGINES, load, model, problems, source, texts

from llmgw.catalog.load import load_catalog
from llmgw.catalog.macros import MAX_NESTED
from llmgw.catalog.spec import ProfileSpec, spec_digest

COMMAND = """\
apiVersion: llmgw/v1
kind: Model
name: own
profiles:
  - name: main
    engine: command
    memory: 1GiB
"""


def cluster(macros: str) -> str:
    return "apiVersion: llmgw/v1\nkind: Cluster\nmacros:\n" + "".join(f"  {line}\n" for line in macros.splitlines())


def own(lines: str) -> str:
    return COMMAND + "".join(f"    {line}\n" for line in lines.splitlines())


def loaded(macros: str, lines: str) -> ProfileSpec:
    catalog = load({"cluster.yaml": cluster(macros), "own.yaml": own(lines)}).catalog
    return next(iter(catalog.models.values())).profiles[0]


def blamed(macros: str, lines: str) -> list[str]:
    return texts({"cluster.yaml": cluster(macros), "own.yaml": own(lines)})


def test_a_text_macro_goes_anywhere_in_a_text_and_a_list_macro_becomes_its_words() -> None:
    profile = loaded(
        'BIN: /opt/server\nSERVE: ["${BIN}/run", --port, "{port}"]\nLOW: [nice, -n, "5"]',
        'options: {command: ["${SERVE}", "--dir=${BIN}/x"], health: "/${BIN}"}\n'
        'args: [-a, "${SERVE}"]\nwrapper: ["${LOW}", env]',
    )
    assert profile.options["command"] == ["/opt/server/run", "--port", "{port}", "--dir=/opt/server/x"]
    assert profile.options["health"] == "//opt/server"
    assert profile.args == ("-a", "/opt/server/run", "--port", "{port}")
    assert profile.wrapper == ("nice", "-n", "5", "env")


def test_a_literal_dollar_brace_is_written_with_two_dollars() -> None:
    profile = loaded("A: x", "options: {command: [sh, -c, '$${A} $$ $A $$${A} ${A}']}")
    assert profile.options["command"][2] == "${A} $$ $A $${A} x"


def test_other_keys_and_secrets_are_left_alone() -> None:
    profile = loaded("A: x", "options: {command: [run]}\nenv: {HOME_OF_IT: '${A}', T: {from_env: A}}")
    assert profile.env["HOME_OF_IT"] == "${A}"


def test_a_macro_where_none_is_replaced_is_doubted() -> None:
    lines = "options: {command: [run]}\nenv: {A: '${DIR}', B: '${HOME}'}\ndegraded: {memory: 1MiB, env: {C: '${DIR}'}}"
    text = own(f"{lines}\nweights: {{source: '/srv/${{DIR}}/x.gguf'}}")
    warnings = load({"c.yaml": cluster("DIR: x"), "own.yaml": text}).warnings
    assert sorted(warning.path for warning in warnings) == [
        "$.profiles[0].degraded.env.C",
        "$.profiles[0].env.A",
        "$.profiles[0].weights.source",
    ]
    assert {warning.message for warning in warnings} == {
        "the macro 'DIR' is not replaced here, but in options, args, wrapper alone"
    }


def test_macros_are_replaced_at_any_depth_of_options() -> None:
    engines = {**ENGINES, "deep": type(ENGINES["cpu"])(options_schema={}, roles=None)}
    text = own("options: {a: {b: [[{c: '${A}'}], '${L}']}}").replace("engine: command", "engine: deep")
    files = source({"c.yaml": cluster("A: x\nL: [y, z]"), "m.yaml": text})
    (spec,) = load_catalog(files, engines).catalog.models.values()
    assert spec.profiles[0].options == {"a": {"b": [[{"c": "x"}], "y", "z"]}}


def test_the_digest_sees_what_macros_come_to_and_not_how_it_was_written() -> None:
    def digests(macros: str, lines: str) -> tuple[str, Any]:
        catalog = load({"cluster.yaml": cluster(macros), "own.yaml": own(lines)}).catalog
        (spec,) = catalog.models.values()
        return catalog.digest, spec_digest(spec.name, spec.profiles[0])

    plain = digests("A: unused", "options: {command: [run, fast]}")
    assert digests("HOW: fast", "options: {command: [run, '${HOW}']}") == plain
    assert digests("HOW: slow", "options: {command: [run, '${HOW}']}")[1] != plain[1]


@pytest.mark.parametrize(
    ("macros", "lines", "expected"),
    [
        (
            "SERVER: x",
            "options:\n  command:\n    - run\n    - --bin=${SERVR}",
            "own.yaml:11:11: $.profiles[0].options.command[1]: unknown macro 'SERVR'; did you mean 'SERVER'?",
        ),
        (
            "A: x",
            "options: {command: [run]}\nargs: ['${OTHER}']",
            "own.yaml:9:12: $.profiles[0].args[0]: unknown macro 'OTHER' "
            "(the Cluster document names macros; $${ is a literal ${)",
        ),
        (
            "A: [x, y]",
            "options: {command: [run, 'a ${A}']}",
            "own.yaml:8:30: $.profiles[0].options.command[1]: "
            "the macro 'A' is a list: it stands alone, as one item of a list",
        ),
        (
            "A: [x, y]",
            "options: {command: [run], health: '${A}'}",
            "own.yaml:8:39: $.profiles[0].options.health: "
            "the macro 'A' is a list: it stands alone, as one item of a list",
        ),
        (
            "A: x",
            "options: {command: [run, 'a ${A b']}",
            "own.yaml:8:30: $.profiles[0].options.command[1]: "
            "${ begins a macro: write its name and }, or $${ for a literal ${",
        ),
        (
            "A: '${B}'\nB: 'x ${C}'\nC: '${A}'",
            "options: {command: [run]}",
            "cluster.yaml:4:6: $.macros.A: the macro uses itself: A -> B -> C -> A",
        ),
        (
            "A: [x]\nB: '${A}'",
            "options: {command: [run]}",
            "cluster.yaml:5:6: $.macros.B: the macro 'A' is a list: it stands alone, as one item of a list",
        ),
        (
            "A: [x, '${B}']",
            "options: {command: [run]}",
            "cluster.yaml:4:10: $.macros.A[1]: unknown macro 'B'"
            " (the Cluster document names macros; $${ is a literal ${)",
        ),
        ("A: 5", "options: {command: [run, '${A}']}", "cluster.yaml:4:6: $.macros.A: expected text, or a list"),
        ("A: [x, {}]", "options: {command: [run]}", "cluster.yaml:4:10: $.macros.A[1]: expected text, found a mapping"),
        ("a-b: x", "options: {command: [run]}", "cluster.yaml:4:3: $.macros[\"a-b\"]: 'a-b' is not a macro's name"),
    ],
)
def test_what_is_wrong_with_a_macro_is_told_where_it_was_written(macros: str, lines: str, expected: str) -> None:
    found = blamed(macros, lines)
    assert len(found) == 1
    assert found[0].startswith(expected)


def test_what_a_macro_stands_for_is_judged_where_it_was_used() -> None:
    (found,) = blamed("N: many", "options: {command: ['${N}'], helth: '${N}'}")
    assert found.startswith("own.yaml:8:34: $.profiles[0].options.helth: unknown key 'helth'")
    catalog = {"c.yaml": cluster("N: many"), "m.yaml": model(profile="options: {flash_attn: '${N}'}")}
    (problem,) = problems(catalog)
    assert (problem.line, problem.message) == (8, "must be one of on, off, auto")


def test_a_use_without_any_cluster_document_is_unknown() -> None:
    (found,) = texts({"own.yaml": own("options: {command: ['${A}']}")})
    assert "unknown macro 'A'" in found


@pytest.mark.parametrize("backwards", [False, True])
def test_macros_are_nested_so_deep_and_no_deeper(backwards: bool) -> None:
    def chain(length: int) -> str:
        lines = [f"M{n}: '${{M{n + 1}}}'" for n in range(length - 1)] + [f"M{length - 1}: x"]
        return "\n".join(reversed(lines) if backwards else lines)

    lines = "options: {command: ['${M0}']}"
    assert loaded(chain(MAX_NESTED), lines).options["command"] == ["x"]
    assert any("more than 16 deep" in text for text in blamed(chain(MAX_NESTED + 1), lines))


def test_macros_that_multiply_one_another_end_in_a_problem() -> None:
    lines = ["M0: " + "x" * 1000, *(f"M{n}: '{f'${{M{n - 1}}}' * 10}'" for n in range(1, 12))]
    assert any("macros come to more than" in text for text in blamed("\n".join(lines), "options: {command: [run]}"))


def test_uses_that_come_to_too_much_are_a_problem() -> None:
    uses = ", ".join(["'${BIG}'"] * 50)
    found = blamed("BIG: " + "x" * 100_000, f"options: {{command: [{uses}]}}")
    assert ["macros come to more than" in text for text in found] == [True]
    assert found[0].startswith("own.yaml:1:1: ")


def test_a_use_without_quotes_in_a_flow_list_is_told_what_is_missing() -> None:
    (found,) = blamed("A: x", "options: {command: [run, --dir=${A}]}")
    assert found.endswith("but got '{': put quotes around text that holds braces")
