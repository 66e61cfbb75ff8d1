"""Running a process's parts: they begin, a signal or a failure comes, and they leave in an order that loses nothing."""

import asyncio
import contextlib
import os
import shlex
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from starlette.types import ASGIApp

from llmgw.agent.loop import Agent
from llmgw.agent.process import self_identity
from llmgw.app.ending import LastResort, OnExit, Say, Signals, ended_by, undeterred, unless
from llmgw.app.garbage import set_aside
from llmgw.app.listening import (
    INHERITED,
    NO_ADDRESS,
    AdminServer,
    Listen,
    cannot_listen,
    inherited,
    keep_listening,
    url,
)
from llmgw.gateway.server import Gateway
from llmgw.statedir import AdminAddress, StateDir, StateLock, write_atomic
from llmgw.store.api import Store
from llmgw.store.codec import encode
from llmgw.tasks import Tasks

GATEWAY_DRAIN: Final = 5.0
"""Seconds that open requests get when the process ends; engines that are kept serve the next one."""

Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What one process is made of; nothing of it runs yet. None: not in this process.

    `deciding` is ended first of all: else what is stopped would be launched again. `around` runs besides, each with a
    name; `welcome` is told where all can be reached, once it can; `farewell` is called when nothing runs any more.
    """

    store: Store
    api: ASGIApp
    token: str
    admin: Listen
    gateway: Gateway | None = None
    listen: Listen = ("127.0.0.1", 0)
    agent: Agent | None = None
    deciding: Sequence[tuple[str, Work]] = ()
    around: Sequence[tuple[str, Work]] = ()
    welcome: Callable[[AdminAddress, Tasks], Awaitable[None]] | None = None
    farewell: Work | None = None
    elsewhere: str = field(default="")  #: the gateway's URL where it is none of ours


Build = Callable[[Signals], Awaitable[Parts]]


def run_process(state: StateDir, build: Build, *, on_exit: OnExit | None, say: Say) -> int:
    """Serve until a signal says otherwise; the exit status.

    Raises LlmgwError when it cannot start, or when a part that it cannot do without failed; engines are then kept.
    """
    say = undeterred(say)
    state.prepare()
    lock = StateLock(state)
    lock.acquire(self_identity())
    with contextlib.ExitStack() as leaving:
        leaving.callback(lock.release)
        leaving.enter_context(set_aside())
        state.admin.unlink(missing_ok=True)  # of a daemon that was killed: nobody answers there
        force = LastResort(say)
        leaving.callback(force.cancel)
        runner = leaving.enter_context(asyncio.Runner(loop_factory=_loop_factory()))
        try:
            after = runner.run(_run(state, build, on_exit, say))
        finally:
            force.start(sys.exception())
    if after is not None:
        _begin_anew(after)
    return 0


def _begin_anew(after: "_Anew") -> NoReturn:
    """Under the same process id, so that whoever supervises us notices nothing."""
    if after.listening is not None:
        os.set_inheritable(after.listening, True)
        os.environ[INHERITED] = str(after.listening)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


@dataclass(frozen=True, slots=True)
class _Anew:
    """The program begins anew. `listening`: the descriptor that it goes on to listen on."""

    listening: int | None = None


async def _run(state: StateDir, build: Build, on_exit: OnExit | None, say: Say) -> _Anew | None:
    """None: to end."""
    listening: int | None = None
    signals = Signals(on_exit, say)
    with signals.installed():
        parts = await _built(build, signals)
        if parts is not None:
            running = _Running(parts, state, signals, say)
            await running.run()
            listening = running.listening
    return _Anew(listening) if signals.restart else None


async def _built(build: Build, signals: Signals) -> Parts | None:
    """None: a signal came first. Building may wait for others: a store that does not answer yet."""
    building, signalled = asyncio.ensure_future(build(signals)), asyncio.ensure_future(signals.wait())
    try:
        await asyncio.wait({building, signalled}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        signalled.cancel()
        if not building.done():
            building.cancel()
            await asyncio.wait({building})
    return None if building.cancelled() else building.result()


class _Running:
    """One process's parts from their start to their end."""

    def __init__(self, parts: Parts, state: StateDir, signals: Signals, say: Say) -> None:
        self._parts = parts
        self._state = state
        self._signals = signals
        self._say = say
        self.listening: int | None = None  #: kept for the program that begins anew

    async def run(self) -> None:
        """Until a signal. Raises LlmgwError for what cannot be had at start, or for what failed meanwhile."""
        parts, tasks = self._parts, Tasks()
        try:
            admin, address = await self._listen()
            tasks.start(admin.serve(), "admin", essential=True)
            write_atomic(self._state.admin, encode(address), mode=0o600)
            deciding = self._start(tasks)
            if parts.welcome is not None:
                await parts.welcome(address, tasks)
            failure = await self._signals.first(tasks.wait())
            for task in deciding:
                task.cancel()
            if deciding:
                await asyncio.wait(deciding)
            await self._leave()
            admin.stop()
        finally:
            self._state.admin.unlink(missing_ok=True)
            if parts.gateway is not None:
                await parts.gateway.close()
            await tasks.close()
            if parts.farewell is not None:
                await parts.farewell()
            await parts.store.close()
        if failure is not None:
            raise ended_by(failure) from failure

    def _start(self, tasks: Tasks) -> set[asyncio.Task[Any]]:
        """The tasks that decide."""
        parts = self._parts
        for name, work in parts.around:
            tasks.start(work(), name, essential=True)
        if parts.gateway is not None:
            tasks.start(parts.gateway.wait(), "gateway", essential=True)
        if parts.agent is not None:
            tasks.start(parts.agent.run(), "agent", essential=True)
        return {tasks.start(work(), name, essential=True) for name, work in parts.deciding}

    async def _listen(self) -> tuple[AdminServer, AdminAddress]:
        """Take both addresses. Raises TerminalError, naming the one that cannot be had."""
        parts = self._parts
        if parts.gateway is not None:
            try:
                await parts.gateway.start(*parts.listen, on=inherited(parts.listen))
            except NO_ADDRESS as error:
                raise cannot_listen(parts.listen, "--listen", error) from error
        admin = AdminServer(parts.api, parts.admin)
        gateway = url(*parts.gateway.address) if parts.gateway is not None else parts.elsewhere
        return admin, AdminAddress(url=url(*admin.address), token=parts.token, gateway=gateway)

    async def _leave(self) -> None:
        """Let open requests end, then stop the engines, or keep them and say so."""
        at_once, parts = self._signals.at_once, self._parts
        if parts.gateway is not None:
            if self._signals.restart:
                self.listening = keep_listening(parts.gateway.listening())
            await unless(at_once, parts.gateway.close(drain=GATEWAY_DRAIN))
        if parts.agent is not None:
            await self._leave_engines(parts.agent)

    async def _leave_engines(self, agent: Agent) -> None:
        running, at_once = agent.serving(), self._signals.at_once
        if self._signals.choice == "keep":
            if running:
                what, them = ("1 engine keeps", "it") if running == 1 else (f"{running} engines keep", "them")
                command = f"llmgw down --state {shlex.quote(str(self._state.root))}"
                self._say(f"{what} serving; `{command}` ends {them}")
            return
        if running:
            self._say(f"stopping {running} engine{'s' if running > 1 else ''}; interrupt again to end them at once")
        await unless(at_once, agent.stop_engines())
        if at_once.is_set():
            await agent.stop_engines(at_once=True)
