"""Calls that may block for many minutes, made so that whoever waits for one can leave it."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Final, TypeVar

from llmgw.weights.sources import Stopped

T = TypeVar("T")

_LOOK: Final = 0.2
"""Seconds between two looks at whether to leave."""


class Caller:
    """Makes calls, one after the other, in a thread of its own, until `stop` is set or it is closed.

    A call that was left ends by itself some time. Its thread keeps no process from ending, which the threads of an
    executor would.
    """

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._work, name="llmgw-call", daemon=True).start()

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.put(None)

    def __call__(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises. Raises Stopped instead, once `stop` is set."""
        done: Future[T] = Future()

        def make() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised to whoever called
                done.set_exception(error)

        self._calls.put(make)
        while not self._stop.is_set():
            try:
                return done.result(timeout=_LOOK)
            except TimeoutError:
                if done.done():  # its own
                    raise
        raise Stopped

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
