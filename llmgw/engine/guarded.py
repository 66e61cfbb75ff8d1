"""A third party's engine or source, as the rest of llmgw gets it: its methods return what they promise, or raise.

Most of an engine's are called where nothing else goes on meanwhile, requests of other models included. One that waits
for something, a network say, would hold up everything: it is called in a thread, and given up on.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from inspect import get_annotations
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from llmgw.catalog.rules import Complaint
from llmgw.catalog.spec import ProfileSpec, WeightsSpec
from llmgw.engine import returned
from llmgw.engine.api import Engine, HttpRequest, LaunchSpec, Readiness, Slot, Verdict
from llmgw.errors import WeightsRefused
from llmgw.facts import EngineFact, EngineLoad, Exit, Footprint, Level, WeightsFact
from llmgw.weights.api import Description, Fetched, WeightSource, Work

T = TypeVar("T")

QUICK: Final = 2.0
"""Seconds that a method has which only reckons: everything waits for it. Such a one takes microseconds."""
LONG: Final = 10.0
"""Seconds for those that are called in worker threads, `check`, `launch` and `classify`: a launch may write files."""
REST: Final = 60.0
"""Seconds for which a method that took longer is not called again."""


def guarded(engine: Engine, *, quick: float = QUICK, long: float = LONG, rest: float = REST) -> Engine:
    """The engine under guard. It raises TimeoutError where a method takes too long, TypeError where it returned what it
    must not, RuntimeError for what raises no Exception or has no text; whatever else the plugin raises as it is."""
    kind = type(engine)
    same: dict[str, object] = {
        "name": engine.name,
        "api_version": engine.api_version,
        "options_schema": engine.options_schema,
        "needs_weights": engine.needs_weights,
        "roles": engine.roles,
    }
    if kind.surfaces is Engine.surfaces:  # it says nothing of what it serves, which is not the same as saying this
        same["surfaces"] = Engine.surfaces
    made: Engine = type(kind.__name__, (_Guarded,), same)(engine, quick, long, rest)
    return made


def guarded_source(source: WeightSource) -> WeightSource:
    """The source under guard. `canonical` raises ValueError and `is_moving` nothing, whatever the plugin does; what the
    others return in vain is a WeightsRefused, and what they raise is left as it is."""
    own = {name: getattr(source, name) for name in get_annotations(WeightSource)}
    made: WeightSource = type(type(source).__name__, (_GuardedSource,), own)(source)
    return made


class _GuardedSource(WeightSource):
    def __init__(self, source: WeightSource) -> None:
        self._source = source

    def canonical(self, text: str) -> str:
        try:
            found = _plainly(lambda: self._source.canonical(text))
            if not isinstance(found, str):
                raise TypeError(f"it returned {returned.shown(found)}: text was expected")
            return found
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(
                f"{text!r}: its plugin fails at it ({returned.said(error)}): correct the plugin"
            ) from error

    def is_moving(self, source: str) -> bool:
        try:
            return bool(self._source.is_moving(source))
        except (Exception, SystemExit):  # noqa: BLE001 - a plugin's failure, whatever it is, stays its own
            return False

    async def describe(self, spec: WeightsSpec) -> Description:
        return _kept(spec, "describe", returned.description, await self._source.describe(spec))

    async def fetch(self, spec: WeightsSpec, work: Work) -> Fetched:
        return _kept(spec, "fetch", returned.fetched, await self._source.fetch(spec, work))


def _kept(spec: WeightsSpec, method: str, judge: Callable[[object], T], value: object) -> T:
    try:
        return judge(value)
    except TypeError as error:
        raise WeightsRefused(f"{spec.source}: its plugin fails at {method}: {error}") from error


class _Guarded(Engine):
    def __init__(self, engine: Engine, quick: float, long: float, rest: float) -> None:
        self._engine = engine
        self._quick, self._long, self._rest = quick, long, rest
        self._methods: dict[str, _Method] = {}

    def check(self, profile: ProfileSpec) -> Sequence[Complaint]:
        return returned.complaints(self._asked("check", profile, within=self._long))

    def fingerprint(self) -> EngineFact:
        # Whoever asks bounds it: it may run programs.
        return returned.typed(_plainly(self._engine.fingerprint), EngineFact)

    def footprint(self, profile: ProfileSpec, files: Mapping[str, WeightsFact], level: Level) -> Footprint | None:
        return returned.footprint(self._asked("footprint", profile, files, level))

    def shrink(self, profile: ProfileSpec, level: Level) -> ProfileSpec | None:
        return returned.profile(self._asked("shrink", profile, level))

    def launch(self, profile: ProfileSpec, slot: Slot, level: Level) -> LaunchSpec:
        return returned.launch_spec(self._asked("launch", profile, slot, level, within=self._long))

    def probes(self, profile: ProfileSpec) -> Sequence[HttpRequest]:
        return returned.requests(self._asked("probes", profile))

    def read_probe(self, request: HttpRequest, status: int, body: bytes) -> Readiness:
        return returned.readiness(self._asked("read_probe", request, status, body))

    def load(self, profile: ProfileSpec) -> HttpRequest | None:
        return returned.load_request(self._asked("load", profile))

    def read_load_of(self, profile: ProfileSpec, status: int, body: bytes) -> EngineLoad | None:
        return returned.load(self._asked("read_load_of", profile, status, body))

    def read_load(self, status: int, body: bytes) -> EngineLoad | None:
        return returned.load(self._asked("read_load", status, body))

    def classify(self, exit: Exit, log_tail: str) -> Verdict:
        return returned.verdict(self._asked("classify", exit, log_tail, within=self._long))

    def surfaces(self, profile: ProfileSpec) -> frozenset[str]:
        return returned.surfaces(self._asked("surfaces", profile))

    def request_slots(self, profile: ProfileSpec) -> int | None:
        return returned.slots(self._asked("request_slots", profile))

    def _asked(self, method: str, *arguments: Any, within: float | None = None) -> Any:
        patience = self._methods.get(method)
        if patience is None:
            name = f"plugin {self.name}: {method}"
            patience = self._methods.setdefault(method, _Method(name, within or self._quick, self._rest))
        asked = getattr(self._engine, method)
        return patience.call(lambda: asked(*arguments))


class _Method:
    """Calls of one method, each in a thread that does not keep the process from ending."""

    def __init__(self, name: str, within: float, rest: float) -> None:
        self._name = name
        self._within = within
        self._rest = rest
        self._late: threading.Thread | None = None  #: of the last call that took too long
        self._rests_until = 0.0  #: by the monotonic clock

    def call(self, work: Callable[[], T]) -> T:
        """What it returns or raises. Raises TimeoutError in the end."""
        if self._late is not None:
            if self._late.is_alive() or time.monotonic() < self._rests_until:
                raise TimeoutError(f"it took longer than {self._within:g} s, and is not asked again for a while")
            self._late = None
        answers: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

        def run() -> None:
            try:
                answers.put((_plainly(work), None))
            except Exception as error:  # noqa: BLE001 - raised anew where it is waited for
                answers.put((None, error))

        thread = threading.Thread(target=run, name=self._name, daemon=True)
        thread.start()
        try:
            found, error = answers.get(timeout=self._within)
        except Empty:
            self._late, self._rests_until = thread, time.monotonic() + self._rest
            raise TimeoutError(f"it did not return within {self._within:g} s") from None
        if error is not None:
            raise error
        return found  # type: ignore[return-value]


def _plainly(work: Callable[[], T]) -> T:
    """With nothing raised but what everybody can handle: an Exception that has a text."""
    try:
        return work()
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration) and _has_text(error):
            raise
        raise RuntimeError(returned.said(error)) from error


def _has_text(error: Exception) -> bool:
    try:
        return isinstance(str(error), str) and isinstance(repr(error), str)
    except Exception:  # noqa: BLE001 - a plugin's own, whose __str__ may do anything
        return False
