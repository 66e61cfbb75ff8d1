"""What every accelerator inventory must keep to, whatever driver is below it: a real one, or a stand-in.

`python -m llmgw.testing.inventory_checks` runs them on this machine's driver.
"""

import sys
import time
from collections.abc import Callable
from typing import Final

from llmgw.agent.devices import TIMEOUT, attribute
from llmgw.agent.nvml import Nvml
from llmgw.facts import DeviceFact
from llmgw.ids import ReplicaId
from llmgw.units import Mono

NO_DRIVER: Final = 3
"""Exit status where there is no driver to check."""


def check_devices_are_told_apart(nvml: Nvml) -> None:
    devices = _read(nvml)
    uuids = [device.uuid for device in devices]
    assert len(set(uuids)) == len(uuids), uuids
    for device in _well(devices):
        assert device.uuid.startswith("GPU-" if device.parent is None else "MIG-"), device
        assert device.name, device
        assert device.driver, device


def check_memory_adds_up(nvml: Nvml) -> None:
    for device in _well(_read(nvml)):
        assert device.total > 0, device
        assert device.used + device.free == device.total, device


def check_instances_follow_the_gpu_that_they_divide(nvml: Nvml) -> None:
    before: dict[str, DeviceFact] = {}
    for device in _read(nvml):
        if device.parent is not None:
            assert before[device.parent].divided, device
            assert not device.divided, device
        before[device.uuid] = device


def check_a_second_look_sees_the_same_devices(nvml: Nvml) -> None:
    first = [(device.uuid, device.index, device.total) for device in _well(_read(nvml))]
    began = time.monotonic()
    again = [(device.uuid, device.index, device.total) for device in _well(_read(nvml))]
    assert again == first
    assert time.monotonic() - began < TIMEOUT


def check_it_works_again_after_it_was_closed(nvml: Nvml) -> None:
    first = [device.uuid for device in _read(nvml)]
    nvml.close()
    nvml.close()
    assert [device.uuid for device in _read(nvml)] == first


def check_what_is_no_engine_is_foreign(nvml: Nvml) -> None:
    devices = _read(nvml)
    for device in _well(attribute(devices, {}, engaged=False, own_pids=False)):
        assert device.foreign == device.used, device
        assert not any(process.ours for process in device.processes or ()), device
    for device in _well(devices):
        for process in device.processes or ():
            pids = {ReplicaId("r1"): {process.pid}}
            (found,) = attribute([device], pids, engaged=True, own_pids=False)
            expected = None if process.memory is None else max(0, device.used - process.memory)
            assert found.foreign == expected, found


INVENTORY_CHECKS: Final[tuple[Callable[[Nvml], None], ...]] = (
    check_devices_are_told_apart,
    check_memory_adds_up,
    check_instances_follow_the_gpu_that_they_divide,
    check_a_second_look_sees_the_same_devices,
    check_it_works_again_after_it_was_closed,
    check_what_is_no_engine_is_foreign,
)


def _read(nvml: Nvml) -> tuple[DeviceFact, ...]:
    return nvml.read(Mono(time.monotonic())).devices


def _well(devices: tuple[DeviceFact, ...]) -> list[DeviceFact]:
    return [device for device in devices if device.healthy]


def main() -> int:
    """Run every check, each on an inventory of its own."""
    reading = Nvml().read(Mono(time.monotonic()))
    if not reading.devices:
        sys.stdout.write(f"{reading.why or 'the driver has no device'}\n")
        return NO_DRIVER
    for check in INVENTORY_CHECKS:
        check(Nvml())
        sys.stdout.write(f"{check.__name__}: ok\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
