"""A scenario's file, read: a Scenario document, and the catalog in a directory or after it. Every problem at once."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, cast

from llmgw.catalog import schemas, yamldoc
from llmgw.catalog.here import named_from_here, seen_from_here
from llmgw.catalog.load import load_catalog
from llmgw.catalog.rules import EngineRules
from llmgw.catalog.schemas import to_bytes, to_seconds
from llmgw.catalog.source import Source, read_source
from llmgw.catalog.spec import Catalog
from llmgw.catalog.windows import DAYS, minutes, zone
from llmgw.catalog.yamldoc import Document, as_list, as_mapping, quoted
from llmgw.errors import CatalogInvalid, CatalogUnreadable, Problem, TerminalError
from llmgw.facts import FailureKind
from llmgw.fleet import Fleet, build, check_nodes, load_fleet
from llmgw.ids import ModelName, NodeName
from llmgw.testing.world_values import ALL_DAYS, Behaviour, Fault, FaultKind, Push, Rules, Traffic
from llmgw.units import Bytes, Seconds, Wall
from llmgw.weights.naming import canonical as canonical_source

KIND: Final = "scenario"
EVERY: Final = "*"

_AT_NODES: Final = frozenset(
    {FaultKind.NODE_DOWN, FaultKind.SILENT, FaultKind.FOREIGN, FaultKind.DISK, FaultKind.CORDON, FaultKind.DRAIN}
)
_NEEDS: Final[Mapping[FaultKind, str]] = {
    **dict.fromkeys(_AT_NODES, "node"),
    FaultKind.CRASH: "model",
    FaultKind.FAIL_STARTS: "model",
    FaultKind.CLOCK: "jump",
}
_SIZED: Final = frozenset({FaultKind.FOREIGN, FaultKind.DISK})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`behaviours`: by model, `*` for those not named; later ones first."""

    name: str
    description: str
    duration: Seconds
    seed: int
    catalog: Catalog
    fleet: Fleet
    rules: Rules
    behaviours: tuple[tuple[str, Behaviour], ...] = ()
    traffic: tuple[Traffic, ...] = ()
    faults: tuple[Fault, ...] = ()
    pushes: tuple[Push, ...] = field(default_factory=tuple)

    def behaviour(self, model: ModelName) -> Behaviour:
        return next((found for name, found in self.behaviours if name in (model, EVERY)), Behaviour())


