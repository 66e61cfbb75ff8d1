"""The composition root: the only place that builds concrete things and knows all of them."""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import structlog
import uvicorn

from llmgw.admin.app import create_app
from llmgw.agent.loop import Agent
from llmgw.agent.ports import DEFAULT_PORTS
from llmgw.agent.process import self_identity
from llmgw.catalog.live import LiveCatalog
from llmgw.clock import SystemClock
from llmgw.engine.manager import find_engines
from llmgw.errors import TerminalError
from llmgw.gateway.server import Gateway
from llmgw.ids import NodeName
from llmgw.reconcile.loop import Controller
from llmgw.reconcile.sync import CatalogSync
from llmgw.statedir import AdminAddress, StateDir, StateLock, write_atomic
from llmgw.store.api import Store
from llmgw.store.codec import encode
from llmgw.store.events import EventLog
from llmgw.store.memory import MemoryStore
from llmgw.tasks import Tasks
from llmgw.weights.cache import Cache

log = structlog.get_logger("llmgw.app")

OnExit = Literal["stop", "keep"]
Report = Callable[[Store, str], Coroutine[Any, Any, None]]
"""Tells the operator what is going on: given the store and the gateway's URL, run as a task."""

GATEWAY_DRAIN = 5.0
"""Seconds that open requests get when the process ends; engines that are kept serve the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What `llmgw up` was asked for. Port 0: any free one."""

    catalog: Path
    state: Path
    node: NodeName
    cache: Path | None = None
    listen: tuple[str, int] = ("127.0.0.1", 8080)
    admin: tuple[str, int] = ("127.0.0.1", 8081)
    on_exit: OnExit | None = None
    engine_ports: range | None = None


def run_up(options: UpOptions, *, report: Report, say: Callable[[str], None]) -> int:
    """Serve until a signal says otherwise; the exit status. Raises LlmgwError when it cannot start."""
    state = StateDir(options.state)
    state.prepare()
    lock = StateLock(state)
    lock.acquire(self_identity())
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_Up(options, state, say).run(report))
    finally:
        lock.release()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


