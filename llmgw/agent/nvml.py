"""NVIDIA GPUs through NVML, as the package nvidia-ml-py (`pip install 'llmgw[nvidia]'`) binds it.

Source: NVML API Reference (nvmlDevice*); pynvml loads `libnvidia-ml.so.1`, which comes with the driver. Every call here
may block for as long as the driver likes: never call it from the event loop.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Final

from llmgw.facts import DeviceFact, DeviceProcess
from llmgw.units import Bytes, Mono

INSTALL: Final = "pip install 'llmgw[nvidia]'"
_RETRY: Final = 60.0  #: seconds between attempts to reach a driver that is not there, or a GPU that was lost
_QUIET: Final = ("NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded")
_ADVICE: Final = {
    "NVMLError_GpuIsLost": "it fell off the bus: reset it, or restart the machine",
    "NVMLError_ResetRequired": "it has to be reset: nvidia-smi --gpu-reset, or restart the machine",
    "NVMLError_NoPermission": "no permission: add llmgw's user to the group that owns /dev/nvidia*",
    "NVMLError_LibRmVersionMismatch": "the driver was changed underneath its library: restart the machine",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the driver says. `why`: why there is nothing to read. `expected`: not a fault, just a machine without."""

    devices: tuple[DeviceFact, ...] = ()
    why: str | None = None
    expected: bool = True


class Nvml:
    """Keeps the library initialised: that costs up to seconds where no other program holds the driver open.

    A GPU that was seen once and is gone is reported as such for as long as this object lives.
    """

    def __init__(self) -> None:
        self._module: ModuleType | None = None
        self._ready = False
        self._failed = Reading()
        self._retry_at: Mono | None = None
        self._known: dict[str, DeviceFact] = {}  #: whole GPUs by UUID, as last seen well
        self._missing = False  #: one of them did not answer at the last look

    def read(self, now: Mono) -> Reading:
        """A look at every device: milliseconds per GPU, once initialised. Processes are not yet told apart."""
        if self._retry_at is not None and now >= self._retry_at:
            self.close()  # a lost GPU comes back only to a fresh start
        if not self._ready and (self._retry_at is None or now >= self._retry_at):
            self._open(now)
        if not self._ready or self._module is None:
            gone = self._failed.why or "the driver does not answer"
            return replace(self._failed, devices=tuple(_unwell(device, gone) for device in self._known.values()))
        seen = self._read(self._module)
        if self._missing and self._retry_at is None:
            self._retry_at = Mono(now + _RETRY)
        return Reading(devices=seen)

    def close(self) -> None:
        """Let go of the driver. Idempotent."""
        if self._ready and self._module is not None:
            with suppress(self._module.NVMLError):
                self._module.nvmlShutdown()
        self._ready, self._retry_at = False, None

    def _open(self, now: Mono) -> None:
        try:
            self._module = module = importlib.import_module("pynvml")
        except ImportError:
            self._failed = Reading(why=f"nvidia-ml-py is not installed; with an NVIDIA GPU: {INSTALL}")
            self._retry_at = Mono(now + _RETRY)
            return
        try:
            module.nvmlInit()
        except module.NVMLError as error:
            expected = type(error).__name__ in _QUIET
            self._failed = Reading(why="no NVIDIA driver" if expected else _explain(error), expected=expected)
            self._retry_at = Mono(now + _RETRY)
        else:
            self._ready, self._retry_at = True, None

    def _read(self, nvml: ModuleType) -> tuple[DeviceFact, ...]:
        driver = _told(nvml, lambda: str(nvml.nvmlSystemGetDriverVersion()))
        seen: list[DeviceFact] = []
        silent: dict[int, str] = {}
        for index in range(_told(nvml, nvml.nvmlDeviceGetCount) or 0):
            try:
                seen += _gpu(nvml, index, driver)
            except nvml.NVMLError as error:
                silent[index] = _explain(error)
        present = {device.uuid for device in seen}
        gone = {device.index: device for uuid, device in self._known.items() if uuid not in present}
        for index, why in silent.items():
            lost = gone.pop(index, None) or DeviceFact(
                uuid=f"unknown-{index}", name="a GPU without answer", index=index
            )
            seen.append(_unwell(lost, why))
        seen += [_unwell(device, "it is gone: the driver no longer lists it") for device in gone.values()]
        self._missing = bool(silent or gone)
        self._known |= {device.uuid: device for device in seen if device.healthy and device.parent is None}
        return tuple(seen)


