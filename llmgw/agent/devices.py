"""What accelerators the node has, and how much of them is used by others than its engines."""

import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

from llmgw.agent.bounded import Bounded
from llmgw.agent.nvml import Nvml, Reading
from llmgw.facts import DeviceFact
from llmgw.ids import ReplicaId
from llmgw.units import Bytes, Mono

TIMEOUT: Final = 5.0
"""Seconds that the driver has to answer. It is asked again only once it has."""

_FIRST: Final = 20.0  #: seconds, the first time: waking GPUs that nobody holds open takes long
_INITIAL_NAMESPACE: Final = 0xEFFFFFFC  #: Linux, include/linux/proc_ns.h: PROC_PID_INIT_INO


class Devices:
    """Asks the driver, in a thread of its own; while it hangs the devices are reported as not answering."""

    def __init__(self, read: Callable[[Mono], Reading] | None = None, *, timeout: float = TIMEOUT) -> None:
        self._timeout = timeout
        self._read = read or Nvml().read
        self._bounded: Bounded[Reading] = Bounded("devices")
        self._last: tuple[DeviceFact, ...] | None = None

    async def look(self, now: Mono) -> tuple[DeviceFact, ...]:
        """Every device as the driver has it; processes are not told apart yet. Empty: none, or no driver."""
        timeout = _FIRST if self._last is None else self._timeout
        try:
            reading = await self._bounded.call(lambda: self._read(now), timeout)
        except TimeoutError:
            why = f"the driver has not answered for {timeout:.0f} s"
            return tuple(replace(device, why=why, foreign=None, processes=()) for device in self._last or ())
        self._last = reading.devices
        return reading.devices


def attribute(
    devices: Collection[DeviceFact], pids: Mapping[ReplicaId, Collection[int]], *, engaged: bool, own_pids: bool
) -> tuple[DeviceFact, ...]:
    """The devices with our engines' processes marked and `foreign` told. Pure.

    `pids`: of each replica. `engaged`: some replica may use devices. `own_pids`: the driver's pids are not ours to
    compare, as we live in a pid namespace of our own.
    """
    ours = frozenset() if own_pids else frozenset(pid for group in pids.values() for pid in group)
    return tuple(_attribute(device, ours, engaged=engaged, own_pids=own_pids) for device in devices)


def _attribute(device: DeviceFact, ours: Collection[int], *, engaged: bool, own_pids: bool) -> DeviceFact:
    if not device.healthy:
        return device
    if device.processes is None:
        return replace(device, foreign=None if engaged else device.used)
    processes = tuple(replace(process, ours=process.pid in ours) for process in device.processes)
    mine = [process.memory for process in processes if process.ours]
    known = [memory for memory in mine if memory is not None]
    unsure = len(known) < len(mine) or (engaged and own_pids)
    foreign = None if unsure else Bytes(max(0, device.used - sum(known)))
    return replace(device, processes=processes, foreign=foreign)


def used_by(devices: Collection[DeviceFact], pids: Collection[int]) -> Bytes | None:
    """Memory of these processes, over all devices; None where none of them is on a device that tells. Pure.

    A GPU divided by MIG lists its instances' processes too: only the instances count.
    """
    found = [
        process.memory
        for device in devices
        if not device.divided
        for process in device.processes or ()
        if process.ours and process.pid in pids and process.memory is not None
    ]
    return Bytes(sum(found)) if found else None


def in_pid_namespace() -> bool:
    """Whether our pids differ from those that the driver sees: in a container, mostly."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        return os.stat("/proc/self/ns/pid").st_ino != _INITIAL_NAMESPACE
    except OSError:
        return True
