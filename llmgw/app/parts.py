"""One builder for each part. Constructors only assign: nothing that is built here runs yet."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from llmgw.agent.loop import Agent
from llmgw.agent.ports import DEFAULT_PORTS
from llmgw.app.ending import Say
from llmgw.app.pressure import Pressure
from llmgw.catalog.live import LiveCatalog
from llmgw.catalog.origin import Origin
from llmgw.catalog.place import place_of
from llmgw.catalog.spec import SecretRef
from llmgw.clock import Clock
from llmgw.engine.manager import Engines, find_engines
from llmgw.facts import Event
from llmgw.gateway.access import STDOUT, AccessLog
from llmgw.gateway.server import Gateway
from llmgw.ids import NodeName
from llmgw.notify.notifier import Notifier
from llmgw.reconcile.comparing import Comparing
from llmgw.reconcile.foresight import Foresight, Look
from llmgw.reconcile.liveness import Liveness
from llmgw.reconcile.loop import Controller
from llmgw.reconcile.sync import CatalogSync
from llmgw.secretref import read_secret
from llmgw.statedir import StateDir
from llmgw.store.api import Store
from llmgw.store.events import EventLog
from llmgw.store.held import Writer
from llmgw.weights.cache import Cache
from llmgw.weights.mirror import Mirror
from llmgw.weights.upkeep import Upkeep


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What every part of a process is built on. `secret`: the cluster's; `cluster`: its id."""

    state: StateDir
    node: NodeName
    store: Store
    events: EventLog
    clock: Clock
    secret: bytes
    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciding:
    """The controller with the catalog that it follows, and what answers questions about both."""

    controller: Controller
    sync: CatalogSync
    foresight: Foresight
    comparing: Comparing
    pressure: Pressure
    notifier: Notifier


def usable_engines(say: Say) -> Engines:
    """The installed ones; those that are broken are told."""
    engines = find_engines()
    for plugin, why in engines.broken.items():
        say(f"plugin {plugin} cannot be used; models that need it will wait:\n{why}")
    return engines


def build_cache(base: Base, engines: Engines, root: Path | None, *, mirror: Mirror | None = None) -> Cache:
    """The node's weights. `mirror`: other nodes. Raises LlmgwError where they cannot lie there."""
    cache = Cache(
        root or base.state.weights,
        cluster_id=base.cluster,
        clock=base.clock,
        sources=engines.sources,
        mirror=mirror,
    )
    cache.open()
    return cache


def build_deciding(
    base: Base,
    engines: Engines,
    catalog: Origin,
    *,
    look: Look,
    nodes: Collection[NodeName] | None = None,
    liveness: Liveness | None = None,
) -> Deciding:
    """`nodes`: those that take part, where that is known. `look`: at the files of this machine."""
    place = place_of(catalog, base.state.source)
    live = LiveCatalog(place.name)
    controller = Controller(
        store=base.store,
        live=live,
        engines=engines,
        clock=base.clock,
        record=base.events.record,
        nodes=nodes,
        liveness=liveness,
    )
    sync = CatalogSync(
        place=place,
        store=base.store,
        live=live,
        engines=engines,
        clock=base.clock,
        record=base.events.record,
        last_good=base.state.last_good,
        wake=controller.trigger,
        signers=None if catalog.signers is None else Path(catalog.signers),
    )
    foresight = Foresight(
        store=base.store,
        place=place,
        live=live,
        liveness=controller.liveness,
        engines=engines,
        clock=base.clock,
        node=base.node,
        look=look,
    )
    comparing = Comparing(live=live, place=place, engines=engines)
    pressure = Pressure(store=base.store, clock=base.clock, record=base.events.record, compare=comparing.sides)
    return Deciding(
        controller=controller,
        sync=sync,
        foresight=foresight,
        comparing=comparing,
        pressure=pressure,
        notifier=Notifier(store=base.store, clock=base.clock, record=base.events.record),
    )


def secret_of(webhook: SecretRef | None) -> Callable[[], str] | None:
    """What gives the webhook's secret. It is read each time: it may be replaced."""
    return None if webhook is None else lambda: read_secret(webhook, "the secret for webhooks")


def build_upkeep(base: Base, cache: Cache) -> Upkeep:
    return Upkeep(cache, node=base.node, log=base.state.collected, clock=base.clock)


def build_agent(base: Base, engines: Engines, cache: Cache, *, ports: range | None, host: str = "127.0.0.1") -> Agent:
    """`host`: that engines listen on."""
    return Agent(
        node=base.node,
        store=base.store,
        state=base.state,
        cache=cache,
        engines=engines,
        clock=base.clock,
        events=base.events,
        secret=base.secret,
        host=host,
        ports=ports or DEFAULT_PORTS,
        upkeep=build_upkeep(base, cache),
    )


def node_events(base: Base) -> Callable[[str, str], None]:
    """Records what happens to this node: a reason, and a message for a person."""

    def tell(reason: str, message: str) -> None:
        at = base.clock.now().wall
        base.events.record(Event(at=at, subject=f"node/{base.node}", reason=reason, message=message))

    return tell


def build_gateway(
    base: Base, *, name: str = "local", own: Writer | None = None, access_log: str | None = None
) -> Gateway:
    """`own`: where it tells of itself, if not simply in the store. `access_log`: a file, or `-` for standard output."""
    access = None if access_log is None else AccessLog(None if access_log == STDOUT else Path(access_log))
    return Gateway(store=base.store, secret=base.secret, clock=base.clock, name=name, own=own, access=access)


def own_look(base: Base, cache: Cache) -> Look:
    """At a cache's files, from any thread."""
    return Cache(cache.root, cluster_id=base.cluster, clock=base.clock).facts
