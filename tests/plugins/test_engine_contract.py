"""The suite that plugin authors get finds what llmgw would find later, and starts an engine as llmgw does."""

import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from little_plugins import GOOD, environment, llmgw, unpack

from llmgw.engine import (
    Complaint,
    Engine,
    EngineFact,
    Footprint,
    HttpRequest,
    LaunchSpec,
    Level,
    ProfileSpec,
    Slot,
    WeightsFact,
)
from llmgw.ids import EngineName, ProfileName
from llmgw.testing import engine_checks, engine_contract
from llmgw.testing.engine_checks import EngineCase, Untold, running
from llmgw.units import MIB, Bytes

SERVER = """
import http.server, os, pathlib, sys
key, slots, opened = pathlib.Path(sys.argv[3]).read_text(), "/slots", sys.argv[4:] == ["open"]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.path in ("/health", slots)
        allowed = opened or self.path == "/health" or self.headers["Authorization"] == "Bearer " + key
        self.send_response(404 if not known else 200 if allowed else 401)
        self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *args): pass
pathlib.Path("started").write_text(" ".join(name for name in os.environ if name.startswith("LLMGW_")))
http.server.HTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever(poll_interval=0.02)
"""


class Acme(Engine):
    """Reads its key from a file, and lists no models."""

    name = EngineName("acme")
    needs_weights = False

    def fingerprint(self) -> EngineFact:
        return EngineFact(name=self.name)

    def footprint(self, profile: ProfileSpec, files: Mapping[str, WeightsFact], level: Level) -> Footprint | None:
        return Footprint(host=Bytes(MIB))

    def launch(self, profile: ProfileSpec, slot: Slot, level: Level) -> LaunchSpec:
        key = slot.directory / "key"
        argv = (sys.executable, "-S", "-c", SERVER, slot.host, str(slot.port), str(key), *profile.args)
        stop = ("sh", "-c", "echo $LLMGW_ENGINE_KEY > stopped")
        return LaunchSpec(argv=argv, url=f"http://{slot.host}:{slot.port}", key_file=key, stop_argv=stop)

    def load(self, profile: ProfileSpec) -> HttpRequest | None:
        return HttpRequest(path="/slots")


PROFILE = ProfileSpec(name=ProfileName("p"), engine=EngineName("acme"))


def case_of(**members: Any) -> EngineCase:
    return EngineCase(engine=type("Acme", (Acme,), members)(), profile=PROFILE)


async def test_an_engine_is_started_and_stopped_as_llmgw_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMGW_STATE", "/elsewhere")
    async with running(case_of(), tmp_path) as run:
        await run.wait_ready()
        assert (tmp_path / "started").read_text() == "LLMGW_ENGINE_KEY", (
            "in its own directory, without llmgw's settings"
        )
        assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "stopped").read_text() == f"{(tmp_path / 'key').read_text()}\n"


async def test_an_engine_that_lists_no_models_is_asked_for_its_load_without_its_key(tmp_path: Path) -> None:
    await engine_checks.check_refuses_requests_without_its_key(case_of(), tmp_path)
    opened = replace(case_of(), profile=replace(PROFILE, args=("open",)))
    with pytest.raises(AssertionError, match="GET /slots without a key: 200, neither 401 nor 403"):
        await engine_checks.check_refuses_requests_without_its_key(opened, tmp_path)


async def test_of_an_engine_that_is_only_asked_for_its_health_the_case_has_to_tell_more(tmp_path: Path) -> None:
    case = case_of(load=Engine.load)
    with pytest.raises(Untold, match="name a request as `needs_key`"):
        await engine_checks.check_refuses_requests_without_its_key(case, tmp_path)
    told = replace(case, needs_key=HttpRequest(path="/slots"))
    await engine_checks.check_refuses_requests_without_its_key(told, tmp_path)


def schema(**option: Any) -> dict[str, Any]:
    given = {"description": "An option.", **option}
    return {"type": "object", "additionalProperties": False, "properties": {"x": given}}


