"""Engines that were ready and no longer are: those that hang, and those that only say that they are well."""

import asyncio
import os
import signal
import socket
import time
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from agent_world import Node, alive, eventually, pids_in
from hypothesis import given
from hypothesis import strategies as st

from llmgw.agent import process
from llmgw.agent.pulse import GAP, LOOKS, Pulse, Signs
from llmgw.agent.timing import Timing
from llmgw.facts import FailureKind, Phase
from llmgw.units import Mono, Seconds, Wall

SOON = Timing(look_used=0.05, look_idle=0.05, look_timeout=0.2, hang_after=0.8, probe_every=0.2, probe_again=0.05)
NEVER = 3600.0


@pytest.fixture
def watched(node: Node) -> Node:
    """A node whose agent looks often and has little patience."""
    node.timing = SOON
    return node


def decoded(node: Node) -> int:
    """How often the engine was asked for a token."""
    return len((node.home() / "decoded").read_text())


# -- hangs


async def test_an_engine_that_answers_nothing_and_does_nothing_hangs_and_is_ended(watched: Node) -> None:
    async with watched.agent():
        _, fact = await watched.ready()
        os.kill(fact.pid, signal.SIGSTOP)
        failure = (await watched.until(Phase.FAILED)).failure
        assert failure is not None
        assert failure.kind is FailureKind.HANG
        assert "answered nothing for 0.8s" in failure.reason
        assert pids_in(watched.state.root) == []


async def test_one_that_has_no_load_to_tell_is_asked_for_its_health(watched: Node) -> None:
    async with watched.agent():
        _, fact = await watched.ready(options={"mute": True})
        await asyncio.sleep(2 * SOON.hang_after)
        assert (await watched.fact()).phase is Phase.READY
        os.kill(fact.pid, signal.SIGSTOP)
        failure = (await watched.until(Phase.FAILED)).failure
        assert failure is not None
        assert failure.kind is FailureKind.HANG


async def test_a_long_prompt_that_keeps_an_engine_from_answering_is_no_hang(watched: Node) -> None:
    async with watched.agent():
        _, fact = await watched.ready(args=("alone",))
        (watched.home() / "prompt").touch()
        await watched.use(seen=0, outstanding={"r1": 1})
        await eventually(lambda: process.spent(fact.pid).cpu > 1.0, "at work")
        began = time.monotonic()
        while time.monotonic() < began + 4 * SOON.hang_after:
            assert (await watched.fact()).phase is Phase.READY, watched.story()
            await asyncio.sleep(0.1)
        (watched.home() / "prompt").unlink()
        await watched.use(seen=0)
        await asyncio.sleep(SOON.hang_after)
        assert (await watched.fact()).pid == fact.pid


async def test_an_engine_whose_bytes_still_reach_clients_is_no_hang(watched: Node) -> None:
    """Its processes may be where their processor time cannot be seen: in a container, say."""
    async with watched.agent():
        _, fact = await watched.ready()
        os.kill(fact.pid, signal.SIGSTOP)
        for second in range(12):
            await watched.use(seen=0, outstanding={"r1": 1}, heard=100.0 + second)
            await asyncio.sleep(0.2)
            assert (await watched.fact()).phase is Phase.READY, watched.story()
        assert (await watched.until(Phase.FAILED)).failure.kind is FailureKind.HANG  # they come no more


async def test_an_engine_that_runs_elsewhere_is_not_ended_while_a_request_is_in_flight(watched: Node) -> None:
    """A container's client does nothing, however hard the container works at a prompt."""
    async with watched.agent():
        _, fact = await watched.ready(options={"stop": ("true",)})
        await watched.use(seen=0, outstanding={"r1": 1})
        os.kill(fact.pid, signal.SIGSTOP)
        await asyncio.sleep(3 * SOON.hang_after)
        assert (await watched.fact()).phase is Phase.READY
        await watched.use(seen=0)
        assert (await watched.until(Phase.FAILED)).failure.kind is FailureKind.HANG


async def test_an_engine_that_was_held_for_a_moment_goes_on(watched: Node) -> None:
    async with watched.agent():
        _, fact = await watched.ready()
        os.kill(fact.pid, signal.SIGSTOP)
        await asyncio.sleep(SOON.hang_after / 2)
        os.kill(fact.pid, signal.SIGCONT)
        await asyncio.sleep(2 * SOON.hang_after)
        assert (await watched.fact()).pid == fact.pid
        assert (await watched.fact()).phase is Phase.READY


