"""What every engine plugin must do, checked on real processes. For plugin authors:

CASE = EngineCase(engine=MyEngine(), profile=ProfileSpec(...), files={"weights": path}, work=HttpRequest(...))

@pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda check: check.__name__)
async def test_my_engine(check, tmp_path):
    await check(CASE, tmp_path)
"""

import asyncio
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import jsonschema

from llmgw.engine import Engine, Exit, HttpRequest, LaunchSpec, Level, ProfileSpec, Readiness, Slot, Verdict
from llmgw.engine.api import KEY_VARIABLE
from llmgw.facts import EngineLoad
from llmgw.ids import ModelName, NodeName, ReplicaId

KEY: Final = "key-of-the-engine-under-test"
POLL: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCase:
    """An engine and a profile small enough to start in seconds."""

    engine: Engine
    profile: ProfileSpec
    files: Mapping[str, Path] = field(default_factory=dict)
    work: HttpRequest | None = None  #: a streamed request that takes seconds; None: load is not checked
    demands_key: bool = True  #: whether it refuses requests without its key
    start_within: float = 60.0  #: seconds
    stop_within: float = 10.0  #: seconds, with nothing in flight


class Running:
    """An engine process under test."""

    def __init__(self, case: EngineCase, spec: LaunchSpec, process: asyncio.subprocess.Process, log: Path) -> None:
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

    async def _probe(self, request: HttpRequest) -> Readiness:
        try:
            return self.case.engine.read_probe(request, *await self.send(request))
        except httpx.TransportError:
            return Readiness.LOADING

    async def load(self) -> EngineLoad | None:
        request = self.case.engine.load(self.case.profile)
        return None if request is None else self.case.engine.read_load(*await self.send(request))

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

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-65_536:]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _slot(case: EngineCase, directory: Path, port: int) -> Slot:
    return Slot(
        replica=ReplicaId(secrets.token_hex(4)),
        model=ModelName("under-test"),
        node=NodeName("here"),
        host="127.0.0.1",
        port=port,
        directory=directory,
        files=case.files,
    )


@asynccontextmanager
async def running(case: EngineCase, directory: Path, *, port: int | None = None) -> AsyncIterator[Running]:
    """The engine's process, in a session of its own, ended with its whole group afterwards."""
    slot = _slot(case, directory, port or free_port())
    spec = case.engine.launch(case.profile, slot, Level.FULL)
    log = directory / f"{slot.replica}.log"
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *spec.argv, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            env={**os.environ, **spec.env, KEY_VARIABLE: KEY, **dict.fromkeys(spec.key_variables, KEY)},
        )  # fmt: skip
    run = Running(case, spec, process, log)
    try:
        yield run
    finally:
        await run.client.aclose()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def check_options_schema_is_valid_and_accepts_the_profile(case: EngineCase, directory: Path) -> None:
    schema = case.engine.options_schema
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(dict(case.profile.options))
    assert schema.get("additionalProperties") is False, "a misspelt option must be an error"
    for name, option in schema.get("properties", {}).items():
        assert option.get("description"), f"option {name} has no description"


async def check_fingerprint_is_quick_and_usable(case: EngineCase, directory: Path) -> None:
    began = time.monotonic()
    fact = await asyncio.to_thread(case.engine.fingerprint)
    assert time.monotonic() - began < 10
    assert fact.name == case.engine.name
    assert fact.why is None, fact.why


async def check_launch_is_pure_and_hides_the_key(case: EngineCase, directory: Path) -> None:
    before = sorted(directory.rglob("*"))
    slot = _slot(case, directory, 9)
    first, second = (case.engine.launch(case.profile, slot, Level.FULL) for _ in range(2))
    assert first == second
    assert sorted(directory.rglob("*")) == before
    assert not first.url.endswith("/")
    assert KEY_VARIABLE not in first.env


async def check_becomes_ready_and_stops_on_sigterm(case: EngineCase, directory: Path) -> None:
    async with running(case, directory) as run:
        await run.wait_ready()
        run.process.terminate()
        await run.ended(case.stop_within)
        try:
            await run.send(case.engine.probes(case.profile)[0])
        except httpx.TransportError:
            return
        raise AssertionError("it still answers after its process ended")


async def check_refuses_requests_without_its_key(case: EngineCase, directory: Path) -> None:
    if not case.demands_key:
        return
    async with running(case, directory) as run:
        await run.wait_ready()
        request = HttpRequest(path="/v1/models")
        assert (await run.send(request))[0] == 200
        for wrong in (None, "another key"):
            assert (await run.send(request, key=wrong))[0] in (401, 403)


async def check_load_follows_a_request_and_its_cancellation(case: EngineCase, directory: Path) -> None:
    if case.work is None:
        return
    async with running(case, directory) as run:
        await run.wait_ready()
        await run.until_running(lambda count: count == 0, within=5)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        async with run.client.stream(
            case.work.method, case.work.path, content=case.work.body, headers=headers
        ) as answer:
            assert answer.status_code == 200
            await anext(answer.aiter_bytes())
            await run.until_running(lambda count: count == 1, within=5)
        # The client has gone: what it asked for must not go on occupying the engine.
        await run.until_running(lambda count: count == 0, within=5)


async def check_stops_while_answering(case: EngineCase, directory: Path) -> None:
    if case.work is None:
        return
    async with running(case, directory) as run:
        await run.wait_ready()
        sent = asyncio.ensure_future(run.send(case.work))
        try:
            await run.until_running(lambda count: count == 1, within=5)
            run.process.terminate()
            await run.ended(case.stop_within)
        finally:
            sent.cancel()
            await asyncio.gather(sent, return_exceptions=True)


async def check_a_taken_port_is_told_from_a_crash(case: EngineCase, directory: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        async with running(case, directory, port=taken.getsockname()[1]) as run:
            verdict = run.verdict(await run.ended(case.start_within))
            assert verdict.port_clash, f"{verdict}\n{run.tail()}"


async def check_an_exit_nobody_asked_for_is_a_failure(case: EngineCase, directory: Path) -> None:
    for exit in (Exit(code=0), Exit(code=1), Exit(signal=9), Exit()):
        verdict = case.engine.classify(exit, "")
        assert verdict.reason, f"no reason for {exit}"
        assert "\n" not in verdict.reason
        assert not verdict.port_clash


ENGINE_CHECKS: Final[tuple[Callable[[EngineCase, Path], Awaitable[None]], ...]] = (
    check_options_schema_is_valid_and_accepts_the_profile,
    check_fingerprint_is_quick_and_usable,
    check_launch_is_pure_and_hides_the_key,
    check_an_exit_nobody_asked_for_is_a_failure,
    check_becomes_ready_and_stops_on_sigterm,
    check_refuses_requests_without_its_key,
    check_load_follows_a_request_and_its_cancellation,
    check_stops_while_answering,
    check_a_taken_port_is_told_from_a_crash,
)
