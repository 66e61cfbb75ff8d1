"""Accelerators: read through a stand-in for the driver's library, and told apart from foreign use."""

import asyncio
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import fake_nvml
import pytest

from llmgw.agent.devices import Devices, attribute, in_pid_namespace, used_by
from llmgw.agent.nvml import Reading
from llmgw.facts import DeviceFact, DeviceProcess
from llmgw.ids import ReplicaId
from llmgw.testing.inventory_checks import NO_DRIVER
from llmgw.units import MIB, Bytes, Mono

TWO = """
driver 550.54.15
gpu GPU-a NVIDIA_H200 143771 1500 0 0
gpu GPU-b NVIDIA_L4 23034 400 0 0
proc GPU-a c 4242 900
proc GPU-a g 17 -1
proc GPU-b c 4242 100
proc GPU-b g 4242 80
"""
FALLEN = TWO.replace("gpu GPU-a NVIDIA_H200 143771 1500 0 0", "gpu GPU-a NVIDIA_H200 143771 1500 15 0")
DIVIDED = """
driver 550.54.15
gpu GPU-a NVIDIA_A100 81920 2000 0 1
mig GPU-a MIG-1 NVIDIA_A100_MIG_3g.40gb 40192 1000
mig GPU-a MIG-2 NVIDIA_A100_MIG_3g.40gb 40192 0
proc GPU-a c 4242 900
proc MIG-1 c 4242 900
"""
R1, R2 = ReplicaId("r1"), ReplicaId("r2")


@pytest.mark.parametrize("scenario", [TWO, FALLEN, DIVIDED], ids=["two", "fallen", "divided"])
def test_the_inventory_keeps_its_contract_on_the_stand_in(nvml_library: Path, tmp_path: Path, scenario: str) -> None:
    (tmp_path / "scenario").write_text(scenario)
    env = fake_nvml.environment(nvml_library, tmp_path / "scenario")
    done = fake_nvml.run(["-m", "llmgw.testing.inventory_checks"], env)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_inventory_keeps_its_contract_on_a_real_driver() -> None:
    done = fake_nvml.run(["-m", "llmgw.testing.inventory_checks"], os.environ)
    if done.returncode == NO_DRIVER:
        pytest.skip("no NVIDIA GPU on this machine")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_gpu_is_known_by_uuid_name_memory_and_processes(nvml_library: Path, tmp_path: Path) -> None:
    (reading,) = fake_nvml.read(nvml_library, tmp_path, (0, TWO))
    first, second = reading["devices"]
    assert (first["uuid"], first["name"], first["index"]) == ("GPU-a", "NVIDIA H200", 0)
    assert (first["total"], first["used"], first["free"]) == (143771 * MIB, 1500 * MIB, 142271 * MIB)
    assert first["driver"] == "550.54.15"
    assert [(p["pid"], p["memory"]) for p in first["processes"]] == [(17, None), (4242, 900 * MIB)]
    assert [(p["pid"], p["memory"]) for p in second["processes"]] == [(4242, 100 * MIB)]  # once, though listed twice


def test_a_gpu_that_falls_off_the_bus_keeps_its_name_and_the_others_work(nvml_library: Path, tmp_path: Path) -> None:
    _, fallen, healed = fake_nvml.read(nvml_library, tmp_path, (0, TWO), (5, FALLEN), (70, TWO))
    by_uuid = {device["uuid"]: device for device in fallen["devices"]}
    assert "fell off the bus" in by_uuid["GPU-a"]["why"]
    assert (by_uuid["GPU-a"]["name"], by_uuid["GPU-a"]["free"]) == ("NVIDIA H200", 0)
    assert by_uuid["GPU-b"]["why"] is None
    assert [device["why"] for device in healed["devices"]] == [None, None]


def test_a_gpu_that_never_answered_is_reported_by_its_place(nvml_library: Path, tmp_path: Path) -> None:
    (reading,) = fake_nvml.read(nvml_library, tmp_path, (0, FALLEN))
    lost = [device for device in reading["devices"] if device["why"]]
    assert [device["uuid"] for device in lost] == ["unknown-0"]


def test_a_gpu_that_is_no_longer_listed_is_told_as_gone(nvml_library: Path, tmp_path: Path) -> None:
    without = "\n".join(line for line in TWO.splitlines() if "GPU-a" not in line)
    _, after = fake_nvml.read(nvml_library, tmp_path, (0, TWO), (5, without))
    assert {device["uuid"]: device["why"] for device in after["devices"]} == {
        "GPU-a": "it is gone: the driver no longer lists it",
        "GPU-b": None,
    }


def test_mig_instances_are_devices_of_their_own_under_their_gpu(nvml_library: Path, tmp_path: Path) -> None:
    (reading,) = fake_nvml.read(nvml_library, tmp_path, (0, DIVIDED))
    gpu, one, two = reading["devices"]
    assert (gpu["divided"], gpu["parent"]) == (True, None)
    assert [(d["uuid"], d["parent"], d["index"], d["divided"]) for d in (one, two)] == [
        ("MIG-1", "GPU-a", 0, False),
        ("MIG-2", "GPU-a", 1, False),
    ]
    assert one["total"] == 40192 * MIB