async def test_an_engine_that_hangs_while_it_is_evicted_is_not_waited_for(watched: Node) -> None:
    """Its eviction would be given up and decided on again for ever: what it hangs at is never finished."""
    async with watched.agent():
        assignment, fact = await watched.ready()
        published = await watched.publish()
        await watched.use(seen=published, outstanding={"r1": 1})
        os.kill(fact.pid, signal.SIGSTOP)
        await watched.stop(replace(assignment, drain_timeout=Seconds(600)), eviction=True)
        await watched.until(Phase.DRAINING)
        await watched.until(Phase.STOPPED)
        assert "ended while draining" in watched.reasons()


async def test_an_eviction_that_is_given_up_does_not_begin_the_wait_for_a_hang_anew(watched: Node) -> None:
    watched.timing = replace(SOON, hang_after=3.0)
    async with watched.agent():
        assignment, fact = await watched.ready()
        published = await watched.publish()
        await watched.use(seen=published, outstanding={"r1": 1})
        os.kill(fact.pid, signal.SIGSTOP)
        evicting = replace(assignment, drain_timeout=Seconds(1.0))
        async with asyncio.timeout(60):
            while (await watched.fact()).phase not in (Phase.STOPPED, Phase.FAILED):
                await watched.stop(evicting, eviction=True)
                await asyncio.sleep(0.7)
                await watched.assign(evicting)
                await asyncio.sleep(0.1)


def looks(pulse: Pulse, *at: tuple[float, Signs]) -> list[bool]:
    return [pulse.unanswered(Mono(now), signs) for now, signs in at]


STILL = Signs(cpu=5.0, faults=3)


def test_silence_for_long_enough_is_a_hang_and_an_answer_ends_it() -> None:
    pulse = Pulse(100.0)
    assert looks(pulse, (0, STILL), (40, STILL), (80, STILL), (110, STILL)) == [False, False, False, True]
    pulse.answered()
    assert not pulse.silent
    assert looks(pulse, (150, STILL), (190, STILL), (230, STILL), (249, STILL)) == [False] * 4


def test_a_few_looks_prove_nothing_however_far_apart() -> None:
    assert LOOKS > 2
    pulse = Pulse(50.0)
    assert looks(pulse, (0, STILL), (30, STILL), (59, STILL)) == [False] * 3


def test_time_in_which_llmgw_itself_did_not_run_does_not_count() -> None:
    pulse = Pulse(100.0)
    assert looks(pulse, (0, STILL), (30, STILL), (60, STILL)) == [False] * 3
    after = 60 + GAP + 1
    assert looks(pulse, (after, STILL), (after + 30, STILL), (after + 60, STILL), (after + 99, STILL)) == [False] * 4
    assert looks(pulse, (after + 101, STILL)) == [True]


def test_threads_that_only_look_at_a_clock_are_no_progress() -> None:
    pulse = Pulse(100.0)
    ticking = [(float(now), Signs(cpu=now * 0.002)) for now in range(0, 120, 10)]
    assert looks(pulse, *ticking)[-1]


@pytest.mark.parametrize("sign", ["cpu", "faults", "heard"])
def test_any_sign_of_progress_begins_the_wait_anew(sign: str) -> None:
    pulse = Pulse(100.0)
    then, more = Signs(cpu=1.0, faults=1, heard=Wall(1)), {"cpu": 20.0, "faults": 2, "heard": Wall(9)}[sign]
    moved = replace(then, **{sign: more})
    assert looks(pulse, (0, then), (40, then), (80, then), (99, moved), (140, moved), (180, moved)) == [False] * 6
    assert looks(pulse, (200, moved)) == [True]


def test_a_worker_that_ended_takes_its_time_with_it_and_what_is_left_counts_anew() -> None:
    pulse = Pulse(100.0)
    assert looks(pulse, (0, Signs(cpu=90)), (40, Signs(cpu=10)), (80, Signs(cpu=30))) == [False] * 3
    assert looks(pulse, (110, Signs(cpu=30)), (150, Signs(cpu=30))) == [False] * 2, "it worked at 80"
    assert looks(pulse, (190, Signs(cpu=30))) == [True]


@given(st.lists(st.tuples(st.floats(0.1, 50), st.floats(0.02, 1.0)), max_size=40))
def test_an_engine_that_always_takes_some_time_is_never_ended(steps: list[tuple[float, float]]) -> None:
    pulse, now, cpu = Pulse(60.0), 0.0, 0.0
    for seconds, share in steps:
        now, cpu = now + seconds, cpu + max(seconds, 1.0) * share
        assert not pulse.unanswered(Mono(now), Signs(cpu=cpu))


# -- probes


