"""Short ways to build small worlds. Memory in GiB."""

from typing import Any

from llmgw.catalog.spec import Catalog, ClusterSpec, ModelSpec, NodeSpec, ProfileSpec, ReserveSpec
from llmgw.facts import DeviceFact, DiskFact, EngineFact, MemoryFact, NodeReport
from llmgw.ids import Digest, EngineName, ModelName, NodeName, ProfileName, Revision
from llmgw.units import GIB, Bytes, Wall

CPU = EngineName("cpu")


def gib(count: float) -> Bytes:
    return Bytes(int(count * GIB))


def node(name: str, memory: float = 16, *, foreign: float = 0, disk: float = 100, gpus: tuple[float, ...] = ()) -> Any:
    return NodeReport(
        node=NodeName(name),
        at=Wall(0),
        memory=MemoryFact(total=gib(memory), available=gib(memory - foreign), foreign=gib(foreign)),
        disk=DiskFact(total=gib(1000), free=gib(disk)),
        engines=(EngineFact(name=CPU, version="1"),),
        devices=tuple(
            DeviceFact(
                uuid=f"GPU-{name}-{index}", name="sim", index=index, total=gib(size), free=gib(size), foreign=gib(0)
            )
            for index, size in enumerate(gpus)
        ),
    )


def model(name: str, memory: float | None = 4, *, parallel: int = 2, profile: Any = None, **fields: Any) -> ModelSpec:
    given = {"devices": 0, **(profile or {})}
    size = None if memory is None else gib(memory)
    one = ProfileSpec(name=ProfileName("p"), engine=CPU, memory=size, parallel=parallel, **given)
    return ModelSpec(name=ModelName(name), profiles=(one,), **fields)


def catalog(*models: ModelSpec, number: int = 1, nodes: dict[str, NodeSpec] | None = None, **cluster: Any) -> Catalog:
    return Catalog(
        revision=Revision(f"r{number}"),
        digest=Digest(f"d{number}"),
        models={one.name: one for one in sorted(models, key=lambda one: one.name)},
        cluster=ClusterSpec(nodes={NodeName(name): policy for name, policy in (nodes or {}).items()}, **cluster),
    )


def plain_reserve(host: float = 1) -> NodeSpec:
    return NodeSpec(reserve=ReserveSpec(host=gib(host)))
