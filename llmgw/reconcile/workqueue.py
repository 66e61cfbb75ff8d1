"""One key, however often it is triggered: a burst while a pass runs leads to one more pass."""

import asyncio


class Trigger:
    """Set from anywhere in the loop, awaited by one worker."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, timeout: float | None) -> bool:
        """Until triggered (True) or `timeout` seconds passed (False). Clears the trigger."""
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True
