"""The limit of open file descriptors: raised for ourselves, and not passed on to what we start.

Each client is a descriptor and each request may be another, while the usual soft limit of 1,024 is kept low only for
programs that use select(). An engine may be one of those, so it gets the limit that we were started with.
"""

import resource
from typing import Final

MOST: Final = 1 << 20
"""Where the hard limit is none."""

_inherited: tuple[int, int] | None = None  # of the process, as is what it remembers


def raise_limit() -> int:
    """As many as the hard limit allows; returns how many that is. Only where `restore_for` can undo it (Linux)."""
    global _inherited
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else hard
    if not hasattr(resource, "prlimit") or soft == resource.RLIM_INFINITY or soft >= most:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    _inherited = _inherited or (soft, hard)
    return most


def restore_for(pid: int) -> None:
    """Give a child the limit that this process was started with. One that has ended already needs none."""
    if _inherited is not None:
        try:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, _inherited)
        except ProcessLookupError:
            pass
