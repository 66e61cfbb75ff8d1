"""Background tasks: no failure is lost."""

import asyncio

import pytest

from llmgw.tasks import Tasks


async def fail() -> None:
    raise ValueError("broken")


async def test_an_essential_failure_is_raised_to_whoever_waits_later() -> None:
    tasks = Tasks()
    tasks.start(fail(), "essential", essential=True)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        with pytest.raises(ValueError, match="broken"):
            await tasks.wait()
    await tasks.close()


async def test_another_failure_ends_nobodys_wait() -> None:
    tasks = Tasks()
    tasks.start(fail(), "other")
    waiting = asyncio.ensure_future(tasks.wait())
    await asyncio.sleep(0.02)
    assert not waiting.done()
    waiting.cancel()
    await tasks.close()
