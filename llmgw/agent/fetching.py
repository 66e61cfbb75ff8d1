"""What a replica's engine reads, brought to its node: all of it at once, as far as the node's limits let it."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from llmgw.agent.around import Around
from llmgw.agent.coming import Coming
from llmgw.catalog.spec import WeightsSpec
from llmgw.errors import LlmgwError, RetryableError, TerminalError
from llmgw.facts import ComingFile, Progress
from llmgw.plan import Assignment


class Fetching:
    """Of one replica. `tell`: an event's reason and message."""

    def __init__(self, assignment: Assignment, around: Around, tell: Callable[[str, str], None]) -> None:
        self._assignment = assignment
        self._around = around
        self._tell = tell
        self._coming = Coming()
        self._failed: dict[str, LlmgwError | OSError] = {}

    @property
    def progress(self) -> Progress | None:
        return self._coming.progress

    @property
    def files(self) -> tuple[ComingFile, ...]:
        return self._coming.files

    async def run(self) -> Mapping[str, Path]:
        """Where each role's file is. Raises TerminalError, RetryableError: which role failed, and why.

        What may pass lets the others come to their end, since the next try needs them; what will not pass gives up
        those that nobody else waits for. Cancelling gives up all of them.
        """
        roles = self._assignment.profile.roles
        self._failed.clear()
        sources: dict[WeightsSpec, list[str]] = {}
        for role, spec in roles.items():
            sources.setdefault(spec, []).append(role)
        found: dict[WeightsSpec, Path] = {}
        try:
            async with asyncio.TaskGroup() as group:
                for spec, named in sources.items():
                    name = " and ".join(named)
                    group.create_task(self._bring(name, spec, found, of=len(sources)), name=f"fetch {name}")
        except* TerminalError:  # noted
            pass
        if self._failed:
            raise self._failure(alone=len(sources) == 1)
        return {role: found[spec] for role, spec in roles.items()}

    async def _bring(self, name: str, spec: WeightsSpec, found: dict[WeightsSpec, Path], *, of: int) -> None:
        """Raises TerminalError; what may pass is noted alone."""
        try:
            found[spec] = await self._fetch(spec)
        except (LlmgwError, OSError) as error:
            self._failed[name] = error
            self._coming.gave_up(spec.source)
            if isinstance(error, TerminalError):
                raise
            if of > len(found) + len(self._failed):
                self._tell("not fetched", f"{name}: {error}; the rest is still fetched")

    async def _fetch(self, spec: WeightsSpec) -> Path:
        cache, clock = self._around.cache, self._around.clock
        here = cache.locate(spec)
        if here is not None:
            return here
        self._tell("fetching", spec.source)
        began = clock.now().mono
        here = await cache.fetch(
            spec,
            reserve=self._assignment.disk_reserve,
            progress=lambda progress: self._progressed(spec.source, progress),
            limits=self._assignment.fetching,
        )
        self._tell("fetched", self._coming.brought(spec.source, clock.now().mono - began))
        return here

    def _progressed(self, source: str, progress: Progress) -> None:
        if self._coming.hear(source, progress, self._around.clock.now().mono):
            self._around.changed()

    def _failure(self, *, alone: bool) -> LlmgwError:
        """What will not pass outranks what may."""
        terminal = {name: error for name, error in self._failed.items() if isinstance(error, TerminalError)}
        told = terminal or self._failed
        text = "; ".join(str(error) if alone else f"{name}: {error}" for name, error in told.items())
        return TerminalError(text) if terminal else RetryableError(text)
