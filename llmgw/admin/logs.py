"""Engines' logs over the admin API: the last lines in one answer, or a stream of lines as they come."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Final

import msgspec

from llmgw import enginelogs
from llmgw.admin.reading import Seen
from llmgw.admin.stories import LogLine, LogsOutput
from llmgw.clock import Clock
from llmgw.enginelogs import Following, LogFile
from llmgw.facts import Phase
from llmgw.ids import ModelName, ReplicaId
from llmgw.statedir import StateDir

POLL: Final = 0.25  #: seconds between looks at a file that did not grow
LOOK: Final = 1.0  #: seconds between looks for another replica

_LEAVING: Final = frozenset({Phase.DRAINING, Phase.STOPPING})


def replicas_of(seen: Seen, model: ModelName) -> list[ReplicaId]:
    """Those with a process, the one that serves or will serve first."""
    facts = [fact for report in seen.reports.values() for fact in report.replicas if fact.model == model]
    here = [fact for fact in facts if fact.phase.occupies_memory]
    return [fact.id for fact in sorted(here, key=lambda fact: (fact.phase in _LEAVING, -fact.since, fact.id))]


def output(log: LogFile, lines: int) -> LogsOutput:
    """Raises OSError when it cannot be read."""
    found = enginelogs.read_tail(log.path, lines)
    return LogsOutput(
        model=log.model,
        replica=log.replica,
        running=log.running,
        path=str(log.path),
        whole=found.whole,
        lines=found.lines,
    )


def rows(model: ModelName, lines: Iterable[enginelogs.Line]) -> list[LogLine]:
    return [LogLine(model=model, replica=line.replica, text=line.text, note=line.note) for line in lines]


async def follow(
    model: ModelName, lines: int, find: Callable[[], Awaitable[LogFile | None]], clock: Clock
) -> AsyncIterator[bytes]:
    """A JSON object a line, until whoever reads it leaves."""
    following = Following(lines)
    try:
        log, looked = await find(), clock.now().mono
        while True:
            new = following.step(log)
            if new:
                yield b"".join(msgspec.json.encode(row) + b"\n" for row in rows(model, new))
                continue
            await clock.sleep(POLL)
            if clock.now().mono - looked >= LOOK:
                log, looked = await find(), clock.now().mono
    finally:
        following.close()


def find_log(state: StateDir, seen: Seen, model: ModelName) -> LogFile | None:
    """The running replica's, else the last one that ended."""
    return enginelogs.current(state, model, replicas_of(seen, model))
