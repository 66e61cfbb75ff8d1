"""An engine's real process under test: started as llmgw starts it, asked as llmgw asks it, ended with its group."""

import asyncio
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import psutil

from llmgw.agent.ending import run_stop_command
from llmgw.engine import (
    Engine,
    Exit,
    FailureKind,
    HttpRequest,
    LaunchSpec,
    Level,
    ProfileSpec,
    Readiness,
    Slot,
    Verdict,
)
from llmgw.engine.api import KEY_VARIABLE
from llmgw.facts import EngineLoad
from llmgw.ids import ModelName, NodeName, ReplicaId
from llmgw.statedir import write_atomic

KEY: Final = "key-of-the-engine-under-test"
POLL: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A profile with which the engine ends before it is ready, and what that must be told for."""

    profile: ProfileSpec
    kind: FailureKind
    files: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCase:
    """An engine and a profile small enough to start in seconds.

    `context_of` reads the context of a running engine from it: with it, the smaller levels are started too.
    """

    engine: Engine
    profile: ProfileSpec
    files: Mapping[str, Path] = field(default_factory=dict)
    work: HttpRequest | None = None  #: a streamed request that takes seconds; None: load is not checked
    demands_key: bool = True  #: whether it refuses requests without its key
    needs_key: HttpRequest | None = None
    """A request that is answered 200 with the key, and refused without. None: for its models, else for its load, else
    the last of several probes."""
    start_within: float = 60.0  #: seconds
    stop_within: float = 10.0  #: seconds
    stops_busy: bool = True  #: whether SIGTERM ends it while it answers too; if not, SIGKILL has to leave nothing
    broken: Sequence[Broken] = ()
    context_of: "Callable[[Running], Awaitable[int]] | None" = None
    log_per_request: int = 200  #: bytes that a request may add to the log: a line, never a prompt or an answer


class Running:
    """An engine process under test."""

    def __init__(
        self, case: EngineCase, spec: LaunchSpec, process: asyncio.subprocess.Process, log: Path, env: Mapping[str, str]
    ) -> None:
        self._env = env
        self.case = case
        self.spec = spec
        self.process = process
        self.log = log
        self.client = httpx.AsyncClient(base_url=spec.url, trust_env=False, timeout=30)

    async def send(self, request: HttpRequest, *, key: str | None = KEY) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        answer = await self.client.request(
            request.method, request.path, content=request.body, headers=headers, timeout=request.timeout
        )
        return answer.status_code, answer.content

    async def wait_ready(self) -> None:
        """Until every probe was answered READY. AssertionError when it ends, breaks, or takes too long."""
        deadline = time.monotonic() + self.case.start_within
        for request in self.case.engine.probes(self.case.profile):
            while (seen := await self._probe(request)) is not Readiness.READY:
                assert seen is not Readiness.BROKEN, f"{request.path} says broken\n{self.tail()}"
                assert self.process.returncode is None, f"ended while starting\n{self.tail()}"
                assert time.monotonic() < deadline, f"not ready in time\n{self.tail()}"
                await asyncio.sleep(POLL)

    async def still_ready(self) -> None:
        """While nothing is in flight every probe must be answered READY, again and again: llmgw asks now and then."""
        for request in self.case.engine.probes(self.case.profile):
            seen = await self._probe(request)
            assert seen is Readiness.READY, f"{request.path} was READY, and now says {seen}\n{self.tail()}"

    async def _probe(self, request: HttpRequest) -> Readiness:
        try:
            return self.case.engine.read_probe(request, *await self.send(request))
        except httpx.TransportError:
            return Readiness.LOADING

    async def load(self) -> EngineLoad | None:
        engine, profile = self.case.engine, self.case.profile
        request = engine.load(profile)
        return None if request is None else engine.read_load_of(profile, *await self.send(request))

    async def until_running(self, wanted: Callable[[int], bool], within: float) -> None:
        deadline = time.monotonic() + within
        load = await self.load()
        while load is None or not wanted(load.running):
            assert time.monotonic() < deadline, f"load is {load} for {within} s\n{self.tail()}"
            await asyncio.sleep(POLL)
            load = await self.load()

    async def ended(self, within: float) -> Exit:
        try:
            async with asyncio.timeout(within):
                code = await self.process.wait()
        except TimeoutError:
            raise AssertionError(f"still runs after {within} s\n{self.tail()}") from None
        return Exit(signal=-code) if code < 0 else Exit(code=code)

    def verdict(self, exit: Exit) -> Verdict:
        return self.case.engine.classify(exit, self.tail())

    async def stop_service(self) -> None:
        """As llmgw does before it signals the process: by the engine's own stop command, where it has one."""
        if self.spec.stop_argv is not None:
            await asyncio.to_thread(
                run_stop_command,
                self.spec.stop_argv,
                self._env,
                home=self.log.parent,
                log=self.log,
                timeout=self.case.stop_within,
            )

    async def stopped_busy(self) -> None:
        """End it as llmgw does after a drain that took too long: SIGTERM to its group, SIGKILL after a grace."""
        await self.stop_service()
        if self.process.returncode is not None:
            return
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            await self.ended(self.case.stop_within)
        except AssertionError:
            if self.case.stops_busy:
                raise
            os.killpg(self.process.pid, signal.SIGKILL)
            await self.ended(self.case.stop_within)

    def resident(self) -> int:
        """Bytes that its process group holds for itself: mapped files do not count."""
        return sum(_anonymous(process) for process in self.group())

    def group(self) -> list[psutil.Process]:
        """Every process of its session: whatever it started and did not send away."""
        return [process for process in psutil.process_iter() if _session(process.pid) == self.process.pid]

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-65_536:]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def slot_for(case: EngineCase, directory: Path, port: int) -> Slot:
    return Slot(
        replica=ReplicaId(secrets.token_hex(4)),
        model=ModelName("under-test"),
        node=NodeName("here"),
        host="127.0.0.1",
        port=port,
        directory=directory,
        files={role: path.absolute() for role, path in case.files.items()},
    )


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _anonymous(process: psutil.Process) -> int:
    try:
        found = process.memory_info()
    except psutil.Error:
        return 0
    return int(found.rss - getattr(found, "shared", 0))


@asynccontextmanager
async def running(
    case: EngineCase, directory: Path, *, port: int | None = None, level: Level = Level.FULL
) -> AsyncIterator[Running]:
    """The engine's process, in a session of its own, ended with its whole group afterwards."""
    slot = slot_for(case, directory, port or free_port())
    spec = case.engine.launch(case.profile, slot, level)
    log = directory / f"{slot.replica}.log"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LLMGW_")}
    env = {**kept, **spec.env, KEY_VARIABLE: KEY, **dict.fromkeys(spec.key_variables, KEY)}
    if spec.key_file is not None:
        assert spec.key_file.parent == directory, f"key_file {spec.key_file} is not in the slot's directory {directory}"
        write_atomic(spec.key_file, KEY.encode(), mode=0o600)
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *case.profile.wrapper, *spec.argv, start_new_session=True, cwd=directory, env=env,
            stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    run = Running(case, spec, process, log, env)
    try:
        yield run
    finally:
        await run.client.aclose()
        await run.stop_service()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
