"""A third party's engine under guard: what it gets wrong stays where it is known whose it is."""

import inspect
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmgw.catalog.rules import Complaint
from llmgw.catalog.spec import ProfileSpec
from llmgw.engine.api import Engine, HttpRequest, LaunchSpec, Slot, Verdict, declared_surfaces
from llmgw.engine.guarded import guarded
from llmgw.engine.loading import BadPlugin, check_engine
from llmgw.facts import EngineFact, EngineLoad, Exit, FailureKind, Footprint, Level, WeightsFact
from llmgw.ids import EngineName, ModelName, NodeName, ProfileName, ReplicaId
from llmgw.units import Bytes

PROFILE = ProfileSpec(name=ProfileName("p"), engine=EngineName("acme"), context=4097)
SLOT = Slot(
    replica=ReplicaId("r"), model=ModelName("m"), node=NodeName("n"), host="127.0.0.1", port=9, directory=Path("/r")
)


class Plain(Engine):
    """Does what it has to."""

    name = EngineName("acme")
    needs_weights = False

    def fingerprint(self) -> EngineFact:
        return EngineFact(name=self.name, version="1")

    def footprint(self, profile: ProfileSpec, files: Mapping[str, WeightsFact], level: Level) -> Footprint | None:
        return Footprint(host=Bytes(5))

    def launch(self, profile: ProfileSpec, slot: Slot, level: Level) -> LaunchSpec:
        return LaunchSpec(argv=["acme", "--port", str(slot.port)], url=f"http://{slot.host}:{slot.port}")


ASKED: dict[str, Callable[[Engine], Any]] = {
    "check": lambda engine: engine.check(PROFILE),
    "fingerprint": lambda engine: engine.fingerprint(),
    "footprint": lambda engine: engine.footprint(PROFILE, {}, Level.FULL),
    "shrink": lambda engine: engine.shrink(PROFILE, Level.DEGRADED),
    "launch": lambda engine: engine.launch(PROFILE, SLOT, Level.FULL),
    "probes": lambda engine: engine.probes(PROFILE),
    "read_probe": lambda engine: engine.read_probe(HttpRequest(path="/health"), 200, b""),
    "load": lambda engine: engine.load(PROFILE),
    "read_load": lambda engine: engine.read_load(200, b""),
    "read_load_of": lambda engine: engine.read_load_of(PROFILE, 200, b""),
    "classify": lambda engine: engine.classify(Exit(code=1), ""),
    "surfaces": lambda engine: engine.surfaces(PROFILE),
    "request_slots": lambda engine: engine.request_slots(PROFILE),
}


def engine_that(method: str, does: Callable[[], Any]) -> Engine:
    made = type("Acme", (Plain,), {method: lambda self, *arguments: does()})
    return guarded(made(), quick=0.2, long=0.2, rest=0.05)


def test_every_method_of_an_engine_is_guarded() -> None:
    methods = {name for name, _ in inspect.getmembers(Engine, inspect.isfunction)}
    assert methods == set(ASKED)
    guard = type(guarded(Plain())).__mro__[1]
    assert methods == {name for name in vars(guard) if not name.startswith("_")}


@pytest.mark.parametrize("method", ASKED)
def test_a_good_engine_answers_as_without_a_guard(method: str) -> None:
    plain = ASKED[method](Plain())
    found = ASKED[method](guarded(Plain()))
    if method == "launch":
        assert list(found.argv) == list(plain.argv)
        assert found.url == plain.url
    else:
        assert found == plain


def test_what_an_engine_says_of_itself_stays() -> None:
    class Other(Plain):
        options_schema = {"type": "object"}  # noqa: RUF012 - as plugins write it
        roles = frozenset({"weights", "voice"})

        def surfaces(self, profile: ProfileSpec) -> frozenset[str]:
            return frozenset({"audio/speech"})

    found = guarded(Other())
    assert (found.name, found.api_version, found.needs_weights) == ("acme", 1, False)
    assert (found.options_schema, found.roles) == (Other.options_schema, Other.roles)
    assert declared_surfaces(found, PROFILE) == ("audio/speech",)
    assert declared_surfaces(guarded(Plain()), PROFILE) is None, "an engine that does not say serves what it is asked"


