"""The composition root: the only place that builds concrete things and knows all of them."""

import asyncio
import contextlib
import os
import secrets
import shlex
import signal
import socket
import sys
import threading
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
from llmgw.errors import LlmgwError, TerminalError
from llmgw.gateway.server import Gateway
from llmgw.ids import NodeName
from llmgw.reconcile.comparing import Comparing
from llmgw.reconcile.foresight import Foresight
from llmgw.reconcile.loop import Controller
from llmgw.reconcile.sync import CatalogSync
from llmgw.statedir import AdminAddress, StateDir, StateLock, write_atomic
from llmgw.store import damage, keys
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

_NO_ADDRESS = (OSError, UnicodeError)  # the latter from host names that can be none
HUNG = 20.0
"""Seconds after which what does not end is left behind, once all that serves has ended."""

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
    """Serve until a signal says otherwise; the exit status.

    Raises LlmgwError when it cannot start, or when a part that it cannot do without failed; engines are then kept.
    """
    say = _undeterred(say)
    state = StateDir(options.state)
    state.prepare()
    lock = StateLock(state)
    lock.acquire(self_identity())
    with contextlib.ExitStack() as leaving:
        leaving.callback(lock.release)
        state.admin.unlink(missing_ok=True)  # of a daemon that was killed: nobody answers there
        force = _LastResort(say)
        leaving.callback(force.cancel)
        runner = leaving.enter_context(asyncio.Runner(loop_factory=_loop_factory()))
        try:
            runner.run(_Up(options, state, say).run(report))
        finally:
            force.start(sys.exception())
    return 0


