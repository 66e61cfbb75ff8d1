"""What `llmgw doctor` looks at on a machine: a line for each, and what to do where it is not well.

Changes nothing: no directory is made and no lock is taken. Blocking.
"""

import importlib.util
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llmgw.admin.shapes import CheckRow
from llmgw.agent import cgroups, inventory
from llmgw.agent.devices import in_pid_namespace
from llmgw.agent.nvml import INSTALL, Reading
from llmgw.agent.ports import can_bind
from llmgw.agent.process import Identity, is_alive
from llmgw.engine.manager import Engines
from llmgw.errors import StateDirError
from llmgw.facts import EngineFact
from llmgw.statedir import LAYOUT, StateDir
from llmgw.units import GIB, format_bytes, format_seconds

OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "fail"

_NEWEST_PYTHON: Final = (3, 13)
_LITTLE_DISK: Final = 10 * GIB
_NO_DISK: Final = GIB  #: the reserve that is kept free where the catalog says nothing
_LITTLE_MEMORY: Final = 2 * GIB
_FEW_DESCRIPTORS: Final = 4096
_FEW_WATCHES: Final = 8192
_FEW_INSTANCES: Final = 16
_CLOCK_LOOK: Final = 0.2  #: seconds
_CLOCK_SLACK: Final = 0.05
_YOUNGEST: Final = 1_735_689_600  #: 2025-01-01: no clock that is right shows less
_PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is looked at. `daemon`: whether one runs on the state directory, and holds the addresses."""

    state: StateDir
    cache: Path
    addresses: tuple[tuple[str, int], ...]
    ports: range
    daemon: bool = False


Check = Callable[[Machine], Iterator[CheckRow]]


def row(name: str, message: str, *, verdict: str = OK, advice: str = "") -> CheckRow:
    return CheckRow(name=name, verdict=verdict, message=message, advice=advice)


def python(_: Machine) -> Iterator[CheckRow]:
    said = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] > _NEWEST_PYTHON:
        yield row("python", said, verdict=WARN, advice="llmgw is tested on Python 3.11 to 3.13")
    else:
        yield row("python", said)


def system(_: Machine) -> Iterator[CheckRow]:
    release = platform.release()
    what = f"{platform.system()} {release} {platform.machine()}"
    if sys.platform == "win32":
        yield row("system", what, verdict=FAIL, advice="run llmgw inside WSL2")
        return
    if sys.platform == "darwin":
        yield row("system", what, verdict=WARN, advice="macOS is served as well as it can be; Linux is supported")
    elif "microsoft" in release.lower():
        yield row(
            "system", f"{what} (WSL)", advice="engines end when Windows stops WSL: `wsl --shutdown`, or no session"
        )
    else:
        yield row("system", f"{what}, in a container" if _in_container() else what)
    if os.getpid() == 1:
        yield row("system", "this is process 1", verdict=WARN, advice="nothing outlives it: `--on-exit stop` is forced")


def git(_: Machine) -> Iterator[CheckRow]:
    found = shutil.which("git")
    if found is None:
        yield row("git", "not found in PATH", verdict=WARN, advice="install git: without, catalogs have no commits")
        return
    done = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=10, check=False)
    if done.returncode != 0:
        yield row("git", f"{found} cannot be run: {done.stderr.strip()}", verdict=WARN, advice="install git anew")
    else:
        yield row("git", f"{done.stdout.strip().removeprefix('git version ')} at {found}")


def state(machine: Machine) -> Iterator[CheckRow]:
    where = machine.state.root
    if not where.exists():
        parent = next(parent for parent in where.parents if parent.exists())
        if os.access(parent, os.W_OK | os.X_OK) and parent.is_dir():
            yield row("state", f"{where} does not exist yet; it can be made")
        else:
            advice = "name another directory with --state, or make this one writable"
            yield row("state", f"{where} cannot be made: {parent} is not writable", verdict=FAIL, advice=advice)
        return
    wrong = _unusable(machine.state)
    if wrong is not None:
        yield row("state", f"{where}: {wrong[0]}", verdict=FAIL, advice=wrong[1])
        return
    if where.stat().st_mode & 0o077:
        yield row("state", f"{where} can be read by others", verdict=WARN, advice=f"chmod 700 {where}")
    owner = machine.state.lock_owner()
    identity = Identity.parse(owner.identity) if owner else None
    if owner is not None and identity is not None and is_alive(identity):
        yield row("state", f"{where}, in use by pid {owner.pid}")
    else:
        yield row("state", f"{where}, in use by nobody")


def _unusable(state: StateDir) -> tuple[str, str] | None:
    """What is wrong with an existing state directory, and what to do."""
    if not state.root.is_dir():
        return "it is no directory", "name another with --state"
    if not os.access(state.root, os.R_OK | os.W_OK | os.X_OK):
        return "it is not writable", "run llmgw as its owner, or name another with --state"
    try:
        version = (state.root / "VERSION").read_text(errors="replace").strip()
    except FileNotFoundError:
        if any(state.root.iterdir()):
            return "it holds other files, and no VERSION", "name an empty or new directory with --state"
        return None
    except OSError as error:
        return f"its VERSION cannot be read: {error.strerror}", "name another with --state"
    if not version.isdigit():
        return f"its VERSION is damaged ({version[:20]!r})", f"write {LAYOUT} into it, or name another with --state"
    if int(version) > LAYOUT:
        return f"it has layout {version}, this llmgw reads up to {LAYOUT}", "upgrade llmgw"
    try:
        state.read_admin()
    except StateDirError as error:
        return str(error), "start llmgw again: it writes the file anew"
    return None


def cache(machine: Machine) -> Iterator[CheckRow]:
    disk = inventory.disk(machine.cache)
    said = f"{machine.cache}: {format_bytes(disk.free)} of {format_bytes(disk.total)} free on {disk.mount}"
    advice = "make room (`llmgw collect` lists what the catalog does not want), or name another disk with --cache"
    if disk.free < _NO_DISK:
        yield row("cache", said, verdict=FAIL, advice=advice)
    else:
        yield row("cache", said, **({"verdict": WARN, "advice": advice} if disk.free < _LITTLE_DISK else {}))


def ports(machine: Machine) -> Iterator[CheckRow]:
    taken = [f"{host}:{port}" for host, port in machine.addresses if port and not _free(host, port)]
    if machine.daemon:
        yield row("ports", "the gateway's and the admin API's are this daemon's")
    elif taken:
        advice = "end what listens there, or name others with --listen and --admin"
        yield row("ports", f"{' and '.join(taken)} cannot be had", verdict=FAIL, advice=advice)
    else:
        yield row("ports", f"{' and '.join(f'{host}:{port}' for host, port in machine.addresses)} are free")
    free = sum(can_bind("127.0.0.1", port) for port in machine.ports)
    said = f"{free} of {len(machine.ports)} from {machine.ports.start} to {machine.ports.stop - 1} are free for engines"
    if free == 0:
        yield row("engine ports", said, verdict=FAIL, advice="name others with --engine-ports")
    elif free < min(100, len(machine.ports)):
        yield row("engine ports", said, verdict=WARN, advice="name a range with more room with --engine-ports")
    else:
        yield row("engine ports", said)


def _free(host: str, port: int) -> bool:
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, UnicodeError):
        return False
    return True


def descriptors(_: Machine) -> Iterator[CheckRow]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard if sys.platform.startswith("linux") else soft  # raised to it at start, where that can be undone
    unlimited = most == resource.RLIM_INFINITY
    said = "no limit" if unlimited else f"{most} open files"
    if not unlimited and most < _FEW_DESCRIPTORS:
        advice = f"clients take one or two each: ulimit -n {_FEW_DESCRIPTORS * 4}, or LimitNOFILE= in the unit"
        yield row("descriptors", said, verdict=WARN, advice=advice)
    else:
        yield row("descriptors", said)


def memory(_: Machine) -> Iterator[CheckRow]:
    fact = inventory.memory()
    limits = [limit for limit, _ in cgroups.limits(cgroups.CGROUPS, cgroups.membership())]
    said = f"{format_bytes(fact.available)} of {format_bytes(fact.total)} available"
    if limits:
        said += f" (the control group's limit is {format_bytes(min(limits))})"
    if fact.available < _LITTLE_MEMORY:
        advice = "end what else runs, or raise the control group's limit: little can be placed here"
        yield row("memory", said, verdict=WARN, advice=advice)
    else:
        yield row("memory", said)


def inotify(_: Machine) -> Iterator[CheckRow]:
    if not sys.platform.startswith("linux"):
        return
    found = {name: _number(_PROC / "sys/fs/inotify" / name) for name in ("max_user_watches", "max_user_instances")}
    watches, instances = found["max_user_watches"], found["max_user_instances"]
    said = f"{watches} watches, {instances} instances"
    if watches is None or instances is None:
        yield row("inotify", "cannot be asked", verdict=WARN, advice="catalog changes are found by polling then")
    elif watches < _FEW_WATCHES or instances < _FEW_INSTANCES:
        advice = "sysctl fs.inotify.max_user_watches=65536 fs.inotify.max_user_instances=256; else llmgw polls"
        yield row("inotify", said, verdict=WARN, advice=advice)
    else:
        yield row("inotify", said)


def clock(_: Machine) -> Iterator[CheckRow]:
    wall, mono = time.time(), time.monotonic()
    time.sleep(_CLOCK_LOOK)
    drift = (time.time() - wall) - (time.monotonic() - mono)
    if wall < _YOUNGEST:
        said = time.strftime("the clock shows %Y-%m-%d", time.gmtime(wall))
        yield row("clock", said, verdict=FAIL, advice="set it, and have it kept by NTP (timedatectl set-ntp true)")
    elif abs(drift) > _CLOCK_SLACK:
        said = f"it jumped by {drift:+.3f} s while we looked"
        yield row("clock", said, verdict=WARN, advice="have one program alone set it: chrony or systemd-timesyncd")
    else:
        yield row("clock", f"steady; {time.strftime('%Y-%m-%d %H:%M:%S %z', time.localtime(wall))}")


def gpus(reading: Reading) -> Iterator[CheckRow]:
    """Of what the driver said."""
    if not reading.devices:
        there = (_PROC / "driver/nvidia/version").exists()
        if there and importlib.util.find_spec("pynvml") is None:
            yield row("gpus", "a driver is there, and nvidia-ml-py is not", verdict=WARN, advice=INSTALL)
        elif not reading.expected:
            yield row("gpus", reading.why or "cannot be asked", verdict=WARN, advice="put the driver right: nvidia-smi")
        else:
            yield row("gpus", f"none ({reading.why or 'the driver lists none'})")
        return
    for device in reading.devices:
        name = f"{device.name} {device.uuid}"
        if device.why is not None:
            yield row("gpus", f"{name}: {device.why}", verdict=WARN, advice="nothing is placed on it until then")
        elif device.divided:
            yield row("gpus", f"{name}: divided by MIG")
        else:
            yield row("gpus", f"{name}: {format_bytes(device.free)} of {format_bytes(device.total)} free")
    if in_pid_namespace():
        advice = "share the host's pids with the container (--pid=host) to have foreign use of GPUs told exactly"
        yield row("gpus", "this container has pids of its own", advice=advice)


def engines(found: Engines, facts: tuple[EngineFact, ...]) -> Iterator[CheckRow]:
    """Of the plugins that were found and what their engines say of this machine."""
    for fact in facts:
        name = f"engine {fact.name}"
        if fact.why is not None:
            yield row(name, "cannot be used", verdict=WARN, advice=fact.why)
        else:
            version = " ".join(filter(None, (fact.version, fact.path and f"at {fact.path}")))
            yield row(name, version or "usable")
    if not any(fact.why is None for fact in facts):
        yield row("engines", "none can be used", verdict=FAIL, advice="pip install 'llmgw[cpu]' brings one")
    for plugin, why in found.broken.items():
        last = why.strip().rpartition("\n")[2]
        yield row(f"plugin {plugin}", last, verdict=WARN, advice="`llmgw plugins list` shows all of it")


CHECKS: Final[tuple[Check, ...]] = (
    python, system, git, state, cache, ports, descriptors, memory, inotify, clock,
)  # fmt: skip


def examine(machine: Machine, checks: tuple[Check, ...] = CHECKS) -> Iterator[CheckRow]:
    """Every check in turn. One that cannot be made says so."""
    for check in checks:
        try:
            yield from check(machine)
        except (OSError, subprocess.SubprocessError) as error:
            yield row(check.__name__, f"cannot be looked at: {error}", verdict=WARN, advice="")


def _in_container() -> bool:
    marks = (Path("/.dockerenv"), Path("/run/.containerenv"))
    return any(mark.exists() for mark in marks) or bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def age(seconds: float) -> str:
    return f"{format_seconds(max(0.0, seconds))} ago"
