"""`llmgw up`: every part in one process, over the embedded store."""

import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmgw.admin.app import create_app
from llmgw.app import parts
from llmgw.app.ending import OnExit, Say, Signals
from llmgw.app.membership import Membership
from llmgw.app.parts import Base
from llmgw.app.process import Parts, run_process
from llmgw.catalog.origin import Origin
from llmgw.catalog.spec import SecretRef
from llmgw.clock import SystemClock
from llmgw.ids import NodeName
from llmgw.statedir import AdminAddress, StateDir
from llmgw.store import damage, keys
from llmgw.store.api import Store
from llmgw.store.events import EventLog
from llmgw.store.memory import MemoryStore
from llmgw.store.values import Role
from llmgw.tasks import Tasks

Report = Callable[[Store, str], Coroutine[Any, Any, None]]
"""Tells the operator what is going on: given the store and the gateway's URL, run as a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What `llmgw up` was asked for. Port 0: any free one."""

    catalog: Origin
    webhook: SecretRef | None = None  #: of whoever may call for a look at the source
    state: Path
    node: NodeName
    cache: Path | None = None
    listen: tuple[str, int] = ("127.0.0.1", 8080)
    access_log: str | None = None
    admin: tuple[str, int] = ("127.0.0.1", 8081)
    on_exit: OnExit | None = None
    engine_ports: range | None = None


def run_up(options: UpOptions, *, report: Report, say: Say) -> int:
    """As `run_process`."""
    state = StateDir(options.state)

    async def build(signals: Signals) -> Parts:
        return _build(options, state, await _load_store(state, say), report, say, signals)

    return run_process(state, build, on_exit=options.on_exit, say=say)


async def _load_store(state: StateDir, say: Say) -> MemoryStore:
    store = MemoryStore(state.store)
    store.load()
    await store.delete(keys.APPLIED)  # its models come with the catalog: until that is read nothing is in force
    for what in await damage.set_aside(store, SystemClock().now()):
        say(what)
    return store


def _build(
    options: UpOptions, state: StateDir, store: MemoryStore, report: Report, say: Say, signals: Signals
) -> Parts:
    engines = parts.usable_engines(say)
    base = Base(
        state=state,
        node=options.node,
        store=store,
        events=EventLog(),
        clock=SystemClock(),
        secret=state.secret(),
        cluster=state.cluster_id(),
    )
    cache = parts.build_cache(base, engines, options.cache)
    look = parts.own_look(base, cache)
    deciding = parts.build_deciding(base, engines, options.catalog, nodes=(options.node,), look=look)
    gateway = parts.build_gateway(base, access_log=options.access_log)
    token = secrets.token_hex(16)
    membership = Membership(
        store, store, role=Role.UP, name=options.node, state=state, clock=base.clock, anew=signals.begin_anew
    )

    async def welcome(address: AdminAddress, tasks: Tasks) -> None:
        await membership.tell(address)
        tasks.start(report(store, address.gateway), "report")

    return Parts(
        store=store,
        api=create_app(
            store=store,
            events=base.events,
            token=token,
            node=options.node,
            collect=[gateway.collect, deciding.controller.meters.collect, deciding.notifier.collect],
            state=state,
            foresee=deciding.foresight.foresee,
            compare=deciding.comparing.sides,
            refresh=deciding.sync.refresh,
            read=deciding.comparing.read,
            lineage=deciding.comparing.lineage,
            webhook=parts.secret_of(options.webhook),
            find=deciding.sync.find,
            verdict=deciding.sync.verdict,
        ),
        token=token,
        admin=options.admin,
        gateway=gateway,
        listen=options.listen,
        agent=parts.build_agent(base, engines, cache, ports=options.engine_ports),
        deciding=[
            ("sync", deciding.sync.run),
            ("controller", deciding.controller.run),
            ("disk pressure", deciding.pressure.run),
            ("notifications", deciding.notifier.run),
        ],
        around=[("orders", membership.obey)],
        welcome=welcome,
    )
