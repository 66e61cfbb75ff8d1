"""Engines with slots: no more at once than they have, the rest in a line that is fair among keys."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from gateway_rig import Asked, Rig, Wire, model, post, say, until
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.gateway.lines import Line
from llmgw.store import codec, keys
from llmgw.store.tokens import digest, new_token
from llmgw.store.values import ApiKey
from llmgw.units import Seconds, Wall


@dataclass
class Slots:
    """An engine that answers a request when it is told to, and counts how many it has at once."""

    now: int = 0
    most: int = 0
    order: list[str] = field(default_factory=list)
    doors: dict[str, asyncio.Event] = field(default_factory=dict)

    async def __call__(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = asked.json["user"]
        self.order.append(name)
        self.now += 1
        self.most = max(self.most, self.now)
        door = self.doors.setdefault(name, asyncio.Event())
        gone = asyncio.ensure_future(reader.read(1))
        opened = asyncio.ensure_future(door.wait())
        try:
            await asyncio.wait((gone, opened), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.now -= 1
            gone.cancel()
            opened.cancel()
        await asyncio.sleep(0)
        await say({"said": name})(asked, reader, writer)

    def answer(self, name: str) -> None:
        self.doors.setdefault(name, asyncio.Event()).set()


def queued(rig: Rig) -> float:
    return rig.metric("llmgw_gateway_queued", model="m")


async def serving(rig: Rig, slots: int | None, **settings: object) -> Slots:
    engine = Slots()
    await rig.catalog(model("m"), **settings)
    await rig.endpoint("m", (await rig.engine(engine)).url, slots=slots)
    return engine


async def asking(rig: Rig, name: str, path: str = "/v1/chat/completions", key: str = "") -> Wire:
    wire = await rig.wire()
    wire.send(post({"model": "m", "user": name}, path, f"Authorization: Bearer {key}\r\n" if key else ""))
    return wire


async def test_an_engine_gets_as_many_requests_as_it_has_slots_and_the_others_wait_for_their_turn(rig: Rig) -> None:
    engine = await serving(rig, 2)
    wires = {}
    for number, name in enumerate("abcde"):
        wires[name] = await asking(rig, name)
        await until(lambda n=number: engine.now + queued(rig) == n + 1, "arrival")  # type: ignore[misc]
    assert (engine.now, queued(rig)) == (2, 3)
    for name in "abcde":
        engine.answer(name)
        assert (await wires[name].answer()).json == {"said": name}
    assert engine.order == list("abcde")
    assert engine.most == 2
    assert queued(rig) == 0
    assert rig.metric("llmgw_gateway_queue_seconds_count", model="m") == 3
    assert rig.metric("llmgw_gateway_hold_seconds_count", model="m") == 0


async def test_an_endpoint_without_slots_gets_what_comes(rig: Rig) -> None:
    engine = await serving(rig, None)
    wires = [await asking(rig, name) for name in "abcd"]
    await until(lambda: engine.now == 4, "all of them")
    for name in "abcd":
        engine.answer(name)
    assert {(await wire.answer()).status for wire in wires} == {200}


async def test_a_client_that_leaves_the_line_costs_the_engine_nothing(rig: Rig) -> None:
    engine = await serving(rig, 1)
    first = await asking(rig, "a")
    await until(lambda: engine.now == 1, "the first")
    gone = await asking(rig, "gone")
    await until(lambda: queued(rig) == 1, "waiting")
    last = await asking(rig, "b")
    await until(lambda: queued(rig) == 2, "waiting")
    await gone.close()
    await until(lambda: queued(rig) == 1, "leaving")
    assert rig.metric("llmgw_gateway_cancelled_total", model="m") == 1
    engine.answer("a")
    engine.answer("b")
    assert ((await first.answer()).status, (await last.answer()).status) == (200, 200)
    assert engine.order == ["a", "b"]


async def test_a_client_that_leaves_while_its_slot_is_taken_gives_it_to_the_next(rig: Rig) -> None:
    engine = await serving(rig, 1)
    first = await asking(rig, "a")
    await until(lambda: engine.now == 1, "the first")
    second = await asking(rig, "b")
    await until(lambda: queued(rig) == 1, "waiting")
    await first.close()
    engine.answer("b")
    assert (await second.answer()).json == {"said": "b"}


async def test_a_line_that_is_full_turns_away_with_429_and_says_when_to_come_again(rig: Rig) -> None:
    engine = await serving(rig, 1, max_waiting=1)
    wires = [await asking(rig, "a")]
    await until(lambda: engine.now == 1, "the first")
    wires.append(await asking(rig, "b"))
    await until(lambda: queued(rig) == 1, "waiting")
    answer = await rig.post({"model": "m", "user": "c"})
    assert (answer.status, answer.code) == (429, "queue_full")
    assert answer.headers["retry-after"] == "5"  # nothing is known yet
    assert "1 requests already wait for model 'm', whose every slot is taken" in answer.json["error"]["message"]
    assert rig.metric("llmgw_gateway_turned_away_total", model="m") == 1
    for wire, name in zip(wires, "ab", strict=True):
        engine.answer(name)
        assert (await wire.answer()).status == 200
    line = rig.gateway._relay.lines["m"]  # type: ignore[union-attr,index]
    assert line.pace is not None
    assert line.pace < 20
    for pace, after in ((7.0, 7), (0.001, 1), (900.0, 60)):
        line.pace = pace
        assert rig.gateway._relay.busy_for("m") == after  # type: ignore[union-attr,arg-type]


async def test_the_wait_for_a_slot_ends_with_the_queue_timeout(rig: Rig) -> None:
    engine = await serving(rig, 1, queue_timeout=Seconds(0.2), cold_start_timeout=Seconds(300))
    first = await asking(rig, "a")
    await until(lambda: engine.now == 1, "the first")
    answer = await rig.post({"model": "m", "user": "b"})
    assert (answer.status, answer.code) == (429, "queue_full")
    assert "no slot of model 'm' became free in " in answer.json["error"]["message"]
    assert (queued(rig), engine.order) == (0, ["a"])
    engine.answer("a")
    assert (await first.answer()).status == 200


async def keyed(rig: Rig, *names: str) -> dict[str, str]:
    """A key for each name."""
    made = {}
    for name in names:
        id, token = new_token()
        key = ApiKey(id=id, name=name, digest=digest(token.encode()), created=Wall(1.0), by="x")
        await rig.store.put(keys.api_key(name), codec.encode(key))
        made[name] = token
    await rig.settle()
    return made


async def test_a_key_that_sends_many_requests_leaves_the_others_their_share(rig: Rig) -> None:
    engine = await serving(rig, 2)
    tokens = await keyed(rig, "greedy", "modest")
    wires: dict[str, Wire] = {}
    for number in range(6):
        wires[f"g{number}"] = await asking(rig, f"g{number}", key=tokens["greedy"])
        await until(lambda n=number: engine.now + queued(rig) == n + 1, "arrival")  # type: ignore[misc]
    for number in range(2):
        wires[f"m{number}"] = await asking(rig, f"m{number}", key=tokens["modest"])
        await until(lambda n=number: queued(rig) == 5 + n, "arrival")  # type: ignore[misc]
    for name in ("g0", "g1", "m0", "m1", "g2", "g3", "g4", "g5"):
        await until(lambda n=name: n in engine.order, name)  # type: ignore[misc]
        engine.answer(name)
        assert (await wires[name].answer()).status == 200
    assert engine.order == ["g0", "g1", "m0", "g2", "m1", "g3", "g4", "g5"]


async def test_counting_tokens_needs_no_slot(rig: Rig) -> None:
    engine = await serving(rig, 1)
    first = await asking(rig, "a")
    await until(lambda: engine.now == 1, "the first")
    engine.answer("t")
    counted = await asking(rig, "t", path="/tokenize")
    assert (await counted.answer()).json == {"said": "t"}
    engine.answer("a")
    assert (await first.answer()).status == 200


async def test_another_endpoint_takes_from_the_line_the_moment_that_it_is_there(rig: Rig) -> None:
    engine = await serving(rig, 1)
    first = await asking(rig, "a")
    await until(lambda: engine.now == 1, "the first")
    second = await asking(rig, "b")
    await until(lambda: queued(rig) == 1, "waiting")
    engine.answer("b")
    await rig.endpoint("m", (await rig.engine(engine)).url, id="another", slots=1)
    assert (await second.answer()).status == 200
    engine.answer("a")
    assert (await first.answer()).status == 200


async def test_more_slots_are_used_at_once(rig: Rig) -> None:
    engine = Slots()
    await rig.catalog(model("m"))
    url = (await rig.engine(engine)).url
    await rig.endpoint("m", url, slots=1)
    wires = [await asking(rig, name) for name in "abc"]
    await until(lambda: queued(rig) == 2, "waiting")
    await rig.endpoint("m", url, slots=2)
    await until(lambda: engine.now == 2, "a second slot")
    await rig.endpoint("m", url)
    await until(lambda: engine.now == 3, "no limit")
    for wire, name in zip(wires, "abc", strict=True):
        engine.answer(name)
        assert (await wire.answer()).status == 200
    assert queued(rig) == 0


async def test_a_busy_lower_tier_is_waited_for_and_one_that_is_gone_is_not(rig: Rig) -> None:
    engine = Slots()
    await rig.catalog(model("m"))
    low = await rig.endpoint("m", (await rig.engine(engine)).url, id="low", slots=1)
    other = Slots()
    await rig.endpoint("m", (await rig.engine(other)).url, id="high", slots=1, tier=1)
    first = await asking(rig, "a")
    await until(lambda: engine.now == 1, "the first")
    second = await asking(rig, "b")
    await until(lambda: queued(rig) == 1, "waiting")
    assert other.now == 0
    other.answer("b")
    await rig.withdraw(low)
    assert (await second.answer()).json == {"said": "b"}
    engine.answer("a")
    assert (await first.answer()).json == {"said": "a"}


async def test_who_waits_in_line_when_the_last_endpoint_goes_waits_for_the_model(rig: Rig) -> None:
    engine = Slots()
    await rig.catalog(model("m"))
    url = (await rig.engine(engine)).url
    endpoint = await rig.endpoint("m", url, slots=1)
    first = await asking(rig, "a")
    await until(lambda: engine.now == 1, "the first")
    second = await asking(rig, "b")
    await until(lambda: queued(rig) == 1, "waiting")
    await rig.withdraw(endpoint)
    assert (queued(rig), rig.metric("llmgw_gateway_held", model="m")) == (0, 1)
    engine.answer("a")
    assert (await first.answer()).status == 200
    engine.answer("b")
    await rig.endpoint("m", url, id="anew", slots=1)
    assert (await second.answer()).status == 200


async def test_a_request_whose_engine_is_lost_goes_before_those_that_have_not_begun(rig: Rig) -> None:
    doomed, other = Slots(), Slots()
    await rig.catalog(model("m"))
    lost = await rig.engine(doomed)
    await rig.endpoint("m", lost.url, id="lost", slots=1)
    first = await asking(rig, "a")
    await until(lambda: doomed.now == 1, "the first")
    await rig.endpoint("m", (await rig.engine(other)).url, id="other", slots=1)
    second = await asking(rig, "b")
    await until(lambda: other.now == 1, "the second")
    third = await asking(rig, "c")
    await until(lambda: queued(rig) == 1, "waiting")
    await lost.stop()
    await until(lambda: queued(rig) == 2, "coming back")
    for name in "bac":
        other.answer(name)
    assert [(await wire.answer()).status for wire in (first, second, third)] == [200, 200, 200]
    assert other.order == ["b", "a", "c"]


async def test_a_kept_connection_that_turns_out_to_be_closed_costs_nobody_his_turn(rig: Rig) -> None:
    engine, used = Slots(), set[asyncio.StreamWriter]()

    async def behave(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if writer in used:
            writer.close()
            return
        used.add(writer)
        await engine(asked, reader, writer)

    await rig.catalog(model("m"))
    await rig.endpoint("m", (await rig.engine(behave)).url, slots=1)
    wires = {}
    for number, name in enumerate("abcd"):
        wires[name] = await asking(rig, name)
        await until(lambda n=number: engine.now + queued(rig) == n + 1, "arrival")
    for name in "abcd":
        engine.answer(name)
        assert (await wires[name].answer()).json == {"said": name}
    assert engine.order == list("abcd")
    assert len(used) == 4


async def test_the_line_is_told_to_the_controller_as_what_waits(rig: Rig) -> None:
    engine = await serving(rig, 1)
    wires = [await asking(rig, name) for name in "abc"]
    await until(lambda: queued(rig) == 2, "waiting")
    while (usage := await rig.usage()) is None or usage.held != {"m": 2}:
        await asyncio.sleep(0.01)
    assert next(iter(usage.replicas.values())).outstanding == 1
    for wire, name in zip(wires, "abc", strict=True):
        engine.answer(name)
        assert (await wire.answer()).status == 200


async def test_a_gateway_that_closes_turns_away_who_waits_in_line(rig: Rig) -> None:
    engine = await serving(rig, 1)
    await asking(rig, "a")
    await until(lambda: engine.now == 1, "the first")
    second = await asking(rig, "b")
    await until(lambda: queued(rig) == 1, "waiting")
    closing = asyncio.ensure_future(rig.gateway.close())
    assert (await second.answer()).code == "shutting_down"
    await closing


async def test_two_hundred_clients_that_come_and_go_leave_nothing_behind(rig: Rig) -> None:
    most = Counter[str]()

    async def behave(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # By the gateway's count: what a client that left had begun, an engine goes on with for a moment.
        for target in rig.gateway._relay.targets.values():  # type: ignore[union-attr]
            most[target.id] = max(most[target.id], target.outstanding)
        await asyncio.sleep(0.001)
        await say({})(asked, reader, writer)

    await rig.catalog(model("m"))
    for name, slots in (("x", 1), ("y", 3)):
        await rig.endpoint("m", (await rig.engine(behave)).url, id=name, slots=slots)

    async def client(number: int) -> int:
        wire = await asking(rig, str(number))
        if number % 5 == 0:
            await asyncio.sleep(0.002 * (number % 7))
            await wire.close()
            return 0
        return (await wire.answer()).status

    found = Counter(await asyncio.gather(*(client(number) for number in range(200))))
    assert found == {200: 160, 0: 40}
    assert most == {"x": 1, "y": 3}
    await until(lambda: rig.metric("llmgw_gateway_in_flight", model="m") == 0, "the end")
    assert queued(rig) == 0


# the line by itself


def test_how_long_answers_take_of_late_is_what_counts() -> None:
    line: Line[str] = Line()
    assert line.pace is None
    for seconds in (10.0, 10.0, *[1.0] * 50):
        line.answered(seconds)
    assert line.pace is not None
    assert 1.0 < line.pace < 1.1


def test_the_key_with_the_fewest_running_comes_first_then_the_one_served_longest_ago() -> None:
    line: Line[str] = Line()
    for one in ("a1", "a2", "b1", "c1"):
        line.join(one[0], one)
    assert line.next() == "a1"  # of equals, who came first
    line.leave("a", "a1")
    line.took("a")
    assert line.next() == "b1"
    line.leave("b", "b1")
    line.took("b")
    line.gave("b")
    assert line.next() == "c1"  # b was served after it
    assert line.next({"c1"}.__contains__) == "a2"
    line.leave("c", "c1")
    line.leave("a", "a2")
    assert (line.next(), line.size) == (None, 0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from("aaaab"), min_size=1, max_size=60), st.integers(1, 5), st.randoms())
def test_no_key_that_waits_ever_has_two_fewer_running_than_one_that_is_served(
    arrivals: list[str], slots: int, random: object
) -> None:
    line: Line[tuple[str, int]] = Line()
    for number, key in enumerate(arrivals):
        line.join(key, (key, number))
    waiting, running, served = Counter(arrivals), Counter[str](), []
    while line.size or running.total():
        if line.size and running.total() < slots:
            one = line.next()
            assert one is not None
            line.leave(one[0], one)
            line.took(one[0])
            waiting[one[0]] -= 1
            running[one[0]] += 1
            served.append(one)
            assert all(running[one[0]] <= running[key] + 1 for key in waiting if waiting[key])
        else:
            key = random.choice(sorted(key for key in running if running[key]))  # type: ignore[attr-defined]
            line.gave(key)
            running[key] -= 1
    for key in set(arrivals):
        mine = [number for name, number in served if name == key]
        assert mine == sorted(mine)  # within a key, who came first
    line.tidy()
    assert line._shares == {}
