"""One key, however often it is triggered: a burst while a pass runs leads to one more pass."""

import asyncio


class Trigger:
    """Set from anywhere in the loop, awaited by one worker."""

    def __init__(self) -> None:
        self._any = asyncio.Event()
        self._urgent = asyncio.Event()

    def set(self, *, urgent: bool = True) -> None:
        self._any.set()
        if urgent:
            self._urgent.set()

    async def wait(self, timeout: float | None, *, rest: float = 0.0, patience: float = 0.0) -> bool:
        """Until triggered (True) or `timeout` seconds passed (False). Clears the trigger.

        `rest`: seconds that pass in any case. `patience`: seconds before which what is not urgent is not heeded.
        """
        if rest > 0:
            await asyncio.sleep(rest)
        try:
            async with asyncio.timeout(None if timeout is None else max(0.0, timeout - rest)):
                await self._triggered(patience - rest)
        except TimeoutError:
            return False
        self._any.clear()
        self._urgent.clear()
        return True

    async def _triggered(self, patience: float) -> None:
        if patience > 0:
            try:
                async with asyncio.timeout(patience):
                    await self._urgent.wait()
            except TimeoutError:
                pass
        await self._any.wait()
