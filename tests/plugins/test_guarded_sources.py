"""A third party's weights source under guard: what it gets wrong stays its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmgw.catalog.spec import WeightsSpec
from llmgw.clock import SystemClock
from llmgw.engine import Description, Fetched, ManifestFile, RemoteFile, WeightSource, Work
from llmgw.engine.guarded import guarded_source
from llmgw.engine.loading import BadPlugin, check_source
from llmgw.errors import WeightsRefused
from llmgw.facts import Progress
from llmgw.units import Bytes
from llmgw.weights.cache import Cache

SPEC = WeightsSpec(source="letters://a/3")
SHA256 = "9834876dcfb05cb167a5c24953eba58c4ac89b1adf57f28f2f9d09af107ee8f0"  # of aaa


class Letters(WeightSource):
    schemes = frozenset({"letters"})
    peak = 2

    def canonical(self, text: str) -> str:
        return text.lower()

    async def describe(self, spec: WeightsSpec) -> Description:
        return Description(files=(RemoteFile(path="letters", size=3),))

    async def fetch(self, spec: WeightsSpec, work: Work) -> Fetched:
        work.expect(3)
        (work.files / "letters").write_bytes(b"aaa")
        work.tell(1.5, 3.0)  # type: ignore[arg-type] # as who divides does
        return Fetched(files=(ManifestFile(path="files/letters", size=3, sha256=SHA256),))


def source_that(method: str, does: Callable[..., Any]) -> WeightSource:
    return guarded_source(type("Letters", (Letters,), {method: does})())


async def returning(value: object) -> object:
    return value


def test_a_good_source_is_as_it_was() -> None:
    found = guarded_source(Letters())
    assert (found.schemes, found.peak, found.resumes, found.in_place) == (Letters.schemes, 2, False, False)
    assert found.canonical("LETTERS://a/3") == "letters://a/3"
    assert not found.is_moving("letters://a/3")


def _index_error(self: WeightSource, text: str) -> str:
    return text.split("/")[7]


def _exits(self: WeightSource, text: str) -> str:
    raise SystemExit(3)


def _no_text(self: WeightSource, text: str) -> Path:
    return Path("/x")


@pytest.mark.parametrize(
    ("does", "why"),
    [(_index_error, "IndexError: list index out of range"), (_exits, "SystemExit: 3"), (_no_text, "it returned Posix")],
)
def test_a_name_that_its_plugin_fails_at_is_a_fault_of_the_catalog_like_any(does: Callable[..., Any], why: str) -> None:
    with pytest.raises(ValueError, match=r"'letters://a': its plugin fails at it \(.*: correct the plugin") as caught:
        source_that("canonical", does).canonical("letters://a")
    assert why in str(caught.value)


def test_its_own_advice_stays() -> None:
    def refuses(self: WeightSource, text: str) -> str:
        raise ValueError("write letters://LETTER/COUNT")

    with pytest.raises(ValueError, match=r"^write letters://LETTER/COUNT$"):
        source_that("canonical", refuses).canonical("letters://a")


def test_what_fails_to_say_whether_it_moves_does_not() -> None:
    assert source_that("is_moving", _exits).is_moving("letters://a") is False


@pytest.mark.parametrize(
    ("method", "value", "why"),
    [
        ("describe", None, "it returned None: a Description was expected"),
        ("describe", Description(files=()), "at least one"),
        ("describe", Description(files=(RemoteFile(path="x", size=1.5),)), "Expected `int | null`, got `float`"),  # type: ignore[arg-type]
        ("describe", Description(files=(RemoteFile(path="x", size=-1),)), "sizes from 0 on"),
        ("fetch", [], "it returned []: a Fetched was expected"),
        ("fetch", Fetched(files=()), "at least one file was expected"),
        ("fetch", Fetched(files=(ManifestFile(path=Path("files/x"), size=3, sha256=SHA256),)), "PosixPath"),  # type: ignore[arg-type]
    ],
)
async def test_what_nobody_could_use_is_refused(method: str, value: object, why: str) -> None:
    source = source_that(method, lambda self, *arguments: returning(value))
    asked: Any = source.describe(SPEC) if method == "describe" else source.fetch(SPEC, None)  # type: ignore[arg-type]
    with pytest.raises(WeightsRefused, match=f"letters://a/3: its plugin fails at {method}: ") as caught:
        await asked
    assert why in str(caught.value)


async def test_how_far_it_is_is_told_in_whole_bytes(tmp_path: Path) -> None:
    cache = Cache(tmp_path, cluster_id="c", clock=SystemClock(), sources={"letters": guarded_source(Letters())})
    cache.open()
    told = list[Progress]()
    path = await cache.fetch(SPEC, reserve=Bytes(0), progress=told.append)
    assert path.read_bytes() == b"aaa"
    assert told
    assert all(isinstance(each.done, int) and isinstance(each.total, int | None) for each in told)


@pytest.mark.parametrize(
    ("method", "made", "why"),
    [
        ("canonical", Letters.describe, "Letters.canonical is async: llmgw calls it as a plain function"),
        ("fetch", lambda self, spec: None, r"Letters.fetch cannot be called with \(spec, work\)"),
    ],
)
def test_a_method_that_cannot_be_called_is_found_when_its_plugin_is_tried(method: str, made: Any, why: str) -> None:
    with pytest.raises(BadPlugin, match=why):
        check_source(type("Letters", (Letters,), {method: made})())
