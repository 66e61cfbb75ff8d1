"""From a process to one that answers: asking a started engine until it is ready."""

from typing import Final

from llmgw.agent.held import Held
from llmgw.clock import Clock
from llmgw.engine.api import Engine, Readiness
from llmgw.facts import Failure, FailureKind
from llmgw.plan import Assignment
from llmgw.units import Mono, format_seconds

_FIRST: Final = 0.02  #: seconds between probes, growing to
_SLOWEST: Final = 1.0
_DOUBTED: Final = 0.25  #: seconds between two looks who answers
_SETTLED: Final = 5.0
"""Seconds after which an engine whose port somebody else has would have ended. Who answers still does so for it."""
_SHARE: Final = 0.04
"""An engine is asked again after this share of the time it has taken so far, so that asking adds no more than that."""


async def until_ready(
    engine: Engine, assignment: Assignment, held: Held, clock: Clock, ready_by: Mono
) -> Failure | None:
    """Send its probes in order, each until it is READY. What it fails with, or None once all are."""
    asker, began, said = held.asker(), clock.now().mono, "no answer"
    left = list(engine.probes(assignment.profile))
    while left:
        time_left = ready_by - clock.now().mono
        if time_left <= 0:
            text = f"not ready within {format_seconds(assignment.start_timeout)} ({said})"
            return held.failure(FailureKind.HANG, text, quote=True)
        held.look_at_groups()  # what a wrapper moved the engine into, before it may die there
        readiness, said = await asker.probe(engine, left[0], at_most=time_left)
        other = None if readiness is Readiness.LOADING else await held.stranger()
        doubted = other is not None and (other.certain or clock.now().mono - began < _SETTLED)
        if doubted:
            readiness, said = Readiness.LOADING, str(other)
        match readiness:
            case Readiness.READY:
                del left[0]
            case Readiness.BROKEN:
                return held.failure(FailureKind.TERMINAL, f"it will never be ready ({said})", quote=True)
            case Readiness.LOADING:
                wait = max(_DOUBTED if doubted else _FIRST, (clock.now().mono - began) * _SHARE)
                await clock.sleep(min(_SLOWEST, wait, time_left))
    return None
