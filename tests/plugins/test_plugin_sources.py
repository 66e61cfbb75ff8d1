"""Plugins that bring weights sources: used as llmgw's own are, and kept from hurting anybody."""

import sys
import textwrap
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from llmgw.catalog.load import load_catalog
from llmgw.catalog.source import Source
from llmgw.catalog.spec import WeightsSpec
from llmgw.clock import SystemClock
from llmgw.engine.manager import Engines, PluginState, find_engines
from llmgw.errors import CatalogInvalid, WeightsRefused
from llmgw.units import Bytes
from llmgw.weights.cache import Cache

GOOD = """
    import hashlib
    from llmgw.engine import *

    class Letters(WeightSource):
        schemes = frozenset({"letters"})

        def canonical(self, text):
            letter, _, count = text.partition("://")[2].partition("/")
            if len(letter) != 1 or not count.isdecimal():
                raise ValueError(f"{text!r}: write letters://LETTER/COUNT")
            return f"letters://{letter}/{int(count)}"

        async def describe(self, spec):
            return Description(files=(RemoteFile(path="letters", size=3),))

        async def fetch(self, spec, work):
            (work.files / "letters").write_bytes(b"aaa")
            digest = hashlib.sha256(b"aaa").hexdigest()
            return Fetched(files=(ManifestFile(path="files/letters", size=3, sha256=digest),))

    @hookimpl
    def llmgw_weight_sources():
        return [Letters()]
"""
MODEL = """\
apiVersion: llmgw/v1
kind: Model
name: m
profiles: [{name: p, engine: cpu, weights: {source: "SOURCE"}}]
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "modules"
    path.mkdir()
    monkeypatch.syspath_prepend(str(path))
    before = set(sys.modules)
    yield path
    for name in set(sys.modules) - before:
        if name.startswith("plug_"):
            del sys.modules[name]


def found(directory: Path, **modules: str) -> Engines:
    """The engines and sources with these modules as plugins beside llmgw's own `cpu`."""
    for name, text in modules.items():
        (directory / f"plug_{name}.py").write_text(textwrap.dedent(text))
    points = [EntryPoint(name=name, value=f"plug_{name}", group="llmgw") for name in modules]
    points.append(EntryPoint(name="cpu", value="llmgw_cpu", group="llmgw"))
    return find_engines(points, cache=directory / "verdicts.json")


def load(engines: Engines, source: str) -> str:
    text = MODEL.replace("SOURCE", source).encode()
    loaded = load_catalog(Source(files={"m.yaml": text}), engines.rules(), canonical=engines.canonical)
    weights = loaded.catalog.models["m"].profiles[0].weights  # type: ignore[index]
    assert weights is not None
    return weights.source


async def test_a_plugins_source_is_spelt_fetched_and_listed_as_any_other(directory: Path, tmp_path: Path) -> None:
    engines = found(directory, letters=GOOD)
    (fact,) = [fact for fact in engines.plugins if fact.name == "letters"]
    assert (fact.state, fact.sources, fact.engines, fact.api_version) == (PluginState.OK, ("letters",), (), 1)
    source = load(engines, "LETTERS://a/003")
    assert source == "letters://a/3"
    cache = Cache(tmp_path / "cache", cluster_id="c", clock=SystemClock(), sources=engines.sources)
    cache.open()
    spec = WeightsSpec(source=source)
    path = await cache.fetch(spec, reserve=Bytes(0), progress=lambda _: None)
    assert path.read_bytes() == b"aaa"
    assert cache.locate(spec) == path


def test_a_source_that_no_plugin_brings_is_refused_with_a_near_name(directory: Path) -> None:
    engines = found(directory, letters=GOOD)
    with pytest.raises(CatalogInvalid, match=r"no source of kind leters://; did you mean 'letters'\?"):
        load(engines, "leters://a/3")
    with pytest.raises(CatalogInvalid, match="write letters://LETTER/COUNT"):
        load(engines, "letters://a/b")


async def test_what_a_broken_plugin_brings_is_accepted_and_says_why_it_waits(directory: Path, tmp_path: Path) -> None:
    engines = found(directory, letters=GOOD.replace("[Letters()]", "[Letters(), Letters()]"))
    assert load(engines, "hf://o/r/x.gguf") == "hf://o/r/x.gguf"
    assert load(engines, "letters://a/003") == "letters://a/003"
    cache = Cache(tmp_path / "cache", cluster_id="c", clock=SystemClock(), sources=engines.sources)
    cache.open()
    why = "nothing here can fetch letters://a/3: plugin letters is broken: it brings the source 'letters' twice"
    with pytest.raises(WeightsRefused, match=why):
        await cache.fetch(WeightsSpec(source="letters://a/3"), reserve=Bytes(0), progress=lambda _: None)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("return [Letters()]", "return [Letters]"), "returned the class Letters"),
        (("return [Letters()]", "return None"), "llmgw_weight_sources returned None"),
        (("return [Letters()]", "return ['x']"), "sources derive from llmgw.engine.WeightSource"),
        (("return [Letters()]", "return [Letters(), Letters()]"), "it brings the source 'letters' twice"),
        (('frozenset({"letters"})', '"letters"'), "Letters.schemes is str"),
        (('frozenset({"letters"})', 'frozenset({"Letters"})'), "in lower case"),
        (('frozenset({"letters"})', 'frozenset({"letters"})\n        api_version = 9'), "update llmgw"),
        (("def llmgw_weight_sources", "def llmgw_weight_source"), "unknown hook"),
    ],
)
def test_a_source_that_breaks_the_contract_is_told_to_its_author(
    directory: Path, change: tuple[str, str], reason: str
) -> None:
    engines = found(directory, letters=GOOD.replace(*change))
    (fact,) = [fact for fact in engines.plugins if fact.name == "letters"]
    assert fact.state is PluginState.BROKEN
    assert reason in fact.reason
    assert "https" in engines.sources


def test_nobody_takes_the_place_of_one_of_llmgws_own_sources(directory: Path) -> None:
    greedy = GOOD.replace('frozenset({"letters"})', 'frozenset({"letters", "https"})')
    engines = found(directory, greedy=greedy)
    (fact,) = [fact for fact in engines.plugins if fact.name == "greedy"]
    assert (fact.state, fact.sources) == (PluginState.CLASH, ("letters",))
    assert "its source 'https' is left out: the plugin 'llmgw' brings one of that name" in fact.reason
    assert type(engines.sources["https"]).__name__ == "Web"
    assert type(engines.sources["letters"]).__name__ == "Letters"
