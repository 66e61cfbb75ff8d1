"""What client developers use: the OpenAI SDK, as it is."""

import asyncio
import time
from collections.abc import AsyncIterator

import openai
import pytest
from gateway_rig import DONE, STREAM_HEAD, Asked, Rig, chunked, event, model, say, until

from llmgw.plan import ModelState
from llmgw.units import Wall

CHAT = {
    "id": "c", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Paris."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}  # fmt: skip
ASK = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
async def client(rig: Rig) -> AsyncIterator[openai.AsyncOpenAI]:
    host, port = rig.gateway.address
    async with openai.AsyncOpenAI(base_url=f"http://{host}:{port}/v1", api_key="any", max_retries=0) as found:
        yield found


async def test_chat_without_streaming(rig: Rig, client: openai.AsyncOpenAI) -> None:
    engine = await rig.serving(say(CHAT), "default")
    answer = await client.chat.completions.create(model="default", messages=ASK)
    assert answer.choices[0].message.content == "Paris."
    assert engine.asked[0].json == {"messages": ASK, "model": "m"}
    assert [model.id for model in (await client.models.list()).data] == ["m"]
    assert (await client.models.retrieve("default")).id == "m"


async def test_chat_with_streaming(rig: Rig, client: openai.AsyncOpenAI) -> None:
    async def stream(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        for word in ("The", " capital", " is", " Paris"):
            writer.write(chunked(event(word)))
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(DONE)

    await rig.serving(stream)
    words = ""
    async with await client.chat.completions.create(model="m", messages=ASK, stream=True) as chunks:
        async for chunk in chunks:
            words += chunk.choices[0].delta.content or ""
    assert words == "The capital is Paris"


async def test_errors_are_the_sdks_own(rig: Rig, client: openai.AsyncOpenAI) -> None:
    await rig.serving()
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.chat.completions.create(model="n", messages=ASK)
    assert unknown.value.code == "model_not_found"
    assert unknown.value.request_id
    await rig.stop_serving()
    with pytest.raises(openai.InternalServerError) as stopped:
        await client.chat.completions.create(model="m", messages=ASK)
    assert stopped.value.code == "system_stopped"


async def test_the_sdk_tries_again_only_where_that_may_help(rig: Rig, client: openai.AsyncOpenAI) -> None:
    await rig.catalog(model("m"), model("n"), cold_start_timeout=0.05)
    retrying = client.with_options(max_retries=1)
    await rig.status("m", ModelState.FAILED, reason="it crashed")
    with pytest.raises(openai.InternalServerError) as failed:
        await retrying.chat.completions.create(model="m", messages=ASK)
    assert failed.value.code == "model_failed"
    assert rig.metric("llmgw_gateway_requests_total", model="m", status="5xx") == 1
    await rig.status("n", ModelState.LOADING, retry_at=Wall(time.time() + 0.9))  # Retry-After: 1 at first
    with pytest.raises(openai.InternalServerError) as loading:
        await retrying.chat.completions.create(model="n", messages=ASK)
    assert loading.value.code == "model_loading"
    assert rig.metric("llmgw_gateway_requests_total", model="n", status="5xx") == 2


async def test_a_request_cancelled_in_the_sdk_is_cancelled_in_the_engine(rig: Rig, client: openai.AsyncOpenAI) -> None:
    async def silent(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)

    engine = await rig.serving(silent)
    asking = asyncio.ensure_future(client.chat.completions.create(model="m", messages=ASK))
    await until(lambda: engine.asked, "the request arriving")
    asking.cancel()
    await until(lambda: engine.gone == 1, "the engine's connection closing")
    with pytest.raises(openai.APITimeoutError):
        await client.with_options(timeout=0.1).chat.completions.create(model="m", messages=ASK)
    await until(lambda: engine.gone == 2, "the other closing too")


async def test_an_engine_lost_mid_stream_raises_after_what_came(rig: Rig, client: openai.AsyncOpenAI) -> None:
    async def break_off(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunked(event("Par")) + chunked(b'data: {"id'))
        await writer.drain()
        writer.transport.abort()

    await rig.serving(break_off)
    words = []

    async def read() -> None:
        async with await client.chat.completions.create(model="m", messages=ASK, stream=True) as chunks:
            async for chunk in chunks:
                words.append(chunk.choices[0].delta.content)

    with pytest.raises(openai.APIError) as lost:
        await read()
    assert words == ["Par"]
    assert lost.value.code == "engine_lost"
