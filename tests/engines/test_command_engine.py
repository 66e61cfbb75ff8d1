"""The `command` engine: what a profile may say, and what becomes of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from llmgw.catalog.load import load_catalog
from llmgw.catalog.source import Source
from llmgw.engine import Exit, FailureKind, Level, ProfileSpec, Readiness, Slot, WeightsSpec
from llmgw.engine.manager import find_engines
from llmgw.errors import CatalogInvalid, EngineUnavailable
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
        args=("--more", "{port}", "{draft}", "{files.mmproj}"),
        stop_command=["halt", "own-{replica}", "{port}"],
        base_path="/api/",
    )
    files = {"weights": Path("/w.bin"), "draft": Path("/d.bin"), "mmproj": Path("/m.bin")}
    spec = ENGINE.launch(chosen, slot(tmp_path, **files), Level.FULL)
    assert list(spec.argv) == [
        "serve", "--at=127.0.0.1:8123", "m", "/w.bin", "1024x2", '{"a": 1}', "--more", "8123", "/d.bin", "/m.bin",
    ]  # fmt: skip
    assert list(spec.stop_argv or ()) == ["halt", "own-r", "8123"]
    assert spec.url == "http://127.0.0.1:8123/api"
    assert spec.key_file is None


def test_accelerators_are_named_and_shown_to_the_program_alone(tmp_path: Path) -> None:
    chosen = profile(command=["docker", "run", "--gpus", "device={devices}"])
    spec = ENGINE.launch(chosen, replace(slot(tmp_path), devices=("GPU-a", "GPU-b")), Level.FULL)
    assert list(spec.argv) == ["docker", "run", "--gpus", "device=GPU-a,GPU-b"]
    assert spec.env == {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    assert ENGINE.launch(chosen, slot(tmp_path), Level.FULL).env == {}


def test_a_companions_address_stands_where_the_profile_has_one(tmp_path: Path) -> None:
    alone = profile(command=["serve", "--draft={draft_url}"])
    (complaint,) = ENGINE.check(alone)
    assert "draft: {model: ...}" in complaint.message
    with_draft = replace(alone, draft_model=ModelName("small"))
    assert ENGINE.check(with_draft) == []
    at = replace(slot(tmp_path), draft_url="http://127.0.0.1:8200")
    assert list(ENGINE.launch(with_draft, at, Level.FULL).argv) == ["serve", "--draft=http://127.0.0.1:8200"]
    with pytest.raises(EngineUnavailable, match="draft_url"):
        ENGINE.launch(with_draft, slot(tmp_path), Level.FULL)


def test_the_key_file_is_asked_for_where_it_is_used(tmp_path: Path) -> None:
    spec = ENGINE.launch(profile(command=["serve", "--key-from={key_file}"]), slot(tmp_path), Level.FULL)
    assert spec.key_file == tmp_path / "key"
    assert list(spec.argv) == ["serve", f"--key-from={tmp_path}/key"]


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


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("{weights}", "{weights} stands for a file, and the profile has no `weights`"),
        ("{draft}", "{draft} stands for a file, and the profile has no `draft`"),
        (
            "--mm={files.mmpro}",
            "{files.mmpro} stands for a file, and the profile has no `files: mmpro`; did you mean {files.mmproj}?",
        ),
        ("{prot}", "{prot} is no placeholder; {{ and }} stand for braces; did you mean {port}?"),
        ('{"a": 1}', "expected text with no braces but {host}"),
    ],
)
def test_what_a_placeholder_cannot_stand_for_is_told_when_the_catalog_is_read(argument: str, said: str) -> None:
    files = {"mmproj": WeightsSpec(source="file:///m.bin")}
    for chosen, path in (
        (profile(command=["serve", argument]), ("options", "command", 1)),
        (profile(command=["serve"], stop_command=[argument]), ("options", "stop_command", 0)),
        (profile(command=["serve"], args=("-v", argument)), ("args", 1)),
    ):
        (complaint,) = ENGINE.check(replace(chosen, files=files))
        assert tuple(complaint.path) == path
        assert complaint.message.startswith(said)


def test_a_placeholder_for_a_file_that_is_not_there_has_a_place_in_the_catalog() -> None:
    text = """\
apiVersion: llmgw/v1
kind: Model
name: own
profiles:
  - name: main
    engine: command
    files: {mmproj: {source: /m.bin}}
    options:
      command:
        - serve
        - --mm={files.mmpro}
"""
    with pytest.raises(CatalogInvalid) as caught:
        load_catalog(Source(files={"a.yaml": text.encode()}), find_engines().rules())
    (problem,) = caught.value.problems
    assert str(problem).startswith("a.yaml:11:11: $.profiles[0].options.command[1]: {files.mmpro} stands for a file")


METRICS = b"""# HELP own:running Requests.
own:running{slot="a\\"} b"} 2.0
own:running{slot="c"} 1e0 1700000000
own:running_total 99
own:waiting 1
"""


@pytest.mark.parametrize(
    ("where", "body", "found"),
    [
        ({"running": "own:running", "waiting": "own:waiting"}, METRICS, (3, 1)),
        ({"running": "own:running"}, METRICS, (3, 0)),
        ({"running": "own:other"}, METRICS, None),
        ({"running": "own:running", "waiting": "missing"}, METRICS, None),
        ({"running": "/a/0/b~1c", "waiting": "/queue"}, b'{"a": [{"b/c": 4}], "queue": ["x", "y"]}', (4, 2)),
        ({"running": "/busy"}, b'{"busy": true}', (1, 0)),
        ({"running": "/busy"}, b'{"busy": "yes"}', None),
        ({"running": "/busy/x"}, b'{"busy": 1}', None),
        ({"running": "/busy"}, b"not json", None),
        ({"running": "/busy"}, b'{"busy": -1}', None),
        ({"running": "/busy"}, b'{"busy": NaN}', None),
    ],
)
def test_load_is_read_from_metrics_or_json(where: dict[str, str], body: bytes, found: tuple[int, int] | None) -> None:
    chosen = profile(command=["s"], load=where)
    load = ENGINE.read_load_of(chosen, 200, body)
    assert (None if load is None else (load.running, load.waiting)) == found
    assert ENGINE.read_load_of(chosen, 500, body) is None


def test_load_is_asked_for_only_where_the_profile_says_how() -> None:
    assert ENGINE.load(profile(command=["s"])) is None
    assert ENGINE.read_load_of(profile(command=["s"]), 200, METRICS) is None
    request = ENGINE.load(profile(command=["s"], load={"running": "x"}))
    assert request is not None
    assert request.path == "/metrics"


def test_options_are_checked_by_the_schema() -> None:
    assert valid({"command": ["serve", "{{}}", "{port}", ""]})
    assert not valid({})
    assert not valid({"command": []})
    assert not valid({"command": "serve --port {port}"})
    assert not valid({"command": ["serve"], "health": "health"})
    assert not valid({"command": ["serve"], "helth": "/health"})
    assert valid({"command": ["serve"], "load": {"path": "/m", "running": "a:b", "waiting": "/a/b"}})
    assert not valid({"command": ["serve"], "load": {"waiting": "a:b"}})
    assert not valid({"command": ["serve"], "load": {"running": "two words"}})
    assert valid({"command": ["serve"], "key_variables": ["OWN_API_KEY"]})
    assert not valid({"command": ["serve"], "key_variables": ["LLMGW_ENGINE_KEY"]})


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
