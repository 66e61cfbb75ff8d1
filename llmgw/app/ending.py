"""When and how a process ends: by a signal, by a part that failed, and by force when something hangs."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Literal

from llmgw.errors import LlmgwError, TerminalError

OnExit = Literal["stop", "keep"]
Say = Callable[[str], None]

HUNG = 20.0
"""Seconds after which what does not end is left behind, once all that serves has ended."""


class Signals:
    """SIGINT stops engines, SIGTERM keeps them; SIGHUP is SIGINT where we started on a terminal, else SIGTERM.
    A second SIGINT hastens. `--on-exit` overrides; as PID 1 nothing outlives us, so engines are stopped."""

    def __init__(self, on_exit: OnExit | None, say: Say) -> None:
        self._say = say
        self._forced: OnExit | None = on_exit
        self._terminal = sys.stdin is not None and sys.stdin.isatty()
        self._first = asyncio.Event()
        self.at_once = asyncio.Event()
        self.choice: OnExit = "keep"
        self.restart = False  #: the program is to begin anew in this very process

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        if os.getpid() == 1 and self._forced != "stop":
            self._say("running as process 1: engines are stopped when llmgw ends")
            self._forced = "stop"
        loop = asyncio.get_running_loop()
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else nohup's wish: outlive the terminal
            numbers.append(signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self._received, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _received(self, number: signal.Signals) -> None:
        if self._first.is_set():
            self.restart = False  # the operator's later word
            if number is signal.SIGINT:
                self.at_once.set()
            return
        stops = number is signal.SIGINT or (number is signal.SIGHUP and self._terminal)
        self.choice = self._forced or ("stop" if stops else "keep")
        self._first.set()

    def begin_anew(self) -> None:
        """End as SIGTERM has us end, whatever `--on-exit` says, and be started again: engines serve meanwhile."""
        if not self._first.is_set():
            self.choice, self.restart = "keep", True
            self._first.set()

    async def wait(self) -> None:
        """Until the first signal."""
        await self._first.wait()

    async def first(self, failing: Coroutine[Any, Any, None]) -> BaseException | None:
        """Until the first signal: None; or what `failing` raised before one came: engines are then kept."""
        signalled, failed = asyncio.ensure_future(self._first.wait()), asyncio.ensure_future(failing)
        try:
            await asyncio.wait({signalled, failed}, return_when=asyncio.FIRST_COMPLETED)
            if not failed.done():
                return None
            self.choice, self.restart = self._forced or "keep", False
            return failed.exception()
        finally:
            signalled.cancel()
            failed.cancel()


async def unless(event: asyncio.Event, work: Coroutine[Any, Any, Any]) -> None:
    """Until `work` is done, or the event is set: then it is cancelled."""
    doing, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({doing, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        if not doing.done():
            doing.cancel()
            await asyncio.wait({doing})
    if not doing.cancelled():
        doing.result()


def ended_by(failure: BaseException) -> TerminalError:
    while isinstance(failure, BaseExceptionGroup) and len(failure.exceptions) == 1:
        failure = failure.exceptions[0]
    if isinstance(failure, LlmgwError | OSError):
        return TerminalError(f"cannot go on: {failure}; engines keep serving: put it right and start llmgw again")
    return TerminalError(
        f"ended by a fault of its own: {type(failure).__name__}: {failure}; engines keep serving: start llmgw again, "
        "and report the lines above"
    )


class LastResort:
    """Ends the process though a worker thread does not return: from a disk that hangs, say. From `start` on."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._timer: threading.Timer | None = None

    def start(self, failure: BaseException | None) -> None:
        self._timer = threading.Timer(HUNG, self._end, [failure])
        self._timer.daemon = True
        self._timer.start()

    def _end(self, failure: BaseException | None) -> None:
        if failure is not None:
            self._say(str(failure))
        self._say(f"something did not end within {HUNG:.0f} s: leaving it behind")
        os._exit(0 if failure is None else 1)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def undeterred(say: Say) -> Say:
    """`say`, which goes unheard once the terminal or pipe is gone: engines have to be stopped all the same."""

    def said(text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            say(text)

    return said
