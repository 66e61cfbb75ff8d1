"""API keys at a real gateway: who is let in, for which models, and how much of it."""

import asyncio

import pytest
from gateway_rig import DONE, STREAM_HEAD, Asked, Rig, chunked, echo, event, lazy, model, post, say, until
from hypothesis import given
from hypothesis import strategies as st

from llmgw.gateway.keys import Bucket, Caller, Credential, Keyring
from llmgw.gateway.openai import ApiError
from llmgw.gateway.tokens import Tally
from llmgw.store import codec, keys
from llmgw.store.tokens import digest, new_token
from llmgw.store.values import ApiKey
from llmgw.units import Wall

CHAT = {"model": "m", "messages": []}


async def key(rig: Rig, name: str = "ada", **more: object) -> str:
    id, token = new_token()
    value = ApiKey(id=id, name=name, digest=digest(token.encode()), created=Wall(1.0), by="x", **more)  # type: ignore[arg-type]
    await rig.store.put(keys.api_key(name), codec.encode(value))
    await rig.settle()
    return token


def bearer(token: str) -> str:
    return f"Authorization: Bearer {token}\r\n"


# -- who is let in


async def test_without_keys_everybody_is_answered_whatever_he_sends(rig: Rig) -> None:
    await rig.serving()
    assert (await rig.post(CHAT)).status == 200
    assert (await rig.post(CHAT, headers=bearer("sk-other"))).status == 200


async def test_with_a_key_nobody_is_answered_without_one(rig: Rig) -> None:
    engine = await rig.serving()
    token = await key(rig)
    none = await rig.post(CHAT)
    assert (none.status, none.code) == (401, "key_missing")
    assert none.json["error"]["type"] == "authentication_error"
    for wrong in ("x", token[:-1] + "x", token[:-1], "sk-llmgw-00000000-" + "A" * 43, "sk-llmgw-", "", "\xff"):
        answer = await rig.post(CHAT, headers=bearer(wrong))
        assert (answer.status, answer.code) == (401, "invalid_api_key"), wrong
    assert engine.asked == []
    assert (await rig.post(CHAT, headers=bearer(token))).status == 200
    assert (await rig.post(CHAT, headers=f"x-api-key: {token}\r\n")).status == 200
    assert (await rig.post(CHAT, headers=f"authorization: bearer  {token} \r\n")).status == 200


async def test_engines_never_see_a_clients_key(rig: Rig) -> None:
    engine = await rig.serving()
    token = await key(rig)
    await rig.post(CHAT, headers=bearer(token))
    await rig.post(CHAT, headers=f"x-api-key: {token}\r\n")
    for asked in engine.asked:
        assert token not in str(asked.headers)


