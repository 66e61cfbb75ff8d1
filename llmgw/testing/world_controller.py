"""The controller of a simulated world: what it stores and hears becomes `Known`; what `think` says is carried out.

It decides nothing. Carrying out follows `reconcile.dispatch`: endpoints are withdrawn together with the stops, then
evictions, then launches, which get their ids here.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Protocol, TypeVar

from llmgw.catalog.spec import Catalog, ProfileSpec, spec_digest
from llmgw.facts import (
    Concurrency,
    Cordon,
    Footprint,
    Level,
    Measured,
    NodeReport,
    Observed,
    Phase,
    RecoveryRecord,
    ReplicaFact,
    ScalingState,
)
from llmgw.gateway.routes import RoutingTable
from llmgw.ids import ModelName, NodeName, ReplicaId, SpecDigest
from llmgw.plan import Assignment, Endpoint, Launch, Levels, ModelStatus, Stop, Stopped, Want
from llmgw.reconcile import measured as measuring
from llmgw.reconcile.dispatch import endpoints
from llmgw.reconcile.liveness import GRACE, LOST, SETTLE, Liveness, Reach
from llmgw.schedule.think import Known, Thought
from llmgw.store.values import Applied
from llmgw.testing.world_clock import Agenda
from llmgw.testing.world_gateway import SimGateway
from llmgw.testing.world_node import SimNode
from llmgw.testing.world_tally import Tally
from llmgw.testing.world_values import Rules
from llmgw.units import Bytes, Instant, Wall

Mind = Callable[[Known, Instant], Thought]
Footprints = Mapping[tuple[SpecDigest, Level], Footprint]
Sizing = Callable[[Catalog, Mapping[NodeName, NodeReport]], tuple[Levels, Footprints]]
"""What profiles can be shrunk to, and what each takes, as far as what nodes have tells."""

SOONEST = 0.5
"""Seconds until a pass that is due already is made."""

NOTHING = Observed(nodes={}, replicas={}, recovery={}, footprints={})


K = TypeVar("K")

_Published = tuple[Catalog, tuple[Endpoint, ...], Mapping[ModelName, ModelStatus], Stopped | None]


class Watcher(Protocol):
    """Hears of each decision before it is carried out."""

    def decided(self, known: Known, thought: Thought, now: Instant) -> None: ...


class SimController:
    """Its durable keys outlive a restart; assignments live in the store, and go when all of llmgw is restarted."""

    def __init__(
        self,
        *,
        agenda: Agenda,
        rules: Rules,
        random: Random,
        minds: Callable[[], Mind],
        sizes: Sizing,
        catalog: Catalog,
        nodes: Mapping[NodeName, SimNode],
        gateway: SimGateway,
        tally: Tally,
        watcher: Watcher,
        tell: Callable[[str], None],
    ) -> None:
        self._agenda, self._rules, self._random = agenda, rules, random
        self._minds, self._sizes = minds, sizes
        self._nodes, self._gateway, self._tally = nodes, gateway, tally
        self._watcher, self._tell = watcher, tell
        self.catalog = catalog
        # durable
        self.recovery: dict[tuple[SpecDigest, NodeName], RecoveryRecord] = {}
        self.measured: dict[tuple[SpecDigest, NodeName], Measured] = {}
        self.scaling: dict[ModelName, ScalingState] = {}
        self.concurrency: dict[tuple[SpecDigest, NodeName], Concurrency] = {}
        self.cordons: dict[NodeName, Cordon] = {}
        self.stopped: Stopped | None = None
        # not durable
        self.assignments: dict[ReplicaId, Assignment] = {}
        self.thought: Thought | None = None  #: the last
        self.known: Known | None = None
        self._reports: dict[NodeName, NodeReport] = {}
        self._statuses: dict[ModelName, ModelStatus] = {}
        self._table = RoutingTable()
        self._published: _Published | None = None
        self._told: dict[NodeName, dict[ReplicaId, Assignment]] = {}
        self._next: float | None = None  #: when a pass is planned
        self._begin()

    # -- when to think

    def trigger(self, after: float | None = None) -> None:
        """A pass soon; several triggers are one pass."""
        at = self._agenda.time + (self._rules.pass_after if after is None else after)
        if self._next is not None and self._next <= at:
            return
        self._next = at
        self._agenda.after(at - self._agenda.time, lambda: self._due(at))

    def _due(self, at: float) -> None:
        if self._next == at:
            self.reconcile()

    def _begin(self) -> None:
        """What a controller does not know yet when it starts."""
        self._liveness = Liveness()
        self._mind = self._minds()
        self._agenda.after(SETTLE, self.trigger)
        self.trigger()

    def restart(self, *, everything: bool) -> None:
        """What is not durable is gone. `everything`: the store's memory too, so that nothing is assigned."""
        self.thought = self.known = None
        self._statuses = {}
        if everything:
            self.assignments = {}
            self._reports, self._told = {}, {}
        self._begin()

    # -- a pass

    def reconcile(self) -> None:
        """One pass: hear, think, carry out."""
        self._next = None
        now = self._agenda.now
        self._tally.passes += 1
        for name in self._nodes:
            self.hear(name)
        known = self._known(now, self._liveness.look(self._reports.values(), now))
        thought = self._mind(known, now)
        self.known, self.thought = known, thought
        self._watcher.decided(known, thought, now)
        self._carry_out(known, thought, now)
        if self._next is None:  # nothing asked for another meanwhile
            self.trigger(self._rules.resync)

    def hear(self, name: NodeName) -> None:
        """The node's report, if it gets through."""
        node = self._nodes[name]
        if node.up and not node.silent:
            self._reports[name] = node.report(self._agenda.now)

    def fall_silent(self, name: NodeName) -> None:
        """Reports came every few seconds until this moment; what follows from none coming is seen in time."""
        self.hear(name)
        self._liveness.look(self._reports.values(), self._agenda.now)
        for after in (GRACE, LOST):
            self._agenda.after(after + 0.01, self.trigger)

    def _known(self, now: Instant, reach: Reach) -> Known:
        reported = {fact.id: fact for report in self._reports.values() for fact in report.replicas}
        replicas = self._replicas(reported, now)
        for key, one in measuring.account(self.measured, replicas.values(), self.catalog, now).items():
            if one is None:
                self.measured.pop(key, None)
            else:
                self.measured[key] = one
        levels, footprints = self._sizes(self.catalog, self._reports)
        observed = Observed(
            nodes=dict(self._reports),
            replicas=replicas,
            recovery=dict(self.recovery),
            footprints=footprints,
            measured=self._measured_footprints(),
            unreachable=reach.unreachable,
            lost=reach.lost,
            cordons=dict(self.cordons),
            outstanding={id: count for id, count in self._gateway.outstanding.items() if count},
            last_used={id: Wall(min(at, now.wall)) for id, at in self._gateway.last_used.items()},
        )
        return Known(
            catalog=self.catalog,
            observed=observed,
            levels=levels,
            asks=dict(self._gateway.asks),
            scaling=dict(self.scaling),
            held=self._gateway.held,
            concurrency=dict(self.concurrency),
            stopped=self.stopped,
            settled=self._liveness.settled(self.catalog.cluster.nodes, now),
        )

    def _replicas(self, reported: Mapping[ReplicaId, ReplicaFact], now: Instant) -> dict[ReplicaId, ReplicaFact]:
        """A decision counts before its agent has acted on it, as `reconcile.observe` has it."""
        replicas = dict(reported)
        for assigned in self.assignments.values():
            fact = reported.get(assigned.replica) or assigned.placing(now.wall)
            leaving = assigned.want is Want.STOP and not fact.kept_serving
            if leaving and fact.phase in (Phase.PLACING, Phase.FETCHING, Phase.STARTING, Phase.READY):
                fact = replace(fact, phase=Phase.DRAINING)
            replicas[assigned.replica] = fact
        return replicas

    def _measured_footprints(self) -> dict[tuple[SpecDigest, NodeName], Footprint]:
        models = self.catalog.models.values()
        profiles = {spec_digest(model.name, profile): profile for model in models for profile in model.profiles}
        found: dict[tuple[SpecDigest, NodeName], Footprint] = {}
        for (spec, node), one in self.measured.items():
            profile = profiles.get(spec)
            if profile is not None and profile.memory is None and (seen := measuring.footprint(one, profile)):
                found[spec, node] = seen
        return found

    # -- carrying out

    def _carry_out(self, known: Known, thought: Thought, now: Instant) -> None:
        _merge(self.recovery, thought.recovery)
        _merge(self._gateway.asks, thought.asks)
        _merge(self.scaling, thought.scaling)
        self._statuses = {status.model: status for status in thought.statuses}
        for event in thought.events:
            self._tell(f"{event.subject}: {event.reason} {event.message}".rstrip())
        for stop in thought.plan.stops:
            self._stop(stop, known.observed)
        for ids in thought.plan.keep.values():
            for id in ids:
                self._keep(id, known.observed)
        self._forget(known.observed)
        self.publish(known.observed)
        for launch in thought.plan.launches:
            self._launch(launch, known.observed)
        self.tell_agents()
        dues = [due for due in (thought.due, thought.plan.due) if due is not None]
        if dues:
            self.trigger(max(SOONEST, min(dues) - now.wall))

    def tell_agents(self, *, anew: NodeName | None = None) -> None:
        """Each hears what changed of its assignments, a little later; `anew`: the one that has just come back."""
        for name, node in self._nodes.items():
            addressed = self._addressed(name)
            if name == anew or addressed != self._told.get(name):
                self._told[name] = addressed
                self._agenda.after(self._rules.hears_after, partial(self._say, name, node))

    def _say(self, name: NodeName, node: SimNode) -> None:
        node.hear(self._addressed(name))

    def _addressed(self, node: NodeName) -> dict[ReplicaId, Assignment]:
        return {id: one for id, one in self.assignments.items() if one.node == node}

    def _stop(self, stop: Stop, observed: Observed) -> None:
        given = self.assignments.get(stop.replica) or self._for_fact(observed.replicas[stop.replica])
        changed = replace(given, want=Want.STOP, why=str(stop.reason), eviction=stop.eviction)
        if changed == given:
            return
        self.assignments[stop.replica] = changed
        if stop.eviction:
            self._tally.of(stop.model).evictions += 1
        what = "evict" if stop.eviction else "stop"
        self._tell(f"{what} {stop.model} {stop.replica} on {stop.node}: {stop.reason} {stop.detail}".rstrip())

    def _keep(self, id: ReplicaId, observed: Observed) -> None:
        given = self.assignments.get(id)
        if given is None:
            self.assignments[id] = self._for_fact(observed.replicas[id])
        elif given.want is Want.STOP:
            self.assignments[id] = replace(given, want=Want.RUN, why="", eviction=False)

    def _forget(self, observed: Observed) -> None:
        """What was seen to have ended."""
        for id, fact in observed.replicas.items():
            if fact.phase.occupies_memory:
                continue
            if fact.failure is not None:
                self._tally.of(fact.model).failures[str(fact.failure.kind)] += 1
            self.assignments.pop(id, None)
            node = self._nodes[fact.node]
            if node.up and not node.silent:
                node.forget([id])

    def republish(self) -> None:
        """The gateway learns of a catalog or of the switch before any engine does."""
        self.publish(self.known.observed if self.known is not None else NOTHING)

    def publish(self, observed: Observed) -> None:
        leaving = {id for id, given in self.assignments.items() if given.want is Want.STOP}
        found = endpoints(observed.replicas.values(), self.catalog, leaving, observed.lost)
        published = (self.catalog, tuple(one for _, one in sorted(found.items())), self._statuses, self.stopped)
        if published != self._published:
            self._published = published
            self._table = self._routes(*published)
        self._gateway.update(self._table)

    def _routes(
        self,
        catalog: Catalog,
        found: Iterable[Endpoint],
        statuses: Mapping[ModelName, ModelStatus],
        stopped: Stopped | None,
    ) -> RoutingTable:
        return RoutingTable.build(
            applied=Applied(
                revision=catalog.revision,
                digest=catalog.digest,
                at=self._agenda.now.wall,
                gateway=catalog.cluster.gateway,
            ),
            models=catalog.models.values(),
            endpoints=found,
            statuses=statuses.values(),
            stopped=stopped,
        )

    def _launch(self, launch: Launch, observed: Observed) -> None:
        id = ReplicaId(f"{self._random.getrandbits(48):012x}")
        defaults, draft = self.catalog.cluster.defaults, launch.profile.draft_model
        self.assignments[id] = Assignment(
            replica=id,
            model=launch.model,
            profile=launch.profile,
            spec=launch.spec,
            node=launch.node,
            revision=self.catalog.revision,
            footprint=launch.footprint,
            level=launch.level,
            launched=launch.launched,
            devices=launch.devices,
            draft_url=None if draft is None else f"http://{launch.node}/{draft}",
            start_timeout=launch.profile.start_timeout or defaults.start_timeout,
            drain_timeout=defaults.drain_timeout,
            disk_reserve=self.catalog.cluster.node(launch.node).reserve.disk,
            why=launch.why,
        )
        self._tally.of(launch.model).loads += 1
        level = "" if launch.level is Level.FULL else f" ({launch.level})"
        self._tell(f"launch {launch.model} {id} on {launch.node}{level}: {launch.why}".rstrip(": "))

    def _for_fact(self, fact: ReplicaFact) -> Assignment:
        """Of a replica that was adopted without an assignment."""
        model = self.catalog.models.get(fact.model)
        named = [profile for profile in model.profiles if profile.name == fact.profile] if model else []
        defaults = self.catalog.cluster.defaults
        return Assignment(
            replica=fact.id,
            model=fact.model,
            profile=named[0] if named else ProfileSpec(name=fact.profile, engine=fact.engine),
            spec=fact.spec,
            node=fact.node,
            revision=fact.revision,
            footprint=fact.footprint or Footprint(host=fact.resident or Bytes(0)),
            level=fact.level,
            launched=fact.launched,
            devices=fact.devices,
            start_timeout=defaults.start_timeout,
            drain_timeout=defaults.drain_timeout,
        )


def _merge(kept: dict[K, Any], changes: Mapping[K, Any]) -> None:
    """None: forgotten."""
    for key, value in changes.items():
        if value is None:
            kept.pop(key, None)
        else:
            kept[key] = value
