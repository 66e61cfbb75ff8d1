"""Ports, traffic, logs, inventory: the small parts."""

import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from agent_world import Node, ScriptEngine

from llmgw.agent import inventory, logs
from llmgw.agent.fingerprints import Fingerprints
from llmgw.agent.launch import device_share
from llmgw.agent.ports import NoFreePort, Ports
from llmgw.agent.traffic import Traffic
from llmgw.engine.manager import Engines
from llmgw.facts import DeviceFact, EngineFact, Footprint, ReplicaUse, Usage
from llmgw.ids import EngineName, ModelName, ReplicaId
from llmgw.plan import Assignment
from llmgw.statedir import StateDir
from llmgw.units import GIB, MIB, Bytes, Wall

HOST = "127.0.0.1"
R = ReplicaId("r")


def usage(seen: int, outstanding: int = 0) -> Usage:
    uses = {R: ReplicaUse(outstanding=outstanding, last_used=Wall(1))} if outstanding else {}
    return Usage(at=Wall(1), seen=seen, replicas=uses)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def test_a_port_somebody_listens_on_is_not_handed_out() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(NoFreePort, match=str(port)):
            Ports(range(port, port + 1)).take(HOST)


def test_a_port_is_handed_out_again_only_after_its_release() -> None:
    port = free_port()
    ports = Ports(range(port, port + 1), start=5)
    assert ports.take(HOST) == port
    with pytest.raises(NoFreePort):
        ports.take(HOST)
    ports.release(port)
    ports.release(port)
    ports.reserve(port)
    with pytest.raises(NoFreePort):
        ports.take(HOST)


def test_an_endpoint_never_published_needs_nobody_to_see_its_withdrawal() -> None:
    traffic = Traffic()
    traffic.set_usage("g", usage(seen=3))
    assert traffic.drained(R, 100)
    traffic.set_usage("g", usage(seen=3, outstanding=1))
    assert not traffic.drained(R, 100)


def test_every_gateway_must_have_seen_the_withdrawal() -> None:
    traffic = Traffic()
    traffic.published(R)
    traffic.set_usage("a", usage(seen=10))
    traffic.set_usage("b", usage(seen=9))
    traffic.withdrawn(R, 10)
    assert not traffic.drained(R, 10)
    traffic.set_usage("b", None)
    assert traffic.drained(R, 10)


def test_an_endpoint_still_published_is_not_drained_before_the_stop_was_seen() -> None:
    traffic = Traffic()
    traffic.published(R)
    traffic.set_usage("a", usage(seen=9))
    assert not traffic.drained(R, 10)
    traffic.set_usage("a", usage(seen=10))
    assert traffic.drained(R, 10)


def test_the_last_line_that_says_something_is_quoted_without_colours() -> None:
    assert logs.last_line("start\n\x1b[31merror:\x1b[0m no such file\n\n=====\n") == "error: no such file"
    assert logs.last_line("") == ""
    assert len(logs.last_line("x" * 5000)) == 200


def test_a_tail_is_the_end_and_a_missing_log_is_empty(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"a" * 100 + b"\xff end")
    assert logs.tail(tmp_path / "log", 5) == "\ufffd end"
    assert logs.tail(tmp_path / "none") == ""


def test_keeping_a_log_of_a_model_that_never_logged_is_fine(tmp_path: Path) -> None:
    logs.keep(tmp_path / "none", StateDir(tmp_path), ModelName("m"), R)


def group(directory: Path, limit: str, used: int, inactive: int, *, v1: bool = False) -> None:
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    limit_file, used_file, field = names if v1 else ("memory.max", "memory.current", "inactive_file")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / limit_file).write_text(f"{limit}\n")
    (directory / used_file).write_text(f"{used}\n")
    (directory / "memory.stat").write_text(f"anon 1\n{field} {inactive}\n")


def test_the_tightest_control_group_above_us_counts(tmp_path: Path) -> None:
    group(tmp_path / "a", str(64 * MIB), 40 * MIB, 10 * MIB)
    group(tmp_path / "a" / "b", "max", 5 * MIB, 0)
    fact = inventory.memory(6 * MIB, cgroups=tmp_path, membership="0::/a/b\n")
    assert (fact.total, fact.available, fact.foreign) == (64 * MIB, 34 * MIB, 24 * MIB)


def test_a_version_1_group_counts_and_its_huge_number_is_no_limit(tmp_path: Path) -> None:
    group(tmp_path / "memory" / "a", str(32 * MIB), 8 * MIB, 0, v1=True)
    fact = inventory.memory(cgroups=tmp_path, membership="4:memory:/a\n0::/\n")
    assert (fact.total, fact.available) == (32 * MIB, 24 * MIB)
    group(tmp_path / "memory" / "a", str(9223372036854771712), 8 * MIB, 0, v1=True)
    assert inventory.memory(cgroups=tmp_path, membership="4:memory:/a\n").total > 32 * MIB


def test_more_of_ours_than_is_used_is_no_negative_foreign_memory(tmp_path: Path) -> None:
    assert inventory.memory(10**15, cgroups=tmp_path, membership="").foreign == 0


def test_resident_memory_of_a_process_is_its_own_and_of_a_dead_one_nothing() -> None:
    assert 5 * MIB < inventory.resident_of(os.getpid()).total < 20 * GIB
    assert inventory.resident_of(2**22 + 1).total == 0


def test_the_disk_of_a_directory_not_made_yet_is_known(tmp_path: Path) -> None:
    assert inventory.disk(tmp_path / "a" / "b").free > 0


def placed(devices: Sequence[str], device: int) -> Assignment:
    footprint = Footprint(host=Bytes(0), device=Bytes(device))
    return replace(Node.assignment(None), devices=tuple(devices), footprint=footprint)  # type: ignore[arg-type]


def test_the_share_of_its_devices_is_of_the_smallest_one() -> None:
    devices = [DeviceFact(uuid=f"GPU-{n}", name="g", index=n, total=Bytes(n * GIB)) for n in range(4)]
    assert device_share(placed(["GPU-2"], GIB), devices) == 0.5
    assert device_share(placed(["GPU-2", "GPU-3"], 2 * GIB), devices) == 0.5
    assert device_share(placed([], 0), devices) is None
    assert device_share(placed(["GPU-2", "GPU-9"], GIB), devices) is None, "nothing is known of one of them"
    assert device_share(placed(["GPU-0"], GIB), devices) is None, "the driver does not tell what it holds"
    assert device_share(placed(["GPU-2"], 0), devices) is None


async def test_an_engine_whose_fingerprint_raises_or_hangs_is_unusable_and_says_why() -> None:
    forever = threading.Event()

    class Raises(ScriptEngine):
        name = EngineName("raises")

        def fingerprint(self) -> EngineFact:
            raise SystemExit("no driver")

    class Hangs(ScriptEngine):
        name = EngineName("hangs")

        def fingerprint(self) -> EngineFact:
            forever.wait()
            return super().fingerprint()

    found = Engines(
        by_name={engine.name: engine for engine in (Raises(), Hangs(), ScriptEngine())},
        lost={EngineName("odd"): "plugin odd is broken: ImportError: no module named x"},
    )
    facts = {fact.name: fact.why for fact in await Fingerprints(found, timeout=0.3).look()}
    forever.set()
    assert facts[EngineName("script")] is None
    assert "no driver" in str(facts[EngineName("raises")])
    assert "did not return" in str(facts[EngineName("hangs")])
    assert "no module named x" in str(facts[EngineName("odd")])
