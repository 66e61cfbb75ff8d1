"""What every kind of weights source must do. For plugin authors:

CASE = SourceCase(source=MySource(), spec=WeightsSpec(source="my://place/small-file"))

@pytest.mark.parametrize("check", SOURCE_CHECKS, ids=lambda check: check.__name__)
async def test_my_source(check, tmp_path):
    await check(CASE, tmp_path)
"""

import asyncio
import hashlib
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from llmgw.catalog.spec import WeightsSpec
from llmgw.engine.loading import check_source
from llmgw.errors import WeightsError
from llmgw.weights import naming
from llmgw.weights.api import Description, Fetched, WeightSource

WITHIN: Final = 30.0
"""Seconds for one answer, and for a cancelled fetch to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCase:
    """`spec`: something small that the source has. `missing`: a source that it does not have, where it can tell."""

    source: WeightSource
    spec: WeightsSpec
    missing: str | None = None

    @property
    def canonical(self) -> WeightsSpec:
        return replace(self.spec, source=self.source.canonical(self.spec.source))


class Desk:
    """The `Work` of one fetch, which keeps what it is told."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = directory / "entry" / "files"
        self.files.mkdir(parents=True, exist_ok=True)
        self.expected: list[int] = []
        self.told: list[tuple[int | None, int | None]] = []
        self.is_resumable = False
        self.paced = 0
        self.stop_after: int | None = None
        """Bytes after which the fetch is held until it is cancelled."""
        self.held = threading.Event()

    def resumable(self) -> None:
        self.is_resumable = True

    def expect(self, size: int, *, here: int = 0) -> None:
        self.expected.append(size)

    def tell(self, done: int | None, total: int | None) -> None:
        self.told.append((done, total))

    def portion(self, most: int) -> int:
        return most

    def pace(self, count: int, stop: threading.Event) -> None:
        self.paced += count
        if self.stop_after is not None and self.paced >= self.stop_after:
            self.held.set()
            stop.wait(WITHIN)


async def check_the_contract(case: SourceCase, directory: Path) -> None:
    check_source(case.source)


async def check_a_canonical_source_is_a_fixed_point(case: SourceCase, directory: Path) -> None:
    once = case.source.canonical(case.spec.source)
    assert case.source.canonical(once) == once
    assert once.isprintable()
    assert once.partition("://")[0] in case.source.schemes, f"{once} is of none of its schemes"
    assert naming.canonical(once) == once


async def check_what_is_no_source_is_refused_with_advice(case: SourceCase, directory: Path) -> None:
    for scheme in sorted(case.source.schemes):
        try:
            found = case.source.canonical(f"{scheme}://")
        except ValueError as error:
            said = str(error)
        else:
            raise AssertionError(f"{scheme}:// was taken for a source: {found}")
        assert said, "the error says nothing"


async def check_it_tells_what_it_holds_and_writes_nothing(case: SourceCase, directory: Path) -> None:
    described = await _described(case)
    paths = [file.path for file in described.files]
    assert paths
    assert len(set(paths)) == len(paths)
    for path in paths:
        parts = path.split("/")
        assert "" not in parts, f"{path!r} is no path relative to the entry"
        assert ".." not in parts, f"{path!r} leads out of the entry"
    assert all(file.size is None or file.size >= 0 for file in described.files)
    assert list(directory.rglob("*")) == []


async def check_what_is_resolved_moves_no_more(case: SourceCase, directory: Path) -> None:
    canonical, described = case.canonical, await _described(case)
    if described.resolved is None:
        assert not case.source.is_moving(canonical.source), "what moves is to be resolved by `describe`"
        return
    resolved = described.resolved
    assert case.source.canonical(resolved) == resolved
    assert not case.source.is_moving(resolved)
    assert not naming.is_moving(resolved), f"{resolved} does not end in @ and a commit or digest"
    assert naming.stem(resolved) in (canonical.source, naming.stem(canonical.source))
    again = await case.source.describe(replace(canonical, source=resolved))
    assert again.resolved == resolved
    assert again.files == described.files


async def check_it_brings_what_it_tells_of(case: SourceCase, directory: Path) -> None:
    if case.source.in_place:
        return
    described = await _described(case)
    desk = Desk(directory)
    fetched = await _fetched(case, desk, described)
    _same(desk, fetched, described)
    size = sum(file.size for file in fetched.files)
    assert not desk.expected or desk.expected[-1] == size, "`expect` was told another size"
    assert desk.expected or described.size is None, "`expect` is to be called before the first byte"


async def check_a_cancelled_fetch_ends_and_is_gone_on_with(case: SourceCase, directory: Path) -> None:
    if case.source.in_place:
        return
    described = await _described(case)
    desk = Desk(directory)
    desk.stop_after = 1
    task = asyncio.ensure_future(_fetched(case, desk, described))
    held = asyncio.ensure_future(asyncio.to_thread(desk.held.wait, WITHIN))
    await asyncio.wait({task, held}, return_when=asyncio.FIRST_COMPLETED)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=WITHIN)
    desk.held.set()
    await held
    assert done, "it does not end when it is cancelled"
    before = desk.paced
    await asyncio.sleep(0.05)
    assert desk.paced == before, "it goes on after it was cancelled"
    if not desk.is_resumable:
        return
    again = Desk(directory)
    fetched = await _fetched(case, again, described)
    _same(again, fetched, described)


async def check_what_it_does_not_have_is_refused_by_name(case: SourceCase, directory: Path) -> None:
    if case.missing is None:
        return
    spec = replace(case.spec, source=case.source.canonical(case.missing))
    try:
        async with asyncio.timeout(WITHIN):
            await case.source.describe(spec)
            if not case.source.in_place:
                await case.source.fetch(spec, Desk(directory))
    except WeightsError as error:
        said = str(error)
    else:
        raise AssertionError(f"{spec.source} was found")
    named = naming.stem(spec.source).rpartition("/")[2]
    assert named in said, f"it does not name the source: {said}"


async def _described(case: SourceCase) -> Description:
    async with asyncio.timeout(WITHIN):
        return await case.source.describe(case.canonical)


async def _fetched(case: SourceCase, desk: Desk, described: Description) -> Fetched:
    """At the revision that was told of."""
    spec = case.canonical if described.resolved is None else replace(case.canonical, source=described.resolved)
    return await case.source.fetch(spec, desk)


def _same(desk: Desk, fetched: Fetched, described: Description) -> None:
    assert [file.path for file in fetched.files] == [f"files/{file.path}" for file in described.files]
    assert fetched.folder == described.folder
    for file, told in zip(fetched.files, described.files, strict=True):
        path = desk.directory / "entry" / file.path
        assert path.is_file()
        assert not path.is_symlink()
        data = path.read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file.size, file.sha256)
        assert told.size in (None, file.size), f"{file.path}: it told of {told.size} bytes"
        assert told.sha256 in (None, file.sha256)
    there = {path for path in desk.files.rglob("*") if not path.is_dir()}
    assert there == {desk.directory / "entry" / file.path for file in fetched.files}, "there is more than it told of"


Check = Callable[[SourceCase, Path], Awaitable[None]]

SOURCE_CHECKS: Final[tuple[Check, ...]] = (
    check_the_contract,
    check_a_canonical_source_is_a_fixed_point,
    check_what_is_no_source_is_refused_with_advice,
    check_it_tells_what_it_holds_and_writes_nothing,
    check_what_is_resolved_moves_no_more,
    check_it_brings_what_it_tells_of,
    check_a_cancelled_fetch_ends_and_is_gone_on_with,
    check_what_it_does_not_have_is_refused_by_name,
)