def _undeterred(say: Callable[[str], None]) -> Callable[[str], None]:
    """`say`, which goes unheard once the terminal or pipe is gone: engines have to be stopped all the same."""

    def said(text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            say(text)

    return said


class _LastResort:
    """Ends the process though a worker thread does not return: from a disk that hangs, say. From `start` on."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._timer: threading.Timer | None = None

    def start(self, failure: BaseException | None) -> None:
        self._timer = threading.Timer(HUNG, self._end, [failure])
        self._timer.daemon = True
        self._timer.start()

    def _end(self, failure: BaseException | None) -> None:
        if failure is not None:
            self._say(str(failure))
        self._say(f"something did not end within {HUNG:.0f} s: leaving it behind")
        os._exit(0 if failure is None else 1)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """All that is built; nothing of it runs yet."""

    store: MemoryStore
    events: EventLog
    agent: Agent
    controller: Controller
    sync: CatalogSync
    gateway: Gateway
    foresight: Foresight
    comparing: Comparing


class _Up:
    """Controller, agent, gateway and admin in one process, over an in-memory store."""

    def __init__(self, options: UpOptions, state: StateDir, say: Callable[[str], None]) -> None:
        self._options = options
        self._state = state
        self._say = say
        self._signals = _Signals(options.on_exit, say)

    async def run(self, report: Report) -> None:
        """Until a signal. Raises LlmgwError for what cannot be had at start, or for what failed meanwhile."""
        parts = self._build(await self._load_store())
        tasks = Tasks()
        with self._signals.installed():
            try:
                admin, address = await self._listen(parts)
                tasks.start(admin.serve(), "admin", essential=True)
                write_atomic(self._state.admin, encode(address), mode=0o600)
                tasks.start(parts.gateway.wait(), "gateway", essential=True)
                tasks.start(parts.agent.run(), "agent", essential=True)
                deciding = {
                    tasks.start(parts.sync.run(), "sync", essential=True),
                    tasks.start(parts.controller.run(), "controller", essential=True),
                }
                tasks.start(report(parts.store, address.gateway), "report")
                failure = await self._signals.first(tasks.wait())
                for task in deciding:  # else what is stopped would be launched again
                    task.cancel()
                await asyncio.wait(deciding)
                await self._leave(parts)
                admin.stop()
            finally:
                self._state.admin.unlink(missing_ok=True)
                await parts.gateway.close()
                await tasks.close()
                await parts.store.close()
        if failure is not None:
            raise _ended_by(failure) from failure

    async def _load_store(self) -> MemoryStore:
        store = MemoryStore(self._state.store)
        store.load()
        await store.delete(keys.APPLIED)  # its models come with the catalog: until that is read nothing is in force
        for what in await damage.set_aside(store, SystemClock().now()):
            self._say(what)
        return store

    def _build(self, store: MemoryStore) -> _Parts:
        options, state, clock, events = self._options, self._state, SystemClock(), EventLog()
        engines = find_engines()
        for plugin, why in engines.broken.items():
            self._say(f"plugin {plugin} cannot be used; models that need it will wait:\n{why}")
        cache = Cache(options.cache or state.weights, cluster_id=state.cluster_id(), clock=clock)
        cache.open()
        live = LiveCatalog(str(options.catalog))
        controller = Controller(
            store=store, live=live, engines=engines, clock=clock, record=events.record, nodes=(options.node,)
        )
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
        foresight = Foresight(
            store=store,
            path=options.catalog,
            live=live,
            liveness=controller.liveness,
            engines=engines,
            clock=clock,
            node=options.node,
            look=Cache(cache.root, cluster_id=state.cluster_id(), clock=clock).facts,  # its own: asked in a thread
        )
        return _Parts(
            store=store,
            events=events,
            agent=agent,
            controller=controller,
            sync=sync,
            gateway=gateway,
            foresight=foresight,
            comparing=Comparing(live=live, path=options.catalog, engines=engines),
        )

    async def _listen(self, parts: _Parts) -> "tuple[_AdminServer, AdminAddress]":
        """Take both addresses. Raises TerminalError, naming the one that cannot be had."""
        options, gateway = self._options, parts.gateway
        try:
            await gateway.start(*options.listen)
        except _NO_ADDRESS as error:
            raise _cannot_listen(options.listen, "--listen", error) from error
        token = secrets.token_hex(16)
        app = create_app(
            store=parts.store,
            events=parts.events,
            token=token,
            node=options.node,
            collect=[gateway.collect, parts.controller.meters.collect],
            state=self._state,
            foresee=parts.foresight.foresee,
            compare=parts.comparing.sides,
        )
        admin = _AdminServer(app, options.admin)
        return admin, AdminAddress(url=_url(*admin.address), token=token, gateway=_url(*gateway.address))

    async def _leave(self, parts: _Parts) -> None:
        """Let open requests end, then stop the engines, or keep them and say so."""
        at_once = self._signals.at_once
        await _unless(at_once, parts.gateway.close(drain=GATEWAY_DRAIN))
        running = parts.agent.serving()
        if self._signals.choice == "keep":
            if running:
                what, them = ("1 engine keeps", "it") if running == 1 else (f"{running} engines keep", "them")
                command = f"llmgw down --state {shlex.quote(str(self._state.root))}"
                self._say(f"{what} serving; `{command}` ends {them}")
            return
        if running:
            self._say(f"stopping {running} engine{'s' if running > 1 else ''}; interrupt again to end them at once")
        await _unless(at_once, parts.agent.stop_engines())
        if at_once.is_set():
            await parts.agent.stop_engines(at_once=True)


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, Any]) -> None:
    """Until `work` is done, or the event is set: then it is cancelled."""
    doing, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({doing, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        if not doing.done():
            doing.cancel()
            await asyncio.wait({doing})
    if not doing.cancelled():
        doing.result()


def _ended_by(failure: BaseException) -> TerminalError:
    while isinstance(failure, BaseExceptionGroup) and len(failure.exceptions) == 1:
        failure = failure.exceptions[0]
    if isinstance(failure, LlmgwError | OSError):
        return TerminalError(f"cannot go on: {failure}; engines keep serving: put it right and start llmgw again")
    return TerminalError(
        f"ended by a fault of its own: {type(failure).__name__}: {failure}; engines keep serving: start llmgw again, "
        "and report the lines above"
    )


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
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else nohup's wish: outlive the terminal
            numbers.append(signal.SIGHUP)
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

    async def first(self, failing: Coroutine[Any, Any, None]) -> BaseException | None:
        """Until the first signal: None; or what `failing` raised before one came: engines are then kept."""
        signalled, failed = asyncio.ensure_future(self._first.wait()), asyncio.ensure_future(failing)
        try:
            await asyncio.wait({signalled, failed}, return_when=asyncio.FIRST_COMPLETED)
            if not failed.done():
                return None
            self.choice = self._forced or "keep"
            return failed.exception()
        finally:
            signalled.cancel()
            failed.cancel()


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
    bound = socket.socket(socket.AF_INET6 if ":" in listen[0] else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(listen)
        bound.listen(128)
        return bound
    except _NO_ADDRESS as error:
        bound.close()
        raise _cannot_listen(listen, flag, error) from error


def _cannot_listen(listen: tuple[str, int], flag: str, error: Exception) -> TerminalError:
    host, port = listen
    why = getattr(error, "strerror", None) or str(error)
    return TerminalError(f"cannot listen on {host}:{port}: {why}; name another with {flag}")


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
