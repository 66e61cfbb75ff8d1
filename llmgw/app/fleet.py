"""`llmgw controller`, `llmgw agent`, `llmgw gateway`: each part in a process of its own, over etcd."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from starlette.types import ASGIApp

from llmgw.admin.app import create_app
from llmgw.admin.own import create_own_app
from llmgw.agent.loop import Agent
from llmgw.agent.mirror import Mirroring
from llmgw.agent.peers import StorePeers
from llmgw.app import identity, parts
from llmgw.app.ending import OnExit, Say, Signals
from llmgw.app.leading import Leading
from llmgw.app.listening import Listen
from llmgw.app.membership import Membership
from llmgw.app.parts import Base, Deciding
from llmgw.app.process import Parts, Work, run_process
from llmgw.catalog.origin import Origin
from llmgw.catalog.spec import SecretRef
from llmgw.clock import SystemClock
from llmgw.errors import RetryableError, TerminalError
from llmgw.gateway.server import Gateway
from llmgw.ids import NodeName
from llmgw.reconcile.liveness import LOST, Liveness
from llmgw.statedir import AdminAddress, StateDir
from llmgw.store.address import Address, read_address
from llmgw.store.api import Store
from llmgw.store.held import Held
from llmgw.store.shared_events import SharedEvents
from llmgw.store.values import Role
from llmgw.tasks import Tasks
from llmgw.weights.doubt import Doubt
from llmgw.weights.mirror import Mirror
from llmgw.weights.shelf import Shelf

LAST_WORDS: Final = 2.0
"""Seconds that a process which ends waits for the store to take its last events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """What the three have in common. `name`: the node's; or this controller's or gateway's, unique among them.

    `address`: under which other machines reach this one; None: the one from which the store is reached. `admin`: port,
    or address and port.
    """

    store: str
    state: Path
    name: NodeName
    secret_file: Path | None = None
    address: str | None = None
    admin: Listen | int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerOptions(FleetOptions):
    catalog: Origin
    webhook: SecretRef | None = None  #: of whoever may call for a look at the source
    patience: float | None = None  #: seconds that silent nodes are waited for; None: the catalog's


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions(FleetOptions):
    cache: Path | None = None
    on_exit: OnExit | None = None
    engine_ports: range | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions(FleetOptions):
    listen: Listen = ("127.0.0.1", 8080)
    access_log: str | None = None


def run_controller(options: ControllerOptions, *, say: Say) -> int:
    """As `run_process`."""
    return _run(options, Role.CONTROLLER, lambda joined: _controller(joined, options, say), say)


def run_agent(options: AgentOptions, *, say: Say) -> int:
    """As `run_process`."""
    return _run(options, Role.AGENT, lambda joined: _agent(joined, options, say), say, on_exit=options.on_exit)


def run_gateway(options: GatewayOptions, *, say: Say) -> int:
    """As `run_process`."""
    return _run(options, Role.GATEWAY, lambda joined: _gateway(joined, options), say)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Joined:
    """A process that has found its cluster. `host`: where others reach it; `token`: of the fleet's admin APIs."""

    base: Base
    events: SharedEvents
    held: Held
    membership: Membership
    host: str
    admin: Listen
    token: str
    hosts: tuple[str, ...]

    def parts(
        self,
        api: ASGIApp,
        *,
        gateway: Gateway | None = None,
        listen: Listen = ("127.0.0.1", 0),
        agent: Agent | None = None,
        deciding: Sequence[tuple[str, Work]] = (),
        around: Sequence[tuple[str, Work]] = (),
    ) -> Parts:
        """With what every process of a fleet runs besides its part."""

        async def tell(address: AdminAddress) -> None:
            if agent is not None:  # an older report must not be taken for what a living agent says
                await agent.reported.wait()
            await self.membership.tell(address)

        async def welcome(address: AdminAddress, tasks: Tasks) -> None:
            tasks.start(tell(address), "presence told", essential=True)

        async def farewell() -> None:
            with suppress(RetryableError, TimeoutError):
                async with asyncio.timeout(LAST_WORDS):
                    await self.events.flush()
                    await self.held.withdraw()

        return Parts(
            store=self.base.store,
            api=api,
            token=self.token,
            admin=self.admin,
            gateway=gateway,
            listen=listen,
            agent=agent,
            deciding=deciding,
            around=[
                ("presence", self.held.run),
                ("events", self.events.run),
                ("orders", self.membership.obey),
                *around,
            ],
            welcome=welcome,
            farewell=farewell,
        )


def _run(
    options: FleetOptions,
    role: Role,
    make: Callable[[_Joined], Awaitable[Parts]],
    say: Say,
    *,
    on_exit: OnExit | None = None,
) -> int:
    state = StateDir(options.state)
    address = read_address(options.store, os.environ)

    async def build(signals: Signals) -> Parts:
        store = _open(address)
        try:
            return await make(await _join(options, role, address, store, state, signals, say))
        except BaseException:
            await store.close()
            raise

    return run_process(state, build, on_exit=on_exit, say=say)


