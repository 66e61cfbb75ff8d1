"""Burying what nobody else does: where llmgw is process 1 of a container, or a subreaper, the dead children of engines
that have ended become its own."""

import asyncio
import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from llmgw.agent.process import Identity, Stat, identity_of, read_stat, reap
from llmgw.clock import Clock

_IS_SUBREAPER: Final = 37  #: PR_GET_CHILD_SUBREAPER, prctl(2)


def come_to_us() -> bool:
    """Whether orphans become children of this process."""
    return os.getpid() == 1 or _is_subreaper()


async def run(clock: Clock, every: float) -> None:
    """Until cancelled. What is dead at two looks, so many seconds apart, has no owner: who waits for it asks sooner."""
    before: frozenset[Identity] = frozenset()
    while True:
        await clock.sleep(every)
        dead = await asyncio.to_thread(_dead)
        for identity in dead & before:
            reap(identity)
        before = dead - before


def _dead() -> frozenset[Identity]:
    found = (read_stat(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return frozenset(identity_of(stat) for stat in found if stat is not None and _is_ours(stat))


def _is_ours(stat: Stat) -> bool:
    return stat.is_dead and stat.parent == os.getpid()


def _is_subreaper() -> bool:
    if not sys.platform.startswith("linux") or not Path("/proc/self").exists():
        return False
    answer = ctypes.c_int(0)
    with suppress(OSError, AttributeError):  # a C library without prctl
        ctypes.CDLL(None).prctl(_IS_SUBREAPER, ctypes.byref(answer))
    return answer.value == 1
