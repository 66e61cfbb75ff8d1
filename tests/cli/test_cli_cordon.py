"""`llmgw cordon`, `drain` and `uncordon`, and what `llmgw nodes` shows of them."""

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import daemon_seeds as seed
import pytest
import structlog
from jsonschema import Draft202012Validator

from llmgw.facts import DeviceFact, Footprint
from llmgw.store import keys
from llmgw.units import GIB, MIB, Bytes

SCHEMA = Path(__file__).parents[2] / "schemas" / "output" / "cordon.v1.schema.json"


@pytest.fixture
def ask(cli: Any, daemon: Any) -> Iterator[Any]:
    """The daemon logs events, and here it is in the process that the command is."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(io.StringIO()))
    yield lambda *args: cli(*args, "--state", daemon.state)
    structlog.reset_defaults()


def test_a_node_is_cordoned_drained_and_taken_back_into_use(ask: Any) -> None:
    ran = ask("cordon", "gpu-1")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (
        "gpu-1 is cordoned: nothing new is started there; what runs there stays; `llmgw uncordon gpu-1` takes it back "
        "into use\n"
    )
    assert " cordoned " in ask("nodes").out
    assert "s ago, by " in ask("cordon", "gpu-1").out
    drained = ask("drain", "gpu-1").out
    assert drained.startswith("gpu-1 is being drained: 2 replicas there; `llmgw events -f` shows how it goes;")
    assert " draining " in ask("nodes").out
    assert ask("uncordon", "gpu-1").out == "gpu-1 is in use again\n"
    assert ask("uncordon", "gpu-1").out == "gpu-1 was not cordoned: nothing to do\n"
    assert " in use " in ask("nodes").out
    events = ask("events").out
    assert events.index("cordoned") < events.index("drained") < events.index("uncordoned")


@pytest.mark.parametrize("command", ["cordon", "drain", "uncordon"])
def test_an_unknown_node_is_an_error_with_what_may_be_meant(ask: Any, command: str) -> None:
    ran = ask(command, "gpu-2")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "llmgw: no node 'gpu-2'; did you mean 'gpu-1'?\n"


@pytest.mark.parametrize("command", ["cordon", "drain", "uncordon"])
def test_json_is_one_object_as_its_schema_has_it(ask: Any, command: str) -> None:
    value = json.loads(ask(command, "gpu-1", "--json").out)
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(value)
    assert value["node"] == "gpu-1"


def test_nodes_shows_what_engines_may_take_of_a_device(ask: Any, daemon: Any) -> None:
    device = DeviceFact(
        uuid="GPU-a", name="L40S", index=0, total=Bytes(48 * GIB), used=Bytes(10 * GIB), free=Bytes(38 * GIB),
        foreign=Bytes(3 * GIB),
    )  # fmt: skip
    running = replace(
        seed.ready("r1", seed.QWEN), footprint=Footprint(host=Bytes(GIB), device=Bytes(8 * GIB)), devices=("GPU-a",)
    )
    daemon.do(daemon.seeds.put(keys.report(seed.NODE), replace(seed.report(running), devices=(device,))))
    lines = ask("nodes").out.splitlines()
    header = next(line for line in lines if "COUNTED" in line and "UUID" in line)
    row = next(line for line in lines if "GPU-a" in line)
    column = {name: row[header.index(name) :].split("  ")[0].strip() for name in ("FOR ENGINES", "COUNTED", "FOREIGN")}
    assert column == {"FOR ENGINES": "44.5 GiB", "COUNTED": "8.0 GiB", "FOREIGN": "3.0 GiB"}
    assert row[header.index("FREE FOR THEM") :].startswith("36.5 GiB")
    host = next(line for line in lines if line.startswith("gpu-1"))
    assert f"{(1024 + 300) / 1024:.1f} GiB of 29.0 GiB counted" in host, 300 * MIB