async def test_an_engine_whose_health_is_fine_and_that_cannot_decode_is_ended(watched: Node) -> None:
    async with watched.agent():
        await watched.ready(options={"decodes": True})
        (watched.home() / "sick").touch()
        failure = (await watched.until(Phase.FAILED)).failure
        assert failure is not None
        assert failure.kind is FailureKind.CRASH
        assert "POST /decode: 500 no more" in failure.reason
        assert watched.reasons().count("probe failed") == 2
        assert pids_in(watched.state.root) == []


async def test_one_that_never_answers_its_probe_hangs(watched: Node) -> None:
    async with watched.agent():
        await watched.ready(options={"decodes": True})
        (watched.home() / "deaf").touch()
        failure = (await watched.until(Phase.FAILED)).failure
        assert failure is not None
        assert failure.kind is FailureKind.HANG


async def test_a_probe_that_fails_twice_and_then_not_is_no_failure(watched: Node) -> None:
    watched.timing = replace(SOON, probe_again=0.3)
    async with watched.agent():
        _, fact = await watched.ready(options={"decodes": True})
        for _ in range(2):
            (watched.home() / "sick").touch()
            told = watched.reasons().count("probe failed")
            await eventually(lambda told=told: watched.reasons().count("probe failed") == told + 2, "two failed")
            (watched.home() / "sick").unlink()
            before = decoded(watched)
            await eventually(lambda before=before: decoded(watched) > before + 1, "probed again")
        assert (await watched.fact()).pid == fact.pid
        assert alive(fact.pid)


@pytest.mark.parametrize("who", ["gateway", "engine"])
async def test_an_engine_with_a_request_in_flight_is_never_probed(watched: Node, who: str) -> None:
    async with watched.agent():
        await watched.ready(options={"decodes": True})
        await eventually(lambda: decoded(watched) > 2, "probed while idle")
        if who == "gateway":
            await watched.use(seen=0, outstanding={"r1": 1})
        else:
            (watched.home() / "busy").touch()
        await asyncio.sleep(0.3)
        before = decoded(watched)
        await asyncio.sleep(5 * SOON.probe_every)
        assert decoded(watched) == before


async def test_a_probe_makes_way_for_a_request_and_does_not_count(watched: Node) -> None:
    async with watched.agent():
        _, fact = await watched.ready(options={"decodes": True})
        for _ in range(4):
            (watched.home() / "deaf").touch()
            before = decoded(watched)
            await eventually(lambda before=before: decoded(watched) > before, "a probe is under way")
            await watched.use(seen=0, outstanding={"r1": 1})
            await asyncio.sleep(0.4)
            (watched.home() / "deaf").unlink()
            await watched.use(seen=0)
        assert "probe failed" not in watched.reasons()
        assert (await watched.fact()).pid == fact.pid


async def test_requests_that_went_wrong_are_followed_by_a_probe_soon(watched: Node) -> None:
    watched.timing = replace(SOON, probe_every=NEVER)
    async with watched.agent():
        await watched.ready(options={"decodes": True})
        await asyncio.sleep(0.5)
        assert decoded(watched) == 1  # the one that it became ready by
        await watched.use(seen=0, outstanding={"r1": 0}, failures=1)
        await eventually(lambda: decoded(watched) == 2, "probed")
        await asyncio.sleep(0.5)
        assert decoded(watched) == 2  # once for each piece of news


async def test_an_engine_in_use_is_not_probed_for_as_long_again_after_its_last_answer(watched: Node) -> None:
    watched.timing = replace(SOON, probe_every=1.0)
    async with watched.agent():
        await watched.ready(options={"decodes": True})
        for second in range(12):
            await watched.use(seen=0, outstanding={"r1": 0}, heard=50.0 + second)
            await asyncio.sleep(0.25)
        assert decoded(watched) == 1
        await eventually(lambda: decoded(watched) > 1, "probed once it is idle")


async def test_an_engine_without_work_to_be_probed_with_has_its_health_looked_at(watched: Node) -> None:
    async with watched.agent():
        await watched.ready()
        await asyncio.sleep(3 * SOON.probe_every)
        (watched.home() / "ill").touch()
        failure = (await watched.until(Phase.FAILED)).failure
        assert failure is not None
        assert "GET /health: 503" in failure.reason


async def test_what_was_removed_is_asked_nothing_more_whoever_has_its_port_now(watched: Node) -> None:
    async with watched.agent():
        assignment, fact = await watched.ready(options={"decodes": True})
        await eventually(lambda: decoded(watched) > 2, "probed while it is there")
        await watched.stop(assignment)
        await watched.until(Phase.STOPPED)
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", urlsplit(fact.url or "").port or 0))
            other.listen()
            other.setblocking(False)
            await watched.unassign()
            await watched.until_gone()
            await asyncio.sleep(5 * SOON.probe_every)
            with pytest.raises(BlockingIOError):
                other.accept()
