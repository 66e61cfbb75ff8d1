"""What a replica holds: the search on engines whose behaviour is known, in made-up time."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_time import LoopClock, run

from llmgw.cli.benching import too_late
from llmgw.cli.capacity import Sample, Step, Target, Verdict, best, is_lost, judge, next_at_once, percentile
from llmgw.cli.engine_client import Count, EngineLost, Text
from llmgw.cli.load import Loading, Prompts, one, watched
from llmgw.cli.measure import BenchFailed, Limits, measure, missed

TARGET = Target(ttft=2.0, itl=0.1)


@dataclass
class Engine:
    """Answers as it is told: `first` and `between` are seconds, given the requests in it; `slots`: others wait."""

    first: Callable[[int], float] = lambda running: 0.2
    between: Callable[[int], float] = lambda running: 0.01
    tokens: int = 20
    slots: int = 1000
    refuses_above: int = 1000
    counts: bool = False
    prompts: list[str] = field(default_factory=list)
    running: int = 0
    most: int = 0
    _free: asyncio.Semaphore | None = None

    async def ask(self, prompt: str) -> AsyncGenerator[Text | Count, None]:
        self.prompts.append(prompt)
        if self._free is None:
            self._free = asyncio.Semaphore(self.slots)
        if self.running >= self.refuses_above:
            raise EngineLost("too many requests")
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            async with self._free:
                await asyncio.sleep(self.first(self.running))
                yield Text("a")
                for _ in range(self.tokens - 1):
                    await asyncio.sleep(self.between(self.running))
                    yield Text("b")
            if self.counts:
                yield Count(len(prompt.split()) + 10, 3 * self.tokens)
        finally:
            self.running -= 1


def measured(engine: Engine, *, most: int = 256, target: Target = TARGET) -> tuple[Step, ...]:
    async def work() -> tuple[Step, ...]:
        limits = Limits(target=target, most=most, max_tokens=engine.tokens)
        return await measure(
            engine.ask,
            Prompts(16, seed=1),
            limits,
            LoopClock(),
            told=lambda step: None,
            progress=lambda *figures: None,
            check=lambda: asyncio.sleep(0),
        )

    return run(work())


def step(at_once: int, *, held: bool) -> Step:
    return Step(
        at_once=at_once,
        requests=1,
        failed=0,
        ttft_p50=None,
        ttft_p95=None,
        itl_p50=None,
        itl_p95=None,
        tokens_per_second=0.0,
        verdict=Verdict.HELD if held else Verdict.TTFT,
    )


def test_an_engine_that_slows_down_with_each_request_holds_what_its_gaps_allow() -> None:
    steps = measured(Engine(between=lambda running: 0.0099 * running))
    assert [each.at_once for each in steps] == [1, 2, 4, 8, 16, 12, 10, 11]
    held = best(steps)
    assert held is not None
    assert held.at_once == 10
    assert held.itl_p95 == pytest.approx(0.099)
    assert {each.verdict for each in steps if each.at_once > 10} == {Verdict.ITL}


def test_an_engine_whose_first_tokens_wait_holds_what_that_allows() -> None:
    steps = measured(Engine(first=lambda running: 0.35 * running))
    held = best(steps)
    assert held is not None
    assert held.at_once == 5
    assert next(each for each in steps if each.at_once == 8).verdict is Verdict.TTFT


def test_requests_beyond_the_slots_wait_for_their_first_token() -> None:
    engine = Engine(slots=4, tokens=100, between=lambda running: 0.05)
    held = best(measured(engine, target=Target(ttft=0.5, itl=0.1)))
    assert held is not None
    assert held.at_once == 4


def test_what_holds_at_the_most_is_not_tried_beyond() -> None:
    steps = measured(Engine(), most=12)
    assert [each.at_once for each in steps] == [1, 2, 4, 8, 12]
    assert all(each.held for each in steps)


def test_as_many_requests_are_in_the_engine_as_the_step_says() -> None:
    engine = Engine()
    assert measured(engine, most=7)[-1].at_once == 7
    assert engine.most == 7
    assert engine.running == 0


def test_tokens_a_second_are_those_of_all_requests_together() -> None:
    one_at_a_time, *_, eight = measured(Engine(first=lambda running: 0.01, tokens=100), most=8)
    assert one_at_a_time.tokens_per_second == pytest.approx(100, rel=0.05)
    assert eight.tokens_per_second == pytest.approx(800, rel=0.05)


def test_an_engine_that_sends_several_tokens_at_once_is_counted_by_its_own_count() -> None:
    step = measured(Engine(first=lambda running: 0.01, tokens=100, counts=True), most=1)[0]
    assert step.tokens_per_second == pytest.approx(300, rel=0.05)


def test_no_two_prompts_begin_alike() -> None:
    engine = Engine()
    measured(engine, most=16)
    assert len({prompt[:5] for prompt in engine.prompts}) == len(engine.prompts)


def test_prompts_become_as_long_as_was_asked_by_the_engines_count() -> None:
    prompts = Prompts(256, seed=3)
    for _ in range(2):
        prompts.settle(len(prompts.next().split()) + 40)
    assert len(prompts.next().split()) + 40 == pytest.approx(256, abs=2)
    short = Prompts(1, seed=3)
    short.settle(30)
    assert len(short.next().split()) == 2


def test_a_target_that_one_request_misses_is_told_with_its_figure() -> None:
    steps = measured(Engine(first=lambda running: 3.0))
    assert [each.at_once for each in steps] == [1]
    assert missed(steps, TARGET) == (
        "the target is missed with one request at a time: 3 s to the first token, and 2 s are allowed (--ttft)"
    )
    slow = measured(Engine(between=lambda running: 0.25))
    assert "0.25 s between tokens, and 0.1 s are allowed (--itl)" in (missed(slow, TARGET) or "")
    assert missed(measured(Engine(), most=1), TARGET) is None


def test_a_step_that_is_lost_is_ended_early() -> None:
    steps = measured(Engine(first=lambda running: 0.1 if running < 30 else 20.0))
    lost = next(each for each in steps if each.at_once == 32)
    assert lost.requests < 2 * 32
    assert lost.verdict is Verdict.TTFT


def test_requests_that_are_refused_under_load_end_the_search_there() -> None:
    steps = measured(Engine(refuses_above=6))
    held = best(steps)
    assert held is not None
    assert held.at_once == 6
    refused = next(each for each in steps if each.at_once == 8)
    assert (refused.verdict, refused.error) == (Verdict.ERRORS, "too many requests")


def test_an_engine_that_fails_one_request_alone_cannot_be_measured() -> None:
    with pytest.raises(BenchFailed, match="one at a time: too many requests"):
        measured(Engine(refuses_above=0))


def test_an_engine_that_does_not_stream_cannot_be_measured() -> None:
    with pytest.raises(BenchFailed, match="in one piece"):
        measured(Engine(tokens=1))


def test_an_engine_that_hangs_is_given_up_after_a_while() -> None:
    async def work() -> Sample:
        engine = Engine(first=lambda running: 1e9)
        return await one(engine.ask, "x", LoopClock(), 30.0, lambda: None)

    sample = run(work())
    assert (sample.ttft, sample.error) == (None, "no first token within 30 s")
    assert sample.took == pytest.approx(30)


def test_what_goes_wrong_in_the_check_ends_the_measuring() -> None:
    async def gone() -> None:
        raise BenchFailed("the replica is gone")

    async def work() -> None:
        await measure(
            Engine().ask,
            Prompts(4, seed=1),
            Limits(target=TARGET),
            LoopClock(),
            told=lambda step: None,
            progress=lambda *figures: None,
            check=gone,
        )

    with pytest.raises(BenchFailed, match="gone"):
        run(work())


def test_an_interrupt_breaks_every_request_off() -> None:
    engine = Engine(tokens=10**6)

    async def work() -> None:
        loading = Loading(ask=engine.ask, prompts=Prompts(4, 1), clock=LoopClock(), target=TARGET, at_once=20, spread=1)
        task = asyncio.ensure_future(loading.run())
        await asyncio.sleep(5)
        assert engine.running == 20
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.running == 0

    run(work())


def test_a_process_that_is_late_itself_finds_that_out() -> None:
    async def work() -> list[float]:
        async with watched() as late:
            for _ in range(5):
                await asyncio.sleep(0.01)
                time.sleep(0.03)  # so is a machine that is too busy
        return late

    late = asyncio.run(work())
    assert max(late) > 0.01
    assert "was late by" in (too_late(late, Limits(target=Target(ttft=2, itl=0.01))) or "")
    assert too_late(late, Limits(target=Target(ttft=2000, itl=1000))) is None
    assert too_late([], Limits(target=TARGET)) is None


@given(st.integers(0, 500), st.integers(1, 500))
def test_the_search_ends_at_the_border_to_a_sixteenth(border: int, most: int) -> None:
    steps: list[Step] = []
    while (at_once := next_at_once(steps, most)) is not None:
        assert 1 <= at_once <= most
        assert at_once not in {each.at_once for each in steps}
        steps.append(step(at_once, held=at_once <= border))
    held = best(steps)
    found, right = (held.at_once if held else 0), min(border, most)
    assert found <= right <= found + max(1, found // 16)
    assert found == right or right < most or right > 16
    assert len(steps) <= 20


def test_what_holds_above_something_that_did_not_is_not_believed() -> None:
    steps = [step(1, held=True), step(2, held=False), step(4, held=True)]
    held = best(steps)
    assert held is not None
    assert held.at_once == 1


@pytest.mark.parametrize(("share", "found"), [(0.5, 50), (0.95, 95), (0.0, 1), (1.0, 100)])
def test_a_percentile_is_a_value_that_occurred(share: float, found: int) -> None:
    assert percentile(range(1, 101), share) == found
    assert percentile([], share) is None


@given(st.lists(st.builds(Sample, ttft=st.sampled_from([None, 0.1, 9.0]), error=st.sampled_from([None, "no"]))))
def test_a_step_that_was_given_up_is_never_judged_as_held(samples: list[Sample]) -> None:
    if is_lost(samples, max(20, len(samples)), TARGET):
        assert not judge(4, samples, 1.0, TARGET).held
