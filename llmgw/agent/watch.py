"""Hearing of a process's end at once: a child of ours and an adopted one alike."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from llmgw.agent.process import Identity, is_alive, reap
from llmgw.facts import Exit

_POLL: Final = 0.5  #: seconds, where the system has no pidfd


class Watch:
    """Calls `ended` once, from the event loop, when the process is gone. A child is reaped then."""

    def __init__(self, identity: Identity, ended: Callable[[Exit], None]) -> None:
        self._identity = identity
        self._ended = ended
        self._fd: int | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """From the event loop. A process that ended already is told of in the loop's next round."""
        loop = asyncio.get_running_loop()
        try:
            self._fd = os.pidfd_open(self._identity.pid)
        except ProcessLookupError:
            self._timer = loop.call_later(0, self._tell)
            return
        except (OSError, AttributeError):  # no such call here: macOS, an old kernel, out of descriptors
            self._timer = loop.call_later(0, self._look)
            return
        if is_alive(self._identity):  # asked after the descriptor pinned the process
            loop.add_reader(self._fd, self._tell)
        else:
            self._timer = loop.call_later(0, self._tell)

    def _look(self) -> None:
        if is_alive(self._identity):
            self._timer = asyncio.get_running_loop().call_later(_POLL, self._look)
        else:
            self._tell()

    def _tell(self) -> None:
        self.close()
        self._ended(exit_from(reap(self._identity)))

    def close(self) -> None:
        """Stop watching; the process is left as it is. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._fd is not None:
            with suppress(RuntimeError):  # the loop is closed already
                asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None


def exit_from(status: int | None) -> Exit:
    """`status` as `process.reap` gives it."""
    if status is None:
        return Exit()
    return Exit(signal=-status) if status < 0 else Exit(code=status)
