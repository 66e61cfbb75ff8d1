"""What of the conformance suites can be run on an installed plugin: `llmgw plugins check` runs this in a child."""

import asyncio
import faulthandler
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Final

import jsonschema

from llmgw.engine import Engine, ProfileSpec, WeightSource, WeightsSpec
from llmgw.engine.loading import load_plugin
from llmgw.errors import EngineUnavailable
from llmgw.ids import ProfileName
from llmgw.testing import engine_checks, engine_contract, source_checks
from llmgw.testing.engine_checks import ENGINE_CHECKS, EngineCase
from llmgw.testing.source_checks import SOURCE_CHECKS, SourceCase
from llmgw.testing.source_checks import Check as SourceCheck

Check = Callable[[EngineCase, Path], Awaitable[None]]

WITHOUT_A_PROCESS: Final[frozenset[Check]] = frozenset(
    {
        engine_contract.check_options_schema_is_valid_and_accepts_the_profile,
        engine_contract.check_fingerprint_is_quick_and_usable,
        engine_contract.check_launch_is_pure_and_hides_the_key,
        engine_contract.check_an_exit_nobody_asked_for_is_a_failure,
        engine_contract.check_its_methods_return_what_they_promise,
        engine_contract.check_no_method_is_misspelt,
    }
)
"""They start nothing, so they need neither a model file nor a machine that can run the engine."""

_QUICK: Final = 30  #: seconds for a check without a process
_SLOW: Final = 240  #: seconds for one with
_NO_FILE: Final = Path("/nonexistent/model")


def main(request: Mapping[str, Any], fd: int) -> None:
    """Report on `fd`, in JSON lines: each check as it begins and its outcome."""
    os.dup2(2, 1)
    faulthandler.enable()

    def tell(**report: str) -> None:
        os.write(fd, json.dumps(report).encode() + b"\n")

    point = EntryPoint(name=request["name"], value=request["value"], group="llmgw")
    brought = load_plugin(point)
    for engine in brought.engines:
        case, lacking = make_case(engine, weights=request["weights"], options=request["options"])
        for check in ENGINE_CHECKS:
            tell(begins=check.__name__)
            outcome, detail = run_check(check, case, lacking)
            tell(engine=engine.name, check=check.__name__, outcome=outcome, detail=detail)
    for source in brought.sources:
        for source_check in SOURCE_CHECKS:
            tell(begins=source_check.__name__)
            outcome, detail = run_source_check(source_check, source, request["source"])
            name = ", ".join(f"{scheme}://" for scheme in sorted(source.schemes))
            tell(engine=name, check=source_check.__name__, outcome=outcome, detail=detail)
    tell(finished="yes")
    sys.stderr.flush()
    os._exit(0)  # a check that timed out may have left a thread that never ends


def make_case(engine: Engine, *, weights: str | None, options: dict[str, Any] | None) -> tuple[EngineCase, str | None]:
    """A profile as small as can be, and what is lacking for starting the engine with it (None: nothing)."""
    profile = ProfileSpec(name=ProfileName("check"), engine=engine.name, options=options or {})
    file = Path(weights) if weights else _NO_FILE
    lacking = None
    if engine.needs_weights and not weights:
        lacking = "it loads a model file: give one with --weights"
    elif not jsonschema.Draft202012Validator(engine.options_schema).is_valid(dict(profile.options)):
        lacking = "it has options that must be set: give them with --options"
    files = {"weights": file} if weights or engine.needs_weights else {}
    return EngineCase(engine=engine, profile=profile, files=files), lacking


def run_check(check: Check, case: EngineCase, lacking: str | None) -> tuple[str, str]:
    """`ok`, `failed` or `skipped`, and why."""
    quick = check in WITHOUT_A_PROCESS
    options_lack = lacking is not None and "--options" in lacking
    if lacking is not None and (not quick or (options_lack and check not in _ANY_PROFILE)):
        return "skipped", lacking
    try:
        if not quick and (why := case.engine.fingerprint().why) is not None:
            return "skipped", f"this machine cannot run it: {why}"
    except BaseException as error:  # noqa: BLE001 - whatever a plugin raises is the answer
        return "failed", "".join(traceback.format_exception(error, limit=-4))
    return _outcome(lambda directory: _launchable(check, case, directory), _QUICK if quick else _SLOW)


async def _launchable(check: Check, case: EngineCase, directory: Path) -> None:
    try:
        await check(case, directory)
    except EngineUnavailable as error:
        raise _Skipped(f"it cannot be launched like this: {error}") from error
    except engine_checks.Untold as error:
        raise _Skipped(str(error)) from error


class _Skipped(Exception):
    pass


_ANY_PROFILE: Final[frozenset[Check]] = frozenset(
    {
        engine_contract.check_fingerprint_is_quick_and_usable,
        engine_contract.check_an_exit_nobody_asked_for_is_a_failure,
        engine_contract.check_no_method_is_misspelt,
    }
)
"""They ask nothing that depends on the profile's options."""


def run_source_check(check: SourceCheck, source: WeightSource, given: str | None) -> tuple[str, str]:
    """`ok`, `failed` or `skipped`, and why. `given`: something that one of the plugin's sources has."""
    mine = given is not None and given.partition("://")[0].lower() in source.schemes
    if not mine and check not in _WITHOUT_A_SOURCE:
        return "skipped", "it is asked for something that it has: name that with --source"
    case = SourceCase(source=source, spec=WeightsSpec(source=given or ""))
    return _outcome(lambda directory: check(case, directory), _QUICK if not mine else _SLOW)


def _outcome(check: Callable[[Path], Awaitable[None]], bound: int) -> tuple[str, str]:
    try:
        with tempfile.TemporaryDirectory(prefix="llmgw-check-") as directory, _bounded(bound):
            # No asyncio.run: it would wait for a worker thread that hangs.
            asyncio.new_event_loop().run_until_complete(_awaited(check(Path(directory))))
    except _Skipped as error:
        return "skipped", str(error)
    except BaseException as error:  # noqa: BLE001 - whatever a plugin raises is the answer
        if isinstance(error, AssertionError) and str(error):
            return "failed", str(error)
        return "failed", "".join(traceback.format_exception(error, limit=-4))
    return "ok", ""


async def _awaited(check: Awaitable[None]) -> None:
    await check


_WITHOUT_A_SOURCE: Final[frozenset[SourceCheck]] = frozenset(
    {source_checks.check_the_contract, source_checks.check_what_is_no_source_is_refused_with_advice}
)
"""They ask nobody."""


@contextmanager
def _bounded(seconds: int) -> Iterator[None]:
    """Raises TimeoutError in the main thread, where the plugin's own code may hang."""

    def ring(number: int, frame: object) -> None:
        raise TimeoutError(f"it did not return within {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
