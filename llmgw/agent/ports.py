"""Ports for engines: checked by binding, never handed out twice while in use."""

import errno
import socket
from typing import Final

from llmgw.errors import RetryableError

DEFAULT_PORTS: Final = range(21000, 22000)
"""Below the ports that systems take for outgoing connections (32768 and up on Linux)."""


class NoFreePort(RetryableError):
    """Every port of the range is taken."""


class Ports:
    """Hands out ports of a range, in turn. `start`: where to begin; a random one keeps two agents apart."""

    def __init__(self, ports: range, *, start: int = 0) -> None:
        self._range = ports
        self._next = start
        self._taken: set[int] = set()

    def reserve(self, port: int) -> None:
        """An adopted replica has it."""
        self._taken.add(port)

    def take(self, host: str) -> int:
        """A port that could be bound just now. Raises NoFreePort, or OSError when `host` is no address of ours."""
        for offset in range(len(self._range)):
            port = self._range[(self._next + offset) % len(self._range)]
            if port not in self._taken and can_bind(host, port):
                self._next += offset + 1
                self._taken.add(port)
                return port
        raise NoFreePort(
            f"no free port in {self._range.start}-{self._range.stop - 1} on {host}: "
            "end what listens there, or stop a model"
        )

    def release(self, port: int) -> None:
        """Idempotent."""
        self._taken.discard(port)


def can_bind(host: str, port: int) -> bool:
    """Whether nobody listens there. Raises OSError for anything but a port in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Without it a port whose last connections linger in TIME_WAIT would count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True
