"""What every engine plugin must do, checked on real processes. For plugin authors:

CASE = EngineCase(engine=MyEngine(), profile=ProfileSpec(...), files={"weights": path}, work=HttpRequest(...))

@pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda check: check.__name__)
async def test_my_engine(check, tmp_path):
    await check(CASE, tmp_path)
"""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import httpx
import jsonschema

from llmgw.engine import FailureKind, HttpRequest, Level
from llmgw.testing.engine_contract import (
    check_an_exit_nobody_asked_for_is_a_failure,
    check_fingerprint_is_quick_and_usable,
    check_its_methods_return_what_they_promise,
    check_launch_is_pure_and_hides_the_key,
    check_no_method_is_misspelt,
    check_options_schema_is_valid_and_accepts_the_profile,
    facts_of,
)
from llmgw.testing.engine_process import KEY, POLL, Broken, EngineCase, Running, free_port, running

__all__ = ["ENGINE_CHECKS", "Broken", "EngineCase", "Running", "free_port", "running"]

STUBBORN: Final = ("sh", "-c", 'trap "" TERM; "$@" & while kill -0 $! 2>/dev/null; do wait; done; sleep 600', "sh")
"""A wrapper that SIGTERM does not end, around an engine that it does."""


class Untold(AssertionError):
    """The case does not tell enough for a check."""


ANSWERS: Final = 20  #: requests after which the log is looked at


async def check_becomes_ready_and_stops_on_sigterm(case: EngineCase, directory: Path) -> None:
    async with running(case, directory) as run:
        await run.wait_ready()
        await run.still_ready()
        await run.stop_service()
        with suppress(ProcessLookupError):
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
        request = await _answered(run)
        for how, wrong in (("without a key", None), ("with another key", "another key")):
            status, _ = await run.send(request, key=wrong)
            assert status in (401, 403), f"{request.method} {request.path} {how}: {status}, neither 401 nor 403"


async def _answered(run: Running) -> HttpRequest:
    """What it answers to those who have its key."""
    case, probes = run.case, list(run.case.engine.probes(run.case.profile))
    tried = [HttpRequest(path="/v1/models"), case.engine.load(case.profile), *probes[1:][-1:]]
    for request in tried if case.needs_key is None else [case.needs_key]:
        if request is not None and (await run.send(request))[0] == 200:
            return request
    raise Untold("nothing is known that it answers with its key alone: name a request as `needs_key` of the case")


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
            pieces = answer.aiter_bytes()  # kept: one that is thrown away closes the connection, sooner or later
            await anext(pieces)
            await run.until_running(lambda count: count == 1, within=5)
        # The client has gone: what it asked for must not go on occupying the engine.
        await run.until_running(lambda count: count == 0, within=5)
        await run.still_ready()


async def check_stops_while_answering(case: EngineCase, directory: Path) -> None:
    if case.work is None:
        return
    async with running(case, directory) as run:
        await run.wait_ready()
        sent = asyncio.ensure_future(run.send(case.work))
        try:
            await run.until_running(lambda count: count == 1, within=5)
            await run.stopped_busy()
        finally:
            sent.cancel()
            await asyncio.gather(sent, return_exceptions=True)
        await _gone(run, case.stop_within)