WRONG: list[tuple[str, Any, str]] = [
    ("fingerprint", EngineFact(name=EngineName("acme"), version=2.0), "Expected `str | null`, got `float`"),  # type: ignore[arg-type]
    ("fingerprint", EngineFact(name=EngineName("acme"), path=Path("/opt/acme")), "PosixPath"),  # type: ignore[arg-type]
    ("fingerprint", EngineFact(name=EngineName("acme"), version="\udcff"), "surrogates not allowed"),
    ("fingerprint", None, "it returned None: an EngineFact was expected"),
    ("footprint", Footprint(host=Bytes(7 * 1.1)), "Expected `int`, got `float`"),  # type: ignore[arg-type]
    ("footprint", Footprint(host=float("nan")), "Footprint that cannot be read"),  # type: ignore[arg-type]
    ("footprint", Footprint(host=Bytes(-1)), "less than 0 bytes"),
    ("footprint", Footprint(host=Decimal(5)), "got `str`"),  # type: ignore[arg-type]
    ("footprint", 5, "it returned 5: a Footprint was expected"),
    ("shrink", msgspec.structs, "a ProfileSpec was expected"),
    ("launch", None, "it returned None: a LaunchSpec was expected"),
    ("launch", LaunchSpec(argv="acme --port 9", url="http://h:9"), "its argv is 'acme --port 9': a list of text"),
    ("launch", LaunchSpec(argv=[], url="http://h:9"), "its argv is []: a list of text"),
    ("launch", LaunchSpec(argv=["acme", 9], url="http://h:9"), "its argv[1] is 9: text was expected"),  # type: ignore[list-item]
    ("launch", LaunchSpec(argv=["acme"], url="h:9"), "its url is 'h:9': write http://HOST:PORT"),
    ("launch", LaunchSpec(argv=["acme"], url="http://h:9", env={"PORT": 9}), "its env 'PORT' is 9"),  # type: ignore[dict-item]
    ("launch", LaunchSpec(argv=["acme"], url="http://h:9", key_file="/r/key"), "its key_file is '/r/key'"),  # type: ignore[arg-type]
    ("launch", LaunchSpec(argv=["acme"], url="http://h:9", stop_argv="acme stop"), "its stop_argv is 'acme stop'"),
    ("probes", HttpRequest(path="/health"), "a sequence of HttpRequests was expected"),
    ("probes", [HttpRequest(path="health")], "a path begins with a slash"),
    ("probes", [HttpRequest(path="/x", body="text")], "with the body 'text': bytes were expected"),  # type: ignore[arg-type]
    ("read_probe", True, "it returned True: a Readiness was expected"),
    ("read_probe", "ready", "it returned 'ready': a Readiness was expected"),
    ("load", "/load", "it returned '/load': a HttpRequest was expected"),
    ("read_load", EngineLoad(running="2", waiting=0), "got `str`"),  # type: ignore[arg-type]
    ("read_load_of", EngineLoad(running=None, waiting=0), "got `null`"),  # type: ignore[arg-type]
    ("read_load", EngineLoad(running=-1, waiting=0), "less than 0 requests"),
    ("classify", "out of memory", "it returned 'out of memory': a Verdict was expected"),
    ("classify", Verdict(kind="boom", reason="x"), "Invalid enum value 'boom'"),  # type: ignore[arg-type]
    ("surfaces", "embeddings", "it returned 'embeddings': a sequence of paths was expected"),
    ("surfaces", {"/v1/embeddings"}, "a path under /v1/ was expected, such as 'embeddings'"),
    ("request_slots", "4", "it returned '4': a number of requests"),
    ("request_slots", 2.5, "it returned 2.5: a number of requests"),
    ("check", None, "it returned None: a sequence of Complaints"),
    ("check", ["no"], "it returned 'no': a Complaint was expected"),
    ("check", [Complaint(path="options", message="no")], "write ('options', 'threads')"),
]


