"""Machines of their own as far as the network goes: namespaces on one bridge, each of which can be cut off."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

NONE: Final = "no network namespaces can be made here"
HUB: Final = "10.77.0.1"
"""The machine that the test itself is on meanwhile."""

_CLONE_NEWNET: Final = 0x40000000
_HOLD: Final = "echo there; read nothing"
"""Keeps a namespace until its standard input ends, which it does at the latest with the test."""


class Network:
    """The hub and further machines, named; nothing of it touches the network of the machine that the test runs on."""

    def __init__(self, names: Sequence[str]) -> None:
        self.address = {name: f"10.77.0.{number}" for number, name in enumerate(names, 2)}
        self._held: dict[str, subprocess.Popen[bytes]] = {}

    def build(self) -> None:
        """In the hub's namespace."""
        _run("ip link set lo up")
        _run("ip link add hub type bridge")
        _run(f"ip addr add {HUB}/24 dev hub")
        _run("ip link set hub up")
        for name, address in self.address.items():
            held = self._held[name] = _hold()
            inside = f"nsenter -t {held.pid} -n"
            _run(f"ip link add {name} type veth peer name eth0 netns {held.pid}")
            _run(f"ip link set {name} master hub up")
            _run(f"{inside} ip link set lo up")
            _run(f"{inside} ip addr add {address}/24 dev eth0")
            _run(f"{inside} ip link set eth0 up")

    def wrapper(self, name: str) -> tuple[str, ...]:
        """Has a command run on that machine."""
        return ("nsenter", "-t", str(self._held[name].pid), "-n")

    def cut(self, name: str) -> None:
        """From now on nothing reaches that machine, nor anything from it the others. No connection is told."""
        _run(f"ip link set {name} nomaster")

    def heal(self, name: str) -> None:
        _run(f"ip link set {name} master hub")

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """This thread is on that machine meanwhile."""
        with _entered(Path(f"/proc/{self._held[name].pid}/ns/net")):
            yield

    def close(self) -> None:
        for held in self._held.values():
            _end(held)


@contextmanager
def machines(*names: str) -> Iterator[Network]:
    """This thread, and what it starts, is on the hub meanwhile. Skips the test where that cannot be had."""
    if os.geteuid() != 0 or any(shutil.which(tool) is None for tool in ("ip", "unshare", "nsenter")):
        pytest.skip(NONE)
    hub = _hold()
    network = Network(names)
    try:
        with _entered(Path(f"/proc/{hub.pid}/ns/net")):
            try:
                network.build()
            except subprocess.CalledProcessError as error:
                print(error.cmd, error.stderr.decode())
                pytest.skip(NONE)
            yield network
    finally:
        network.close()
        _end(hub)


def _hold() -> subprocess.Popen[bytes]:
    """A process in a new network namespace, which it has entered already."""
    argv = ["unshare", "--net", "sh", "-c", _HOLD]
    held = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert held.stdout is not None
    if held.stdout.readline() != b"there\n":
        _end(held)
        pytest.skip(NONE)
    return held


def _end(held: subprocess.Popen[bytes]) -> None:
    held.communicate(timeout=10)


@contextmanager
def _entered(namespace: Path) -> Iterator[None]:
    with Path("/proc/thread-self/ns/net").open() as own, namespace.open() as other:
        _enter(other.fileno())
        try:
            yield
        finally:
            _enter(own.fileno())


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)