def load_scenario(path: Path, engines: Mapping[str, EngineRules]) -> Scenario:
    """What a file says. Raises CatalogInvalid with every problem, TerminalError where it cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TerminalError(f"cannot read {path}: {error.strerror}") from error
    return _Reader(path, data, engines).read()


class _Reader:
    """One file. What it refers to lies beside it."""

    def __init__(self, path: Path, data: bytes, engines: Mapping[str, EngineRules]) -> None:
        self._path = path
        self._data = data
        self._engines = engines
        self._problems: list[Problem] = []

    def read(self) -> Scenario:
        documents, faults = yamldoc.parse(named_from_here(self._path), self._data)
        if not documents:
            raise CatalogInvalid(faults)
        document = documents[0]
        self._problems += faults
        self._problems += schemas.check(document, KIND)
        value = as_mapping(document.value)
        catalog = self._catalog(document, value, alone=len(documents) == 1)
        fleet = self._fleet(document, value.get("fleet"))
        pushes = list(self._pushes(document, value))
        self._problems += _faults_of(document, value, catalog, fleet, pushes)
        if self._problems or catalog is None or fleet is None:
            raise CatalogInvalid(sorted(set(self._problems)))
        return _built(self._path.stem, value, catalog, fleet, pushes)

    # -- what it refers to

    def _catalog(self, document: Document, value: Mapping[str, Any], *, alone: bool) -> Catalog | None:
        named = value.get("catalog")
        if named is None and alone:
            message = "no catalog: name its directory in `catalog`, or let its documents follow after a line with ---"
            self._problems.append(document.problem((), message))
            return None
        if named is None:
            return self._loaded(Source(files={named_from_here(self._path): _rest(self._data)}))
        if not alone:
            message = "a catalog's directory is named, and documents follow too: leave one of them out"
            self._problems.append(document.problem(("catalog",), message))
        return self._directory(document, ("catalog",), named)

    def _directory(self, document: Document, path: tuple[str | int, ...], named: Any) -> Catalog | None:
        if not isinstance(named, str):
            return None  # told by its schema
        directory = self._path.parent / named
        try:
            source = read_source(directory)
        except CatalogUnreadable as error:
            self._problems.append(document.problem(path, str(error)))
            return None
        return self._loaded(seen_from_here(directory, source))

    def _loaded(self, source: Source) -> Catalog | None:
        try:
            return load_catalog(source, self._engines, canonical=canonical_source).catalog
        except CatalogInvalid as error:
            self._problems += error.problems
            return None

    def _fleet(self, document: Document, value: Any) -> Fleet | None:
        if isinstance(value, list):
            found = check_nodes(document, ("fleet",))
            self._problems += found
            return None if found else build(value)
        if not isinstance(value, str):
            return None
        path = self._path.parent / value
        try:
            return load_fleet(named_from_here(path), path.read_bytes())
        except OSError as error:
            self._problems.append(document.problem(("fleet",), f"cannot read {path}: {error.strerror}"))
        except CatalogInvalid as error:
            self._problems += error.problems
        return None

    def _pushes(self, document: Document, value: Mapping[str, Any]) -> Iterator[Push]:
        for number, one in enumerate(as_list(value.get("pushes"))):
            catalog = self._directory(document, ("pushes", number, "catalog"), as_mapping(one).get("catalog"))
            at = to_seconds(as_mapping(one).get("at"))
            if catalog is not None and at is not None:
                yield Push(at=at, catalog=catalog)


def _rest(data: bytes) -> bytes:
    """The file without its first document: blank lines in its place, so that problems keep theirs."""
    lines, begun = data.splitlines(keepends=True), False
    for number, line in enumerate(lines):
        text = line.strip()
        if text == b"---" and begun:
            return b"\n" * (number + 1) + b"".join(lines[number + 1 :])
        begun = begun or bool(text and text != b"---" and not text.startswith(b"#"))
    return b""


# -- what no schema can say


def _faults_of(
    document: Document,
    value: Mapping[str, Any],
    catalog: Catalog | None,
    fleet: Fleet | None,
    pushes: Iterable[Push],
) -> Iterator[Problem]:
    catalogs = [one for one in (catalog, *(push.catalog for push in pushes)) if one is not None]
    known = {name for one in catalogs for model in one.models.values() for name in model.names}
    nodes = {str(node.name) for node in fleet.nodes} if fleet is not None else set()
    models = {str(model) for one in catalogs for model in one.models}
    for part, names in (("engines", models | {EVERY}), ("traffic", known), ("faults", models)):
        for number, one in enumerate(as_list(value.get(part))):
            if catalog is not None:
                yield from _unknown(document, (part, number, "model"), one, names, "model")
            if part == "faults" and fleet is not None:
                yield from _unknown(document, (part, number, "node"), one, nodes, "node")
    for number, one in enumerate(as_list(value.get("faults"))):
        yield from _lacking(document, number, as_mapping(one))
    yield from _too_late(document, value)
    yield from _times(document, value)


def _unknown(
    document: Document, path: tuple[str | int, ...], one: Any, names: set[str], what: str
) -> Iterator[Problem]:
    given = as_mapping(one).get(str(path[-1]))
    if isinstance(given, str) and given not in names:
        hint = schemas.did_you_mean(given, names)
        yield document.problem(path, f"no {what} {quoted(given)}{hint}")


def _lacking(document: Document, number: int, fault: Mapping[str, Any]) -> Iterator[Problem]:
    kind = fault.get("kind")
    if not isinstance(kind, str) or kind not in list(FaultKind):
        return
    needs = [_NEEDS[FaultKind(kind)]] if FaultKind(kind) in _NEEDS else []
    needs += ["size"] if FaultKind(kind) in _SIZED else []
    for key in needs:
        if key not in fault:
            yield document.problem(("faults", number), f"a fault of kind {kind} needs {quoted(key)}")


def _too_late(document: Document, value: Mapping[str, Any]) -> Iterator[Problem]:
    duration = to_seconds(value.get("duration"))
    for part in ("faults", "pushes"):
        for number, one in enumerate(as_list(value.get(part))):
            at = to_seconds(as_mapping(one).get("at"))
            if at is not None and duration is not None and at >= duration:
                yield document.problem((part, number, "at"), "not before the scenario's end: see `duration`")


def _times(document: Document, value: Mapping[str, Any]) -> Iterator[Problem]:
    start = value.get("start")
    if isinstance(start, str) and _local(start) is None:
        yield document.problem(("start",), "there is no such date or time")
    for number, one in enumerate(as_list(value.get("traffic"))):
        begins, ends = as_mapping(one).get("from", "00:00"), as_mapping(one).get("to", "24:00")
        if begins == ends:
            yield document.problem(("traffic", number, "to"), "the same as `from`: leave both out for all of the day")


def _local(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, "%Y-%m-%d %H:%M")  # noqa: DTZ007 - the zone is the cluster's
    except ValueError:
        return None


# -- values


def _built(name: str, value: Mapping[str, Any], catalog: Catalog, fleet: Fleet, pushes: Iterable[Push]) -> Scenario:
    where = zone(catalog.cluster.time_zone)
    start = _local(value.get("start", "2026-01-05 00:00"))
    assert start is not None, "judged before"
    rules = Rules(
        began=Wall(start.replace(tzinfo=where).timestamp()), zone=where, fetch_rate=_size(value, "fetch_rate", 10**8)
    )
    behaviours = [(one["model"], _behaviour(one)) for one in value.get("engines", ())]
    return Scenario(
        name=name,
        description=value.get("description", ""),
        duration=_duration(value, "duration", 0),
        seed=value.get("seed", 0),
        catalog=catalog,
        fleet=fleet,
        rules=rules,
        behaviours=tuple(reversed(behaviours)),
        traffic=tuple(_traffic(one) for one in value["traffic"]),
        faults=tuple(_fault(one) for one in value.get("faults", ())),
        pushes=tuple(pushes),
    )


def _duration(value: Mapping[str, Any], key: str, default: float) -> Seconds:
    return Seconds(cast(float, to_seconds(value[key])) if key in value else default)


def _size(value: Mapping[str, Any], key: str, default: int) -> Bytes:
    return Bytes(cast(int, to_bytes(value[key])) if key in value else default)


def _behaviour(value: Mapping[str, Any]) -> Behaviour:
    plain = Behaviour()
    return Behaviour(
        start=_duration(value, "start", plain.start),
        stop=_duration(value, "stop", plain.stop),
        takes=float(value.get("takes", plain.takes)),
        crashes=_duration(value, "crash_every", 0) if "crash_every" in value else None,
    )


def _traffic(value: Mapping[str, Any]) -> Traffic:
    return Traffic(
        model=value["model"],
        per_hour=float(value["per_hour"]),
        length=_duration(value, "length", 1),
        days=tuple(DAYS.index(day) for day in value["days"]) if "days" in value else ALL_DAYS,
        start=minutes(value.get("from", "00:00")),
        end=minutes(value.get("to", "24:00")),
    )


def _fault(value: Mapping[str, Any]) -> Fault:
    plain = Fault(at=Seconds(0), kind=FaultKind(value["kind"]))
    return Fault(
        at=_duration(value, "at", 0),
        kind=plain.kind,
        node=NodeName(value["node"]) if "node" in value else None,
        model=ModelName(value["model"]) if "model" in value else None,
        lasts=_duration(value, "lasts", plain.lasts),
        size=_size(value, "size", 0),
        on_devices=value.get("devices", False),
        seconds=float(value.get("jump", 0)),
        count=value.get("count", 1),
        failure=FailureKind(value.get("failure", plain.failure)),
    )
