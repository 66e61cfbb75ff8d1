"""What follows from what happened to one replica. Pure: events in, effects out; the caller owns clock and process.

A replica is born by `Assigned` (run it), `Adopted` (it runs already), `Lost` (it ended while nobody watched) or, when
only its end is asked for, by `StopWanted`. An event that comes too late to matter is ignored; one that cannot be is an
error that tells the replica's story.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from llmgw.facts import Failure, Phase
from llmgw.units import Instant, Wall

LEGAL: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.PLACING: frozenset({Phase.FETCHING, Phase.STARTING, Phase.STOPPING, Phase.STOPPED}),
    Phase.FETCHING: frozenset({Phase.STARTING, Phase.STOPPING, Phase.FAILED}),
    Phase.STARTING: frozenset({Phase.READY, Phase.DRAINING, Phase.STOPPING}),
    Phase.READY: frozenset({Phase.DRAINING, Phase.STOPPING}),
    Phase.DRAINING: frozenset({Phase.READY, Phase.STARTING, Phase.STOPPING}),
    Phase.STOPPING: frozenset({Phase.STOPPED, Phase.FAILED}),
    Phase.STOPPED: frozenset(),
    Phase.FAILED: frozenset(),
}
"""A process that ends by itself passes through `stopping` too: what it leaves behind must be gone before the replica
counts as failed and its memory as free."""

FINAL: Final = frozenset({Phase.STOPPED, Phase.FAILED})
MAX_LAUNCHES: Final = 5  #: ports tried before a clash counts as a failure after all
_STORY: Final = 20


@dataclass(frozen=True, slots=True)
class Assigned:
    """The controller wants it run."""

    needs_weights: bool


@dataclass(frozen=True, slots=True)
class Adopted:
    """Its process was found alive, and proven ours."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Its process had ended when the agent came back."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class WeightsReady:
    pass


@dataclass(frozen=True, slots=True)
class FetchFailed:
    failure: Failure


@dataclass(frozen=True, slots=True)
class Launched:
    """The process exists; nothing is known of its health."""


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    failure: Failure


@dataclass(frozen=True, slots=True)
class ProbesPassed:
    pass


@dataclass(frozen=True, slots=True)
class ProbesFailed:
    """It said that it will never be ready, or was not ready within its start time-out."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Unwell:
    """It was ready, and has hung since, or answers that it is there and cannot do its work."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Exited:
    """The process ended, asked or not."""

    failure: Failure
    port_clash: bool = False


@dataclass(frozen=True, slots=True)
class StopWanted:
    """`eviction`: given up when it does not drain in time."""

    eviction: bool = False


@dataclass(frozen=True, slots=True)
class RunWanted:
    """The assignment says run (again)."""


@dataclass(frozen=True, slots=True)
class Drained:
    pass


@dataclass(frozen=True, slots=True)
class DrainTimedOut:
    pass


@dataclass(frozen=True, slots=True)
class Hastened:
    """Whoever asked for the stop will not wait for requests in flight any longer."""


@dataclass(frozen=True, slots=True)
class Broke:
    """The agent itself failed at an effect."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Gone:
    """No process of the replica is left: proven, not assumed."""


Event = (
    Assigned | Adopted | Lost | WeightsReady | FetchFailed | Launched | LaunchFailed | ProbesPassed | ProbesFailed
    | Unwell | Exited | StopWanted | RunWanted | Drained | DrainTimedOut | Hastened | Broke | Gone
)  # fmt: skip


class Do(Enum):
    """What the agent does at a replica's step. Each takes the place of what it was doing for it before."""

    FETCH = "get the weights"
    LAUNCH = "start the process, on another port than before"
    PROBE = "ask until it is ready"
    SERVE = "read its load and look whether it is well, now and then"
    DRAIN = "wait until nothing is in flight"
    END = "end every process of it, and prove that they are gone"
    FINISH = "keep the log, free what it held"


@dataclass(frozen=True, slots=True)
class Tell:
    """An event for the operator."""

    reason: str
    message: str = ""


Effect = Do | Tell


class IllegalTransition(Exception):
    """A fault of the agent's own; the text ends with the replica's last events."""


