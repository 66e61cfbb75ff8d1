"""Asking for a look at the catalog's source now, and waiting until what it found has been taken in."""

import asyncio


class Asks:
    """Numbered, so that an answer covers all who asked before the look began. For one event loop."""

    def __init__(self) -> None:
        self.number = 0  #: of the newest ask
        self.event = asyncio.Event()  #: look now; cleared by whoever looks
        self._answered = 0
        self._told = asyncio.Condition()

    def ask(self) -> int:
        """Never waits. The number is for `answered`."""
        self.number += 1
        self.event.set()
        return self.number

    async def wait(self, seconds: float | None) -> None:
        """Until somebody asks, at most so long (None: for ever)."""
        try:
            async with asyncio.timeout(seconds):
                await self.event.wait()
        except TimeoutError:
            return
        finally:
            self.event.clear()

    async def answer(self, number: int) -> None:
        """What a look begun after that ask found has been taken in, or refused."""
        async with self._told:
            self._answered = max(self._answered, number)
            self._told.notify_all()

    async def answered(self, number: int) -> None:
        """Until that ask is answered."""
        async with self._told:
            await self._told.wait_for(lambda: self._answered >= number)
