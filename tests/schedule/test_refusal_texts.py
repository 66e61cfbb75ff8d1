"""How it is said that a model fits nowhere."""

from collections.abc import Iterable

from fleets import cpu_model, device, gpu_model, node
from make import NOW

from llmgw.catalog.spec import Catalog, ModelSpec, ProfileSpec, spec_digest
from llmgw.desired import desired
from llmgw.facts import EngineFact, Footprint, Level, NodeReport, Observed
from llmgw.ids import Digest, ModelName, NodeName, ProfileName, Revision
from llmgw.plan import Reason, Rejection, Unschedulable
from llmgw.schedule.decide import decide
from llmgw.units import GIB, Bytes

A, B, C = NodeName("a"), NodeName("b"), NodeName("c")
M = ModelName("m")


def refusal(node: NodeName, reason: Reason, need: int = 0, have: int = 0, **fields: object) -> Rejection:
    return Rejection(node=node, reason=reason, need=Bytes(need * GIB), have=Bytes(have * GIB), **fields)  # type: ignore[arg-type]


def text(*rejections: Rejection, nodes: int = 3) -> str:
    return str(Unschedulable(model=M, rejections=rejections, nodes=nodes))


def test_several_nodes_are_counted_by_reason_with_the_nearest_miss() -> None:
    assert text(
        refusal(A, Reason.DEVICE_MEMORY, 9, 6),
        refusal(B, Reason.DEVICE_MEMORY, 9, 2),
        refusal(C, Reason.DISK, 5, 2),
    ) == (
        "0/3 nodes: 2 device memory (need 9.0 GiB, most free 6.0 GiB on a), "
        "1 disk (need 5.0 GiB, most free 2.0 GiB on c)"
    )


def test_one_node_is_told_alone() -> None:
    assert text(refusal(A, Reason.HOST_MEMORY, 9, 6, detail="budget 6.0 GiB"), nodes=1) == (
        "host memory (need 9.0 GiB, have 6.0 GiB on a): budget 6.0 GiB"
    )


def test_several_profiles_are_told_apart() -> None:
    gpu, cpu = ProfileName("gpu"), ProfileName("cpu")
    both = (
        refusal(A, Reason.DEVICES, profile=gpu, detail="0 usable"),
        refusal(B, Reason.DEVICES, profile=gpu, detail="0 usable"),
        refusal(A, Reason.HOST_MEMORY, 9, 6, profile=cpu),
        refusal(B, Reason.HOST_MEMORY, 9, 7, profile=cpu),
    )
    assert text(*both, nodes=2) == (
        "0/2 nodes: profile gpu: 2 too few devices (0 usable); "
        "profile cpu: 2 host memory (need 9.0 GiB, most free 7.0 GiB on b)"
    )
    assert text(*both[::2], nodes=1) == (
        "profile gpu: too few devices on a: 0 usable; profile cpu: host memory (need 9.0 GiB, have 6.0 GiB on a)"
    )


def decided(model: ModelSpec, nodes: Iterable[NodeReport], sizes: Iterable[tuple[ProfileSpec, Footprint]]) -> str:
    catalog = Catalog(revision=Revision("r"), digest=Digest("d"), models={model.name: model})
    observed = Observed(
        nodes={each.node: each for each in nodes},
        replicas={},
        recovery={},
        footprints={(spec_digest(model.name, profile), Level.FULL): size for profile, size in sizes},
    )
    plan = decide(desired(catalog, now=NOW), catalog, observed, NOW)
    (refused,) = plan.unschedulable
    return str(refused)


def test_the_scheduler_says_which_profile_was_refused_for_what() -> None:
    first, second = gpu_model("m").profiles[0], cpu_model("m").profiles[0]
    model = ModelSpec(name=M, profiles=(first, second))
    sizes = (
        (first, Footprint(host=Bytes(0), device=Bytes(40 * GIB))),
        (second, Footprint(host=Bytes(100 * GIB))),
    )
    nodes = [node("a", device("A"), host=33), node("b", host=65), node("c", engines=(EngineFact(name=first.engine),))]
    found = decided(model, nodes, sizes)
    assert found.startswith("0/3 nodes: profile g: ")
    assert "1 device memory (need 40.0 GiB, most free 23.5 GiB on a)" in found
    assert "profile c: 2 host memory (need 100.0 GiB, most free 64.0 GiB on b), 1 engine unavailable" in found
