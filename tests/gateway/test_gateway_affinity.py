"""Requests that belong together go to one engine: which do, whose they are, and how little changes when engines do."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
from gateway_rig import Asked, Rig, model, post, say, until
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.catalog.spec import AffinitySpec, Common, ModelSpec
from llmgw.gateway.affinity import Affinity, seed
from llmgw.gateway.balance import UNLIMITED, near

KEYS = [seed(f"key {number}") for number in range(2000)]


@dataclass
class One:
    """An endpoint as the balancer sees it."""

    name: str
    outstanding: int = 0
    weight: float = 1.0
    slots: int = UNLIMITED
    tier: int = 0
    turn: int = 0

    @property
    def seed(self) -> int:
        return seed(self.name)


def owner(key: int, some: list[One], bound: float = 1.25) -> str:
    found, _ = near(key, some, bound)
    assert found is not None
    return found.name


# whose they are


def test_keys_spread_evenly_over_endpoints_and_by_weight() -> None:
    even = Counter(owner(key, [One("a"), One("b"), One("c"), One("d")]) for key in KEYS)
    assert all(420 <= even[name] <= 580 for name in "abcd"), even
    heavy = Counter(owner(key, [One("a", weight=3), One("b")]) for key in KEYS)
    assert 1400 <= heavy["a"] <= 1600, heavy


def test_an_endpoint_that_goes_moves_its_own_keys_alone_and_they_spread_over_the_others() -> None:
    before = {key: owner(key, [One(name) for name in "abcde"]) for key in KEYS}
    after = {key: owner(key, [One(name) for name in "abde"]) for key in KEYS}
    moved = [key for key in KEYS if before[key] != after[key]]
    assert {before[key] for key in moved} == {"c"}
    assert 320 <= len(moved) <= 480
    taken = Counter(after[key] for key in moved)
    assert min(taken.values()) > len(moved) / 4 * 0.75, taken


def test_an_endpoint_that_comes_takes_its_share_and_the_other_keys_stay() -> None:
    before = {key: owner(key, [One(name) for name in "abcd"]) for key in KEYS}
    after = {key: owner(key, [One(name) for name in "abcde"]) for key in KEYS}
    moved = [key for key in KEYS if before[key] != after[key]]
    assert {after[key] for key in moved} == {"e"}
    assert 320 <= len(moved) <= 480


def test_it_is_the_same_in_every_process() -> None:
    assert seed("key 1") == 1_348_906_291_706_183_779
    assert "".join(owner(key, [One(name) for name in "abc"]) for key in KEYS[:24]) == "bccbcabbcccaabcccbbbbaac"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 20), min_size=1, max_size=6), st.floats(1, 3))
def test_no_endpoint_gets_more_than_its_bounded_share_and_one_is_always_found(
    key: int, loads: list[int], bound: float
) -> None:
    some = [One(str(number), outstanding=load) for number, load in enumerate(loads)]
    found, first = near(key, some, bound)
    assert found is not None
    assert found.outstanding + 1 <= bound * (sum(loads) + 1) / len(loads) + 1
    assert first == (found.name == owner(key, [One(one.name) for one in some]))


def test_a_key_that_everybody_asks_for_is_carried_by_as_many_as_it_takes_and_evenly() -> None:
    some = [One(name) for name in "abcd"]
    for _ in range(400):
        found, _ = near(KEYS[0], some, 1.25)
        assert found is not None
        found.outstanding += 1
    assert max(one.outstanding for one in some) <= 126
    assert sum(one.outstanding for one in some) == 400


def test_one_without_a_free_slot_is_passed_over_and_none_is_made_up() -> None:
    some = [One("a", outstanding=2, slots=2), One("b", outstanding=1, slots=2)]
    assert {owner(key, some, 9.0) for key in KEYS[:40]} == {"b"}
    assert near(KEYS[0], [One("a", outstanding=2, slots=2)], 9.0) == (None, False)


# which belong together

SESSION = AffinitySpec(by=(Common.SESSION,))
PREFIX = AffinitySpec(by=(Common.PREFIX,), prefix=8)


def key(spec: AffinitySpec, body: Any, head: bytes = b"") -> int | None:
    return Affinity.of(spec).key(head, body if isinstance(body, bytes) else json.dumps(body).encode())


def test_a_session_is_named_by_a_header_or_by_what_the_apis_have_for_it() -> None:
    named = key(SESSION, {}, b"Accept: */*\r\nx-session-id:  s1 \r\nX-Other: 2\r\n")
    assert named is not None
    for body in ({"prompt_cache_key": "s1", "user": "u"}, {"user": "s1"}, {"metadata": {"user_id": "s1"}}):
        assert key(SESSION, body) == named
    assert key(SESSION, {"user": "s2"}) != named
    assert key(SESSION, {"user": "u"}, b"X-Session-Id: s1\r\n") == named
    other = replace(SESSION, header="X-Chat")
    assert key(other, {}, b"X-Session-Id: s2\r\nx-chat: s1\r\n") == named


@pytest.mark.parametrize(
    "body",
    [
        {}, {"user": ""}, {"user": 7}, {"user": None}, {"metadata": 1}, {"metadata": {"user_id": [1]}}, b"--form", b"",
        b"[1]", b'{"user": "\xff"}',
    ],
)  # fmt: skip
def test_what_names_no_session_belongs_to_none(body: Any) -> None:
    assert key(SESSION, body, b"X-Session-Id: \r\n") is None


def chat(*messages: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in messages], **more}


def test_conversations_that_begin_alike_belong_together_whatever_the_system_says_and_however_they_go_on() -> None:
    first = key(PREFIX, chat(("system", "be kind"), ("user", "What is this?")))
    assert first is not None
    alike = [
        chat(("user", "What is that?")),
        chat(("developer", "x"), ("user", "What is t"), ("assistant", "y"), ("user", "z"), temperature=0),
        chat(("user", [{"type": "text", "text": "What "}, {"type": "image_url"}, {"type": "text", "text": "is that"}])),
        {"input": "What is all this"},
        {"input": [{"role": "user", "content": "What is all this"}]},
        {"prompt": "What is all this"},
    ]
    assert {key(PREFIX, body) for body in alike} == {first}
    assert key(PREFIX, chat(("user", "Who is this?"))) != first
    assert key(replace(PREFIX, prefix=9), chat(("user", "What is this?"))) == key(
        replace(PREFIX, prefix=9), chat(("user", "What is those?"))
    )
    assert key(replace(PREFIX, prefix=13), chat(("user", "What is this?"))) != key(
        replace(PREFIX, prefix=13), chat(("user", "What is that?"))
    )


def test_one_that_only_the_system_speaks_in_begins_with_that() -> None:
    assert key(PREFIX, chat(("system", "be kind"))) == key(PREFIX, chat(("system", "be kind"), ("system", "and brief")))


def test_prompts_of_token_ids_and_of_several_texts_are_told_apart() -> None:
    some = [{"prompt": [1, 2, 3, 4]}, {"prompt": [5, 6, 7, 8]}, {"prompt": ["one", "two"]}, {"prompt": ["two", "one"]}]
    found = {key(PREFIX, body) for body in some}
    assert len(found) == 4
    assert None not in found


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["role", "content", "text", "user_id"]), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_whatever_a_body_holds_is_no_error(value: Any) -> None:
    for member in ("messages", "input", "prompt", "metadata", "user", "prompt_cache_key"):
        key(AffinitySpec(), {member: value})


def test_the_first_of_what_the_catalog_names_counts() -> None:
    both = AffinitySpec(by=(Common.SESSION, Common.PREFIX), prefix=8)
    told = chat(("user", "What is this?"), user="s1")
    assert key(both, told) == key(SESSION, told)
    assert key(both, chat(("user", "What is this?"))) == key(PREFIX, chat(("user", "What is this?")))
    assert key(replace(both, by=(Common.PREFIX, Common.SESSION)), told) == key(PREFIX, told)


# at a gateway


def sticky(**more: Any) -> ModelSpec:
    return replace(model("m"), affinity=AffinitySpec(**more))


async def several(rig: Rig, spec: ModelSpec, *ids: str, **more: Any) -> None:
    await rig.catalog(spec)
    for id in ids:
        await rig.endpoint("m", (await rig.engine(say({"by": id}))).url, id=id, **more)


async def by(rig: Rig, session: str) -> str:
    answer = await rig.post({"model": "m", "messages": []}, headers=f"X-Session-Id: {session}\r\n")
    return str(answer.json["by"])


async def test_a_session_stays_with_its_engine_and_sessions_spread(rig: Rig) -> None:
    await several(rig, sticky(), "a", "b", "c")
    first = {session: await by(rig, session) for session in map(str, range(24))}
    assert set(first.values()) == {"a", "b", "c"}
    assert {session: await by(rig, session) for session in reversed(first)} == first
    assert rig.metric("llmgw_gateway_affinity_kept_total", model="m") == 48
    assert rig.metric("llmgw_gateway_affinity_moved_total", model="m") == 0


async def test_the_session_header_reaches_the_engine_too(rig: Rig) -> None:
    engine = await rig.engine()
    await rig.catalog(sticky())
    for id in ("a", "b"):
        await rig.endpoint("m", engine.url, id=id)
    await rig.post({"model": "m"}, headers="X-Session-Id: s\r\n")
    assert engine.asked[0].headers["x-session-id"] == "s"


async def test_without_the_setting_requests_go_where_there_is_the_least_to_do(rig: Rig) -> None:
    await several(rig, model("m"), "a", "b")
    assert [await by(rig, "s") for _ in range(4)] in (["a", "b", "a", "b"], ["b", "a", "b", "a"])


async def test_an_engine_that_is_lost_leaves_its_sessions_to_the_others_and_theirs_stay(rig: Rig) -> None:
    await rig.catalog(sticky())
    engines = {id: await rig.engine(say({"by": id})) for id in "abc"}
    for id, engine in engines.items():
        await rig.endpoint("m", engine.url, id=id)
    first = {session: await by(rig, session) for session in map(str, range(24))}
    await engines["b"].stop()
    after = {session: await by(rig, session) for session in first}
    assert {session for session in first if first[session] != after[session]} == {
        session for session in first if first[session] == "b"
    }


async def test_a_session_with_more_than_its_share_is_helped_out_and_where_slots_are_taken_it_waits(rig: Rig) -> None:
    door = asyncio.Event()
    now = Counter[str]()

    async def behave(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        now[asked.headers["host"]] += 1
        await door.wait()
        await say({})(asked, reader, writer)

    await rig.catalog(sticky(bound=1.0))
    for id in ("a", "b"):
        await rig.endpoint("m", (await rig.engine(behave)).url, id=id, slots=2)
    wires = [await rig.wire() for _ in range(5)]
    for wire in wires:
        wire.send(post({"model": "m", "user": "one and the same"}))
    await until(lambda: now.total() == 4, "four of them")
    assert sorted(now.values()) == [2, 2]
    await until(lambda: rig.metric("llmgw_gateway_queued", model="m") == 1, "the fifth")
    assert rig.metric("llmgw_gateway_affinity_moved_total", model="m") == 2
    door.set()
    assert [(await wire.answer()).status for wire in wires] == [200] * 5
