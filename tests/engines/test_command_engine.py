"""The `command` engine: what a profile may say, and what becomes of it."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from llmgw.engine import Exit, FailureKind, Level, ProfileSpec, Readiness, Slot
from llmgw.engine.manager import find_engines
from llmgw.errors import EngineUnavailable
from llmgw.ids import EngineName, ModelName, NodeName, ProfileName, ReplicaId
from llmgw.units import Bytes
from llmgw_command.engine import CommandEngine

ENGINE = CommandEngine()


def profile(*, args: tuple[str, ...] = (), memory: Bytes | None = None, **options: Any) -> ProfileSpec:
    return ProfileSpec(
        name=ProfileName("p"), engine=EngineName("command"), context=1024, parallel=2, options=options, args=args,
        memory=memory,
    )  # fmt: skip


def slot(tmp_path: Path, **files: Path) -> Slot:
    return Slot(
        replica=ReplicaId("r"), model=ModelName("m"), node=NodeName("n"), host="127.0.0.1", port=8123,
        directory=tmp_path, files=files,
    )  # fmt: skip


def valid(options: dict[str, Any]) -> bool:
    return jsonschema.Draft202012Validator(ENGINE.options_schema).is_valid(options)


def test_placeholders_are_filled_in_everywhere(tmp_path: Path) -> None:
    chosen = profile(
        command=["serve", "--at={host}:{port}", "{model}", "{weights}", "{context}x{parallel}", '{{"a": 1}}'],
        args=("--more", "{port}"),
        stop_command=["halt", "{port}"],
        base_path="/api/",
    )
    spec = ENGINE.launch(chosen, slot(tmp_path, weights=Path("/w.bin")), Level.FULL)
    assert list(spec.argv) == [
        "serve", "--at=127.0.0.1:8123", "m", "/w.bin", "1024x2", '{"a": 1}', "--more", "8123",
    ]  # fmt: skip
    assert list(spec.stop_argv or ()) == ["halt", "8123"]
    assert spec.url == "http://127.0.0.1:8123/api"


@pytest.mark.parametrize(
    "argument", ["{prot}", "{", "}", "{port!r}", "{port:>5}", "{0}", "{}", '{"json": 1}', "{model.x}"]
)
def test_an_unknown_placeholder_is_invalid_and_refused_with_advice(argument: str, tmp_path: Path) -> None:
    assert not valid({"command": ["serve", argument]})
    with pytest.raises(EngineUnavailable, match="for braces"):
        ENGINE.launch(profile(command=["serve", argument]), slot(tmp_path), Level.FULL)


def test_weights_that_the_profile_does_not_have_are_missed(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="no `weights`"):
        ENGINE.launch(profile(command=["serve", "{weights}"]), slot(tmp_path), Level.FULL)


def test_options_are_checked_by_the_schema() -> None:
    assert valid({"command": ["serve", "{{}}", "{port}", ""]})
    assert not valid({})
    assert not valid({"command": []})
    assert not valid({"command": "serve --port {port}"})
    assert not valid({"command": ["serve"], "health": "health"})
    assert not valid({"command": ["serve"], "helth": "/health"})


def test_health_and_then_the_probe_path_must_answer_200() -> None:
    assert [probe.path for probe in ENGINE.probes(profile(command=["s"]))] == ["/health"]
    probes = ENGINE.probes(profile(command=["s"], health="/up", probe_path="/v1/models"))
    assert [probe.path for probe in probes] == ["/up", "/v1/models"]
    assert ENGINE.read_probe(probes[0], 200, b"") is Readiness.READY
    assert ENGINE.read_probe(probes[0], 500, b"") is Readiness.LOADING


def test_memory_is_what_was_declared_or_unknown() -> None:
    assert ENGINE.footprint(profile(command=["s"]), {}, Level.FULL) is None
    found = ENGINE.footprint(profile(command=["s"], memory=Bytes(5)), {}, Level.FULL)
    assert found is not None
    assert (found.host, found.source) == (5, "declared")


@pytest.mark.parametrize(
    ("log", "kind", "clash"),
    [
        ("OSError: [Errno 98] Address already in use\n", FailureKind.CRASH, True),
        ("RuntimeError: CUDA out of memory\n", FailureKind.OOM, False),
        ("Traceback\nValueError: no\n", FailureKind.CRASH, False),
    ],
)
def test_an_exit_is_classified_by_the_end_of_the_log(log: str, kind: FailureKind, clash: bool) -> None:
    verdict = ENGINE.classify(Exit(code=1), log)
    assert (verdict.kind, verdict.port_clash) == (kind, clash)
    assert "exit code 1" in verdict.reason or clash


def test_both_engines_are_found_through_their_entry_points() -> None:
    engines = find_engines()
    assert not engines.broken
    assert {"cpu", "command"} <= set(engines.by_name)
    assert engines.rules()["cpu"].needs_weights
    assert not engines.rules()["command"].needs_weights