class _Up:
    """Controller, agent, gateway and admin in one process, over an in-memory store."""

    def __init__(self, options: UpOptions, state: StateDir, say: Callable[[str], None]) -> None:
        self._options = options
        self._state = state
        self._say = say
        self._signals = _Signals(options.on_exit, say)

    async def run(self, report: Report) -> int:
        options, state, clock, events = self._options, self._state, SystemClock(), EventLog()
        store = MemoryStore(state.store)
        store.load()
        engines = find_engines()
        for plugin, why in engines.broken.items():
            self._say(f"plugin {plugin} cannot be used; models that need it will wait:\n{why}")
        cache = Cache(options.cache or state.weights, cluster_id=state.cluster_id(), clock=clock)
        cache.open()
        live = LiveCatalog(str(options.catalog))
        controller = Controller(store=store, live=live, engines=engines, clock=clock, record=events.record)
        sync = CatalogSync(
            path=options.catalog,
            store=store,
            live=live,
            engines=engines,
            clock=clock,
            record=events.record,
            last_good=state.last_good,
            wake=controller.trigger,
        )
        agent = Agent(
            node=options.node,
            store=store,
            state=state,
            cache=cache,
            engines=engines,
            clock=clock,
            events=events,
            secret=state.secret(),
            ports=options.engine_ports or DEFAULT_PORTS,
        )
        gateway = Gateway(store=store, secret=state.secret(), clock=clock)
        token = secrets.token_hex(16)
        tasks = Tasks()
        with self._signals.installed():
            try:
                await _listening(gateway.start(*options.listen), options.listen, "--listen")
                url = _url(*gateway.address)
                app = create_app(store=store, events=events, token=token, node=options.node, collect=[gateway.collect])
                admin = _AdminServer(app, options.admin)
                tasks.start(admin.serve(), "admin", essential=True)
                address = AdminAddress(url=_url(*admin.address), token=token, gateway=url)
                write_atomic(state.admin, encode(address), mode=0o600)
                tasks.start(gateway.wait(), "gateway", essential=True)
                tasks.start(agent.run(), "agent", essential=True)
                tasks.start(sync.run(), "sync", essential=True)
                tasks.start(controller.run(), "controller", essential=True)
                tasks.start(report(store, url), "report")
                failing = tasks.start(tasks.wait(), "watchdog")
                await self._signals.first(failing)
                await gateway.close(drain=0.0 if self._signals.at_once.is_set() else GATEWAY_DRAIN)
                await self._leave(agent)
                admin.stop()
            finally:
                await gateway.close()
                await tasks.close()
                await store.close()
                state.admin.unlink(missing_ok=True)
        return 0

    async def _leave(self, agent: Agent) -> None:
        """Stop the engines, or keep them and say so."""
        running = agent.serving()
        if self._signals.choice == "keep":
            if running:
                what, them = ("1 engine keeps", "it") if running == 1 else (f"{running} engines keep", "them")
                self._say(f"{what} serving; `llmgw down --state {self._state.root}` ends {them}")
            return
        if running:
            self._say(f"stopping {running} engine{'s' if running > 1 else ''}; interrupt again to end them at once")
        stopping = asyncio.ensure_future(agent.stop_engines(at_once=self._signals.at_once.is_set()))
        hasten = asyncio.ensure_future(self._signals.at_once.wait())
        await asyncio.wait({stopping, hasten}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            await agent.stop_engines(at_once=True)
        hasten.cancel()
        await stopping


class _Signals:
    """SIGINT stops engines, SIGTERM keeps them; SIGHUP is SIGINT where we started on a terminal, else SIGTERM.
    A second SIGINT hastens. `--on-exit` overrides; as PID 1 nothing outlives us, so engines are stopped."""

    def __init__(self, on_exit: OnExit | None, say: Callable[[str], None]) -> None:
        self._say = say
        self._forced: OnExit | None = on_exit
        self._terminal = sys.stdin is not None and sys.stdin.isatty()
        self._first = asyncio.Event()
        self.at_once = asyncio.Event()
        self.choice: OnExit = "keep"

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        if os.getpid() == 1 and self._forced != "stop":
            self._say("running as process 1: engines are stopped when llmgw ends")
            self._forced = "stop"
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self._received, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _received(self, number: signal.Signals) -> None:
        if self._first.is_set():
            if number is signal.SIGINT:
                self.at_once.set()
            return
        stops = number is signal.SIGINT or (number is signal.SIGHUP and self._terminal)
        self.choice = self._forced or ("stop" if stops else "keep")
        self._first.set()

    async def first(self, failing: "asyncio.Task[None]") -> None:
        """Until the first signal. Raises what an essential part failed with; engines are then kept."""
        signalled = asyncio.ensure_future(self._first.wait())
        await asyncio.wait({signalled, failing}, return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        if failing.done():
            self.choice = self._forced or "keep"
            failing.result()


class _AdminServer:
    """Uvicorn on a socket of ours, so that a taken port is our error, and signals stay ours."""

    def __init__(self, app: Any, listen: tuple[str, int]) -> None:
        self._socket = _bind(listen, "--admin")
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    async def serve(self) -> None:
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        self._server.should_exit = True


def _bind(listen: tuple[str, int], flag: str) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(listen)
        bound.listen(128)
        return bound
    except OSError as error:
        raise _cannot_listen(listen, flag, error) from error


async def _listening(start: Coroutine[Any, Any, None], listen: tuple[str, int], flag: str) -> None:
    try:
        await start
    except OSError as error:
        raise _cannot_listen(listen, flag, error) from error


def _cannot_listen(listen: tuple[str, int], flag: str, error: OSError) -> TerminalError:
    host, port = listen
    return TerminalError(f"cannot listen on {host}:{port}: {error.strerror or error}; name another with {flag}")


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
