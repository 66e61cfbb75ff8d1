"""Which nodes may run a profile, whatever else runs there. Pure: a typed refusal, or none."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from llmgw.catalog.spec import Catalog, ModelSpec, ProfileSpec, WeightsSpec
from llmgw.facts import Observed, Phase, ReplicaFact, WeightsFact
from llmgw.ids import NodeName
from llmgw.plan import Reason, Rejection
from llmgw.schedule.room import usable
from llmgw.units import Bytes, format_bytes
from llmgw.weights.lookup import on_node
from llmgw.weights.naming import stem


@dataclass(frozen=True, slots=True)
class Eligible:
    """The nodes that pass, in name order."""

    names: Sequence[NodeName]
    set: frozenset[NodeName]


class Filters:
    """Placement, reachability, cordons, engines, devices, disks: of one pass."""

    def __init__(self, catalog: Catalog, observed: Observed) -> None:
        self._catalog = catalog
        self._observed = observed
        self._eligible: dict[tuple[object, ...], Eligible] = {}
        self._engines = {name: {fact.name: fact for fact in report.engines} for name, report in observed.nodes.items()}
        self._counts = {name: len(usable(report)) for name, report in observed.nodes.items()}
        self._weights: dict[NodeName, dict[str, list[WeightsFact]]] = {}
        self._holders: dict[str, set[NodeName]] | None = None
        self._coming: dict[NodeName, dict[str, int]] = {}  #: bytes still to be fetched, by source
        for replica in observed.replicas.values():
            if replica.phase in (Phase.PLACING, Phase.FETCHING):
                self._note_fetch(replica)

    def eligible(self, model: ModelSpec, profile: ProfileSpec) -> Eligible:
        """The nodes that `refusal` says nothing against. Computed once for all that ask for the same."""
        where = model.placement
        key = (
            where.pools, where.nodes, tuple(sorted(where.labels.items())),
            profile.engine, tuple(profile.options), profile.devices,
        )  # fmt: skip
        found = self._eligible.get(key)
        if found is None:
            names = [name for name in sorted(self._observed.nodes) if self.refusal(model, profile, name) is None]
            found = self._eligible[key] = Eligible(names, frozenset(names))
        return found

    def allowed(self, model: ModelSpec, node: NodeName) -> bool:
        """Whether what runs there may stay: the catalog's word, not the moment's."""
        return not self._misplaced(model, node)

    def refusal(self, model: ModelSpec, profile: ProfileSpec, node: NodeName) -> Rejection | None:
        """The first reason that rules the node out, whatever else runs there."""
        if detail := self._misplaced(model, node):
            return Rejection(node=node, reason=Reason.PLACEMENT, detail=detail)
        if node in self._observed.unreachable:
            return Rejection(node=node, reason=Reason.UNREACHABLE)
        if (cordon := self._observed.cordons.get(node)) is not None:
            detail = f"{'drained ' if cordon.drain else ''}by {cordon.by}"
            return Rejection(node=node, reason=Reason.CORDONED, detail=detail)
        return self.unable(profile, node)

    def unable(self, profile: ProfileSpec, node: NodeName) -> Rejection | None:
        """Whether the node's engines or devices rule it out."""
        if (why := self._engine_missing(profile, node)) is not None:
            return Rejection(node=node, reason=Reason.ENGINE, detail=why)
        if profile.devices > (count := self._counts[node]):
            detail = f"{count} usable, {profile.devices} asked for"
            return Rejection(node=node, reason=Reason.DEVICES, detail=detail)
        return None

    def bars(self, model: ModelSpec, node: NodeName) -> bool:
        """Whether the node's engines or devices rule out every profile of the model."""
        return all(self.unable(profile, node) is not None for profile in model.profiles)

    def no_disk(self, node: NodeName, *profiles: ProfileSpec) -> Rejection | None:
        """Whether what is missing of the weights of these, all of them, would not fit, beside what is under way."""
        missing = {spec.source: spec.expected or 0 for profile in profiles for spec in self.missing(profile, node)}
        if not missing:
            return None
        report, coming = self._observed.nodes[node], self._coming.get(node, {})
        need = Bytes(sum(size for source, size in missing.items() if source not in coming))
        reserve = self._catalog.cluster.node(node).reserve.disk
        have = Bytes(max(0, report.disk.free - reserve - sum(coming.values())))
        if need <= have:
            return None
        kept = f", `reserve.disk` keeps {format_bytes(reserve)}" if reserve else ""
        detail = f"{format_bytes(report.disk.free)} free{kept}"
        return Rejection(node=node, reason=Reason.DISK, need=need, have=have, detail=detail)

    def missing(self, profile: ProfileSpec, node: NodeName) -> list[WeightsSpec]:
        """Of its files, those that the node does not hold."""
        here = self._on(node)
        return [spec for spec in profile.roles.values() if on_node(here.get(stem(spec.source), ()), spec) is None]

    def will_fetch(self, profile: ProfileSpec, node: NodeName) -> None:
        """Count the disk that a launch is about to fill."""
        for spec in self.missing(profile, node):
            self._coming.setdefault(node, {}).setdefault(spec.source, spec.expected or 0)

    def holders(self, profile: ProfileSpec) -> set[NodeName] | None:
        """The nodes that seem to hold all of its files; None: it needs none."""
        sources = {spec.source for spec in profile.roles.values()}
        if not sources:
            return None
        if self._holders is None:
            self._holders = {}
            for name, report in self._observed.nodes.items():
                for fact in report.weights:
                    if fact.complete:
                        self._holders.setdefault(fact.source, set()).add(name)
        return set.intersection(*(self._holders.get(source, set()) for source in sources))

    def _on(self, node: NodeName) -> Mapping[str, list[WeightsFact]]:
        found = self._weights.get(node)
        if found is None:
            found = self._weights[node] = {}
            for fact in self._observed.nodes[node].weights:
                found.setdefault(stem(fact.source), []).append(fact)
        return found

    def _note_fetch(self, replica: ReplicaFact) -> None:
        model = self._catalog.models.get(replica.model)
        named = [one for one in model.profiles if one.name == replica.profile] if model else []
        if not named or replica.node not in self._observed.nodes:
            return
        coming = {one.source: one.progress for one in replica.coming}
        for spec in self.missing(named[0], replica.node):
            one = coming.get(spec.source)
            size = spec.expected or 0 if one is None or one.total is None else one.total
            left = max(0, size - (0 if one is None else one.done))
            self._coming.setdefault(replica.node, {}).setdefault(spec.source, left)

    def _misplaced(self, model: ModelSpec, node: NodeName) -> str:
        where = model.placement
        if not (where.nodes or where.pools or where.labels):
            return ""
        policy = self._catalog.cluster.node(node)
        if where.nodes and node not in where.nodes:
            return f"it runs on {_either(where.nodes)}"
        if where.pools and policy.pool not in where.pools:
            return f"it runs in pool {_either(where.pools)}, the node is in {policy.pool}"
        for label, value in where.labels.items():
            if policy.labels.get(label) != value:
                return f"it wants the label {label}={value}"
        return ""

    def _engine_missing(self, profile: ProfileSpec, node: NodeName) -> str | None:
        fact = self._engines[node].get(profile.engine)
        if fact is None:
            return f"the node has no engine {profile.engine!r}"
        return None if profile.options.keys() & set(fact.own_program) else fact.why


def _either(names: Iterable[str]) -> str:
    return " or ".join(names)