async def check_a_taken_port_is_told_from_a_crash(case: EngineCase, directory: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        async with running(case, directory, port=taken.getsockname()[1]) as run:
            verdict = run.verdict(await run.ended(case.start_within))
            assert verdict.port_clash, f"{verdict}\n{run.tail()}"


async def check_a_wrapper_goes_before_its_command(case: EngineCase, directory: Path) -> None:
    mark = directory / "wrapped"
    wrapper = ("sh", "-c", 'touch "$0"; exec "$@"', str(mark), *case.profile.wrapper)
    async with running(_with(case, wrapper=wrapper), directory) as run:
        await run.wait_ready()
        assert mark.exists()


async def check_what_ignores_sigterm_ends_with_its_group(case: EngineCase, directory: Path) -> None:
    async with running(_with(case, wrapper=(*STUBBORN, *case.profile.wrapper)), directory) as run:
        await run.wait_ready()
        os.killpg(run.process.pid, signal.SIGTERM)
        await asyncio.sleep(0.3)
        assert run.process.returncode is None, "the wrapper was to ignore SIGTERM"
        os.killpg(run.process.pid, signal.SIGKILL)
        await run.ended(case.stop_within)
        await _gone(run, case.stop_within)


async def check_a_kill_from_outside_is_a_crash_and_leaves_nothing(case: EngineCase, directory: Path) -> None:
    async with running(case, directory) as run:
        await run.wait_ready()
        os.kill(run.process.pid, signal.SIGKILL)
        verdict = run.verdict(await run.ended(case.stop_within))
        assert verdict.kind is FailureKind.CRASH, f"{verdict}: a restart would help"
        assert verdict.reason
        with suppress(ProcessLookupError):
            os.killpg(run.process.pid, signal.SIGKILL)
        await _gone(run, case.stop_within)


async def check_exits_are_told_apart(case: EngineCase, directory: Path) -> None:
    for number, broken in enumerate(case.broken):
        home = directory / str(number)
        home.mkdir()
        made = replace(case, profile=broken.profile, files=broken.files or case.files)
        async with running(made, home) as run:
            verdict = run.verdict(await run.ended(case.start_within))
            assert verdict.kind is broken.kind, f"{verdict}\n{run.tail()}"
            assert not verdict.port_clash
            assert verdict.reason
            assert "\n" not in verdict.reason


async def check_the_log_is_bounded(case: EngineCase, directory: Path) -> None:
    async with running(case, directory) as run:
        await run.wait_ready()
        await run.send(case.engine.probes(case.profile)[-1])
        before = run.log.stat().st_size
        for _ in range(ANSWERS):
            await run.send(case.engine.probes(case.profile)[-1])
        allowed = ANSWERS * case.log_per_request
        if case.work is not None:
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
            async with run.client.stream(
                case.work.method, case.work.path, content=case.work.body, headers=headers
            ) as answer:
                pieces = answer.aiter_bytes()
                await anext(pieces)
                await asyncio.sleep(0.5)  # some hundred tokens' worth
            await run.until_running(lambda count: count == 0, within=5)
            allowed += 4 * case.log_per_request  # its start, its end, and that it was cancelled
        grown = run.log.stat().st_size - before
        assert grown <= allowed, f"{grown} bytes of log for {ANSWERS} requests\n{run.tail()[-2000:]}"


async def check_smaller_levels_take_less(case: EngineCase, directory: Path) -> None:
    """`shrink` is pure and its profiles ever smaller, in the estimate as in a process that is started with them."""
    engine, full = case.engine, case.profile
    levels = {level: engine.shrink(full, level) for level in (Level.DEGRADED, Level.MINIMAL)}
    files = facts_of(case.files)
    seen = await _measure(case, directory, Level.FULL) if any(levels.values()) else None
    above, before = Level.FULL, full
    for level, shrunk in levels.items():
        if shrunk is None:
            continue
        assert shrunk == engine.shrink(full, level), "not pure"
        assert shrunk.name == full.name
        jsonschema.Draft202012Validator(engine.options_schema).validate(dict(shrunk.options))
        assert not list(engine.check(shrunk)), f"{level} is a profile that the engine refuses"
        assert shrunk.context <= before.context
        assert shrunk.devices <= before.devices
        larger, smaller = engine.footprint(before, files, above), engine.footprint(shrunk, files, level)
        if larger is not None and smaller is not None and shrunk != before:
            assert smaller.host < larger.host or smaller.device < larger.device, f"{level} takes no less: {smaller}"
        found = await _measure(replace(case, profile=shrunk), directory, level)
        if found is not None and seen is not None and shrunk.context < before.context:
            assert found[0] == shrunk.context, f"{level}: it has a context of {found[0]}, not {shrunk.context}"
            assert found[1] < seen[1], f"{level}: it takes {found[1]} bytes, no less than {seen[1]}"
        above, before, seen = level, shrunk, found


async def _measure(case: EngineCase, directory: Path, level: Level) -> tuple[int, int] | None:
    """Context and memory of the engine as it runs with that profile; None: the case cannot tell."""
    if case.context_of is None:
        return None
    async with running(case, directory, level=level) as run:
        await run.wait_ready()
        return await case.context_of(run), run.resident()


def _with(case: EngineCase, *, wrapper: tuple[str, ...]) -> EngineCase:
    return replace(case, profile=replace(case.profile, wrapper=wrapper))


async def _gone(run: Running, within: float) -> None:
    """Until no process of it is left, and nobody listens on its port."""
    deadline = time.monotonic() + within
    while left := run.group():
        assert time.monotonic() < deadline, f"still there: {left}"
        await asyncio.sleep(POLL)
    with socket.socket() as client:
        url = httpx.URL(run.spec.url)
        assert client.connect_ex((url.host, url.port or 80)) != 0, "somebody still listens on its port"


ENGINE_CHECKS: Final[tuple[Callable[[EngineCase, Path], Awaitable[None]], ...]] = (
    check_options_schema_is_valid_and_accepts_the_profile,
    check_fingerprint_is_quick_and_usable,
    check_launch_is_pure_and_hides_the_key,
    check_an_exit_nobody_asked_for_is_a_failure,
    check_its_methods_return_what_they_promise,
    check_no_method_is_misspelt,
    check_becomes_ready_and_stops_on_sigterm,
    check_refuses_requests_without_its_key,
    check_load_follows_a_request_and_its_cancellation,
    check_stops_while_answering,
    check_a_wrapper_goes_before_its_command,
    check_what_ignores_sigterm_ends_with_its_group,
    check_a_kill_from_outside_is_a_crash_and_leaves_nothing,
    check_exits_are_told_apart,
    check_the_log_is_bounded,
    check_smaller_levels_take_less,
    check_a_taken_port_is_told_from_a_crash,
)
