"""One who is told: what waits to be sent, and the task that sends it, again where it must."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import structlog

from llmgw.catalog.spec import NotifySpec
from llmgw.clock import Clock
from llmgw.ids import Revision
from llmgw.notify.occasions import Finding
from llmgw.notify.requests import Request
from llmgw.notify.sending import Refused, Retry, Sender, Sent
from llmgw.units import Seconds

log = structlog.get_logger("llmgw.notify")

MOST_WAITING: Final = 16
"""Revisions that wait to be told of; beyond that the oldest is dropped."""


class Outcome(StrEnum):
    SENT = "sent"
    RETRIED = "retried"  #: an attempt that another follows
    REPLACED = "replaced"  #: something newer of the same revision came before it was sent
    GIVEN_UP = "given_up"
    DROPPED = "dropped"  #: too many waited


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds. Each wait is twice the one before, less up to half of it by chance."""

    first: Seconds = Seconds(1)
    longest: Seconds = Seconds(60)
    give_up: Seconds = Seconds(600)  #: after the first attempt; a wait that the server asked for is waited besides

    def wait(self, attempt: int) -> Seconds:
        """Before the attempt after the `attempt`-th."""
        # Clusters that a forge refused all at once must not come again all at once.
        return Seconds(min(self.longest, self.first * 2.0 ** min(attempt - 1, 30)) * random.uniform(0.5, 1.0))


@dataclass(frozen=True, slots=True)
class Notice:
    finding: Finding
    request: Request


class Outbox:
    """The newest of each revision, the oldest revision first."""

    def __init__(self, most: int = MOST_WAITING) -> None:
        self._most = most
        self._waiting: dict[Revision, Notice] = {}
        self._any = asyncio.Event()

    def put(self, notice: Notice) -> Outcome | None:
        """What became of another for it."""
        revision = notice.finding.revision
        became = Outcome.REPLACED if self._waiting.pop(revision, None) else None
        if len(self._waiting) >= self._most:
            del self._waiting[next(iter(self._waiting))]
            became = Outcome.DROPPED
        self._waiting[revision] = notice
        self._any.set()
        return became

    def has(self, revision: Revision) -> bool:
        return revision in self._waiting

    async def take(self) -> Notice:
        while not self._waiting:
            self._any.clear()
            await self._any.wait()
        return self._waiting.pop(next(iter(self._waiting)))


Count = Callable[[str, Outcome], None]
Tell = Callable[[str, str, str], None]  #: the target's name, a reason, a message: an event
Told = Callable[[NotifySpec, Finding], Awaitable[None]]


class Target:
    """`told` is called after each success; `latest`: what was told last, or waits to be."""

    def __init__(
        self,
        spec: NotifySpec,
        *,
        clock: Clock,
        count: Count,
        tell: Tell,
        told: Told,
        latest: Finding | None = None,
        pace: Pace | None = None,
        sender: Sender | None = None,
    ) -> None:
        self.spec = spec
        self.latest = latest
        self._clock = clock
        self._count = count
        self._tell = tell
        self._told = told
        self._pace = pace or Pace()
        self._sender = sender or Sender(spec)
        self._outbox = Outbox()
        self._complained: str | None = None  #: what was said last of a failure; the same is not said again

    def put(self, notice: Notice) -> None:
        self.latest = notice.finding
        became = self._outbox.put(notice)
        if became is not None:
            self._count(self.spec.name, became)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                notice = await self._outbox.take()
                try:
                    await self._deliver(notice)
                except Exception as error:  # a proxy's setting that is none, or a fault of ours: nothing ends for it
                    log.exception("notification_failed", target=self.spec.name)
                    self._give_up(notice, "notification given up", f"{type(error).__name__}; the log has more")
        finally:
            await self._sender.close()

    async def _deliver(self, notice: Notice) -> None:
        began, asked_for, attempt = self._clock.now().mono, 0.0, 0
        while True:
            attempt += 1
            answer = await self._sender.send(notice.request, self._clock.now().wall)
            match answer:
                case Sent():
                    self._complained = None
                    await self._told(self.spec, notice.finding)
                    self._count(self.spec.name, Outcome.SENT)
                    return
                case Refused(why):
                    self._give_up(notice, "notification refused", why)
                    return
                case Retry(why, wait):
                    spent = self._clock.now().mono - began - asked_for
                    if spent >= self._pace.give_up:
                        self._give_up(notice, "notification given up", why)
                        return
                    self._count(self.spec.name, Outcome.RETRIED)
                    pause = max(self._pace.wait(attempt), wait or 0.0)
                    asked_for += wait or 0.0
                    await self._clock.sleep(pause)
            if self._outbox.has(notice.finding.revision):
                self._count(self.spec.name, Outcome.REPLACED)
                return

    def _give_up(self, notice: Notice, reason: str, why: str) -> None:
        self._count(self.spec.name, Outcome.GIVEN_UP)
        if self._complained != why:
            finding = notice.finding
            self._tell(self.spec.name, reason, f"{finding.occasion} of {finding.revision[:12]}: {why}")
        self._complained = why