def _gpu(nvml: ModuleType, index: int, driver: str | None) -> list[DeviceFact]:
    """The GPU, and its MIG instances after it. Raises NVMLError."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    gpu = replace(_device(nvml, handle, index, driver), divided=_divided(nvml, handle))
    return [gpu, *(_instances(nvml, handle, gpu) if gpu.divided else ())]


def _device(nvml: ModuleType, handle: Any, index: int, driver: str | None) -> DeviceFact:
    """Raises NVMLError."""
    uuid, name = str(nvml.nvmlDeviceGetUUID(handle)), str(nvml.nvmlDeviceGetName(handle))
    why, total, free = None, 0, 0
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        total, free = int(memory.total), int(memory.free)
    except nvml.NVMLError_NotSupported:  # memory shared with the host, as on Jetson and GB10
        why = "the driver does not tell its memory: devices that share the host's memory are not supported yet"
    return DeviceFact(
        uuid=uuid,
        name=name,
        index=index,
        total=Bytes(total),
        used=Bytes(max(0, total - free)),
        free=Bytes(free),
        processes=_processes(nvml, handle),
        driver=driver,
        why=why,
    )


def _divided(nvml: ModuleType, handle: Any) -> bool:
    mode = _told(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle))
    return mode is not None and mode[0] == nvml.NVML_DEVICE_MIG_ENABLE


def _instances(nvml: ModuleType, handle: Any, gpu: DeviceFact) -> Iterator[DeviceFact]:
    """Slots that hold no instance are passed over. Raises NVMLError for a GPU that is lost meanwhile."""
    for slot in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
            continue
        yield replace(_device(nvml, instance, slot, gpu.driver), parent=gpu.uuid)


def _processes(nvml: ModuleType, handle: Any) -> tuple[DeviceProcess, ...] | None:
    """Compute, graphics and MPS clients, each pid once with the most it is said to use; None: the driver lists none."""
    lists = [_running(nvml, kind, handle) for kind in ("Compute", "Graphics", "MPSCompute")]
    if all(processes is None for processes in lists):
        return None
    found: dict[int, Bytes | None] = {}
    for processes in lists:
        for process in processes or ():
            told = None if process.usedGpuMemory is None else Bytes(int(process.usedGpuMemory))
            before = found.get(process.pid)
            found[process.pid] = told if before is None else Bytes(max(before, told or 0))
    return tuple(DeviceProcess(pid=pid, memory=memory) for pid, memory in sorted(found.items()))


def _running(nvml: ModuleType, kind: str, handle: Any) -> list[Any] | None:
    """Drivers before 510 have only the second version of the call."""
    for version in ("_v3", "_v2"):
        ask = getattr(nvml, f"nvmlDeviceGet{kind}RunningProcesses{version}")
        found: list[Any] | None = _told(nvml, lambda ask=ask: list(ask(handle)))  # type: ignore[misc]
        if found is not None:
            return found
    return None


def _told(nvml: ModuleType, ask: Callable[[], Any]) -> Any:
    """What it returns; None where the driver has no answer."""
    try:
        return ask()
    except nvml.NVMLError:
        return None


def _unwell(device: DeviceFact, why: str) -> DeviceFact:
    return replace(device, why=why, used=Bytes(0), free=Bytes(0), foreign=None, processes=())


def _explain(error: Exception) -> str:
    advice = _ADVICE.get(type(error).__name__)
    return f"{advice} ({error})" if advice else f"the driver says: {error}"
