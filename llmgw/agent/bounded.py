"""Calls that may never return: a driver that hangs, a plugin that waits for the network."""

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Bounded(Generic[T]):
    """One call at a time, in a thread that does not keep the process from ending, as an executor's would.

    While a call hangs no other is made: threads must not pile up.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._under_way = False

    @property
    def hangs(self) -> bool:
        """Whether an earlier call has not returned yet."""
        return self._under_way

    async def call(self, work: Callable[[], T], timeout: float) -> T:
        """What `work` returns or raises. Raises TimeoutError after `timeout` seconds, or at once while one hangs."""
        if self.hangs:
            raise TimeoutError(f"{self._name}: an earlier call has not returned")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type]

        def run() -> None:
            result, failed = None, None
            try:
                result = work()
            except (Exception, SystemExit) as error:  # noqa: BLE001 - raised anew by whoever waits
                # StopIteration cannot pass a future; SystemExit must not end the loop that it is raised in.
                failed = error if not isinstance(error, StopIteration | SystemExit) else RuntimeError(repr(error))
            self._under_way = False
            try:
                loop.call_soon_threadsafe(settle, result, failed)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return

        self._under_way = True
        threading.Thread(target=run, name=self._name, daemon=True).start()
        async with asyncio.timeout(timeout):
            return await answer
