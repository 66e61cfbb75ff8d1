"""The one way to start a background task: its exception is never lost."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

log = structlog.get_logger("llmgw.tasks")


class Tasks:
    """A set of tasks that end together. The first failure is kept for `wait()`, which raises it, also when it is
    called later."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failure: BaseException | None = None
        self._failed = asyncio.Event()

    def start(self, work: Coroutine[Any, Any, Any], name: str, *, essential: bool = False) -> asyncio.Task[Any]:
        """Run `work`. A failure is logged with its traceback; an `essential` task's also ends `wait()`."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._finished(done, essential))
        return task

    def _finished(self, task: asyncio.Task[Any], essential: bool) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("task_failed", task=task.get_name(), exc_info=error)
        if essential and self._failure is None:
            self._failure = error
            self._failed.set()

    async def wait(self) -> None:
        """Until an essential task fails: raises what it raised. Cancel it to stop waiting."""
        await self._failed.wait()
        assert self._failure is not None, "set before the event is"
        raise self._failure

    async def close(self) -> None:
        """Cancel all and wait for every one. Idempotent."""
        current = asyncio.current_task()
        pending = [task for task in self._tasks if task is not current]
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.gather(*pending, return_exceptions=True)
