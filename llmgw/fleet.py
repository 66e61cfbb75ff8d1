"""Machines described in a document (`kind: Fleet`), as the reports that their agents would send. Pure.

For planning and simulating without them. Pools, labels, budgets and reserves are the Cluster document's.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from llmgw.catalog import schemas, yamldoc
from llmgw.catalog.schemas import to_bytes
from llmgw.catalog.yamldoc import Document, Path, as_list, as_mapping, quoted
from llmgw.errors import CatalogInvalid, Problem
from llmgw.facts import DeviceFact, DiskFact, EngineFact, MemoryFact, NodeReport, WeightsFact
from llmgw.ids import Digest, EngineName, NodeName, is_name
from llmgw.units import TIB, Bytes, Wall
from llmgw.weights.naming import canonical, entry_name, is_local

KIND: Final = "fleet"
MAX_NODES: Final = 10_000

DISK: Final = Bytes(TIB)
"""Free disk space of a node whose description has none."""

ANYTHING: Final = "accelerator"
"""What a device without a name is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetNode:
    """One machine. `engines` None: whatever is installed where the question is asked."""

    name: NodeName
    memory: Bytes
    used: Bytes
    disk: Bytes
    devices: tuple[DeviceFact, ...] = ()
    engines: tuple[EngineFact, ...] | None = None
    weights: tuple[WeightsFact, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The machines, in name order."""

    nodes: tuple[FleetNode, ...]


def load_fleet(file: str, data: bytes, engines: Collection[EngineName] | None = None) -> Fleet:
    """The one Fleet document of a file. `engines`: those that there are; None: any name is taken.

    Raises CatalogInvalid with every problem.
    """
    documents, problems = yamldoc.parse(file, data)
    for more in documents[1:]:
        problems.append(more.problem((), "a second document: a fleet's file holds one"))
    if documents:
        problems += schemas.check(documents[0], KIND)
        problems += rules(documents[0], ("nodes",), engines)
    if problems:
        raise CatalogInvalid(sorted(set(problems)))
    return build(documents[0].value["nodes"])


def check_nodes(document: Document, path: Path, engines: Collection[EngineName] | None = None) -> list[Problem]:
    """All that is wrong with a list of nodes inside another document, at `path`."""
    value: Any = document.value
    for step in path:
        value = value[step]
    whole = schemas.load_schema(KIND)
    part = {"$defs": whole["$defs"], **whole["$defs"]["nodes"]}
    return sorted({*schemas.check_options(document, path, value, part), *rules(document, path, engines)})


def rules(document: Document, path: Path, engines: Collection[EngineName] | None) -> Iterator[Problem]:
    """What no schema can say of the nodes at `path`, as far as they can be read."""
    value: Any = document.value
    for step in path:
        value = as_mapping(value).get(step) if isinstance(step, str) else as_list(value)[step]
    first: dict[str, str] = {}
    for index, node in enumerate(map(as_mapping, as_list(value))):
        at = (*path, index)
        names = list(_names(node))
        if len(first) + len(names) > MAX_NODES:
            yield document.problem((*at, "count"), f"more than {MAX_NODES:,} nodes in one fleet")
            return
        yield from _naming(document, at, names, first)
        yield from _room(document, at, node)
        yield from _engines(document, at, node, engines)
        for number, weights in enumerate(map(as_mapping, as_list(node.get("weights")))):
            if isinstance(source := weights.get("source"), str):
                yield from _source(document, (*at, "weights", number, "source"), source)


def _naming(document: Document, at: Path, names: Iterable[str], first: dict[str, str]) -> Iterator[Problem]:
    for name in names:
        if name in first:
            yield document.problem((*at, "name"), f"the node {quoted(name)} is already at {first[name]}")
            return
        if not is_name(name) and is_name(name.rpartition("-")[0]):
            yield document.problem((*at, "name"), f"too long: {quoted(name)} has more than 63 characters")
            return
        first[name] = document.where((*at, "name"))


def _room(document: Document, at: Path, node: Mapping[str, Any]) -> Iterator[Problem]:
    parts = [(at, node), *(((*at, "devices", n), as_mapping(d)) for n, d in enumerate(as_list(node.get("devices"))))]
    for path, part in parts:
        total, used = to_bytes(part.get("memory")), to_bytes(part.get("memory_used", 0))
        if total is not None and used is not None and used > total:
            yield document.problem((*path, "memory_used"), "more than `memory`")


def _engines(
    document: Document, at: Path, node: Mapping[str, Any], known: Collection[EngineName] | None
) -> Iterator[Problem]:
    for number, engine in enumerate(as_list(node.get("engines"))):
        name = engine if isinstance(engine, str) else as_mapping(engine).get("name")
        if known is not None and isinstance(name, str) and name not in known:
            hint = schemas.did_you_mean(name, known)
            installed = ", ".join(sorted(known)) or "none"
            message = f"no engine {quoted(name)}{hint} (installed: {installed})"
            yield document.problem((*at, "engines", number), message)


def _source(document: Document, path: Path, source: str) -> Iterator[Problem]:
    try:
        canonical(source)
    except ValueError as error:
        yield document.problem(path, str(error))


def _names(node: Mapping[str, Any]) -> Iterator[str]:
    """The one name, or NAME-1 to NAME-COUNT."""
    name, count = node.get("name"), node.get("count")
    if not isinstance(name, str):
        return
    if isinstance(count, int) and not isinstance(count, bool):
        yield from (f"{name}-{number}" for number in range(1, min(count, MAX_NODES + 1) + 1))
    else:
        yield name


def build(nodes: Iterable[Mapping[str, Any]]) -> Fleet:
    """The fleet of a list of nodes that passed every check."""
    built = [_node(NodeName(name), node) for node in nodes for name in _names(node)]
    return Fleet(nodes=tuple(sorted(built, key=lambda node: node.name)))


def _node(name: NodeName, value: Mapping[str, Any]) -> FleetNode:
    engines = value.get("engines")
    return FleetNode(
        name=name,
        memory=_size(value["memory"]),
        used=_size(value.get("memory_used", 0)),
        disk=_size(value.get("disk", DISK)),
        devices=tuple(_devices(name, value.get("devices", ()))),
        engines=None if engines is None else tuple(map(_engine, engines)),
        weights=tuple(map(_weights, value.get("weights", ()))),
    )


def _devices(node: NodeName, devices: Iterable[Mapping[str, Any]]) -> Iterator[DeviceFact]:
    each = [device for device in devices for _ in range(device.get("count", 1))]
    for index, device in enumerate(each):
        total, used = _size(device["memory"]), _size(device.get("memory_used", 0))
        yield DeviceFact(
            uuid=f"GPU-{node}-{index}",
            name=device.get("name", ANYTHING),
            index=index,
            total=total,
            used=used,
            free=Bytes(total - used),
            foreign=used,
        )


def _engine(value: str | Mapping[str, Any]) -> EngineFact:
    if isinstance(value, str):
        return EngineFact(name=EngineName(value))
    return EngineFact(name=EngineName(value["name"]), version=value.get("version"))


def _weights(value: Mapping[str, Any]) -> WeightsFact:
    source, sha256 = canonical(value["source"]), value.get("sha256")
    return WeightsFact(
        source=source,
        entry=None if is_local(source) else entry_name(source, sha256),
        size=_size(value["size"]),
        last_wanted=Wall(0),
        sha256=None if sha256 is None else sha256.lower(),
        metadata=value.get("metadata", {}),
    )


def _size(value: Any) -> Bytes:
    size = to_bytes(value)
    assert size is not None, "the schema has checked it"
    return size


def reports(
    fleet: Fleet, *, engines: Iterable[EngineName], at: Wall, catalog: Digest | None = None
) -> dict[NodeName, NodeReport]:
    """What the agents of an idle fleet would report at `at`. `engines`: of the nodes that name none; `catalog`: the one
    whose files were looked up."""
    installed = tuple(EngineFact(name=name) for name in sorted(engines))
    return {
        node.name: NodeReport(
            node=node.name,
            at=at,
            memory=MemoryFact(total=node.memory, available=Bytes(node.memory - node.used), foreign=node.used),
            disk=DiskFact(total=Bytes(node.disk + sum(each.size for each in node.weights)), free=node.disk),
            engines=installed if node.engines is None else node.engines,
            weights=node.weights,
            catalog=catalog,
            devices=node.devices,
        )
        for node in fleet.nodes
    }
