"""Asks sources which commit their branches and tags are at, and how large they are, for a catalog to be put in force.

What moves is resolved once, when a document first names it; from then on that commit counts, across restarts, other
revisions and rollbacks, until it is asked anew on request. Sizes are asked beside, and nothing waits for them.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

import structlog

from llmgw.catalog.resolving import Resolution, Resolutions, at, files_of_model, resolutions_of, resolved
from llmgw.catalog.spec import Catalog, ModelSpec, WeightsSpec
from llmgw.clock import Clock
from llmgw.errors import WeightsError, WeightsUnavailable
from llmgw.facts import Event
from llmgw.ids import ModelName
from llmgw.memo import Once
from llmgw.reconcile.history import History
from llmgw.reconcile.workqueue import Trigger
from llmgw.store.api import Store
from llmgw.units import Bytes
from llmgw.weights.api import WeightSource

log = structlog.get_logger("llmgw.sync")

PATIENCE: Final = 10.0
"""Seconds that a catalog waits for what its moving sources are now."""

AGAIN: Final = 60.0
"""Seconds until a source that did not answer is asked again."""

REFUSED_AGAIN: Final = 900.0
"""The same, of one that refused: somebody may accept its terms meanwhile."""

_AT_ONCE: Final = 8


class Resolver:
    """`changed` is called when something was found out that a catalog lacked."""

    def __init__(
        self,
        sources: Mapping[str, WeightSource],
        *,
        store: Store,
        clock: Clock,
        record: Callable[[Event], None],
        changed: Callable[[], None],
        history: History | None = None,
    ) -> None:
        self._sources = sources
        self._history = history or History(store)
        self._clock = clock
        self._record = record
        self._changed = changed
        self._found: dict[str, Resolution] = {}  #: by this process, of what the newest documents name
        self._afresh: dict[str, Resolution] = {}  #: of these, what was asked anew and is not in force yet
        self._due: dict[str, float] = {}  #: when a source is asked again: monotonic seconds
        self._told: dict[str, str] = {}  #: what went wrong, as it was told
        self._wanted: dict[str, WeightsSpec] = {}  #: what to ask for, by the documents' name of it
        self._documents: Catalog | None = None  #: the newest
        self._asked_of = Once(self._files_to_ask_of)
        self._trigger = Trigger()
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def resolved(
        self, documents: Catalog, before: Catalog | None, *, afresh: bool = False, retry: bool = False
    ) -> Catalog:
        """`documents` with what its sources are at: as it was before in the same content, else as in the catalog
        `before` it, else now. `afresh`: what moves is asked anew, and keeps its commit where nobody answers. `retry`:
        also what failed a moment ago is asked."""
        files = {spec.source: spec for model in documents.models.values() for spec in self._asked_of(model)}
        self._documents = documents
        in_force = resolutions_of(before)
        self._found = {name: each for name, each in self._found.items() if name in files}
        self._afresh = {
            name: each
            for name, each in self._afresh.items()
            if name in files and (name not in in_force or in_force[name].source != each.source)
        }
        same = at(await self._history.same_content(documents.digest))
        known = _over(_over(in_force, same), self._afresh)
        known = _over(self._found, known)
        moving = [spec for spec in files.values() if self._is_moving(spec)]
        due = {spec.source for spec in moving if retry or self._is_due(spec.source)}
        asked = [spec for spec in moving if afresh or (_is_open(spec, known) and spec.source in due)]
        if asked:
            answers = await self._ask_now(asked)
            self._found = _over(self._found, answers)
            if afresh:
                self._afresh |= {name: each for name, each in answers.items() if each.source != name}
            known = _over(known, answers)
        self._wanted = {
            name: replace(spec, source=known[name].source if name in known else name)
            for name, spec in files.items()
            if self._lacks(spec, known)
        }
        self._trigger.set()
        return resolved(documents, known)

    async def run(self) -> None:
        """Ask for what is lacking, until cancelled."""
        while True:
            await self._trigger.wait(AGAIN if self._wanted else None)
            due = [(name, spec) for name, spec in self._wanted.items() if self._is_due(name)]
            found = dict(await asyncio.gather(*(self._ask(name, spec) for name, spec in due)))
            news = {name: each for name, each in found.items() if self._found.get(name) != each}
            self._found |= news
            if news:
                self._changed()

    async def _ask_now(self, asked: Iterable[WeightsSpec]) -> dict[str, Resolution]:
        tasks = {spec.source: asyncio.create_task(self._ask(spec.source, spec)) for spec in asked}
        try:
            done, late = await asyncio.wait(tasks.values(), timeout=PATIENCE)
        finally:
            for task in tasks.values():
                task.cancel()
        for name, task in tasks.items():
            if task in late:
                self._due[name] = self._clock.now().mono + AGAIN
        return dict(task.result() for task in done)

    async def _ask(self, name: str, spec: WeightsSpec) -> tuple[str, Resolution]:
        """What it tells, or why it does not; the latter is an event where it is new."""
        source = self._sources[_scheme(spec)]
        try:
            async with self._slots:
                found = await source.describe(spec)
        except WeightsError as error:
            passing = isinstance(error, WeightsUnavailable)
            self._due[name] = self._clock.now().mono + (AGAIN if passing else REFUSED_AGAIN)
            return name, Resolution(source=spec.source, trouble=self._tell(name, str(error)))
        except Exception as error:  # noqa: BLE001 - a plugin's failure, whatever it is, stays its own
            self._due[name] = self._clock.now().mono + REFUSED_AGAIN
            why = self._tell(name, f"{name}: its source failed ({type(error).__name__}: {error})")
            return name, Resolution(source=spec.source, trouble=why)
        self._told.pop(name, None)
        size = found.size
        if size is None:
            self._due[name] = float("inf")  # it cannot tell before a download
        return name, Resolution(source=found.resolved or spec.source, size=None if size is None else Bytes(size))

    def _tell(self, name: str, why: str) -> str:
        """Of each model that names the source, as long as it is the same trouble once."""
        if self._told.get(name) == why:
            return why
        self._told[name] = why
        log.info("source_not_asked", source=name, why=why)
        at_wall = self._clock.now().wall
        for model in _users(self._documents, name):
            self._record(Event(at=at_wall, subject=f"model/{model}", reason="source not told", message=why))
        return why

    def _files_to_ask_of(self, model: ModelSpec) -> tuple[WeightsSpec, ...]:
        """Those that move, or whose size no document says."""
        return tuple(spec for spec in files_of_model(model) if self._is_moving(spec) or self._lacks(spec, {}))

    def _is_due(self, name: str) -> bool:
        return self._due.get(name, 0.0) <= self._clock.now().mono

    def _is_moving(self, spec: WeightsSpec) -> bool:
        source = self._sources.get(_scheme(spec))
        return source is not None and source.is_moving(spec.source)

    def _lacks(self, spec: WeightsSpec, known: Resolutions) -> bool:
        source = self._sources.get(_scheme(spec))
        if source is None or source.in_place:
            return False
        if source.is_moving(spec.source) and _is_open(spec, known):
            return True
        return spec.size is None and (spec.source not in known or known[spec.source].size is None)


def _users(catalog: Catalog | None, source: str) -> list[ModelName]:
    """The models that name it."""
    models = () if catalog is None else catalog.models.values()
    return [model.name for model in models if any(spec.source == source for spec in files_of_model(model))]


def _scheme(spec: WeightsSpec) -> str:
    return spec.source.partition("://")[0]


def _is_open(spec: WeightsSpec, known: Resolutions) -> bool:
    return spec.source not in known or known[spec.source].source == spec.source


def _over(below: Resolutions, above: Resolutions) -> dict[str, Resolution]:
    """Both; where they differ what is `above` counts. A size that is known of the same revision stays known."""
    merged = {**below, **above}
    for name in below.keys() & above.keys():
        same, open_still = below[name].source == above[name].source, above[name].source == name
        if (same and above[name].size is None and above[name].trouble is None) or (open_still and not same):
            merged[name] = below[name]  # a size alone says nothing of the revision
        elif same and above[name].size is None:
            merged[name] = replace(above[name], size=below[name].size)
    return merged