async def test_reading_needs_a_key_too_and_health_and_preflights_do_not(rig: Rig) -> None:
    await rig.serving()
    token = await key(rig)
    for path in ("/v1/models", "/v1/models/m", "/nothing"):
        assert (await rig.ask(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())).status == 401, path
    assert (await rig.ask(f"GET /v1/models HTTP/1.1\r\nHost: a\r\n{bearer(token)}\r\n".encode())).status == 200
    assert (await rig.ask(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")).status == 200
    assert (await rig.ask(b"OPTIONS /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")).status == 204


async def test_a_revoked_and_an_expired_key_say_so_and_the_last_revoked_opens_nothing(rig: Rig) -> None:
    await rig.serving()
    revoked = await key(rig, revoked=Wall(2.0))
    answer = await rig.post(CHAT, headers=bearer(revoked))
    assert (answer.status, answer.code) == (401, "key_revoked")
    assert (await rig.post(CHAT)).code == "key_missing"
    expired = await key(rig, "bob", expires=Wall(2.0))
    assert (await rig.post(CHAT, headers=bearer(expired))).code == "key_expired"


async def test_a_key_that_cannot_be_read_opens_nothing(rig: Rig) -> None:
    await rig.serving()
    await rig.store.put(keys.api_key("ada"), b"\xff")
    await rig.settle()
    assert (await rig.post(CHAT)).code == "key_missing"


async def test_the_connection_of_one_who_forgot_his_key_stays_usable(rig: Rig) -> None:
    await rig.serving()
    token = await key(rig)
    wire = await rig.wire()
    wire.send(post(CHAT))
    assert (await wire.answer()).status == 401
    wire.send(post(CHAT, headers=bearer(token)))
    assert (await wire.answer()).status == 200


async def test_a_large_body_without_a_key_is_refused_before_it_is_sent(rig: Rig) -> None:
    await rig.serving()
    await key(rig)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"
    for more in (b"Content-Length: 9999999\r\n", b"Content-Length: 5\r\nExpect: 100-continue\r\n"):
        wire = await rig.wire()
        wire.send(head + more + b"\r\n")
        assert (await wire.answer()).status == 401
    wire = await rig.wire()
    wire.send(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(b"x" * 70_000))
    assert (await wire.answer()).status == 401


async def test_the_key_is_looked_at_before_the_operators_stop(rig: Rig) -> None:
    await rig.serving()
    token = await key(rig)
    await rig.stop_serving()
    assert (await rig.post(CHAT)).status == 401
    assert (await rig.post(CHAT, headers=bearer(token))).code == "system_stopped"


# -- for which models


async def test_a_key_for_some_models_neither_gets_nor_sees_others(rig: Rig) -> None:
    engine = await rig.engine()
    await rig.catalog(model("m", "mine"), model("other", "others"))
    await rig.endpoint("m", engine.url)
    await rig.endpoint("other", engine.url)
    token = await key(rig, models=("mine",))
    assert (await rig.post(CHAT, headers=bearer(token))).status == 200
    denied = await rig.post({"model": "others"}, headers=bearer(token))
    assert (denied.status, denied.code, denied.json["error"]["param"]) == (403, "model_not_allowed", "model")
    unknown = await rig.post({"model": "othr"}, headers=bearer(token))
    assert (unknown.status, unknown.code) == (404, "model_not_found")
    assert "others" not in unknown.json["error"]["message"]
    listed = await rig.ask(f"GET /v1/models HTTP/1.1\r\nHost: a\r\n{bearer(token)}\r\n".encode())
    assert [each["id"] for each in listed.json["data"]] == ["m"]
    one = await rig.ask(f"GET /v1/models/other HTTP/1.1\r\nHost: a\r\n{bearer(token)}\r\n".encode())
    assert one.status == 403


# -- how much


async def test_requests_a_minute_are_bounded_and_say_when_to_come_again(rig: Rig) -> None:
    await rig.serving()
    token, free = await key(rig, requests_per_minute=2), await key(rig, "bob")
    assert [(await rig.post(CHAT, headers=bearer(token))).status for _ in range(3)] == [200, 200, 429]
    limited = await rig.post(CHAT, headers=bearer(token))
    assert (limited.code, 28 <= int(limited.headers["retry-after"]) <= 30) == ("rate_limit_exceeded", True)
    assert "x-should-retry" not in limited.headers
    assert (await rig.post(CHAT, headers=bearer(free))).status == 200
    assert rig.metric("llmgw_gateway_key_limited_total", key="ada") == 2
    assert rig.metric("llmgw_gateway_key_requests_total", key="ada", status="2xx") == 2
    assert rig.metric("llmgw_gateway_key_requests_total", key="ada", status="4xx") == 2


async def test_a_changed_key_keeps_what_is_left_of_limits_that_did_not_change(rig: Rig) -> None:
    await rig.serving()
    id, token = new_token()
    value = ApiKey(id=id, name="ada", digest=digest(token.encode()), created=Wall(1.0), by="x", requests_per_minute=1)
    for models in ((), ("m",)):
        changed = codec.encode(ApiKey(**{**_fields(value), "models": models}))
        await rig.store.put(keys.api_key("ada"), changed)
        await rig.settle()
        status = (await rig.post(CHAT, headers=bearer(token))).status
        assert status == (429 if models else 200)


def _fields(key: ApiKey) -> dict[str, object]:
    return {name: getattr(key, name) for name in key.__slots__}


async def test_requests_under_way_are_bounded_and_those_that_end_make_room(rig: Rig) -> None:
    release = asyncio.Event()

    async def wait(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        await echo(asked, reader, writer)

    engine = await rig.serving(wait)
    token = await key(rig, concurrency=1)
    first = await rig.wire()
    first.send(post(CHAT, headers=bearer(token)))
    await until(lambda: engine.asked, "the first")
    assert (await rig.post(CHAT, headers=bearer(token))).code == "rate_limit_exceeded"
    assert rig.metric("llmgw_gateway_key_in_flight", key="ada") == 1
    release.set()
    assert (await first.answer()).status == 200
    assert (await rig.post(CHAT, headers=bearer(token))).status == 200


async def test_one_that_leaves_makes_room_too(rig: Rig) -> None:
    async def never(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    engine = await rig.serving(never)
    token = await key(rig, concurrency=1)
    wire = await rig.wire()
    wire.send(post(CHAT, headers=bearer(token)))
    await until(lambda: engine.asked, "the request")
    await wire.close()
    await until(lambda: rig.metric("llmgw_gateway_key_in_flight", key="ada") == 0, "the place is free")


async def test_tokens_a_minute_count_what_engines_say_and_are_overdrawn_once(rig: Rig) -> None:
    await rig.serving(say({"usage": {"prompt_tokens": 70, "completion_tokens": 50, "total_tokens": 120}}))
    token = await key(rig, tokens_per_minute=100)
    assert (await rig.post(CHAT, headers=bearer(token))).status == 200
    limited = await rig.post(CHAT, headers=bearer(token))
    assert (limited.status, 11 <= int(limited.headers["retry-after"]) <= 13) == (429, True)
    assert rig.metric("llmgw_gateway_key_tokens_total", key="ada", direction="in") == 70
    assert rig.metric("llmgw_gateway_tokens_out_total", model="m") == 50


async def test_the_first_token_of_a_stream_is_its_first_event_not_its_head_nor_a_comment(rig: Rig) -> None:
    go_on = asyncio.Event()

    async def tell(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        for part in (b": still reading\n\n", event("a"), event("b")):
            writer.write(chunked(part))
            await writer.drain()
            await go_on.wait()
        writer.write(DONE)

    await rig.serving(tell)
    token = await key(rig)
    wire = await rig.wire()
    wire.send(post({**CHAT, "stream": True}, headers=bearer(token)))
    await wire.reader.readuntil(b": still reading")
    names = ("time_to_first_byte", "time_to_first_token", "request_duration")

    def counts() -> list[list[float]]:
        return [
            [rig.metric(f"llmgw_gateway_{name}_seconds_count", model="m") for name in names],
            [rig.metric(f"llmgw_gateway_key_{name}_seconds_count", key="ada") for name in names],
        ]

    assert counts() == [[1, 0, 0]] * 2
    await asyncio.sleep(0.05)
    go_on.set()
    await wire.reader.readuntil(b"0\r\n\r\n")
    await until(lambda: counts() == [[1, 1, 1]] * 2, "complete")
    sums = [rig.metric(f"llmgw_gateway_key_{name}_seconds_sum", key="ada") for name in names]
    assert 0 <= sums[0] <= sums[1] - 0.04 <= sums[2] - 0.04, "uvloop counts in milliseconds"


async def test_an_answer_that_is_no_stream_has_no_first_token(rig: Rig) -> None:
    await rig.serving(say({}))
    assert (await rig.post(CHAT)).status == 200
    assert rig.metric("llmgw_gateway_time_to_first_token_seconds_count", model="m") == 0
    assert rig.metric("llmgw_gateway_time_to_first_byte_seconds_count", model="m") == 1


async def test_who_waits_and_who_left_is_counted_by_key(rig: Rig) -> None:
    await rig.catalog(lazy())
    token = await key(rig)

    def told(name: str) -> float:
        return rig.metric(f"llmgw_gateway_key_{name}", key="ada")

    waits, leaves = await rig.wire(), await rig.wire()
    for wire in (waits, leaves):
        wire.send(post(CHAT, headers=bearer(token)))
    await until(lambda: told("held") == 2, "two waiting")
    await leaves.close()
    await until(lambda: told("held") == 1, "one left")
    assert (told("cancelled_total"), told("in_flight"), told("queued")) == (1, 1, 0)
    await rig.endpoint("m", (await rig.engine()).url)
    assert (await waits.answer()).status == 200
    assert (told("held"), told("hold_seconds_count"), told("request_duration_seconds_count")) == (0, 2, 1)


async def test_streams_are_counted_by_their_last_word_or_by_their_events(rig: Rig) -> None:
    words = [event(word) for word in ("a", "b", "c")]

    async def tell(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        last = b'data: {"choices":[],"timings":{"cache_n":4,"prompt_n":6,"predicted_n":3}}\n\n'
        parts = [*words, last] if asked.json.get("told") else [*words, event("")]
        for part in parts:
            writer.write((STREAM_HEAD if part is words[0] else b"") + chunked(part))
            await writer.drain()
            await asyncio.sleep(0.001)
        writer.write(DONE)

    await rig.serving(tell)
    await rig.post({**CHAT, "told": True})
    assert (rig.metric("llmgw_gateway_tokens_in_total", model="m"), _out(rig)) == (10, 3)
    await rig.post(CHAT)
    assert (rig.metric("llmgw_gateway_tokens_in_total", model="m"), _out(rig)) == (10, 6)


def _out(rig: Rig) -> float:
    return rig.metric("llmgw_gateway_tokens_out_total", model="m")


# -- pure


@pytest.mark.parametrize(
    ("pieces", "stream", "expected"),
    [
        ([b'{"usage":{"prompt_tokens":5,"total_tokens":5},"data":[' + b"0," * 9000, b"0]}"], False, (5, 0)),
        ([b'{"type":"message_start","message":{"usage":{"input_tokens":7,"output_tokens":1}}}', b"x" * 20_000,
          b'{"type":"message_delta","usage":{"output_tokens":9}}', b'{"type":"message_stop"}'], True, (7, 9)),
        ([b'{"usage":{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":9},"completion_tokens":2}}'],
         False, (1, 2)),
        ([b'data: {"usage":null}\n\n', b'data: {"usa', b'ge":{"prompt_tokens":3,"completion_tokens":4}}\n\n',
          b"data: [DONE]\n\n"], True, (3, 4)),
        ([b'{"usage":{"prompt_tokens":"many"}}'], False, (0, 0)),
        ([b"\xff\x00" * 100], False, (0, 0)),
        ([], True, (0, 0)),
    ],
)  # fmt: skip
def test_what_an_answer_says_of_its_tokens_is_found(
    pieces: list[bytes], stream: bool, expected: tuple[int, int]
) -> None:
    tally = Tally()
    tally.begin(b"", stream=stream)
    for piece in pieces:
        tally.add(piece)
    assert tally.result() == expected


@given(st.lists(st.binary(max_size=200), max_size=8), st.booleans())
def test_no_answer_breaks_the_counting(pieces: list[bytes], stream: bool) -> None:
    tally = Tally()
    tally.begin(pieces[0] if pieces else b"", stream=stream)
    for piece in pieces[1:]:
        tally.add(piece)
    given_, made = tally.result()
    assert given_ >= 0
    assert made >= 0


@given(st.integers(1, 600), st.lists(st.tuples(st.floats(0, 30), st.integers(1, 5)), max_size=40))
def test_no_minute_sees_more_than_two_minutes_worth(per_minute: int, asks: list[tuple[float, int]]) -> None:
    bucket = Bucket(per_minute)
    now, taken = 0.0, []
    for gap, times in asks:
        now += gap
        for _ in range(times):
            if not bucket.until(1.0, now):
                bucket.take(1.0, now)
                taken.append(now)
    for start in taken:
        assert sum(start <= at < start + 60 for at in taken) <= 2 * per_minute


def test_a_clock_that_stands_still_gives_nothing_back() -> None:
    bucket = Bucket(60)
    bucket.take(59.0, 5.0)
    assert bucket.until(1.0, 5.0) == 0
    bucket.take(1.0, 5.0)
    assert bucket.until(1.0, 5.0) == pytest.approx(1.0)


def test_a_key_that_changes_while_its_requests_run_keeps_count_of_them() -> None:
    id, token = new_token()
    value = ApiKey(id=id, name="a", digest=digest(token.encode()), created=Wall(1.0), by="x", concurrency=1)
    ring = Keyring()
    ring.change([value])
    caller = ring.admit(Credential.of(token.encode()), lambda: Wall(5.0))
    assert isinstance(caller, Caller)
    assert caller.enter(0.0) is None
    ring.change([value])
    again = ring.admit(Credential.of(token.encode()), lambda: Wall(5.0))
    assert isinstance(again, Caller)
    assert isinstance(again.enter(1.0), ApiError)
    again.leave()
    assert again.enter(1.0) is None
