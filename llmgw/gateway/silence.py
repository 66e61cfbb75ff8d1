"""Whether an engine's machine is still there: one that was cut off closes nothing, and what waits there would wait for
a quarter of an hour.

The kernel looks out for it, with one flaw: it also ends a connection whose other side acknowledges all along, and only
does not read (a server that answers one request at a time, a body larger than its kernel keeps for it). So while a
large body is on its way, we look ourselves.
"""

import socket
import struct
import sys
from typing import Any, Final

SILENCE: Final = 15.0
"""Seconds without a word from an engine's machine after which a connection is lost. An engine that thinks is not
silent: its machine's kernel acknowledges all the same."""
LARGE: Final = 32 * 1024
"""Bytes of a body that a kernel may not take in while nobody reads them. It takes twice as much by default."""
LOOKS: Final = sys.platform == "linux"
"""Whether we can look ourselves. Elsewhere there is no TCP_USER_TIMEOUT that would make it necessary either."""

_ENDS: Final = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 5),  # seconds
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
)
_COUNTS: Final = struct.Struct("=3xB20xI28xI")
"""Of Linux's `struct tcp_info`: `tcpi_probes`, `tcpi_unacked`, and `tcpi_last_ack_recv` in milliseconds."""


def set_option(sock: Any, level: int, name: str, value: int) -> None:
    """Not every system has each."""
    if (option := getattr(socket, name, None)) is not None:
        sock.setsockopt(level, option, value)


def ends(sock: Any) -> None:
    """Have the kernel end the connection when the other machine is silent."""
    for level, name, value in _ENDS:
        set_option(sock, level, name, value)
    look_out(sock, kernel=True)


def look_out(sock: Any, *, kernel: bool) -> None:
    """`kernel` False: for as long as bytes of ours are not acknowledged or not taken, we do."""
    set_option(sock, socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", int(SILENCE * 1000) if kernel else 0)


def is_silent(sock: Any) -> bool:
    """Whether the other machine has not answered for too long, although it was spoken to."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTS.size)
    probes, unacknowledged, unheard = map(int, _COUNTS.unpack_from(info))
    # Probes of a window that stays shut come ever more seldom, so that time alone says nothing.
    return unheard > SILENCE * 1000 and (unacknowledged > 0 or probes >= 2)
