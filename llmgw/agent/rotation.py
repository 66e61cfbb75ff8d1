"""Keeping engines' logs small while they are written: what was said so far is copied aside, and the file emptied.

Engines append (O_APPEND), so the next line begins at the new end. What is written between the last look at the file and
the cut is lost: a line at most, unless an engine floods it.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llmgw.agent import logs
from llmgw.agent.around import Around
from llmgw.ids import ReplicaId
from llmgw.logparts import Joined, earlier
from llmgw.units import MIB, Bytes, format_bytes

LOOK: Final = 1.0  #: seconds between looks at the logs of running engines
_HASTE: Final = 0.1  #: seconds until the next, while one is flooded
_TOLD: Final = 600.0  #: seconds between two events about the same log
_BLOCK: Final = 1 * MIB


@dataclass(frozen=True, slots=True)
class Cut:
    """`left_out`: bytes that nobody will read: more was said between two looks than a log may hold. `why`: instead, the
    disk could not take the copy."""

    log: Path
    left_out: Bytes = Bytes(0)
    why: str | None = None


async def run(around: Around, running: Callable[[], Mapping[Path, ReplicaId]]) -> None:
    """Until cancelled. `running`: the logs that are written now."""
    told: dict[ReplicaId, float] = {}
    while True:
        paths = dict(running())
        cuts, wait = await asyncio.to_thread(cut_all, paths, around.log_size)
        now = around.clock.now().mono
        told = {replica: told[replica] for replica in paths.values() if replica in told}
        for one in cuts:
            replica = paths[one.log]
            if one.left_out and now - told.get(replica, float("-inf")) >= _TOLD:
                told[replica] = now
                why = one.why or "it said more at once than a log may hold"
                around.tell(replica, "log cut", f"{format_bytes(one.left_out)} of what the engine said are gone: {why}")
        await around.clock.sleep(wait)


def cut_all(paths: Iterable[Path], size: Bytes) -> tuple[list[Cut], float]:
    """Look at each log once; what was cut, and the seconds until the next look. Blocking, as what follows."""
    cuts: list[Cut] = []
    for path in paths:
        with suppress(OSError):  # not there yet, or no longer
            if path.stat().st_size > size:
                cuts.append(cut(path, size))
    flooded = any(one.left_out for one in cuts)
    return cuts, _HASTE if flooded else LOOK


def cut(log: Path, size: Bytes) -> Cut:
    """Copy it aside (of a flooded one the last `size` bytes), and cut it whatever becomes of the copy.

    Raises OSError where it cannot be cut.
    """
    fd = os.open(log, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    why, copied = None, 0
    try:
        total = os.fstat(fd).st_size
        start = 0 if total <= 2 * size else total - size
        try:
            copied = _copy(fd, start, 2 * size, earlier(log))
        except OSError as error:
            why = error.strerror or str(error)
        left_out = Bytes(max(0, os.fstat(fd).st_size - copied))
        os.ftruncate(fd, 0)
    finally:
        os.close(fd)
    if left_out:
        logs.add(log, f"{format_bytes(left_out)} are left out here: {why or 'too much was said at once'}")
    return Cut(log, left_out, why)


def fold(log: Path, size: Bytes) -> None:
    """Make one file of both parts, of their last `size` bytes, when nobody writes them any more. Raises OSError."""
    before = earlier(log)
    with Joined(log) as whole:
        if not before.exists() and whole.size <= size:
            return
        whole.seek(max(0, whole.size - size))
        part = log.with_name(f"{log.name}.part")
        try:
            part.write_bytes(whole.read())
        except OSError:
            part.unlink(missing_ok=True)
            raise
    part.chmod(0o600)
    part.replace(log)
    before.unlink(missing_ok=True)


def _copy(fd: int, start: int, most: int, target: Path) -> int:
    """From `start` to the end, as it grows, but not more than `most`; how many bytes that were."""
    part = target.with_name(f"{target.name}.part")
    out = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        position, end = start, start + most
        while position < end and (data := os.pread(fd, min(_BLOCK, end - position), position)):
            done = 0
            while done < len(data):
                done += os.write(out, data[done:])
            position += len(data)
    except OSError:
        with suppress(OSError):
            part.unlink()
        raise
    finally:
        os.close(out)
    part.replace(target)
    return position - start