class Lifecycle:
    """One replica's state.

    `failure` is what it fails with, known from the moment that it is bound to. `kept_serving`: its eviction was given
    up, and nobody has said since what shall become of it.
    """

    def __init__(self, now: Instant) -> None:
        self.phase = Phase.PLACING
        self.since: Wall = now.wall
        self.failure: Failure | None = None
        self.adopted = False
        self.kept_serving = False
        self.launches = 0
        self._was_ready = False
        self._stop_wanted = False
        self._eviction = False
        self._story: deque[str] = deque(maxlen=_STORY)

    @property
    def finished(self) -> bool:
        return self.phase in FINAL

    def step(self, event: Event, now: Instant) -> tuple[Effect, ...]:
        """Take one event. Raises IllegalTransition for a second birth, or a birth that never was."""
        self._story.append(f"{self.phase}: {event}")
        if self.finished:
            return ()
        match self.phase:
            case Phase.PLACING:
                return self._born(event, now)
            case Phase.STOPPING:
                return self._stopping(event, now)
            case _ if isinstance(event, Assigned | Adopted | Lost):
                raise self._illegal(f"{type(event).__name__} in phase {self.phase}")
            case Phase.FETCHING:
                return self._fetching(event, now)
            case Phase.STARTING:
                return self._starting(event, now)
            case Phase.READY:
                return self._ready(event, now)
            case _:
                return self._draining(event, now)

    def story(self) -> str:
        """The last events, oldest first."""
        return "; ".join(self._story)

    def _born(self, event: Event, now: Instant) -> tuple[Effect, ...]:
        match event:
            case Assigned(needs_weights=True):
                return self._enter(Phase.FETCHING, now, Do.FETCH)
            case Assigned():
                return self._launch(now)
            case Adopted():
                self.adopted = True
                return self._enter(Phase.STARTING, now, Do.PROBE, Tell("adopted"))
            case Lost(failure):
                self.adopted = True
                return self._fail(failure, now)
            case StopWanted():
                return self._enter(Phase.STOPPED, now, Do.FINISH)
        raise self._illegal(f"{type(event).__name__} before birth")

    def _fetching(self, event: Event, now: Instant) -> tuple[Effect, ...]:
        match event:
            case WeightsReady():
                return self._launch(now)
            case FetchFailed(failure):
                self.failure = failure
                return self._enter(Phase.FAILED, now, Do.FINISH, Tell("failed", failure.reason))
            case Broke(failure):
                return self._fail(failure, now)
            case StopWanted():
                return self._end_wanted(now)
        return ()

    def _starting(self, event: Event, now: Instant) -> tuple[Effect, ...]:
        match event:
            case Launched():
                return (Do.PROBE,)
            case ProbesPassed():
                self._was_ready = True
                return self._enter(Phase.READY, now, Do.SERVE, Tell("ready"))
            case Exited(failure, port_clash=True) if self.launches < MAX_LAUNCHES:
                self.launches += 1
                return (Do.LAUNCH, Tell("port taken", f"{failure.reason}; another port is tried"))
            case Exited(failure) | LaunchFailed(failure) | ProbesFailed(failure) | Broke(failure):
                return self._fail(failure, now)
            case StopWanted(eviction) if self.adopted:
                return self._drain(eviction, now)  # requests from before the restart may be in flight
            case StopWanted():
                return self._end_wanted(now)
        return ()

    def _ready(self, event: Event, now: Instant) -> tuple[Effect, ...]:
        match event:
            case Exited(failure) | Broke(failure) | Unwell(failure):
                return self._fail(failure, now)
            case StopWanted(eviction):
                return self._drain(eviction, now)
            case RunWanted():
                self.kept_serving = False
        return ()

    def _draining(self, event: Event, now: Instant) -> tuple[Effect, ...]:
        match event:
            case Drained():
                return self._end_wanted(now)
            case DrainTimedOut() if self._eviction:
                self.kept_serving = True
                return (*self._resume(now), Tell("eviction given up", "requests were still in flight"))
            case DrainTimedOut():
                return (*self._end_wanted(now), Tell("drain timed out", "stopped with requests in flight"))
            case Hastened():
                return self._end_wanted(now)
            case Exited(failure) | Broke(failure) | Unwell(failure):
                return (*self._end_wanted(now), Tell("ended while draining", failure.reason))
            case StopWanted(eviction):
                self._eviction = eviction
            case RunWanted():
                return self._resume(now)
        return ()

    def _stopping(self, event: Event, now: Instant) -> tuple[Effect, ...]:
        match event:
            case Gone() if self.failure is not None and not self._stop_wanted:
                return self._enter(Phase.FAILED, now, Do.FINISH, Tell("failed", self.failure.reason))
            case Gone():
                self.failure = None
                return self._enter(Phase.STOPPED, now, Do.FINISH, Tell("stopped"))
            case StopWanted():
                self._stop_wanted = True
            case Broke():
                return (Do.END,)
        return ()

    def _launch(self, now: Instant) -> tuple[Effect, ...]:
        self.launches += 1
        return self._enter(Phase.STARTING, now, Do.LAUNCH)

    def _drain(self, eviction: bool, now: Instant) -> tuple[Effect, ...]:
        self._stop_wanted, self._eviction, self.kept_serving = True, eviction, False
        return self._enter(Phase.DRAINING, now, Do.DRAIN)

    def _resume(self, now: Instant) -> tuple[Effect, ...]:
        self._stop_wanted = self._eviction = False
        if self._was_ready:
            return self._enter(Phase.READY, now, Do.SERVE)
        return self._enter(Phase.STARTING, now, Do.PROBE)

    def _end_wanted(self, now: Instant) -> tuple[Effect, ...]:
        self._stop_wanted = True
        return self._enter(Phase.STOPPING, now, Do.END)

    def _fail(self, failure: Failure, now: Instant) -> tuple[Effect, ...]:
        self.failure = failure
        return self._enter(Phase.STOPPING, now, Do.END)

    def _enter(self, phase: Phase, now: Instant, *effects: Effect) -> tuple[Effect, ...]:
        if phase not in LEGAL[self.phase]:
            raise self._illegal(f"{self.phase} -> {phase}")
        self.phase, self.since = phase, now.wall
        return effects

    def _illegal(self, what: str) -> IllegalTransition:
        return IllegalTransition(f"{what}. Story: {self.story()}")
