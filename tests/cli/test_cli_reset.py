"""`llmgw reset`: what is forgotten, and what is told of it."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import daemon_seeds as seed
import pytest
import structlog
from jsonschema import Draft202012Validator

from llmgw.facts import Action, Failure, FailureKind, Level, RecoveryRecord
from llmgw.ids import ModelName, NodeName, ReplicaId, SpecDigest
from llmgw.store import keys
from llmgw.units import Wall

SCHEMA = Path(__file__).parents[2] / "schemas" / "output" / "reset.v1.schema.json"


@pytest.fixture
def ask(cli: Any, daemon: Any) -> Iterator[Any]:
    """The daemon logs events, and here it is in the process that the command is."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(io.StringIO()))
    yield lambda *args: cli(*args, "--state", daemon.state)
    structlog.reset_defaults()


@pytest.fixture
def failed(daemon: Any) -> Any:
    """qwen is in quarantine on two nodes and waits for a download on one; smol failed once."""

    def record(model: ModelName, spec: str, node: str, **fields: Any) -> None:
        failure = Failure(kind=FailureKind.OOM, reason="out of memory", at=seed.NOW)
        made = RecoveryRecord(
            model=model, last=failure, last_replica=ReplicaId("r"), retry_at=Wall(seed.NOW + 60), **fields
        )
        daemon.do(daemon.seeds.put(keys.recovery(SpecDigest(spec), NodeName(node)), made))

    record(seed.QWEN, "1" * 16, "gpu-1", attempts=4, action=Action.QUARANTINE)
    record(seed.QWEN, "1" * 16, "gpu-2", attempts=5, action=Action.QUARANTINE)
    record(seed.QWEN, "2" * 16, "gpu-1", attempts=0, delays=2)
    record(seed.SMOL, "3" * 16, "gpu-1", attempts=1)
    return daemon


def left(daemon: Any) -> list[str]:
    found: list[str] = []

    async def look() -> None:
        found.extend(entry.key for entry in (await daemon.seeds.store.list(keys.RECOVERY)).entries)

    daemon.do(look())
    return found


def test_one_models_failures_are_forgotten_on_every_node_and_no_others(ask: Any, failed: Any) -> None:
    ran = ask("reset", "qwen")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (
        "qwen: out of quarantine; 11 failures forgotten (gpu-1, gpu-2); what runs goes on as it is until it is "
        "launched again\n"
    )
    assert left(failed) == [keys.recovery(SpecDigest("3" * 16), NodeName("gpu-1"))]
    assert "failures reset" in ask("events").out
    assert ask("reset", "qwen").out == "qwen: no failures to forget, nothing to do\n"


def test_what_serves_shrunk_is_not_said_to_be_tried_again(ask: Any, failed: Any) -> None:
    failed.do(failed.seeds.explain(seed.told(seed.SMOL, seed.ModelState.READY, level=Level.DEGRADED)))
    assert ask("reset", "smol").out == (
        "smol: 1 failure forgotten (gpu-1); what runs goes on as it is at level degraded until it is launched again\n"
    )


def test_all_of_them_are_forgotten_at_once(ask: Any, failed: Any) -> None:
    failed.do(failed.seeds.explain(seed.told(seed.QWEN, seed.ModelState.FAILED, "out of memory")))
    lines = ask("reset", "--all").out.splitlines()
    assert lines == [
        "qwen: out of quarantine and tried again now; 11 failures forgotten (gpu-1, gpu-2)",
        "smol: tried again now; 1 failure forgotten (gpu-1)",
    ]
    assert left(failed) == []
    assert ask("reset", "--all").out == "every model: no failures to forget, nothing to do\n"


def test_json_is_one_object_as_its_schema_has_it(ask: Any, failed: Any) -> None:
    value = json.loads(ask("reset", "qwen", "--json").out)
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(value)
    (row,) = value["models"]
    assert row == {
        "model": "qwen", "failures": 11, "quarantined": True, "nodes": ["gpu-1", "gpu-2"],
        "ready": True, "level": "full", "rollout": False,
    }  # fmt: skip


def test_an_unknown_model_is_an_error_and_forgets_nothing(ask: Any, failed: Any) -> None:
    ran = ask("reset", "qwem")
    assert (ran.code, ran.out) == (1, "")
    assert "did you mean 'qwen'?" in ran.err
    assert len(left(failed)) == 4


@pytest.mark.parametrize("arguments", [(), ("qwen", "--all")])
def test_either_a_model_or_all(ask: Any, failed: Any, arguments: tuple[str, ...]) -> None:
    ran = ask("reset", *arguments)
    assert (ran.code, ran.out) == (64, "")
    assert "name a MODEL, or give --all" in ran.err
    assert len(left(failed)) == 4