@pytest.mark.parametrize(("method", "value", "why"), WRONG)
def test_what_nobody_could_use_is_refused_saying_what_was_expected(method: str, value: Any, why: str) -> None:
    with pytest.raises(TypeError) as caught:
        ASKED[method](engine_that(method, lambda: value))
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_smaller_profile_whose_figures_are_no_whole_numbers_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Expected `int`, got `float` - at `\$.context`"):
        ASKED["shrink"](engine_that("shrink", lambda: replace(PROFILE, context=PROFILE.context / 2)))  # type: ignore[arg-type]


def test_paths_in_a_command_line_are_text_to_its_process() -> None:
    spec = LaunchSpec(argv=[Path("/opt/acme"), "x"], url="http://h:9", env={"HOME": Path("/r")})  # type: ignore[list-item, dict-item]
    found = ASKED["launch"](engine_that("launch", lambda: spec))
    assert (found.argv, found.env) == (("/opt/acme", "x"), {"HOME": "/r"})


def test_a_reason_is_one_line_and_no_book() -> None:
    long = Verdict(kind=FailureKind.OOM, reason="no\nmemory " + "x" * 100_000)
    found = ASKED["classify"](engine_that("classify", lambda: long))
    assert found.reason.startswith("no memory xxx")
    assert len(found.reason) == 1000


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize("method", ASKED)
@pytest.mark.parametrize("error", [Unprintable(), SystemExit(3), StopIteration()], ids=lambda each: type(each).__name__)
def test_whatever_it_raises_can_be_told(method: str, error: BaseException) -> None:
    def raises() -> None:
        raise error

    with pytest.raises(RuntimeError, match=type(error).__name__):
        ASKED[method](engine_that(method, raises))


def test_what_it_raises_otherwise_stays_as_it_is() -> None:
    def raises() -> None:
        raise KeyError("weights")

    with pytest.raises(KeyError, match="weights"):
        ASKED["launch"](engine_that("launch", raises))


def test_a_method_that_does_not_return_is_given_up_on_and_not_called_again_while_it_hangs() -> None:
    go, calls = threading.Event(), list[int]()

    def hangs() -> Footprint:
        calls.append(1)
        go.wait(20)
        return Footprint(host=Bytes(1))

    engine = engine_that("footprint", hangs)
    try:
        with pytest.raises(TimeoutError, match=r"it did not return within 0.2 s"):
            ASKED["footprint"](engine)
        time.sleep(0.06)  # its rest is over, and it hangs yet
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="not asked again for a while"):
            ASKED["footprint"](engine)
        assert time.monotonic() - began < 0.2, "it was not waited for once more"
        assert ASKED["probes"](engine), "its other methods are asked"
    finally:
        go.set()
    assert calls == [1]
    while True:  # as soon as it returned
        try:
            assert ASKED["footprint"](engine) == Footprint(host=Bytes(1))
            break
        except TimeoutError:
            time.sleep(0.01)


async def launches_later(self: Engine, profile: ProfileSpec, slot: Slot, level: Level) -> LaunchSpec:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("method", "made", "why"),
    [
        ("launch", launches_later, "Acme.launch is async: llmgw calls it as a plain function"),
        ("launch", lambda self, profile, slot: None, r"Acme.launch cannot be called with \(profile, slot, level\)"),
        ("classify", lambda self, exit, log_tail, *, more: None, "Acme.classify cannot be called with"),
        ("probes", (HttpRequest(path="/health"),), "Acme.probes is tuple"),
    ],
)
def test_a_method_that_cannot_be_called_is_found_when_its_plugin_is_tried(method: str, made: Any, why: str) -> None:
    engine = type("Acme", (Plain,), {method: made})()
    with pytest.raises(BadPlugin, match=why):
        check_engine(engine)


def test_a_method_may_name_its_parameters_as_it_likes_and_take_more() -> None:
    def footprint(self: Engine, one: ProfileSpec, two: object, three: Level, more: int = 0, **others: object) -> None:
        return None

    check_engine(type("Acme", (Plain,), {"footprint": footprint, "shrink": lambda self, *arguments: None})())