PROMISES = engine_contract.check_its_methods_return_what_they_promise
SCHEMA = engine_contract.check_options_schema_is_valid_and_accepts_the_profile
WRONG: list[tuple[Callable[[EngineCase, Path], Awaitable[None]], dict[str, Any], str]] = [
    (PROMISES, {"footprint": lambda *_: Footprint(host=1.5)}, "footprint: it returned a Footprint that cannot be read"),  # type: ignore[arg-type]
    (PROMISES, {"check": lambda *_: [Complaint(path=("context",), message="no")]}, "check: it complains"),
    (PROMISES, {"shrink": lambda self, profile, level: replace(profile, context=1.5)}, "shrink: it returned a Profile"),
    (PROMISES, {"surfaces": lambda *_: {"/v1/embeddings"}}, "surfaces: it returned '/v1/embeddings'"),
    (PROMISES, {"request_slots": lambda *_: 0}, "request_slots: it returned 0"),
    (PROMISES, {"probes": lambda *_: [HttpRequest(path="health")]}, "probes: it returned a request for 'health'"),
    (PROMISES, {"read_probe": lambda *_: False}, "read_probe: it returned False"),
    (PROMISES, {"load": lambda *_: "/load"}, "load: it returned '/load'"),
    (
        engine_contract.check_fingerprint_is_quick_and_usable,
        {"fingerprint": lambda *_: EngineFact(name=EngineName("other"))},
        "fingerprint: it is of 'other', not of 'acme'",
    ),
    (
        engine_contract.check_launch_is_pure_and_hides_the_key,
        {"launch": lambda *_: LaunchSpec(argv="acme", url="http://h:9")},
        "launch: its argv is 'acme'",
    ),
    (engine_contract.check_an_exit_nobody_asked_for_is_a_failure, {"classify": lambda *_: "crash"}, "a Verdict was"),
    (
        engine_contract.check_no_method_is_misspelt,
        {"request_slot": lambda *_: 4},
        "Acme.request_slot is never called: did you mean request_slots",
    ),
    (SCHEMA, {"options_schema": schema(type="integer", default="4")}, "the default of x is refused by its own schema"),
    (
        SCHEMA,
        {"options_schema": schema(type="object", properties={"default": {"enum": ["a"], "default": "b"}})},
        "the default of x.default is refused",
    ),
]


@pytest.mark.parametrize(("check", "members", "why"), WRONG, ids=[next(iter(each[1])) for each in WRONG])
async def test_what_llmgw_could_not_work_with_is_found(
    check: Callable[[EngineCase, Path], Awaitable[None]], members: dict[str, Any], why: str, tmp_path: Path
) -> None:
    await check(case_of(), tmp_path)
    with pytest.raises(AssertionError) as caught:
        await check(case_of(**members), tmp_path)
    assert why in str(caught.value)


def test_a_method_that_takes_its_time_is_found() -> None:
    with pytest.raises(AssertionError, match=r"footprint: it took 0\.\d s, and has 0.05 s"):
        engine_contract.asked("footprint", lambda: time.sleep(0.1), lambda value: value, within=0.05)


async def test_helpers_and_methods_that_are_there_as_well_are_no_slips(tmp_path: Path) -> None:
    helpers = {"estimate": lambda *_: 1, "_probe": lambda *_: 1, "probe": lambda *_: 1, "probes": Acme.probes}
    await engine_contract.check_no_method_is_misspelt(case_of(**helpers), tmp_path)


def test_a_traceback_is_shown_line_by_line(tmp_path: Path) -> None:
    source = GOOD.replace("return [Base()]", 'raise LookupError("in the hook")')
    env = environment(unpack([("torn", source)], tmp_path / "target", tmp_path / "wheels"), tmp_path / "cache")
    for command in (["check", "torn"], ["list", "-v"]):
        lines = llmgw("plugins", *command, env=env).stdout.splitlines()
        assert "      Traceback (most recent call last):" in lines
        assert "      LookupError: in the hook" in lines
