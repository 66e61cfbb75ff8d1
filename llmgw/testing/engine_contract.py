"""What an engine says, without its process: llmgw acts on it, so it has to be of use."""

import difflib
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import jsonschema

from llmgw.engine import Engine, EngineFact, Exit, Level, WeightsFact, returned
from llmgw.engine.api import KEY_VARIABLE
from llmgw.engine.guarded import LONG, QUICK
from llmgw.testing.engine_process import EngineCase, slot_for
from llmgw.units import Bytes, Wall
from llmgw.weights.folder import read_metadata
from llmgw.weights.manifest import metadata_of

T = TypeVar("T")

_NAMED: Final = ("properties", "patternProperties", "$defs")
"""Keywords of a schema that hold schemas by names of the author's."""


async def check_options_schema_is_valid_and_accepts_the_profile(case: EngineCase, directory: Path) -> None:
    schema = case.engine.options_schema
    jsonschema.Draft202012Validator.check_schema(schema)
    judge = jsonschema.Draft202012Validator(schema)
    judge.validate(dict(case.profile.options))
    assert schema.get("additionalProperties") is False, "a misspelt option must be an error"
    for name, option in schema.get("properties", {}).items():
        assert option.get("description"), f"option {name} has no description"
    for where, part in _schemas(schema):
        if "default" in part:
            wrong = next(judge.evolve(schema=part).iter_errors(part["default"]), None)
            assert wrong is None, f"the default of {where or 'options'} is refused by its own schema: {wrong.message}"


async def check_fingerprint_is_quick_and_usable(case: EngineCase, directory: Path) -> None:
    fact = asked("fingerprint", case.engine.fingerprint, lambda value: returned.typed(value, EngineFact), LONG)
    assert fact.name == case.engine.name, f"fingerprint: it is of {fact.name!r}, not of {case.engine.name!r}"
    assert fact.why is None, fact.why


async def check_its_methods_return_what_they_promise(case: EngineCase, directory: Path) -> None:
    engine, profile, files = case.engine, case.profile, facts_of(case.files)
    complaints = asked("check", lambda: engine.check(profile), returned.complaints, LONG)
    assert not complaints, f"check: it complains of the profile that it is tried with: {complaints}"
    asked("footprint", lambda: engine.footprint(profile, {}, Level.FULL), returned.footprint)  # as before a fetch
    asked("footprint", lambda: engine.footprint(profile, files, Level.FULL), returned.footprint)
    for level in (Level.DEGRADED, Level.MINIMAL):
        asked("shrink", lambda level=level: engine.shrink(profile, level), returned.profile)  # type: ignore[misc]
    asked("load", lambda: engine.load(profile), returned.load_request)
    asked("surfaces", lambda: engine.surfaces(profile), returned.surfaces)
    asked("request_slots", lambda: engine.request_slots(profile), returned.slots)
    for request in asked("probes", lambda: engine.probes(profile), returned.requests):
        # As a server answers that is not there yet.
        asked("read_probe", lambda request=request: engine.read_probe(request, 503, b""), returned.readiness)  # type: ignore[misc]


async def check_launch_is_pure_and_hides_the_key(case: EngineCase, directory: Path) -> None:
    before = sorted(directory.rglob("*"))
    slot = slot_for(case, directory, 9)
    launch = lambda: case.engine.launch(case.profile, slot, Level.FULL)  # noqa: E731
    first, second = (asked("launch", launch, returned.launch_spec, LONG) for _ in range(2))
    assert first == second, f"launch: it returned {first}, and then {second}"
    assert sorted(directory.rglob("*")) == before, "launch: it wrote files"
    assert not first.url.endswith("/"), f"launch: the url {first.url} ends in a slash"
    assert KEY_VARIABLE not in first.env, f"launch: {KEY_VARIABLE} is set by llmgw"


async def check_an_exit_nobody_asked_for_is_a_failure(case: EngineCase, directory: Path) -> None:
    for exit in (Exit(code=0), Exit(code=1), Exit(signal=9), Exit()):
        verdict = case.engine.classify(exit, "")
        asked("classify", lambda verdict=verdict: verdict, returned.verdict)  # type: ignore[misc]
        assert verdict.reason, f"no reason for {exit}"
        assert "\n" not in verdict.reason, f"a reason of several lines for {exit}"
        assert not verdict.port_clash, f"{exit} is taken for a port that was lost"


async def check_no_method_is_misspelt(case: EngineCase, directory: Path) -> None:
    """One that is called as nearly as one of the seam's, which is left as it is, is never called."""
    kind = type(case.engine)
    own = {name for each in kind.__mro__ if not issubclass(Engine, each) for name in vars(each)}
    for name in sorted(own - set(dir(Engine))):
        if not name.startswith("_") and inspect.isfunction(getattr(kind, name, None)):
            near = difflib.get_close_matches(name, sorted(set(dir(Engine)) - own), n=1, cutoff=0.85)
            assert not near, f"{kind.__name__}.{name} is never called: did you mean {near[0]}? Else begin it with _"


def facts_of(files: Mapping[str, Path]) -> dict[str, WeightsFact]:
    """What llmgw would know of those that are there."""
    return {role: _fact(path) for role, path in files.items() if path.exists()}


def _fact(path: Path) -> WeightsFact:
    size = path.stat().st_size if path.is_file() else sum(each.stat().st_size for each in path.rglob("*"))
    metadata = metadata_of(path) if path.is_file() else read_metadata(path)
    return WeightsFact(source=f"file://{path}", entry=None, size=Bytes(size), last_wanted=Wall(0), metadata=metadata)


def asked(method: str, ask: Callable[[], object], judge: Callable[[object], T], within: float = QUICK) -> T:
    """What a method says, held against `judge`, which raises TypeError, and its time in seconds."""
    began = time.monotonic()
    value = ask()
    took = time.monotonic() - began
    assert took < within, f"{method}: it took {took:.1f} s, and has {within:g} s"
    try:
        return judge(value)
    except TypeError as error:
        raise AssertionError(f"{method}: {error}") from error


def _schemas(schema: Any, where: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each part of a schema that judges a value, with the place of that value."""
    if not isinstance(schema, Mapping):
        return
    yield where, schema
    for keyword, value in schema.items():
        if keyword in _NAMED and isinstance(value, Mapping):
            for name, part in value.items():
                yield from _schemas(part, f"{where}.{name}".strip("."))
        elif keyword in ("items", "additionalProperties", "contains", "not", "if", "then", "else"):
            yield from _schemas(value, f"{where}[]" if keyword == "items" else where)
        elif keyword in ("allOf", "anyOf", "oneOf", "prefixItems") and isinstance(value, list | tuple):
            for part in value:
                yield from _schemas(part, where)
