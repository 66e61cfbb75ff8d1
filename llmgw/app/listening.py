"""Addresses that a process listens on, and the server of its admin API."""

import contextlib
import os
import socket
from collections.abc import Sequence
from typing import Any, Final

import uvicorn

from llmgw.errors import TerminalError

Listen = tuple[str, int]
"""Host and port; port 0: any free one."""

NO_ADDRESS: Final = (OSError, UnicodeError)
"""What taking an address raises; the latter for host names that can be none."""


class AdminServer:
    """Uvicorn on a socket of ours, so that a taken port is our error, and signals stay ours."""

    def __init__(self, app: Any, listen: Listen) -> None:
        self._socket = _bind(listen, "--admin")
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]

    @property
    def address(self) -> Listen:
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    async def serve(self) -> None:
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            self._socket.close()

    def stop(self) -> None:
        self._server.should_exit = True


def _bind(listen: Listen, flag: str) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in listen[0] else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(listen)
        bound.listen(128)
        return bound
    except NO_ADDRESS as error:
        bound.close()
        raise cannot_listen(listen, flag, error) from error


def cannot_listen(listen: Listen, flag: str, error: Exception) -> TerminalError:
    host, port = listen
    why = getattr(error, "strerror", None) or str(error)
    return TerminalError(f"cannot listen on {host}:{port}: {why}; name another with {flag}")


def url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


INHERITED: Final = "LLMGW_LISTENING"
"""The descriptor of a listening socket, from the program that this process ran before."""


def keep_listening(descriptors: Sequence[int]) -> int | None:
    """A copy of the one descriptor, for the program that this process runs next: who connects meanwhile waits.

    None where there are several: that program binds anew.
    """
    return os.dup(descriptors[0]) if len(descriptors) == 1 else None


def inherited(listen: Listen) -> socket.socket | None:
    """The socket that an earlier program listened on in this process, if it is the one that is asked for now."""
    told = os.environ.pop(INHERITED, "")
    if not told.isdecimal():
        return None
    try:
        found = socket.socket(fileno=int(told))
    except OSError:
        return None
    found.set_inheritable(False)  # no engine's business
    try:
        host, port = found.getsockname()[:2]
        wanted = {where[0] for *_, where in socket.getaddrinfo(*listen, type=socket.SOCK_STREAM)}
        if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and host in wanted and listen[1] in (0, port):
            return found
    except (*NO_ADDRESS, ValueError):
        pass
    found.close()
    return None