def _open(address: Address) -> Store:
    try:
        from llmgw.store.etcd import EtcdStore
    except ImportError as error:
        raise TerminalError(f"no client for etcd ({error}): install llmgw[etcd]") from error
    return EtcdStore(address)


async def _join(
    options: FleetOptions, role: Role, address: Address, store: Store, state: StateDir, signals: Signals, say: Say
) -> _Joined:
    clock, controls = SystemClock(), role is Role.CONTROLLER
    secret = identity.given_secret(state, options.secret_file, make=controls)
    cluster = await identity.join(store, state, secret, clock, found=controls, say=say)
    held = Held(store)
    membership = Membership(
        store, held, role=role, name=options.name, state=state, clock=clock, anew=signals.begin_anew
    )
    await membership.claim(say)
    events = SharedEvents(store, role, options.name, read=controls)
    host = options.address or own_address(address.targets[0])
    return _Joined(
        base=Base(
            state=state, node=options.name, store=store, events=events, clock=clock, secret=secret, cluster=cluster
        ),
        events=events,
        held=held,
        membership=membership,
        host=host,
        admin=(host, options.admin) if isinstance(options.admin, int) else options.admin,
        token=identity.admin_token(secret),
        hosts=(host, socket.gethostname()),
    )


def own_address(target: str) -> str:
    """Of this machine, as `target` (host:port) sees it. Raises TerminalError."""
    host, _, port = target.rpartition(":")
    try:
        family, kind, *_, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)  # sends nothing: it only chooses the way
            return str(probe.getsockname()[0])
    except OSError as error:
        raise TerminalError(
            f"no way to {target} ({error.strerror}): name the address by which others reach this machine with --address"
        ) from error


async def _controller(joined: _Joined, options: ControllerOptions, say: Say) -> Parts:
    base, engines = joined.base, parts.usable_engines(say)

    def make(store: Store) -> Deciding:
        patience = options.patience
        liveness = Liveness(patience=patience or LOST, presence=True, follows=patience is None)
        return parts.build_deciding(
            replace(base, store=store), engines, options.catalog, look=lambda _: (), liveness=liveness
        )

    leading = Leading(base.store, options.name, base.clock, base.events.record, make)
    api = create_app(
        store=base.store,
        events=base.events,
        token=joined.token,
        node=base.node,
        collect=[leading.collect],
        hosts=joined.hosts,
        foresee=leading.foresee,
        compare=leading.compare,
        refresh=leading.refresh,
        read=leading.read,
        lineage=leading.lineage,
        webhook=parts.secret_of(options.webhook),
        find=leading.find,
        verdict=leading.verdict,
        controller=options.name,
        leads=lambda: leading.leads,
    )
    return joined.parts(api, deciding=[("leading", leading.run)])


async def _agent(joined: _Joined, options: AgentOptions, say: Say) -> Parts:
    base = joined.base
    engines = parts.usable_engines(say)
    peers = StorePeers(base.store, joined.held, node=base.node, clock=base.clock)
    tell = parts.node_events(base)
    mirror = Mirror(peers, joined.token, base.clock, tell=tell)
    cache = parts.build_cache(base, engines, options.cache, mirror=mirror)
    agent = parts.build_agent(base, engines, cache, ports=options.engine_ports, host=joined.host)
    doubt = Doubt(parts.build_upkeep(base, cache), base.clock)
    mirroring = Mirroring(Shelf(cache), peers.settings, base.clock, doubt=doubt, tell=tell)
    api = create_own_app(
        what=f"the agent of {base.node}",
        store=base.store,
        token=joined.token,
        clock=base.clock,
        unready=lambda: None if agent.reported.is_set() else "it has not reported yet",
        collect=[agent.collect],
        state=base.state,
        hosts=joined.hosts,
        more=[mirroring.routes()],
    )
    return joined.parts(api, agent=agent, around=[("peers", peers.run), ("mirror", mirroring.run)])


async def _gateway(joined: _Joined, options: GatewayOptions) -> Parts:
    base = joined.base
    gateway = parts.build_gateway(base, name=options.name, own=joined.held, access_log=options.access_log)
    api = create_own_app(
        what=f"the gateway {options.name}",
        store=base.store,
        token=joined.token,
        clock=base.clock,
        unready=lambda: _unready(gateway),
        collect=[gateway.collect],
        hosts=joined.hosts,
    )
    return joined.parts(api, gateway=gateway, listen=options.listen)


def _unready(gateway: Gateway) -> str | None:
    return None if gateway.informed else "no catalog is in force yet"