def test_a_driver_that_cannot_list_processes_says_so(nvml_library: Path, tmp_path: Path) -> None:
    (reading,) = fake_nvml.read(nvml_library, tmp_path, (0, TWO + "nolist GPU-a\n"))
    assert [device["processes"] is None for device in reading["devices"]] == [True, False]


def test_a_device_that_shares_the_hosts_memory_is_refused_with_the_reason(nvml_library: Path, tmp_path: Path) -> None:
    (reading,) = fake_nvml.read(nvml_library, tmp_path, (0, "driver 1\ngpu GPU-a NVIDIA_GB10 0 0 0 0\n"))
    assert "share the host's memory" in reading["devices"][0]["why"]


def test_no_driver_is_no_fault_and_one_that_does_not_fit_its_library_is(nvml_library: Path, tmp_path: Path) -> None:
    (absent,) = fake_nvml.read(nvml_library, tmp_path, (0, "init 9\n"))
    assert (absent["devices"], absent["expected"], absent["why"]) == ([], True, "no NVIDIA driver")
    (changed,) = fake_nvml.read(nvml_library, tmp_path, (0, "init 18\n"))
    assert changed["expected"] is False
    assert "restart the machine" in changed["why"]


def test_a_driver_that_appears_is_found_within_a_minute(nvml_library: Path, tmp_path: Path) -> None:
    looks = fake_nvml.read(nvml_library, tmp_path, (0, "init 9\n"), (10, TWO), (61, TWO))
    assert [len(reading["devices"]) for reading in looks] == [0, 0, 2]


def test_without_the_bindings_there_are_no_gpus_and_a_hint() -> None:
    script = "import sys; sys.modules['pynvml'] = None\nfrom llmgw.agent.nvml import Nvml; print(Nvml().read(0.0))"
    done = fake_nvml.run(["-c", script], os.environ)
    assert "devices=()" in done.stdout, done.stderr
    assert "llmgw[nvidia]" in done.stdout


# -- whose memory it is (pure)


def device(*processes: tuple[int, int | None], used: int = 1000, uuid: str = "GPU-a", **more: object) -> DeviceFact:
    fact = DeviceFact(
        uuid=uuid,
        name="GPU",
        index=0,
        total=Bytes(8000 * MIB),
        used=Bytes(used * MIB),
        free=Bytes((8000 - used) * MIB),
        processes=tuple(
            DeviceProcess(pid=pid, memory=None if memory is None else Bytes(memory * MIB)) for pid, memory in processes
        ),
    )
    return replace(fact, **more)  # type: ignore[arg-type]


def test_what_our_engines_use_is_not_foreign_and_the_drivers_share_is() -> None:
    (found,) = attribute([device((7, 600), (8, 100))], {R1: {7}, R2: {9}}, engaged=True, own_pids=False)
    assert found.foreign == 400 * MIB
    assert [process.ours for process in found.processes or ()] == [True, False]


def test_where_the_driver_does_not_tell_our_share_foreign_is_unknown_not_zero() -> None:
    (found,) = attribute([device((7, None))], {R1: {7}}, engaged=True, own_pids=False)
    assert found.foreign is None
    (found,) = attribute([device(processes=None)], {R1: {7}}, engaged=True, own_pids=False)
    assert found.foreign is None
    (found,) = attribute([device(processes=None)], {R1: {7}}, engaged=False, own_pids=False)
    assert found.foreign == 1000 * MIB


def test_in_a_pid_namespace_of_our_own_a_like_number_is_not_our_process() -> None:
    (found,) = attribute([device((7, 600))], {R1: {7}}, engaged=True, own_pids=True)
    assert found.foreign is None
    assert not any(process.ours for process in found.processes or ())


def test_a_replicas_share_is_summed_over_devices_and_mig_counts_once() -> None:
    devices = [
        device((7, 900), uuid="GPU-a", divided=True),
        device((7, 900), uuid="MIG-1", parent="GPU-a"),
        device((7, 50), (9, 30), uuid="GPU-b"),
    ]
    marked = attribute(devices, {R1: {7}}, engaged=True, own_pids=False)
    assert used_by(marked, {7}) == 950 * MIB
    assert used_by(marked, {9}) is None  # not proven ours


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pid namespaces are Linux's")
def test_a_pid_namespace_is_noticed() -> None:
    assert in_pid_namespace() is (os.stat("/proc/self/ns/pid").st_ino != 4026531836)


# -- a driver that hangs


async def test_a_driver_that_hangs_holds_nothing_up_and_its_devices_are_told_as_silent() -> None:
    release, entered = threading.Event(), 0

    def read(now: Mono) -> Reading:
        nonlocal entered
        entered += 1
        if now > 1:
            release.wait(30)
        return Reading(devices=(device(),))

    devices = Devices(read, timeout=0.5)
    assert [one.healthy for one in await devices.look(Mono(0.0))] == [True]
    began = time.monotonic()
    for _ in range(3):
        (silent,) = await devices.look(Mono(2.0))
        assert "has not answered" in str(silent.why)
    assert time.monotonic() - began < 25
    assert entered == 2  # it is not asked again while it hangs
    release.set()
    while not (await devices.look(Mono(0.5)))[0].healthy:
        await asyncio.sleep(0.01)
