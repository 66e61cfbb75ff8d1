"""What `llmgw up` tells its operator: lines from one look at the store to the next. Pure.

Each thing is told once, when it becomes so. `Narrator` remembers what was told.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from llmgw.admin.reading import Seen
from llmgw.admin.views import count
from llmgw.cli.licences import Licences
from llmgw.cli.text import short_revision
from llmgw.facts import Phase, ReplicaFact
from llmgw.ids import ModelName, ReplicaId
from llmgw.plan import ModelState, ModelStatus
from llmgw.units import format_bytes, format_seconds

_HOPEFUL: Final = 1
"""A model that failed so often and is still tried is not waited for before the ready line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """A download under way. `total` None: nobody knows. `rate`: bytes a second, as its node has it."""

    model: ModelName
    done: int
    total: int | None
    rate: float | None


class Narrator:
    """Turns looks at the store into lines. `url`: the gateway's, without a path."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._applied: str | None = None
        self._trouble: tuple[object, ...] = ()
        self._watcher = "ok"
        self._stopped = False
        self._told: dict[ModelName, tuple[object, ...]] = {}
        self._licences = Licences()
        self._looked_at: dict[ModelName, tuple[ModelStatus, ReplicaFact | None]] = {}  #: when its story was told last
        self._ready_told = False

    def lines(self, seen: Seen, now: float) -> list[str]:
        """What is new, for stderr. `now` in seconds since the Unix epoch."""
        return [*self._catalog(seen), *self._switch(seen), *self._models(seen, now)]

    def fetches(self, seen: Seen) -> list[Fetch]:
        """Downloads under way."""
        found = []
        for name, replica in sorted(_replicas(seen).items()):
            if name in seen.models and replica.phase is Phase.FETCHING and (one := replica.progress) is not None:
                found.append(Fetch(model=name, done=one.done, total=one.total, rate=one.rate))
        return found

    def ready(self, seen: Seen) -> list[str]:
        """The ready line and a request to paste, for stdout: once, when every model that can serve does."""
        if self._ready_told or not _settled(seen):
            return []
        serving = [name for name in sorted(seen.models) if _state(seen, name) is ModelState.READY]
        asked = [name for name in sorted(seen.models) if _loads_when_asked(seen, name)]
        if not serving and not asked and seen.models:
            return []
        self._ready_told = True
        return [
            _ready_line(self._url, seen, serving, asked),
            *(_curl(self._url, name) for name in [each for each in (*serving, *asked) if _chats(seen, each)][:1]),
        ]

    def _catalog(self, seen: Seen) -> Iterator[str]:
        applied = seen.applied.revision if seen.applied else None
        if applied is not None and applied != self._applied:
            yield f"catalog {short_revision(applied)}: {count(len(seen.models), 'model')}{_names(sorted(seen.models))}"
        self._applied = applied
        if seen.status is None:
            return
        status = seen.status
        why = (status.problems, status.error, status.held)
        trouble = (status.attempted, *why) if any(why) else ()
        if trouble and trouble != self._trouble:
            keeps = (
                f"; {short_revision(applied)} stays in force" if applied else "; nothing is served until it is fixed"
            )
            if status.error:
                yield f"the catalog cannot be read: {status.error}{keeps}"
            if status.held:
                yield f"catalog {short_revision(status.attempted)} is held: {status.held.message}"
            if status.problems:
                yield f"catalog {short_revision(status.attempted)} is invalid{keeps}"
                yield from (f"  {problem}" for problem in status.problems)
        elif self._trouble and not trouble:
            yield f"catalog {short_revision(applied)} is in order again"
        self._trouble = trouble
        if status.watcher != self._watcher:
            yield f"watching the catalog: {status.watcher}"
        self._watcher = status.watcher

    def _switch(self, seen: Seen) -> Iterator[str]:
        if seen.stopped and not self._stopped:
            yield f"stopped by {seen.stopped.by}: `llmgw start` serves again"
        elif self._stopped and not seen.stopped:
            yield "started again"
        self._stopped = seen.stopped is not None

    def _models(self, seen: Seen, now: float) -> Iterator[str]:
        for name in sorted(self._told.keys() - seen.models.keys()):
            del self._told[name]
            yield f"{name}: removed"
        yield from self._licences.lines(seen)
        replicas, before = _replicas(seen), self._looked_at
        explained = ((name, status) for name, status in seen.explained.items() if name in seen.models)
        self._looked_at = {name: (status, replicas.get(name)) for name, status in explained}
        for name in sorted(name for name, these in self._looked_at.items() if these != before.get(name)):
            key, line = _story(*self._looked_at[name], now)
            if line and key != self._told.get(name):
                yield f"{name}: {line}"
            if line:
                self._told[name] = key


def _story(status: ModelStatus, replica: ReplicaFact | None, now: float) -> tuple[tuple[object, ...], str]:
    """What to say of a model, and what must change before it is said again."""
    match status.state:
        case ModelState.READY:
            kept_from_before = " (its engine ran on from before)" if replica is not None and replica.adopted else ""
            text = f"ready{kept_from_before}" + (f": {status.reason}" if status.reason else "")
            return (status.state, status.replica, _gist(status.reason)), text
        case ModelState.STOPPED:  # told once for all of them
            return (status.state,), ""
        case ModelState.INACTIVE:
            return (status.state, _gist(status.reason)), f"not wanted now: {status.reason}"
        case ModelState.UNSCHEDULABLE:
            return (status.state, _gist(status.explanation)), f"cannot be placed: {status.explanation}"
        case ModelState.FAILED:
            return (status.state, status.attempts), f"failed: {status.reason}{_retry(status, now)}"
        case ModelState.LOADING:
            return _loading(status, replica, now)


def _loading(status: ModelStatus, replica: ReplicaFact | None, now: float) -> tuple[tuple[object, ...], str]:
    if status.retry_at is not None and (replica is None or replica.phase is Phase.FAILED):
        return ("retry", status.attempts), f"{status.reason}{_retry(status, now)}"
    if replica is None:
        return ("waiting", _gist(status.reason)), status.reason
    key = (replica.id, replica.phase)
    if replica.phase is Phase.FETCHING:
        total = replica.progress.total if replica.progress else None
        return key, "fetching its weights" + (f" ({format_bytes(total)})" if total else "")
    return key, f"loading into {replica.engine}" if replica.phase is Phase.STARTING else ""


def _gist(text: str) -> str:
    """The text without its figures: free memory changes with every look, and is no news."""
    return re.sub(r"\d+(\.\d+)?", "#", text)


def _retry(status: ModelStatus, now: float) -> str:
    if status.retry_at is None or status.retry_at <= now:
        return ""
    return f"; next try in {format_seconds(status.retry_at - now)}"


def _replicas(seen: Seen) -> dict[ModelName, ReplicaFact]:
    """The replica that serves or will serve a model: the one its status names, else the newest."""
    found: dict[ModelName, ReplicaFact] = {}
    for fact in (fact for report in seen.reports.values() for fact in report.replicas):
        status, before = seen.explained.get(fact.model), found.get(fact.model)
        named = None if status is None else status.replica

        def rank(one: ReplicaFact, named: ReplicaId | None = named) -> tuple[bool, float]:
            return one.id == named, one.since

        if before is None or rank(fact) > rank(before):
            found[fact.model] = fact
    return found


def _state(seen: Seen, name: ModelName) -> ModelState:
    status = seen.explained.get(name)
    return ModelState.LOADING if status is None else status.state


def _settled(seen: Seen) -> bool:
    """Whether waiting would make more models ready: a catalog is in force and none is on its way."""
    if seen.applied is None or seen.stopped is not None:
        return False
    for name in seen.models:
        status = seen.explained.get(name)
        if status is None or (status.state is ModelState.LOADING and status.attempts <= _HOPEFUL):
            return False
    return True


def _loads_when_asked(seen: Seen, name: ModelName) -> bool:
    return seen.models[name].scaling.on_demand and _state(seen, name) is ModelState.INACTIVE


def _ready_line(url: str, seen: Seen, serving: Sequence[ModelName], asked: Sequence[ModelName]) -> str:
    if not seen.models:
        return f"ready: {url}/v1 (the catalog has no models)"
    if not serving:
        these = (
            "its model, which loads when it is" if len(asked) == 1 else f"{len(asked)} models, which load when they are"
        )
        return f"ready: {url}/v1 serves {these} asked for{_names(asked)}"
    if len(serving) < len(seen.models):
        return f"ready: {url}/v1 serves {len(serving)} of {len(seen.models)} models{_names(serving)}"
    return f"ready: {url}/v1 serves {count(len(serving), 'model')}{_names(serving)}"


def _names(names: Sequence[str]) -> str:
    """`: a, b, c and 4 more`, or nothing."""
    if not names:
        return ""
    return ": " + ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _chats(seen: Seen, model: ModelName) -> bool:
    """Whether it does, as far as anybody knows."""
    told = seen.explained.get(model)
    return told is None or told.surfaces is None or "chat/completions" in told.surfaces


def _curl(url: str, model: ModelName) -> str:
    body = {
        "model": model,
        "temperature": 0,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    }
    return f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{json.dumps(body)}'"
