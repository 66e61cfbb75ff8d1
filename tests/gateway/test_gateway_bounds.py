"""What clients can make the gateway hold is bounded, whatever they send and however little they read."""

import asyncio

from gateway_rig import Asked, Rig, get, model, opened, post, until

from llmgw.gateway.client import Limits
from llmgw.gateway.openai import read_model, rewrite_model
from llmgw.units import MIB, Bytes


async def silent(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(1)


async def test_bodies_over_all_clients_are_bounded_and_the_place_is_given_back() -> None:
    async with opened(Limits(bodies=Bytes(3 * MIB))) as rig:
        await rig.serving(silent)
        body = {"model": "m", "x": "x" * MIB}
        held = [await rig.wire() for _ in range(2)]
        for wire in held:
            wire.send(post(body))
        await until(lambda: rig.metric("llmgw_gateway_in_flight", model="m") == 2, "two under way")
        for chunked in (False, True):
            wire = await rig.wire()
            data = post(body)
            if chunked:
                head, _, sent = data.partition(b"\r\n\r\n")
                head = head.rpartition(b"\r\n")[0] + b"\r\nTransfer-Encoding: chunked"
                data = b"%b\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (head, len(sent), sent)
            wire.send(data)
            answer = await wire.answer()
            assert (answer.status, answer.code) == (503, "overloaded")
            assert int(answer.headers["retry-after"]) > 0
        assert (await rig.post({"model": "n"})).code == "model_not_found", "small requests go on"
        partial = await rig.wire()
        partial.send(post({"model": "m", "x": "x" * (MIB // 2)})[: MIB // 3])
        await until(lambda: rig.metric("llmgw_gateway_body_bytes") > 2.2 * MIB, "half a body being counted")
        for wire in (*held, partial):
            await wire.close()
        await until(lambda: rig.metric("llmgw_gateway_body_bytes") == 0, "all being given back")


async def test_answers_are_not_piled_up_for_a_client_that_asks_on_without_reading(rig: Rig) -> None:
    await rig.catalog(*(model(f"m{number}", description="x" * 1000) for number in range(100)))
    wire = await rig.wire()
    wire.writer.transport.pause_reading()
    for _ in range(1000):
        wire.send(get("/v1/models"))
    (client,) = rig.gateway._connections
    await until(lambda: client._writing_paused, "the client's side being full")
    await asyncio.sleep(0.05)
    assert client._transport is not None
    assert client._transport.get_write_buffer_size() < MIB
    wire.writer.transport.resume_reading()
    for _ in range(1000):
        answer = await wire.answer()
        assert answer.status == 200
        assert len(answer.json["data"]) == 100


async def test_many_small_chunks_make_one_body(rig: Rig) -> None:
    engine = await rig.serving()
    body = b'{"model":"m","x":"' + b"yz" * 20_000 + b'"}'
    pieces = b"".join(b"2\r\n%b\r\n" % body[at : at + 2] for at in range(0, len(body), 2))
    head = b"POST /v1/completions HTTP/1.1\r\nHost: gw\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert (await rig.ask(head + pieces + b"0\r\n\r\n")).status == 200
    assert engine.asked[0].body == body


def test_a_key_of_megabytes_is_stepped_over_in_little_time_and_memory() -> None:
    body = b'{"' + b"\\n" * (4 * MIB) + b'":1,"model":"a"}'
    assert read_model(body) == "a"
    assert rewrite_model(body, "b") == body[:-3] + b'b"}'
