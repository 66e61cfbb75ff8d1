"""Which replica `llmgw bench` measures, how it is reached, and what becomes of the result.

It is reached past the gateway, which would spread requests over all replicas of a model. Its key is derived from the
cluster's secret, as the gateway does it; so this works on a machine that has the state directory.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Protocol

from llmgw.admin.capacities import BenchOutput, BenchStepRow, CapacitiesOutput, CapacityRequest
from llmgw.admin.shapes import ModelRow, ReplicaRow
from llmgw.admin.stories import ExplainOutput
from llmgw.catalog.schemas import did_you_mean
from llmgw.cli.capacity import SHARE, Step, best, percentile
from llmgw.cli.client import AdminClient
from llmgw.cli.engine_client import EngineClient, EngineLost, EngineRefused
from llmgw.cli.load import Prompts, watched
from llmgw.cli.measure import BenchFailed, Limits, find_ask, measure
from llmgw.clock import SystemClock
from llmgw.engine.api import engine_key
from llmgw.facts import Level, Phase
from llmgw.ids import ReplicaId
from llmgw.statedir import StateDir

_TELLS: Final = 0.2  #: the share of a target that this process may be late by


class Progress(Protocol):
    """Who is told how far it is."""

    def requests(self, at_once: int, done: int, needed: int) -> None: ...

    def step(self, step: Step) -> None: ...

    def warn(self, text: str) -> None: ...


@dataclass(slots=True, kw_only=True)
class Bench:
    """One replica to be measured."""

    admin: AdminClient
    state: Path
    replica: ReplicaRow
    url: str
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, admin: AdminClient, state: Path, model: str, profile: str | None, replica: str | None) -> "Bench":
        """Raises BenchFailed when none can be measured, DaemonUnreachable, DaemonRefused for an unknown model."""
        told = admin.get("explain", ExplainOutput, {"model": model})
        row = choose(told.model, told.replicas, profile, replica)
        assert row.url is not None
        return cls(admin=admin, state=state, replica=row, url=row.url)

    def measure(self, limits: Limits, seed: int, progress: Progress) -> tuple[Step, ...]:
        """The steps, by requests at once. Raises BenchFailed, KeyboardInterrupt."""
        return asyncio.run(self._measure(limits, seed, progress))

    async def _measure(self, limits: Limits, seed: int, progress: Progress) -> tuple[Step, ...]:
        secret = StateDir(self.state).secret()
        client = EngineClient(url=self.url, key=engine_key(secret, ReplicaId(self.replica.id)))
        prompts = Prompts(limits.prompt_tokens, seed)
        busy = (self.replica.running or 0) + (self.replica.waiting or 0)
        await self._look(progress, busy=busy)
        try:
            ask = await find_ask(client, self.replica.model, limits, prompts)
        except (EngineRefused, EngineLost) as error:
            raise BenchFailed(f"replica {self.replica.id} cannot be measured: {error}") from error
        async with watched() as late:
            steps = await measure(
                ask,
                prompts,
                limits,
                SystemClock(),
                told=progress.step,
                progress=progress.requests,
                check=lambda: self._look(progress),
            )
        if (text := too_late(late, limits)) is not None:
            self._warn(text, progress)
        return tuple(sorted(steps, key=lambda step: step.at_once))

    async def _look(self, progress: Progress, *, busy: int = 0) -> None:
        """Warn of others' requests. Raises BenchFailed when the replica is no longer ready."""
        told = await asyncio.to_thread(self.admin.get, "explain", ExplainOutput, {"model": self.replica.model})
        now = next((row for row in told.replicas if row.id == self.replica.id), None)
        if now is None or now.state != Phase.READY:
            how = "has ended" if now is None else f"is {now.state}"
            raise BenchFailed(f"replica {self.replica.id} {how}: nothing was kept; `llmgw explain {told.model.name}`")
        flying = (await asyncio.to_thread(self.admin.get, "capacities", CapacitiesOutput)).in_flight
        others = max(busy, flying.get(self.replica.id, 0))
        if others and not self.warnings:
            what = "another request is" if others == 1 else f"{others} other requests are"
            self._warn(f"{what} in flight on the replica: it holds more than these figures say", progress)

    def _warn(self, text: str, progress: Progress) -> None:
        self.warnings.append(text)
        progress.warn(text)

    def keep(self, steps: tuple[Step, ...]) -> bool:
        """Have the daemon keep it; False: the replica was shrunk to fit, which says nothing of a full one.

        Raises DaemonRefused when the replica or its profile changed meanwhile.
        """
        held = best(steps)
        if held is None or held.ttft_p95 is None or self.replica.level != Level.FULL:
            return False
        body = CapacityRequest(
            replica=self.replica.id,
            requests=held.at_once,
            ttft=held.ttft_p95,
            itl=held.itl_p95 or 0.0,
            tokens_per_second=held.tokens_per_second,
        )
        self.admin.post("capacities", CapacitiesOutput, body)
        return True

    def output(self, limits: Limits, steps: tuple[Step, ...], *, stored: bool) -> BenchOutput:
        held, row = best(steps), self.replica
        return BenchOutput(
            model=row.model,
            profile=row.profile,
            engine=row.engine,
            node=row.node,
            replica=row.id,
            level=row.level,
            ttft=limits.target.ttft,
            itl=limits.target.itl,
            prompt_tokens=limits.prompt_tokens,
            max_tokens=limits.max_tokens,
            holds=held.at_once if held else 0,
            at_most=held is not None and held.at_once >= limits.most,
            tokens_per_second=held.tokens_per_second if held else 0.0,
            stored=stored,
            warnings=tuple(self.warnings),
            steps=tuple(BenchStepRow(**{**asdict(step), "verdict": str(step.verdict)}) for step in steps),
        )


def too_late(late: Sequence[float], limits: Limits) -> str | None:
    """A warning where this process was late itself by a part of the target that tells; None: it was not."""
    found = percentile(late, SHARE) or 0.0
    if found <= _TELLS * min(limits.target.itl, limits.target.ttft):
        return None
    return (
        f"this machine is so busy that this command itself was late by {found * 1000:.0f} ms: "
        "the replica is faster than these figures say"
    )


def choose(model: ModelRow, rows: tuple[ReplicaRow, ...], profile: str | None, replica: str | None) -> ReplicaRow:
    """The replica asked for, else a full one, with the least to do. Raises BenchFailed, saying what there is."""
    wanted = [row for row in rows if replica in (None, row.id) and profile in (None, row.profile)]
    ready = [row for row in wanted if row.state == Phase.READY and row.url is not None]
    if ready:
        return min(ready, key=lambda row: (row.level != Level.FULL, (row.running or 0) + (row.waiting or 0), row.id))
    if replica is not None and all(row.id != replica for row in rows):
        hint = did_you_mean(replica, [row.id for row in rows]) or f"; `llmgw explain {model.name}` lists what there is"
        raise BenchFailed(f"{model.name} has no replica {replica}{hint}")
    if wanted and (replica is not None or profile is not None):
        raise BenchFailed(f"replica {wanted[0].id} of {model.name} is {wanted[0].state}, not ready: try again later")
    if rows and profile is not None:
        runs = ", ".join(sorted({row.profile for row in rows}))
        raise BenchFailed(f"no replica of {model.name} runs profile {profile}; there is {runs}")
    why = f"is {model.state}" + (f": {model.reason}" if model.reason else "")
    raise BenchFailed(f"{model.name} {why}; it has to be ready to be measured: `llmgw explain {model.name}` tells more")
